"""The pages about Spark: their code runs and prints what they say, in a separate session."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.clone import ROOT
from tests.docs.pages import PAGES, blocks, run_page, uses_spark

import firetrail.pipeline
from firetrail.cli import main as cli
from firetrail.pipeline.source.schema import NAMES
from firetrail.pipeline.source.source_options import OPTIONS

GUIDE = [
    ROOT / "docs/guide" / f"{name}.md"
    for name in (
        *("spark", "spark-streams", "spark-brokers", "spark-jobs", "archive", "tables"),
        "cdc",
        "replication",
    )
]
"""The pages in the order in which they are read and run: later ones use the store of the first."""


def run_command(command: str) -> tuple[int, str]:
    """Run a command in this process, so that it uses its session."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = cli.main(shlex.split(command)[1:])
    return code, printed.getvalue()


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
def test_code_of_the_guide_prints_what_its_pages_say(tmp_path: Path) -> None:
    """The process is separate because relative paths refer to the folder where Spark started."""
    done = subprocess.run(
        [sys.executable, __file__],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_page_that_uses_spark_is_run() -> None:
    assert not {page for page in PAGES if uses_spark(page)} - set(GUIDE)


def test_the_guide_covers_names_columns_options_and_jobs() -> None:
    text = guide()
    words = [*firetrail.pipeline.__all__, *NAMES, *(option.name for option in OPTIONS)]
    names = [path.stem.removeprefix("pipeline_").replace("_", "-") for path in commands()]
    jobs = [f"`{name} " for name in names]
    assert not [word for word in words if word not in text]
    assert not [job for job in jobs if job not in text]


def test_the_readme_s_code_is_the_guide_s() -> None:
    """So the README's code is run, too."""
    (example,) = (block.text for block in blocks(ROOT / "README.md") if block.language == "py")
    assert example in guide()


def guide() -> str:
    return "".join(page.read_text(encoding="utf-8") for page in GUIDE)


def commands() -> list[Path]:
    return sorted((ROOT / "src/firetrail/cli/spark_jobs").glob("pipeline_*.py"))


if __name__ == "__main__":
    for page in GUIDE:
        run_page(page, run_command)
