"""The worker that a task runs on, by name, and the files that it shares with the driver.

The driver and every task must see the same files under the same paths.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from firetrail.errors import DiskFullError, NotSharedError
from firetrail.system import NO_SPACE, SYSTEM, Files

_GENERATIONS = 4
"""Parents to look at: a task's process is forked by a daemon that the executor's JVM started."""
_REMEDY = (
    "the driver and all workers must have the same folder at this path: mount it there, or keep "
    "the worker out of the job"
)


def ancestors() -> Iterator[int]:
    """Yield the process ids of the parent, its parent and so on, up to ``_GENERATIONS``."""
    process = os.getppid()
    for _ in range(_GENERATIONS):
        if process <= 0:
            return
        yield process
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return
        process = int(stat.rpartition(")")[2].split()[1])


def worker_name() -> str:
    """Return the host, with the id of the executor if there is one: ``node-7 (executor 3)``.

    Spark does not pass the id to a Python task, but it is in the command line of the executor.
    """
    host = socket.gethostname()
    for process in ancestors():
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        except OSError:
            break
        if b"--executor-id" in command[:-1]:
            executor = command[command.index(b"--executor-id") + 1]
            return f"{host} (executor {executor.decode()})"
    return host


def not_shared(path: str | Path, detail: str) -> NotSharedError:
    """Return the error for a path that this worker does not see as the driver does."""
    return NotSharedError(f"{path}: {detail} on the worker {worker_name()}; {_REMEDY}")


def make_shared(parent: Path, name: str) -> Path:
    """Create a folder for files that tasks exchange; its unique name lets tasks recognize it."""
    folder = parent / f"{name}-{uuid4().hex}"
    SYSTEM.files.make_folder(folder)
    return folder


def check_shared(folder: str | Path) -> None:
    """Raise NotSharedError unless this worker sees the folder that the driver created."""
    if not Path(folder).is_dir():
        raise not_shared(folder, "the driver created this folder, but it does not exist")


def check_arrived(path: str | Path, size: int, worker: str) -> None:
    """Raise NotSharedError unless the driver sees a file that a task on ``worker`` wrote."""
    files, path = SYSTEM.files, Path(path)
    found = _size(files, path)
    if found != size:
        files.names(path.parent)  # makes a network file system refresh its cache
        found = _size(files, path)
    if found != size:
        seen = "no such file" if found is None else f"{found} bytes"
        raise NotSharedError(
            f"{path}: the worker {worker} wrote {size} bytes, but the driver sees {seen}, so "
            f"nothing was committed; {_REMEDY}"
        )


@contextmanager
def naming_file(path: str | Path, remedy: str) -> Iterator[None]:
    """Name the file in an error about writing it, which Arrow does not.

    Args:
        path: The file.
        remedy: The remedy if the disk is full, after "the disk is full; ".

    Raises:
        DiskFullError: The disk or the quota has no space left.
        OSError: Any other error of the file system, with the path.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFullError(f"{path}: the disk is full; {remedy}") from error
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _size(files: Files, path: Path) -> int | None:
    try:
        return files.size(path)
    except FileNotFoundError:
        return None
