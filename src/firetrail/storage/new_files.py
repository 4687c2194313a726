"""New files whose names are made durable later, many at a time.

A file's name is durable once its folder is synced, and so is the folder's once the one above it is.
Where nothing counts on a file before the next round of syncs, that is done there: the file system
then has one change to write for all that was made since, where each would be one of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from firetrail.errors import StoreClosedError
from firetrail.system import NO_DESCRIPTOR, Files, SyncError

if TYPE_CHECKING:
    from firetrail.storage.segment import Segment


class NewFiles:
    """What was made since the last :meth:`sync`. One thread makes files, another may sync them."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._segments: dict[Segment, None] = {}
        self._folders: dict[Path, None] = {}
        self._syncing = threading.Lock()  # or one would count what another still syncs

    def make_folder(self, path: Path) -> None:
        """Create the folder and those above it."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        self._files.begin_folder(path)
        self._folders[path.parent] = None

    def add(self, segment: Segment) -> None:
        """Its file was made, and has its name."""
        self._segments[segment] = None
        self._folders[segment.path.parent] = None

    def doubt(self, segment: Segment) -> None:
        """Its file was there; who was killed may have made it, and not synced its name."""
        self._segments[segment] = None

    def sync(self, is_over: Callable[[], bool] | None = None) -> bool:
        """Make all of it durable: the length of each file first, or its name could last longer.

        False if the time for it ``is_over`` before all is done; what is left then stays to be done.
        Raises OSError. Except for want of a descriptor, that must not be tried again.
        """
        with self._syncing:
            segments = list(self._segments)
            at_once = self._files.at_once
            syncs = [partial(self._sync_file, segment) for segment in segments]
            if not at_once(syncs, is_over):
                return False
            syncs = [partial(self._sync_folder, folder) for folder in list(self._folders)]
            if not at_once(syncs, is_over):
                return False
            for segment in segments:
                del self._segments[segment]
        return True

    def settle(self, segment: Segment) -> None:
        """Make one file durable with its name in its folder, as the next one beside it needs it."""
        if segment in self._segments:
            with self._syncing:
                self._sync_file(segment)
                self._sync_folder(segment.path.parent)

    def _sync_file(self, segment: Segment) -> None:
        if segment.flushed == 0:
            with suppress(StoreClosedError):  # removed meanwhile
                segment.sync()

    def _sync_folder(self, folder: Path) -> None:
        self._folders.pop(folder, None)  # first: another may be made in it meanwhile
        try:
            self._files.sync_folder(folder)
        except FileNotFoundError:
            pass  # removed meanwhile, and what was in it
        except OSError as error:
            self._folders[folder] = None
            if error.errno in NO_DESCRIPTOR:
                raise
            raise SyncError(error.errno, error.strerror, str(folder)) from error
