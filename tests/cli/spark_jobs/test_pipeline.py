"""The group ``firetrail pipeline``: its help, and life without the extra ``spark``."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.stores import CLEAN, GOLDEN

from firetrail.cli import main as cli
from firetrail.cli.subcommand import ExitCode

JOBS = ["archive", "audit", "rebuild", "replay", "report", "restore", "sql"]
WITHOUT = """
import sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = None
from firetrail.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
LIGHT = """
import sys
from firetrail.cli.main import build_parser
build_parser()
heavy = {"pyspark", "pyarrow", "py4j", "firetrail.pipeline"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )


def test_no_job_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pipeline"]) == ExitCode.USAGE
    shown = capsys.readouterr().err
    for job in JOBS:
        assert f"\n    {job} " in shown


@pytest.mark.parametrize("job", JOBS)
def test_every_job_explains_itself(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["pipeline", job, "--help"])
    assert exit.value.code == ExitCode.OK
    shown = capsys.readouterr().out
    for text in ("examples:", "--master URL", "--conf KEY=VALUE"):
        assert text in shown


def test_an_error_names_the_missing_extra() -> None:
    store = GOLDEN / CLEAN[0]
    done = run(WITHOUT, "pipeline", "sql", store, "select 1")
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == (
        "firetrail: error: Firetrail's pipeline needs pyspark and pyarrow: "
        "pip install 'firetrail[spark]'\n"
    )
    assert run(WITHOUT, "info", store).returncode == ExitCode.OK


def test_other_commands_do_not_load_spark() -> None:
    assert run(LIGHT).stderr == ""
