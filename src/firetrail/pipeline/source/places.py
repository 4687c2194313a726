"""The locations of stores: local or mounted folders, or file systems that Arrow or fsspec opens.

A store with a URL (``s3://…``, ``hdfs://…``, ``zip://…``) is a series of archived log segments. It
is never written to, and needs no other files. Its segments are fetched in pieces: the mapping of a
file is memory that holds only the range that a task reads.
"""

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import count, pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from firetrail.errors import NotAStoreError, PipelineError
from firetrail.format.names import COMMIT_LOG, parse_segment_name
from firetrail.pipeline.workers import ancestors
from firetrail.store.log.view_log import ViewLog
from firetrail.system import SYSTEM, Files, System

FETCH_BYTES = 8 << 20
"""Bytes per read of a remote file."""


def is_remote(store: str) -> bool:
    """Whether a store is named by a URL other than ``file://``."""
    return "://" in store and not store.startswith("file://")


def absolute(store: str) -> str:
    """Return a name that is valid in every process; relative paths refer to the user's program."""
    return store if is_remote(store) else str(_driver_folder() / local_path(store))


def _driver_folder() -> Path:
    """Return the working directory of the user's program.

    Spark plans reads and writes in a separate process. That process keeps the working directory
    that the program had when it started Spark, but the program may have changed its own since. If
    Python started the JVM, only the planner has the variable below in its environment.
    """
    if "_PYSPARK_DRIVER_CONN_INFO_PATH" in os.environ:
        for process, parent in pairwise(ancestors()):
            try:
                if Path(f"/proc/{process}/comm").read_text().strip() == "java":
                    return Path(f"/proc/{parent}/cwd").readlink()
            except OSError:
                break
    return Path.cwd()


def local_path(store: str) -> Path:
    """Return the folder of a store that is not remote."""
    return Path(unquote(urlsplit(store).path)) if store.startswith("file://") else Path(store)


class RemoteFiles(Files):
    """A remote file system behind the store's interface, for reading one range of the log.

    ``start`` and ``end`` are physical offsets; bytes of segments outside that range are zeros.
    """

    def __init__(self, system: fs.FileSystem, start: int, end: int) -> None:
        self._system = system
        self._range = start, end
        self._opened: dict[int, Path] = {}
        self._numbers = count(1)

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted; none if the folder does not exist."""
        listed = self._system.get_file_info(fs.FileSelector(str(path), allow_not_found=True))
        return sorted(info.base_name for info in listed)

    def size(self, path: Path) -> int:
        """Return the length of a file in bytes."""
        info = self._system.get_file_info(str(path))
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(f"{path} no longer exists")
        return int(info.size)

    def open(self, path: Path, *, writable: bool, create: bool = False) -> int:
        """Return a number that identifies the file, in place of a descriptor."""
        if writable or create:
            raise PermissionError(f"{path}: stores in remote file systems are read-only")
        number = next(self._numbers)
        self._opened[number] = path
        return number

    def close(self, descriptor: int) -> None:
        """Release the number."""
        del self._opened[descriptor]

    def _filled(self, path: Path, size: int) -> tuple[int, int]:
        """Return the part of a segment's file that is in the range."""
        base = parse_segment_name(path.name) or 0
        start, end = self._range
        return min(max(start - base, 0), size), min(max(end - base, 0), size)

    def map(self, descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
        """Return memory with the fetched part of the file; the rest uses no memory."""
        path = self._opened[descriptor]
        mapping = mmap.mmap(-1, size)
        at, end = self._filled(path, size)
        if at < end:
            with memoryview(mapping) as view, self._system.open_input_file(str(path)) as file:
                while at < end:
                    part = file.read_at(min(FETCH_BYTES, end - at), at)
                    if not part:
                        raise OSError(f"{path} ends at {at}, although it was {size} bytes long")
                    view[at : at + len(part)] = part
                    at += len(part)
        return mapping

    def read_at(self, descriptor: int, offset: int, size: int) -> bytes:
        """Return bytes of the file, as its mapping would have them."""
        path = self._opened[descriptor]
        start, stop = self._filled(path, offset + size)
        start = max(start, offset)
        if start >= stop:
            return bytes(size)
        with self._system.open_input_file(str(path)) as file:
            content: bytes = file.read_at(stop - start, start)
        return content.rjust(stop - offset, b"\0").ljust(size, b"\0")

    def data_ranges(self, descriptor: int, offset: int, end: int) -> Iterable[tuple[int, int]]:
        """Yield the part of a range that is fetched."""
        start, stop = self._filled(self._opened[descriptor], end)
        if max(start, offset) < min(stop, end):
            yield max(start, offset), min(stop, end)


def file_system(store: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, Arrow's own or one of fsspec, and the path in it."""
    try:
        system, path = fs.FileSystem.from_uri(store)
        return system, path
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # Arrow does not know the scheme
    scheme = store.split("://")[0]
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise PipelineError(
            f"{store}: Arrow cannot open {scheme}://, but fsspec may: pip install fsspec"
        ) from None
    try:
        system, path = url_to_fs(store)
    except (ValueError, ImportError) as error:
        raise PipelineError(f"{store}: no file system for {scheme}://: {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path


@contextmanager
def open_log(store: str, start: int, end: int) -> Iterator[ViewLog]:
    """Open the log of a store to read a range of it."""
    if is_remote(store):
        system, path = file_system(store)
        files = RemoteFiles(system, start, end)
        log = ViewLog(System(files=files), Path(path), is_local=False)
    else:
        log = ViewLog(SYSTEM, local_path(store))
    with closing(log):
        log.load()
        if not log.segments and is_remote(store):
            raise NotAStoreError(
                f"{store}: has no log segments in {COMMIT_LOG}/; give the URL of the folder that "
                f"contains {COMMIT_LOG}/"
            )
        yield log
