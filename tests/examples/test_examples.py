"""Every program in examples/ runs, says what it promises, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SAID = {
    "quickstart": ["2 new order 2", "o-1 is order 1"],
    "consumer": ["run 0: job 0, job 1, job 2", "run 1: job 3, job 4"],
    "event_loop": ["1000 messages on the disk", "and 1000 can be read"],
    "import_batches": ["20000 records stored", "newest of s-7: [19989, 19892, 19795]"],
}
"""What each example's output contains, the demo's apart."""


def run(program: str, folder: Path, *arguments: str) -> str:
    """Run an example in a folder, with warnings as errors; what it printed."""
    temporary = folder / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{program}.py", *arguments],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert not list(temporary.iterdir())
    return done.stdout


@pytest.mark.parametrize("program", SAID)
def test_example(program: str, tmp_path: Path) -> None:
    printed = run(program, tmp_path)
    assert [text for text in SAID[program] if text not in printed] == []


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SAID, "demo"}


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    printed = run("demo", tmp_path, "store")
    for text in (
        "orders/0 #2  o-0 shipped",
        "key o-0, newest first: shipped, paid, created",
        "killed by signal 9",
        "the last one acknowledged is 'entry",
        "$ firetrail query store --topic orders --key o-0",
        "store (closed): ok: ",
        "Done in",
    ):
        assert text in printed, printed
    assert (tmp_path / "store" / "commitlog").is_dir()


def test_demo_spares_a_folder_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "is not empty: name a new folder" in done.stderr
