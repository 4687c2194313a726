"""The suite without optional packages: modules that need one are skipped, and none fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.extras import EXTRAS, missing_extra, reason

from firetrail.errors import MissingExtraError

ROOT = Path(__file__).parent.parent

COLLECT = f"""
import sys
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec

class WithoutExtras:
    @classmethod
    def find_spec(cls, name, *rest):
        return None if name.partition(".")[0] in {sorted(EXTRAS)} else find_spec(name, *rest)

PathFinder.find_spec = WithoutExtras.find_spec  # pytest looks for modules with this function too
import pytest
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-rs", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_the_suite_is_collected_without_extras() -> None:
    folders = ["tests/client", "tests/docs", "tests/examples", "tests/pipeline", "tests/property"]
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, *folders],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert reason("pyspark") in done.stdout


def test_other_failed_imports_are_errors() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'x'", name="x")) is None
    assert missing_extra(ImportError("cannot import name")) is None


def test_a_reason_names_the_extra() -> None:
    error = RuntimeError()
    error.__cause__ = ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.parquet")
    assert missing_extra(error) == "pyarrow is not installed: it comes with the extra spark"
    assert missing_extra(MissingExtraError("install it")) == "install it"
