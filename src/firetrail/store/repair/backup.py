"""A copy of a store that may be in use, as sparse as the store itself.

What is written first is copied last. The marks (checkpoint and watermark) come first: whatever they
say is on disk is on disk when the rest is copied. Then come the files of the broker, the queues and
the index, and the log at the end, which therefore has every record that anything before it refers
to. So the copy of a store in use is what a crash during the copy would have left, at worst, with
everything that was acknowledged before it began; it is recovered at once and then is a closed
store. The copy of a store that nobody uses is the store, file by file.

Files that are removed meanwhile are left out; retention removes only what nobody needs any more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from firetrail.format.names import (
    ABORT,
    CHECKPOINT,
    COMMIT_LOG,
    CONFIG,
    CONSUME_QUEUE,
    DROPPED_PREFIX,
    INDEX,
    INVENTORY,
    LOCK,
    REPAIR_PREFIX,
    WATERMARK,
    parse_segment_name,
)
from firetrail.storage.copies import copy_file
from firetrail.store.config import StoreConfig
from firetrail.store.lifecycle.folder import AbortFile, check_is_store, lock_owner
from firetrail.store.repair.rebuild import built, check_outside
from firetrail.store.store import Store
from firetrail.system import System

_ORDER = (INVENTORY, CHECKPOINT, WATERMARK, CONFIG, CONSUME_QUEUE, INDEX)
"""In this order, then everything else, then the log. The inventory comes first: what it lists is
there when the rest is copied. The checkpoint comes before the watermark: of
that, the slot before the newest one is there, too, and belongs to a checkpoint just replaced."""


class Backup(NamedTuple):
    """What was copied."""

    files: int
    bytes: int
    live: bool
    """Whether the store was in use, so that the copy was recovered."""


def back_up(
    system: System,
    root: Path,
    target: Path,
    config: StoreConfig,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Backup:
    """Copy a store to ``target``, a new or empty folder; it is complete then, or not there.

    ``on_progress`` is told how many bytes were copied. Raises OSError for want of space or access.
    """
    check_is_store(system, root)
    check_outside(root, target)
    with built(system.files, target) as folder:
        copy = _Copy(system, root, folder, on_progress)
        live = copy.is_in_use()
        copy.run()
        live = live or copy.is_in_use()
        if live:
            abort = AbortFile(system, folder)
            if not abort.exists:  # it was closed, or opened, meanwhile
                abort.create(sealed=False)
            Store.open(folder, config, system=system).close()
        return Backup(copy.files, copy.bytes, live)


def copy_files(system: System, root: Path, folder: Path, log_end: int) -> None:
    """Copy the files of a store that is not in use, those of the log that begin before a place."""
    _Copy(system, root, folder, lambda done: None).run(log_end)


class _Copy:
    """One copy of the files of a store."""

    def __init__(
        self, system: System, root: Path, folder: Path, on_progress: Callable[[int], None]
    ) -> None:
        self._system = system
        self._files = system.files
        self._root = root
        self._folder = folder
        self._on_progress = on_progress
        self.files = self.bytes = 0

    def is_in_use(self) -> bool:
        return lock_owner(self._system, self._root) is not None

    def run(self, log_end: int | None = None) -> None:
        names = self._files.names(self._root)
        left_out = {COMMIT_LOG, LOCK, ABORT, *_ORDER}
        aside = (REPAIR_PREFIX, DROPPED_PREFIX)
        others = [n for n in names if n not in left_out and not n.startswith(aside)]
        # The abort file after the marks: a store that is opened in between is not taken for closed.
        self._copy_row(self._root, [*_ORDER, *others, ABORT], [])
        self._copy_log(self._root / COMMIT_LOG, log_end)

    def _copy_log(self, folder: Path, end: int | None) -> None:
        """Copy the log up to its last file, which may be another one when the others are copied."""
        self._files.make_folder(self._folder / COMMIT_LOG)
        done: set[str] = set()
        copied: list[Path] = []
        while new := [name for name in self._files.names(folder) if name not in done]:
            done.update(new)
            wanted = [n for n in new if end is None or (parse_segment_name(n) or 0) < end]
            self._copy_row(folder, wanted, copied)
        self._files.sync_folder(self._folder / COMMIT_LOG)

    def _copy_row(self, folder: Path, names: list[str], copied: list[Path]) -> None:
        """Copy what is in a folder, and add it to ``copied``.

        A row of segments must not have a gap. Retention deletes the oldest first: if one of them is
        gone, so are those before it, and their copies go as well.
        """
        for name in names:
            if name.endswith(".tmp"):
                continue  # about to be renamed, or left behind by a crash
            if self._copy(folder / name):
                copied.append(self._folder / folder.relative_to(self._root) / name)
            elif parse_segment_name(name) is not None:
                for earlier in copied:
                    self._files.remove(earlier)
                copied.clear()

    def _copy(self, path: Path) -> bool:
        """Copy a file or folder; False if it is not there."""
        target = self._folder / path.relative_to(self._root)
        if path.is_dir():
            self._files.make_folder(target)
            self._copy_row(path, self._files.names(path), [])
            self._files.sync_folder(target)
            return True
        try:
            self.bytes += copy_file(self._files, path, target)
        except FileNotFoundError:
            return False
        self.files += 1
        self._on_progress(self.bytes)
        return True
