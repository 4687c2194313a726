"""A lake in a local folder: files are synced, and a lock keeps other jobs out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs as filesystems

from firetrail.errors import LakeConflictError, LakeError
from firetrail.pipeline.lakes.hashed_file import REMEDY, HashedFile
from firetrail.pipeline.lakes.lake_folder import LakeFolder, attempt_name
from firetrail.pipeline.workers import check_arrived, naming_file, not_shared
from firetrail.system import SYSTEM

UNFINISHED = ".part"
"""Suffix of a file that is not published; its name also begins with an underscore. Spark and Arrow
skip such names, and ``*.parquet`` does not match them."""


class LocalFolder(LakeFolder):
    """A folder of the machine, or one that it has mounted."""

    is_local = True

    def __init__(self, place: str) -> None:
        self.place = self._root = str(Path(place).absolute())
        self._filesystem = filesystems.LocalFileSystem()

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file atomically: readers, and a crash, leave the old or the new content."""
        with naming_file(self.show(name), REMEDY):
            path = Path(self.path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            SYSTEM.files.replace(path, content)

    def publish(self, name: str, content: bytes) -> None:
        """Replace a file atomically that programs of other users may read, too."""
        self._write_hidden(name, content).rename(self.path(name))
        self.sync_folders([name])

    def add(self, name: str, content: bytes) -> None:
        """Create such a file atomically; raise LakeConflictError if there is one."""
        hidden = self._write_hidden(name, content)
        try:
            SYSTEM.files.link(hidden, Path(self.path(name)))
        except FileExistsError as error:
            raise LakeConflictError(
                f"{self.show(name)}: another job created the file at the same time; run this job "
                "again"
            ) from error
        finally:
            SYSTEM.files.discard(hidden)
        self.sync_folders([name])

    def _write_hidden(self, name: str, content: bytes) -> Path:
        """Write a file durably under a name that readers skip, with the user's default mode."""
        hidden = f"{name}-{attempt_name()}"
        file = self.create(hidden)
        file.write(content)
        file.close()
        return Path(self.path(_before(hidden)))

    def new_name(self, folder: str, stem: str, token: str, suffix: str) -> str:
        """Return a name that only this attempt at a task has.

        The files of attempts that did not count are removed by the next job.
        """
        return f"{folder}/{stem}-{token}-{attempt_name()}{suffix}"

    def create(self, name: str) -> HashedFile:
        """Create a data file, which :meth:`reveal` gives its name."""
        name = _before(name)
        with naming_file(self.show(name), REMEDY):
            stream = self._open_new(name)
        return HashedFile(stream, self.show(name), self.path(name))

    def reveal(self, names: Iterable[str]) -> None:
        """Give complete data files their names, durably; those that have them keep them.

        Raises:
            LakeError: A file exists under neither name.
        """
        names = list(names)
        for name in names:
            hidden = Path(self.path(_before(name)))
            if hidden.exists():
                hidden.rename(self.path(name))
            elif not Path(self.path(name)).exists():
                raise LakeError(
                    f"{self.path(name)}: this data file was written, and is missing; run the job "
                    "again when it is there (a network file system may show it later), or restore "
                    "it"
                )
        self.sync_folders(names)

    def sync_folders(self, names: Iterable[str]) -> None:
        """Sync the folders of new files, so that their names are durable."""
        folders = {Path(self._root)}
        for name in names:
            parts = Path(name).parts[:-1]
            folders |= {Path(self._root, *parts[:depth]) for depth in range(1, len(parts) + 1)}
        for folder in sorted(folders):
            SYSTEM.files.sync_folder(folder)

    @contextmanager
    def locked(self, name: str, token: str) -> Iterator[None]:
        """Lock the folder; the token in the lock file lets tasks recognize it."""
        path = Path(self.path(name))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise LakeError(
                f"{self.place}: is a file, not a folder; choose another path"
            ) from error
        with open(path, "ab") as file:
            if not SYSTEM.files.lock_open_file(file.fileno()):
                raise LakeError(
                    f"{self.place}: another job is writing to it; run this one when it ends"
                )
            file.truncate(0)
            file.write(token.encode())
            file.flush()
            SYSTEM.files.sync(file.fileno())  # so that workers on a network file system see it
            yield

    def check_shared(self, name: str, token: str) -> None:
        """Raise NotSharedError unless this worker sees the folder that a job has locked."""
        if self.read(name) != token.encode():
            raise not_shared(self._root, "the folder of the lake is missing, or was replaced")

    def check_arrived(self, name: str, size: int, worker: str) -> None:
        """Raise NotSharedError unless the driver sees a data file that a task has written."""
        check_arrived(self.path(_before(name)), size, worker)


def _before(name: str) -> str:
    """Return the name that a data file has before it is published."""
    folder, _, base = name.rpartition("/")
    return f"{folder}/_{base}{UNFINISHED}"
