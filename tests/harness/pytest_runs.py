"""Runs of pytest inside tests, with the settings and hooks of this repository."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 300.0


def run_tests(folder: Path, source: str, *options: str) -> str:
    """Run the tests in ``source``, some of which fail; return what pytest prints."""
    file = folder / "test_inner.py"
    file.write_text(source)
    plugins = ["-p", "no:cacheprovider", "-p", "tests.conftest"]
    settings = ["-c", str(REPOSITORY / "pyproject.toml"), f"--rootdir={folder}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *settings, *options, str(file)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return done.stdout + done.stderr
