"""A folder of a lake, in a file system that Arrow or fsspec opens.

It is assumed that such a file system makes a file visible and durable on close, and has neither
locks nor conditional writes. :mod:`firetrail.pipeline.lakes.local_folder` has both syncs
and a lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs as filesystems
from pyarrow.parquet import ParquetFile

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.hashed_file import REMEDY, HashedFile
from firetrail.pipeline.source.places import file_system
from firetrail.pipeline.workers import naming_file


class Stored(NamedTuple):
    """A file that :meth:`LakeFolder.exchange` can replace."""

    content: bytes
    tag: str
    """Identifies this version of the file; empty in file systems without conditional writes."""


class LakeFolder:
    """Reads and writes files by their path relative to the folder."""

    is_local = False
    has_conditional_writes = False
    """Whether :meth:`exchange` keeps two jobs apart, so that nothing is locked."""
    hadoop_opens = True
    """Whether Spark's own readers can be given its URLs, with the jars that Spark has for them."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._filesystem, root = file_system(place)
        self._root = root.rstrip("/")

    def __reduce__(self) -> tuple[type[LakeFolder], tuple[str]]:
        return type(self), (self.place,)

    @property
    def filesystem(self) -> filesystems.FileSystem:
        """Arrow's file system."""
        return self._filesystem

    def path(self, name: str) -> str:
        """Return the path of a file within :attr:`filesystem`."""
        return f"{self._root}/{name}"

    def show(self, name: str) -> str:
        """Return the name of a file for messages."""
        return f"{self.place.rstrip('/')}/{name}"

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Return a context that explains errors of Arrow about a file."""
        return _naming_damage(self.show(name))

    @contextmanager
    def parquet(self, name: str) -> Iterator[Any]:
        """Open a Parquet file, whose damage is explained."""
        with self.reading(name), self.filesystem.open_input_file(self.path(name)) as file:
            yield ParquetFile(file)

    def storage_options(self) -> dict[str, str] | None:
        """Return what delta-rs needs to open the folder; None if it needs no more than its URL."""
        return None

    # -- small files --------------------------------------------------------------------------

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        try:
            with self.filesystem.open_input_file(self.path(name)) as file:
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file atomically: readers, and a crash, leave the old or the new content."""
        with naming_file(self.show(name), REMEDY), self._open_new(name) as file:
            file.write(content)

    def publish(self, name: str, content: bytes) -> None:
        """Replace a file atomically that programs of other users may read, too."""
        self.replace(name, content)

    def add(self, name: str, content: bytes) -> None:
        """Create such a file atomically; raise LakeConflictError if there is one.

        Without conditional writes, only a lock keeps two jobs from doing so at the same time.
        """
        self.exchange(name, None, content)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        try:
            self.filesystem.delete_file(self.path(name))
        except FileNotFoundError:
            return

    # -- the manifest --------------------------------------------------------------------------

    def stored(self, name: str) -> Stored | None:
        """Return a file that :meth:`exchange` is to replace; None if it does not exist."""
        content = self.read(name)
        return None if content is None else Stored(content, "")

    def exchange(self, name: str, old: Stored | None, content: bytes) -> None:
        """Replace a version of a file; with None, create the file.

        Without conditional writes, only a lock keeps two jobs from doing so at the same time.
        """
        self.replace(name, content)

    # -- data files ---------------------------------------------------------------------------

    def new_name(self, folder: str, stem: str, token: str, suffix: str) -> str:
        """Return a name for a data file of an attempt at a task.

        Attempts at a task may overlap, if Spark speculates or takes a worker for dead. Here a file
        of an attempt that does not count would be seen by readers of the folder, so all attempts
        have the same names, and replace a whole file by the same bytes.

        Args:
            folder: The folder in the lake.
            stem: The name that distinguishes the files of a job.
            token: The token of the job.
            suffix: The end of the name.
        """
        return f"{folder}/{stem}-{token}{suffix}"

    def create(self, name: str) -> HashedFile:
        """Create a data file, which :meth:`reveal` gives its name.

        Object stores show a file when it is complete, so there it has its name at once.
        """
        with naming_file(self.show(name), REMEDY):
            stream = self._open_new(name)
        return HashedFile(stream, self.show(name))

    def reveal(self, names: Iterable[str]) -> None:
        """Give complete data files their names, durably; those that have them keep them.

        Raises:
            LakeError: A file does not exist.
        """

    def names(self, changed_before_ms: float = math.inf) -> list[str]:
        """Return every file in the folder and below, published or not, complete or not.

        Args:
            changed_before_ms: Leave out files that were changed at this time or later. The default
                is infinity.
        """
        selector = filesystems.FileSelector(self._root, recursive=True, allow_not_found=True)
        found = self.filesystem.get_file_info(selector)
        return sorted(
            info.path[len(self._root) :].lstrip("/")
            for info in found
            if info.is_file and (info.mtime_ns or 0) / 1_000_000 < changed_before_ms
        )

    def top_names(self) -> set[str]:
        """Return the names of the files and folders directly in the folder."""
        selector = filesystems.FileSelector(self._root, allow_not_found=True)
        return {info.base_name for info in self.filesystem.get_file_info(selector)}

    def sync_folders(self, names: Iterable[str]) -> None:
        """Sync the folders of new files, so that their names are durable."""

    def _open_new(self, name: str) -> Any:
        path = self.path(name)
        self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        return self.filesystem.open_output_stream(path)

    # -- the jobs that use it -----------------------------------------------------------------

    @contextmanager
    def locked(self, name: str, token: str) -> Iterator[None]:
        """Keep other jobs out, as far as the file system can.

        Args:
            name: The lock file.
            token: The token of the job, by which tasks recognize the folder.
        """
        yield

    def check_shared(self, name: str, token: str) -> None:
        """Raise NotSharedError unless this worker sees the folder that a job has locked."""

    def check_arrived(self, name: str, size: int, worker: str) -> None:
        """Raise NotSharedError unless the driver sees a data file that a task has written."""


@contextmanager
def _naming_damage(file: str) -> Iterator[None]:
    """Raise LakeError, which names a file, if Arrow cannot read what it has."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the file system, and named
            raise
        raise LakeError(
            f"{file}: cannot be read ({error}); restore the file from a backup"
        ) from error


def attempt_name() -> str:
    """Return a name that no other attempt at a task has."""
    return uuid4().hex[:8]
