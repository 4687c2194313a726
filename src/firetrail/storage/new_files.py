"""New files whose directory entries are made durable later, many at a time.

The name of a file is durable once its folder is synced, and the name of a folder once its parent is
synced. If nothing relies on a file before the next round of syncs, its folder is synced in that
round. The file system then writes its journal once for all new files, instead of once per file.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from firetrail.errors import StoreClosedError
from firetrail.system import NO_DESCRIPTOR, SyncError, System


class NewFile(Protocol):
    """A segment whose file was created."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def flushed(self) -> int:
        """The position up to which the content is on disk; 0 if nothing was synced yet."""

    def sync(self) -> None:
        """Make the content durable. Raises StoreClosedError if the file was removed."""


class NewFiles:
    """The files and folders that were created since the last :meth:`sync`.

    One thread creates files; another one may sync them at the same time.
    """

    def __init__(self, system: System) -> None:
        self._files = system.files
        self._segments: dict[NewFile, None] = {}
        self._folders: dict[Path, None] = {}
        # A second sync must not return before the first is done.
        self._syncing = system.threads.lock()

    @property
    def count(self) -> int:
        """The number of files that wait for a sync."""
        return len(self._segments)

    def make_folder(self, path: Path) -> None:
        """Create the folder and its missing parents."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        self._files.begin_folder(path)
        self._folders[path.parent] = None

    def add(self, segment: NewFile) -> None:
        """Add a segment whose file was created."""
        self._segments[segment] = None
        self._folders[segment.path.parent] = None

    def add_existing(self, segment: NewFile) -> None:
        """Add a file that existed at open: a killed writer may not have synced it and its name."""
        self._segments[segment] = None

    def sync(self, is_over: Callable[[], bool] | None = None) -> bool:
        """Make all files and folders durable, and return True.

        The length of each file is synced before its name: otherwise a crash could leave an empty
        file with a name. Returns False if ``is_over`` returns True before that; the rest is then
        left to the next call. Raises OSError. A failed sync must not be retried, except if the
        process ran out of file descriptors.
        """
        with self._syncing:
            segments = list(self._segments)
            run = self._files.run_in_threads
            syncs = [partial(self._sync_file, segment) for segment in segments]
            if not run(syncs, is_over):
                return False
            syncs = [partial(self._sync_folder, folder) for folder in list(self._folders)]
            if not run(syncs, is_over):
                return False
            for segment in segments:
                del self._segments[segment]
        return True

    def sync_oldest(self, count: int, is_over: Callable[[], bool] | None = None) -> bool:
        """Do the same as :meth:`sync` for the files that were created first.

        Args:
            count: How many files.
            is_over: Returns whether the time is up. Default: None, for no limit.
        """
        with self._syncing:
            segments = list(self._segments)[: max(count, 0)]
            folders = {
                folder: None
                for segment in segments
                for folder in segment.path.parents[:3]  # of a queue, of its topic, and of all
                if folder in self._folders
            }
            run = self._files.run_in_threads
            if not run([partial(self._sync_file, segment) for segment in segments], is_over):
                return False
            if not run([partial(self._sync_folder, folder) for folder in folders], is_over):
                return False
            for segment in segments:
                del self._segments[segment]
        return True

    def sync_one(self, segment: NewFile) -> None:
        """Make one file and its name durable, which must happen before the next file is created."""
        if segment in self._segments:
            with self._syncing:
                self._sync_file(segment)
                self._sync_folder(segment.path.parent)

    def _sync_file(self, segment: NewFile) -> None:
        if segment.flushed == 0:
            with suppress(StoreClosedError):  # removed in the meantime
                segment.sync()

    def _sync_folder(self, folder: Path) -> None:
        self._folders.pop(folder, None)  # before the sync: a file created during it adds it again
        try:
            self._files.sync_folder(folder)
        except FileNotFoundError:
            pass  # removed in the meantime, with its content
        except OSError as error:
            self._folders[folder] = None
            if error.errno in NO_DESCRIPTOR:
                raise
            raise SyncError(error.errno, error.strerror, str(folder)) from error
