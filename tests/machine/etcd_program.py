"""The program etcd, which the tests of failover run: ``python -m tests.machine.etcd_program``
fetches it.

``make setup`` does so once, if the machine has no etcd. Debian's package is unpacked into
``build/``; nothing is installed, and root is not needed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FETCHED = Path(__file__).parents[2] / "build" / "etcd"
PACKAGE = "etcd-server"
PROGRAM = "FIRETRAIL_ETCD"
"""The environment variable that names another program."""
MISSING = f"there is no etcd: run make setup, install {PACKAGE}, or set {PROGRAM}"


class FetchError(Exception):
    """The package cannot be had on this machine."""


def find_etcd() -> str | None:
    """Return the path of the program; None if there is none."""
    found = os.environ.get(PROGRAM) or shutil.which("etcd")
    return found or (str(FETCHED) if FETCHED.exists() else None)


def fetch_etcd() -> None:
    """Download and unpack the package.

    On a new machine apt knows no packages yet, or only old ones, and only root may update what it
    knows. So a second attempt downloads the lists of packages into a folder of its own.
    """
    if not shutil.which("apt-get"):
        raise FetchError(f"there is no apt-get; install etcd, or set {PROGRAM} to its path")
    FETCHED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FETCHED.parent) as name:
        folder = Path(name)
        _download(folder)
        (package,) = folder.glob(f"{PACKAGE}_*.deb")
        _run(folder, "dpkg-deb", "--extract", str(package), "unpacked")
        (folder / "unpacked" / "usr" / "bin" / "etcd").replace(FETCHED)


def _download(folder: Path) -> None:
    try:
        _run(folder, "apt-get", "download", PACKAGE)
    except FetchError:
        lists, cache = folder / "lists", folder / "cache"
        (lists / "partial").mkdir(parents=True)
        own = ("-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}")
        _run(folder, "apt-get", *own, "update")
        _run(folder, "apt-get", *own, "download", PACKAGE)


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise FetchError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    try:
        fetch_etcd()
    except FetchError as error:
        sys.exit(f"failed; tests that need etcd will be skipped: {error}")
