"""Compiled modules in an archive are what Python imports, without a look at the source."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from tests.machine.spark_zips import add_compiled


def test_an_archive_of_sources_gets_the_compiled_modules_once(tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    with ZipFile(archive, "w") as opened:
        opened.writestr("pack/__init__.py", "")
        opened.writestr("pack/one.py", "NUMBER = 1\n")
    assert add_compiled(archive) == 2
    assert add_compiled(archive) == 0
    script = "import pack.one; print(pack.one.NUMBER, pack.one.__cached__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    number, cached = done.stdout.split()
    assert number == "1"
    assert cached.endswith("one.pyc")
