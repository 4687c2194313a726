"""Which worker a task runs on, for errors that must name it, and what it must share with others.

The driver, and every task wherever it runs, must see the same files under the same paths.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from firetrail.errors import NotSharedError
from firetrail.system import Files, System

_GENERATIONS = 4
"""A task's process is forked by a daemon, which the JVM of the executor started."""
_REMEDY = (
    "the driver and all workers must have the same folder at this path: mount it there, or keep "
    "the worker out of the job"
)


def ancestors() -> Iterator[int]:
    """The process ids of the parent, of its parent and so on, as far as they matter here."""
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
    """The host, and the executor's id where this process belongs to one: ``node-7 (executor 3)``.

    Spark does not tell a Python task its executor, but the command line of the executor has it.
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
    """The error for something that this worker does not see as the driver does."""
    return NotSharedError(f"{path}: {detail} on the worker {worker_name()}; {_REMEDY}")


def make_shared(parent: Path, name: str) -> Path:
    """A folder for files that tasks leave for others; its name is unique, so tasks know it."""
    folder = parent / f"{name}-{uuid4().hex}"
    System().files.make_folder(folder)
    return folder


def check_shared(folder: str | Path) -> None:
    """Raise NotSharedError unless this worker sees the folder that the driver has made."""
    if not Path(folder).is_dir():
        raise not_shared(folder, "the driver has made this folder, but it is not there")


def check_arrived(path: str | Path, size: int, worker: str) -> None:
    """Raise NotSharedError unless the driver sees a file that a task on ``worker`` has written."""
    files, path = System().files, Path(path)
    found = _size(files, path)
    if found != size:
        files.names(path.parent)  # then a network file system looks anew
        found = _size(files, path)
    if found != size:
        seen = "no such file" if found is None else f"{found} bytes"
        raise NotSharedError(
            f"{path}: the worker {worker} has written {size} bytes, but the driver sees {seen}, so "
            f"nothing was committed; {_REMEDY}"
        )


def _size(files: Files, path: Path) -> int | None:
    try:
        return files.size(path)
    except FileNotFoundError:
        return None
