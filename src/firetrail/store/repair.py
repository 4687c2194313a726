"""Repairs that somebody has asked for, by name, after a look at what is damaged.

What is taken out of the store is kept in a folder ``repair-<time>`` in it; nothing else is lost.
The store must be closed: a repair takes its lock.

``rebuild-derived``
    Consume queues and index are made anew from the log, which must be good to its end.
``truncate-log``
    The log ends at its first damage, and queues and index are made anew from what is left. The
    only way on if a record is damaged and no copy of the file is to be had: the records behind it
    may be good, but a log without a gap cannot hold them.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from firetrail.errors import StoreError
from firetrail.format.delay import DelayLevels
from firetrail.format.names import CHECKPOINT, COMMIT_LOG, CONSUME_QUEUE, INDEX, WATERMARK
from firetrail.storage.queue import SegmentQueue
from firetrail.storage.segment import Segment
from firetrail.storage.system import System
from firetrail.store.folder import FolderLock, check_is_store
from firetrail.store.rebuild import rebuild
from firetrail.store.tail import read_tail
from firetrail.store.view import StoreView
from firetrail.store.walk import Damage

COPY_STEP = 1 << 20


class Repair(Enum):
    """What may be asked for."""

    REBUILD_DERIVED = "rebuild-derived"
    TRUNCATE_LOG = "truncate-log"


def repair_store(system: System, root: Path, choice: Repair, delays: DelayLevels) -> list[str]:
    """Repair a closed store; what was done, a sentence each.

    Raises StoreLockedError if it is in use, and StoreError if the repair would not help.
    """
    check_is_store(system, root)
    lock = FolderLock(system, root)
    try:
        return _Work(system, root, delays).run(choice)
    finally:
        lock.release()


class _Work:
    """One repair."""

    def __init__(self, system: System, root: Path, delays: DelayLevels) -> None:
        self._system = system
        self._root = root
        self._delays = delays
        now = datetime.fromtimestamp(system.clock.now_ms() / 1000, UTC)
        self._kept = root / f"repair-{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03d}Z"
        self._done: list[str] = []

    def run(self, choice: Repair) -> list[str]:
        try:
            if choice is Repair.TRUNCATE_LOG:
                self._truncate_log()
            self._rebuild_derived()
        finally:
            if self._kept.is_dir() and not self._system.files.names(self._kept):
                self._kept.rmdir()
        return self._done

    def _truncate_log(self) -> None:
        with StoreView.open(self._root, system=self._system) as view:
            damage = _first_damage(view)
        if damage is None:
            raise StoreError(f"{self._root}: the log is good to its end, there is nothing to cut")
        for name in (WATERMARK, CHECKPOINT):  # they say that more was on disk
            self._keep(self._root / name)
        log = SegmentQueue(self._system, self._root / COMMIT_LOG, 0)
        with closing(log):
            log.load()
            for segment in reversed(log.segments):
                if segment.base >= damage.physical_offset and segment is not log.first:
                    self._keep(segment.path)
                elif segment.end > damage.physical_offset:
                    self._cut(segment, max(damage.physical_offset - segment.base, 0))
        self._done.append(
            f"the log now ends at {damage.physical_offset}, before the damage: {damage.detail}"
        )

    def _cut(self, segment: Segment, position: int) -> None:
        """Copy what stands behind ``position``, then zero it."""
        files = self._system.files
        copy = self._kept / COMMIT_LOG / f"{segment.path.name}.from-{position}"
        files.make_folder(copy.parent)
        descriptor = files.open(copy, writable=True, create=True)
        try:
            for at in range(position, segment.data_end, COPY_STEP):
                part = segment.view[at : min(at + COPY_STEP, segment.size)]
                files.write(descriptor, [part], at - position)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.sync_folder(copy.parent)
        removed = segment.truncate(position)
        self._done.append(
            f"{COMMIT_LOG}/{segment.path.name}: {removed} bytes from {position} on are zeroed, "
            f"a copy is in {copy.relative_to(self._root)}"
        )

    def _rebuild_derived(self) -> None:
        """Make queues and index beside the old ones, then put them in their place.

        Killed in between, the store has no queues, and gets them when it is next opened.
        """
        made_in = self._kept / "made"
        with StoreView.open(self._root, system=self._system) as view:
            self._system.files.make_folder(self._kept)
            made = rebuild(view, made_in, self._delays, lambda done: None)
        for name in (CONSUME_QUEUE, INDEX):
            self._keep(self._root / name)
            if (made_in / name).is_dir():
                self._system.files.rename(made_in / name, self._root / name)
        made_in.rmdir()
        self._done.append(
            f"{made.queues} queues and {made.index_files} index files were made from the "
            f"{made.messages} messages of the log; the old ones are in {self._kept.name}"
        )

    def _keep(self, path: Path) -> None:
        """Move a file or folder of the store to the same place in the folder of this repair."""
        if not path.exists():
            return
        target = self._kept / path.relative_to(self._root)
        self._system.files.make_folder(target.parent)
        self._system.files.rename(path, target)
        self._system.files.sync_folder(path.parent)
        self._done.append(f"{path.relative_to(self._root)} is now in {self._kept.name}")


def _first_damage(view: StoreView) -> Damage | None:
    """Where the log is damaged first: in its middle, or where it ends."""
    for part in view.walk():
        if isinstance(part, Damage):
            return part
        if part.failed is not None:
            return part.failed
    return read_tail(view).found
