"""The folder of a lake, on a local or remote file system.

A path is a local folder. A URL (``s3://bucket/lake``) is opened by pyarrow, or by fsspec if pyarrow
does not know the scheme. In a local lake, files are synced and a lock keeps other jobs out. Object
stores make a file durable when it is closed and have no locks: only one job at a time may write
such a lake, and a second one fails only if it notices the change of the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

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
from firetrail.pipeline.workers import check_arrived, naming_file, not_shared
from firetrail.system import SYSTEM

SUFFIX = ".parquet"
UNFINISHED = ".part"
"""Suffix of a file that is not published; its name also begins with an underscore. Spark and Arrow
skip such names, and ``*.parquet`` does not match them."""
_REMEDY = "free some space, and run the job again: the archive is unchanged"
FOLDERS = ("topic=", "day=")
"""Prefixes of the folders of data files."""
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
        """Return the path of a file within :attr:`filesystem`."""
        return f"{self._root}/{name}"

    @property
    def filesystem(self) -> filesystems.FileSystem:
        """The file system that :meth:`path` belongs to."""
        return self._fs

    def show(self, name: str) -> str:
        """Return the name of a file for messages."""
        return f"{self.place.rstrip('/')}/{name}"

    # -- small files --------------------------------------------------------------------------

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        try:
            with self._fs.open_input_file(self.path(name)) as file:
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file atomically: readers, and a crash, leave the old or the new content."""
        with naming_file(self.show(name), _REMEDY):
            if self.is_local:
                path = Path(self.path(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                SYSTEM.files.replace(path, content)
                return
            with self._open_new(name) as file:
                file.write(content)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        try:
            self._fs.delete_file(self.path(name))
        except FileNotFoundError:
            return

    # -- data files ---------------------------------------------------------------------------

    def new_name(self, folder: str, stem: str, token: str) -> str:
        """Return a name for a data file of an attempt at a task.

        Attempts at a task may overlap, if Spark speculates or takes a worker for dead. In a local
        lake each has names of its own, and the files of attempts that did not count are removed by
        the next job. An object store would show them, so there the attempts have the same names,
        and replace a whole file by the same bytes.

        Args:
            folder: The folder in the lake.
            stem: The name that distinguishes the files of a job.
            token: The token of the job.
        """
        attempt = f"-{uuid4().hex[:8]}" if self.is_local else ""
        return f"{folder}/{stem}-{token}{attempt}{SUFFIX}"

    def create(self, name: str) -> HashedFile:
        """Create a data file, which :meth:`reveal` gives its name.

        Object stores show a file when it is complete, so there it has its name at once.
        """
        name = self._before(name)
        with naming_file(self.show(name), _REMEDY):
            stream = self._open_new(name)
        return HashedFile(stream, self.show(name), self.path(name) if self.is_local else None)

    def _before(self, name: str) -> str:
        """Return the name that a data file has before it is published."""
        if not self.is_local:
            return name
        folder, _, base = name.rpartition("/")
        return f"{folder}/_{base}{UNFINISHED}"

    def reveal(self, files: Iterable[DataFile]) -> None:
        """Give complete data files their names, durably; those that have them keep them."""
        names = [file.path for file in files]
        if self.is_local:
            for name in names:
                hidden = Path(self.path(self._before(name)))
                if hidden.exists():
                    hidden.rename(self.path(name))
        self.sync_folders(names)

    def _open_new(self, name: str) -> Any:
        path = self.path(name)
        self._fs.create_dir(path.rpartition("/")[0], recursive=True)
        return self._fs.open_output_stream(path)

    def data_files(self) -> list[str]:
        """Return every data file in the folder, in the manifest or not, complete or not."""
        selector = filesystems.FileSelector(self._root, recursive=True, allow_not_found=True)
        found = self._fs.get_file_info(selector)
        names = (info.path[len(self._root) :].lstrip("/") for info in found if info.is_file)
        return sorted(
            n for n in names if n.endswith((SUFFIX, SUFFIX + UNFINISHED)) and n.startswith(FOLDERS)
        )

    def sync_folders(self, names: list[str]) -> None:
        """Sync the folders of new files, so that their names are durable."""
        if not self.is_local:
            return
        folders = {Path(self._root)}
        for name in names:
            parts = Path(name).parts[:-1]
            folders |= {Path(self._root, *parts[:depth]) for depth in range(1, len(parts) + 1)}
        for folder in sorted(folders):
            SYSTEM.files.sync_folder(folder)

    def is_empty(self) -> bool:
        """Whether the folder is empty or does not exist."""
        selector = filesystems.FileSelector(self._root, allow_not_found=True)
        names = {info.base_name for info in self._fs.get_file_info(selector)}
        return not names - {FOLDER} and self.read(MANIFEST) is None

    # -- the manifest -------------------------------------------------------------------------

    def manifest(self) -> Manifest | None:
        """Return the published manifest; None if the folder holds no archive."""
        content = self.read(MANIFEST)
        return None if content is None else decode_manifest(content, self.show(MANIFEST))

    def require_manifest(self) -> Manifest:
        """Return the published manifest; raise LakeError if the folder holds no archive."""
        found = self.manifest()
        if found is None:
            raise LakeError(
                f"{self.place}: is not an archive, it has no file {MANIFEST}; check the path"
            )
        return found

    def publish(self, manifest: Manifest) -> None:
        """Publish a manifest; raise LakeError unless it follows the published one."""
        found = self.manifest()
        if (found.sequence if found else -1) != manifest.sequence - 1 or (
            found and found.lake_id != manifest.lake_id
        ):
            raise LakeError(
                f"{self.place}: another job changed the archive at the same time; run this job "
                "again"
            )
        self.replace(MANIFEST, manifest.encode())
        self.remove(PENDING)

    @contextmanager
    def locked(self, token: str) -> Iterator[None]:
        """Lock a local lake; the job's token in the lock file lets tasks recognize the lake."""
        if not self.is_local:
            yield
            return
        folder = Path(self.path(FOLDER))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise LakeError(
                f"{self.place}: is a file, not a folder; choose another path"
            ) from error
        with open(folder / LOCK, "ab") as file:
            if not SYSTEM.files.lock_open_file(file.fileno()):
                raise LakeError(
                    f"{self.place}: another job is writing this archive; run this one when it ends"
                )
            file.truncate(0)
            file.write(token.encode())
            file.flush()
            SYSTEM.files.sync(file.fileno())  # so that workers on a network file system see it
            yield

    def check_shared(self, token: str) -> None:
        """Raise NotSharedError unless this worker sees the lake that a job has locked."""
        if self.is_local and self.read(f"{FOLDER}/{LOCK}") != token.encode():
            raise not_shared(self._root, "the folder of the archive is missing, or was replaced")

    def check_arrived(self, files: Iterable[DataFile], worker: str) -> None:
        """Raise NotSharedError unless the driver sees the files that a task has written."""
        if self.is_local:
            for file in files:
                check_arrived(self.path(self._before(file.path)), file.size, worker)


def partition(layout: LakeLayout, topic: str, day: str) -> str:
    """Return the folder of a topic and day, with names escaped as in Hive."""
    return (
        f"topic={quote(topic, safe='')}/day={day}" if layout is LakeLayout.TOPIC else f"day={day}"
    )


class HashedFile:
    """A file that is written sequentially, and whose length and SHA-256 are known at the end."""

    def __init__(self, stream: Any, shown: str, local_path: str | None) -> None:
        self._stream = stream
        self._shown = shown
        self._local_path = local_path
        self._abandoned = False
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        """Append bytes and return their number."""
        view = memoryview(data)
        if not self._abandoned:
            self._hash.update(view)
            with naming_file(self._shown, _REMEDY):
                self._stream.write(data)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Return the position, which Parquet's footer contains."""
        return self.size

    def flush(self) -> None:
        """Do nothing: only the closed file must be durable."""

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return bool(self._stream.closed)

    def close(self) -> None:
        """Close the file and make it durable."""
        if self.closed:
            return
        with naming_file(self._shown, _REMEDY):
            self._stream.close()
            if self._local_path is not None and not self._abandoned:
                descriptor = SYSTEM.files.open(Path(self._local_path), writable=False)
                try:
                    SYSTEM.files.sync(descriptor)
                finally:
                    SYSTEM.files.close(descriptor)

    def abandon(self) -> None:
        """Remove the file of a failed task; what is written to it afterwards is dropped."""
        self._abandoned = True
        if self._local_path is not None:
            SYSTEM.files.discard(Path(self._local_path))

    @property
    def sha256(self) -> str:
        """SHA-256 of everything that was written, in hexadecimal."""
        return self._hash.hexdigest()
