"""The folder of a lake, on whatever file system it is.

A path is a local folder; an address (``s3://bucket/lake``) is opened by pyarrow, or by fsspec for
what pyarrow does not know. On a local lake files are synced and a lock keeps two jobs apart; object
stores make a file durable when it is closed, and have no locks: there only one job may write a
lake at a time, and the one that comes second fails if it notices.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyarrow import fs as filesystems

from firetrail.errors import LakeError
from firetrail.pipeline.jobs.archive.manifest import (
    FOLDER,
    MANIFEST,
    PENDING,
    DataFile,
    LakeLayout,
    Manifest,
    decode_manifest,
)
from firetrail.pipeline.source.places import file_system
from firetrail.pipeline.workers import check_arrived, not_shared
from firetrail.system import Files

SUFFIX = ".parquet"
FOLDERS = ("topic=", "day=")
"""How the folders of data files begin."""
LOCK = "lock"


class Lake:
    """Reads and writes files by their path relative to the lake."""

    def __init__(self, place: str) -> None:
        if "://" in place:
            self.place = place
            self._fs, self._root = file_system(place)
        else:
            self.place = self._root = str(Path(place).absolute())
            self._fs = filesystems.LocalFileSystem()
        self.is_local = isinstance(self._fs, filesystems.LocalFileSystem)
        self._root = self._root.rstrip("/")

    def __reduce__(self) -> tuple[type[Lake], tuple[str]]:
        return Lake, (self.place,)

    def path(self, name: str) -> str:
        """Where a file is, for the file system."""
        return f"{self._root}/{name}"

    @property
    def filesystem(self) -> filesystems.FileSystem:
        """What opens :meth:`path`."""
        return self._fs

    def show(self, name: str) -> str:
        """A file's name in messages."""
        return f"{self.place.rstrip('/')}/{name}"

    # -- small files --------------------------------------------------------------------------

    def read(self, name: str) -> bytes | None:
        """The content of a small file, None if there is none."""
        try:
            with self._fs.open_input_file(self.path(name)) as file:
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """Give a file a new content as a whole: readers and crashes see the old or the new one."""
        if self.is_local:
            path = Path(self.path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            Files().replace(path, content)
            return
        with self._open_new(name) as file:
            file.write(content)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            self._fs.delete_file(self.path(name))
        except FileNotFoundError:
            return

    # -- data files ---------------------------------------------------------------------------

    def create(self, name: str) -> HashedFile:
        """A new data file."""
        return HashedFile(self._open_new(name), self.path(name) if self.is_local else None)

    def _open_new(self, name: str) -> Any:
        path = self.path(name)
        self._fs.create_dir(path.rpartition("/")[0], recursive=True)
        return self._fs.open_output_stream(path)

    def data_files(self) -> list[str]:
        """Every data file there is, whoever knows of it."""
        selector = filesystems.FileSelector(self._root, recursive=True, allow_not_found=True)
        found = self._fs.get_file_info(selector)
        names = (info.path[len(self._root) :].lstrip("/") for info in found if info.is_file)
        return sorted(n for n in names if n.endswith(SUFFIX) and n.startswith(FOLDERS))

    def sync_folders(self, names: list[str]) -> None:
        """Make the names of new files durable."""
        if not self.is_local:
            return
        folders = {Path(self._root)}
        for name in names:
            parts = Path(name).parts[:-1]
            folders |= {Path(self._root, *parts[:depth]) for depth in range(1, len(parts) + 1)}
        for folder in sorted(folders):
            Files().sync_folder(folder)

    def is_empty(self) -> bool:
        """Whether nothing is in the folder, or it is not there."""
        selector = filesystems.FileSelector(self._root, allow_not_found=True)
        names = {info.base_name for info in self._fs.get_file_info(selector)}
        return not names - {FOLDER} and self.read(MANIFEST) is None

    # -- the manifest -------------------------------------------------------------------------

    def manifest(self) -> Manifest | None:
        """What is published; None if the folder holds no archive."""
        content = self.read(MANIFEST)
        return None if content is None else decode_manifest(content, self.show(MANIFEST))

    def require_manifest(self) -> Manifest:
        """What is published; LakeError if the folder holds no archive."""
        found = self.manifest()
        if found is None:
            raise LakeError(f"{self.place}: no archive, it has no file {MANIFEST}")
        return found

    def publish(self, manifest: Manifest) -> None:
        """Let a new manifest count, if it is the next one."""
        found = self.manifest()
        if (found.sequence if found else -1) != manifest.sequence - 1 or (
            found and found.lake_id != manifest.lake_id
        ):
            raise LakeError(
                f"{self.place}: another job has changed the archive meanwhile; run this one again"
            )
        self.replace(MANIFEST, manifest.encode())
        self.remove(PENDING)

    @contextmanager
    def locked(self, token: str) -> Iterator[None]:
        """Keep other jobs off a local lake; the job's token tells tasks that it is this lake."""
        if not self.is_local:
            yield
            return
        folder = Path(self.path(FOLDER))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise LakeError(f"{self.place}: not a folder") from error
        with open(folder / LOCK, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LakeError(f"{self.place}: another job is writing this archive") from None
            file.truncate(0)
            file.write(token.encode())
            file.flush()
            Files().sync(file.fileno())  # or a network file system keeps it from the workers
            yield

    def check_shared(self, token: str) -> None:
        """Raise NotSharedError unless this worker sees the lake that a job has locked."""
        if self.is_local and self.read(f"{FOLDER}/{LOCK}") != token.encode():
            raise not_shared(self._root, "the folder of the archive is another one, or missing")

    def check_arrived(self, files: Iterable[DataFile], worker: str) -> None:
        """Raise NotSharedError unless files that a task has written are seen here, too."""
        if self.is_local:
            for file in files:
                check_arrived(self.path(file.path), file.size, worker)


def partition(layout: LakeLayout, topic: str, day: str) -> str:
    """The folder of a topic's day, with Hive's escapes."""
    return (
        f"topic={quote(topic, safe='')}/day={day}" if layout is LakeLayout.TOPIC else f"day={day}"
    )


class HashedFile:
    """A file to write from the front, whose length and SHA-256 are known at the end."""

    def __init__(self, stream: Any, synced_path: str | None) -> None:
        self._stream = stream
        self._synced_path = synced_path
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        """Append."""
        view = memoryview(data)
        self._hash.update(view)
        self._stream.write(data)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """The position, for Parquet's footer."""
        return self.size

    def flush(self) -> None:
        """Nothing: the end of the file is what counts."""

    @property
    def closed(self) -> bool:
        """Whether no more can be written."""
        return bool(self._stream.closed)

    def close(self) -> None:
        """Make the file durable."""
        if self.closed:
            return
        self._stream.close()
        if self._synced_path is not None:
            descriptor = os.open(self._synced_path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @property
    def sha256(self) -> str:
        """Of everything that was written."""
        return self._hash.hexdigest()
