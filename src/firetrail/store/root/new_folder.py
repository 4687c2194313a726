"""New folders that are complete or do not exist, and that one process at a time fills."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firetrail.errors import StoreError
from firetrail.format.names import LOCK
from firetrail.system import Files


@contextmanager
def built(files: Files, target: Path) -> Iterator[Path]:
    """Yield a folder to build in, which becomes ``target`` when the block ends without an error.

    It is next to ``target`` under another name; leftovers of a killed build are removed from it.
    """
    if target.exists() and (not target.is_dir() or files.names(target)):
        raise StoreError(f"{target}: not an empty folder; choose a new or empty one")
    building = target.with_name(f"{target.name}.building")
    with claimed(files, building, target, "creating"):
        yield building
        files.remove(building / LOCK)
        files.rename(building, target)  # an empty folder is replaced


@contextmanager
def claimed(files: Files, folder: Path, subject: Path, doing: str) -> Iterator[None]:
    """Reserve a folder for this process: it is empty at first, and removed at the end.

    Raises StoreError if another process has it; the error says that it is ``doing`` something to
    the ``subject``.
    """
    files.make_folder(folder)
    lock = files.open(folder / LOCK, writable=True, create=True)
    try:
        if not files.lock(lock):
            owner = files.lock_owner(lock)
            raise StoreError(f"{subject}: process {owner} is {doing} it; wait for it, or stop it")
        try:
            _clear(files, folder)
            yield
        finally:
            files.remove_tree(folder, ignore_errors=True)
    finally:
        files.close(lock)


def _clear(files: Files, folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            files.remove_tree(path)
        elif path.name != LOCK:
            files.discard(path)
