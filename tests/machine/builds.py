"""Source trees to build distributions from, and the commands that build them."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILD_FILES = {"LICENSE", "MANIFEST.in", "NOTICE", "README.md", "pyproject.toml", "setup.py"}


def copy_source(folder: Path) -> Path:
    """Copy the files that a build reads, without extension modules that were built in place."""
    copy = folder / "source"
    copy.mkdir()
    for name in BUILD_FILES | {"Makefile"}:
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    return copy


def run(command: Sequence[str | Path], **options: Any) -> str:
    """Run a command that must succeed; return its output."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
