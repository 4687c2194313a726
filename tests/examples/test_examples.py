"""Every program in examples/ runs, prints what it promises, and leaves no files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.extras import require

from firetrail import Store
from firetrail.broker.background import BackgroundBroker

EXAMPLES = Path(__file__).parents[2] / "examples"

SAID = {
    "quickstart": ["2 new order 2", "o-1 is order 1"],
    "consumer": ["run 0: job 0, job 1, job 2", "run 1: job 3, job 4"],
    "event_loop": ["1000 messages on the disk", "and 1000 can be read"],
    "import_batches": ["20000 records stored", "newest of s-7: [19989, 19892, 19795]"],
}
"""Lines that the output of each example contains, except for the demo."""


def run(program: str, folder: Path, *arguments: str) -> str:
    """Run an example in a folder, with warnings as errors; return its output."""
    temporary = folder / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{program}.py", *arguments],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert not list(temporary.iterdir())
    return done.stdout


@pytest.mark.parametrize("program", SAID)
def test_an_example_prints_its_results(program: str, tmp_path: Path) -> None:
    printed = run(program, tmp_path)
    assert [text for text in SAID[program] if text not in printed] == []


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SAID, "demo", "replica", "shop"}


def test_the_client_example_gets_its_messages(tmp_path: Path) -> None:
    """The one of Firetrail's own; those of others are run by the interop tests."""
    with BackgroundBroker() as broker:
        printed = run("clients/hello_firetrail", tmp_path, broker.namesrv)
    assert sorted(printed.splitlines()) == [f"got hello {n}" for n in range(3)]


def test_the_synchronous_example_gets_its_messages(tmp_path: Path) -> None:
    with BackgroundBroker() as broker:
        *done, kept = run("clients/sync_script", tmp_path, broker.namesrv).splitlines()
    assert sorted(done) == [f"did job {n}" for n in range(3)]
    assert kept == "3 messages are still stored"


def test_the_shop_writes_as_many_messages_as_asked(tmp_path: Path) -> None:
    assert "data: a day of a shop" in run("shop", tmp_path, "data", "5000")
    with Store.open(tmp_path / "data") as store:
        assert {"orders", "payments", "%RETRY%billing"} <= set(store.topics())
        assert sum(store.max_offset(*queue) for queue in all_queues(store)) == 5000


def all_queues(store: Store) -> list[tuple[str, int]]:
    return [(topic, queue_id) for topic in store.topics() for queue_id in store.queues(topic)]


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
def test_a_replica_is_analysed_while_it_follows(tmp_path: Path) -> None:
    require("pyspark", "pyarrow")
    printed = run("replica", tmp_path)
    assert "the copy has all" in printed
    assert "orders                     75 messages" in printed
    assert "payments                   25 messages" in printed


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")  # beside the other tests that need a JVM, not at the same time
def test_the_demo_shows_every_part(tmp_path: Path) -> None:
    require("pyspark", "pyarrow")
    printed = run("demo", tmp_path, "demo", "20000")
    for text in (
        "orders/0 #2  o-0 shipped",
        "key o-0, newest first: shipped, paid, created",
        "killed by signal 9",
        "the last one acknowledged is 'entry",
        "$ firetrail query demo/store --topic orders --key o-0",
        "demo/store (closed): ok: ",
        "got hello 2",
        "$ firetrail pipeline rebuild demo/shop --into demo/rebuilt",
        "of 20000 messages",
        "demo/report.html: 20,000 messages",
        "(the whole demo took ",
    ):
        assert text in printed, printed
    assert (tmp_path / "demo" / "store" / "commitlog").is_dir()
    assert (tmp_path / "demo" / "rebuilt" / "consumequeue").is_dir()
    assert list((tmp_path / "demo" / "lake").rglob("*.parquet"))
    assert (tmp_path / "demo" / "report.html").read_text().endswith("</html>\n")


def test_demo_spares_a_folder_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "is not empty: name a new folder" in done.stderr
