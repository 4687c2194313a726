"""The files of this clone, as git lists them. The module needs nothing but the standard library."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
IS_CLONE = (ROOT / ".git").exists()


@cache
def files() -> tuple[Path, ...]:
    """Return the files that are, or are about to be, under version control."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = (ROOT / name for name in listed.split("\0") if name)
    return tuple(sorted(path for path in found if path.is_file()))


def pages() -> list[Path]:
    """Return the Markdown pages among them."""
    return [path for path in files() if path.suffix == ".md"]
