"""Repairs that an operator requests by name, after a check has shown what is damaged.

``rebuild-derived``
    Consume queues and index are created again from the log, which must be readable to its end.
``truncate-log``
    The log ends at its first damage, and queues and index are created again from the rest. This is
    the only option if a record is damaged and there is no copy of the file: the records after it
    may be good, but a log with a gap cannot hold them. Files that are too short are filled with
    zeros; if that is the only damage, the log keeps all its messages.

Files removed from the store are kept in a folder ``repair-<time>`` in it. That folder is laid out
as a store: ``firetrail dump`` shows the messages that were dropped. The store must not be in use: a
repair takes its lock. A repair that is interrupted at any point can be started again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Protocol

from firetrail.errors import FormatError
from firetrail.format.files.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.format.names import (
    ABORT,
    CHECKPOINT,
    COMMIT_LOG,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    INDEX,
    INVENTORY,
    REPAIR_PREFIX,
    WATERMARK,
)
from firetrail.format.values.delay import DelayLevels
from firetrail.storage.copies import copy_file
from firetrail.storage.segment import Segment
from firetrail.store.evidence.inventory import (
    Inventory,
    read_inventory,
    take_stock,
    write_inventory,
)
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.log_records import store_time_at
from firetrail.store.log.lost_part import Loss
from firetrail.store.log.paths import shown_path
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.generations import OmittedMessages, Reason
from firetrail.store.queues.queue_table import QueueExtent, QueueKey, QueueTable
from firetrail.store.repair.damage_cut import DamageCut, check_log, find_cut
from firetrail.store.repair.losses import loss_behind
from firetrail.store.repair.rebuild import RebuildResult, rebuild
from firetrail.store.root.folder import (
    FolderLock,
    check_is_store,
    last_held_by_java,
    stamped_folder,
)
from firetrail.store.root.watermark import Watermark, WatermarkFile, shortened_checkpoint
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import System
from firetrail.text import counted

BUILD_FOLDER = "made"
"""The folder within that of the repair in which queues and index are created."""


class Rebuild(Protocol):
    """Creates queues and index, as :func:`firetrail.store.repair.rebuild.rebuild` does."""

    def __call__(self, view: StoreView, target: Path, delays: DelayLevels) -> RebuildResult: ...


class Repair(Enum):
    """The repairs that can be requested."""

    REBUILD_DERIVED = "rebuild-derived"
    TRUNCATE_LOG = "truncate-log"


def repair_store(
    system: System,
    root: Path,
    choice: Repair,
    delays: DelayLevels,
    make: Rebuild = rebuild,
    finish: Callable[[StoreView], list[str]] = lambda view: [],
    on_loss: Callable[[Loss], None] = lambda loss: None,
    cut: DamageCut | None = None,
) -> list[str]:
    """Repair a store that is not in use; return one sentence for each thing that was done.

    ``make`` creates the queues and the index. ``on_loss`` is called with the loss before anything
    is changed, and may raise. ``finish`` is called with the repaired store while its lock is still
    held, and returns a description of its changes. ``cut`` is where the log is to end if that is
    known. Raises StoreLockedError if the store is in use, and StoreError if the repair would not
    help.
    """
    check_is_store(system, root)
    lock = FolderLock(system, root)
    try:
        work = _Work(system, root, partial(make, delays=delays))
        done = work.run(choice, on_loss, cut)
        with StoreView.open(root, system=system, exclusive=True) as view:
            return done + finish(view)
    finally:
        lock.release()


class _Work:
    """One repair."""

    def __init__(
        self, system: System, root: Path, make: Callable[[StoreView, Path], RebuildResult]
    ) -> None:
        self._system = system
        self._files = system.files
        self._root = root
        self._make = make
        self._kept = stamped_folder(system, root, REPAIR_PREFIX)
        self._done: list[str] = []
        self._config = StoreConfig()  # with the sizes of the files that the store had at first
        self._after_damage: frozenset[QueueKey] = frozenset()
        """Queues that begin after the damage where the log was cut."""
        known = read_inventory(system, root)
        self._shows_queue_size = known.sizes.queue_file > 0
        is_java = last_held_by_java(system, root)
        self._removed = {} if is_java else known.removed

    def run(
        self, choice: Repair, on_loss: Callable[[Loss], None], cut: DamageCut | None
    ) -> list[str]:
        self._clear_leftovers()
        with self._view() as view:
            self._config = view.config
            self._shows_queue_size |= bool(view.queues.pairs())
            if choice is Repair.REBUILD_DERIVED:
                check_log(view)
            else:
                cut = cut or find_cut(view)
                on_loss(loss_behind(view, cut.damage))
                self._truncate_log(view, cut)
        with self._view() as view:
            self._rebuild_derived(view, self._kept / BUILD_FOLDER)
            self._correct_checkpoint(view)
        if cut is not None:
            self._keep(self._root / ABORT)  # nothing is left to recover
        self._note_end()
        return self._done

    def _note_end(self) -> None:
        """Record the existing queues as a clean stop does.

        Otherwise the next start would consider queues lost that were deleted with their topic.
        """
        if (self._root / ABORT).exists() or not (self._root / CHECKPOINT).exists():
            return
        with self._view() as view:
            queues = {
                pair: QueueExtent(tail.bases[0], tail.max_offset)
                for pair, tail in view.tails.items()
                if tail.max_offset
            }
            time = store_time_at(view.log, view.last_record) or 0
            mark = Watermark(True, view.end, view.end, view.last_record, time)
            begin = view.log.min_offset
            stock = take_stock(self._system, self._root, begin, view.queues, view.index)
            stock = stock._replace(durable_offset=view.end, queues=queues, removed=self._removed)
        write_inventory(self._system, self._root, stock)
        with closing(WatermarkFile(self._system, self._root)) as file:
            file.write(mark)

    @contextmanager
    def _view(self) -> Iterator[StoreView]:
        with StoreView.open(self._root, self._config, system=self._system, exclusive=True) as view:
            yield view

    def _clear_leftovers(self) -> None:
        """Remove files that killed repairs have created and not put in place."""
        for kept in self._root.glob(f"{REPAIR_PREFIX}*"):
            for made in kept.glob(f"{BUILD_FOLDER}*"):
                self._files.remove_tree(made)
            if not self._files.names(kept):
                self._files.remove_folder(kept)

    # -- the log ------------------------------------------------------------------------------

    def _truncate_log(self, view: StoreView, cut: DamageCut) -> None:
        """Move the files after the damage away; copy the damaged one, and zero its rest."""
        log, damage = view.log, cut.damage
        end = damage.physical_offset
        self._removed = {topic: min(place, end) for topic, place in self._removed.items()}
        self._forget_watermark()
        self._after_damage = cut.queues_after
        for segment in reversed(log.segments):
            if segment.base >= end and segment is not log.first:
                self._keep(segment.path)
            elif segment.base + log.segment_size > end:
                self._cut(segment, max(end - segment.base, 0), log.segment_size)
            else:
                self._fill(segment, log.segment_size)
        self._done.append(f"the log now ends at {end}, before the damage: {damage.detail}")

    def _cut(self, segment: Segment, position: int, size: int) -> None:
        """Copy a file, then clear it from ``position`` on and set its proper size."""
        copy = self._place(segment.path)
        self._files.make_folder(copy.parent)
        copy_file(self._files, segment.path, copy)
        self._files.sync_folder(copy.parent)
        with closing(Segment(self._system, segment.path, segment.base, segment.size)) as writable:
            writable.truncate(position)
            self._files.set_size(writable.descriptor, size)
            self._files.sync(writable.descriptor)
        filled = f" and filled with zeros to {size} bytes" if segment.size < size else ""
        self._done.append(
            f"{shown_path(self._root, segment.path)} is cleared from {position} on{filled}; a copy "
            f"is in {self._kept.name}"
        )

    def _fill(self, segment: Segment, size: int) -> None:
        """Sync a file before the end of the log; one that is too short is filled with zeros."""
        if segment.size >= size:
            self._files.sync(segment.descriptor)
            return
        with closing(Segment(self._system, segment.path, segment.base, segment.size)) as writable:
            self._files.set_size(writable.descriptor, size)
            self._files.sync(writable.descriptor)
        self._done.append(
            f"{shown_path(self._root, segment.path)} is filled with zeros to {size} bytes"
        )

    # -- what is derived from it --------------------------------------------------------------

    def _rebuild_derived(self, view: StoreView, made_in: Path) -> None:
        """Create queues and index beside the old ones, then put them in place."""
        self._files.make_folder(self._kept)
        try:
            made = self._make(view, made_in)
        except BaseException:
            if not self._done:
                self._files.remove_folder(self._kept)  # nothing was changed
            raise
        left_out = _with_former(made.left_out, self._remove_former(view, made_in))
        self._carry_over(view, made_in)
        # Without a watermark, a repair that is interrupted from here on leaves a store that is
        # derived again when it is opened, instead of one that is considered complete.
        self._forget_watermark()
        self._keep(self._root / CONSUME_QUEUE_EXT)  # the new queues do not point to it
        for name in (INDEX, CONSUME_QUEUE):
            self._put_in_place(self._root / name, made_in / name)
        made_in.rmdir()
        self._done.append(
            f"rebuilt from {counted(made.messages, 'message')} of the log: "
            f"{counted(made.queues, 'queue')}, {counted(made.index_files, 'index file')}"
        )
        self._done += map(str, left_out)
        if made.queues and not self._shows_queue_size:
            self._done.append(
                "no queue file was left to show their size: the new ones have "
                f"{view.queue_file_size} bytes; a broker with another mappedFileSizeConsumeQueue "
                "must be set to this value"
            )

    def _remove_former(self, view: StoreView, made_in: Path) -> Counter[str]:
        """Remove queues of a topic that was deleted, and created again after the damage.

        These are queues that begin after the damage and still have messages in the log. Returns
        the number of their messages per topic.
        """
        made = QueueTable(self._system, made_in, view.queue_file_size)
        made.list_folders()
        known, there = set(made.pairs()), set(view.queues.pairs())
        topics = {topic for topic, _ in self._after_damage & known}
        left_out: Counter[str] = Counter()
        with closing(made):
            for key in sorted(known):
                if key[0] in topics and (key in self._after_damage or key not in there):
                    queue = made.open(*key)
                    left_out[key[0]] += queue.max_offset - queue.min_offset(view.log.min_offset)
                    made.remove_queue(*key)
        return left_out

    def _put_in_place(self, path: Path, made: Path) -> None:
        """Replace ``path``, which is kept, by ``made``; one of them exists at any moment."""
        if not made.is_dir():
            self._keep(path)
        elif not path.exists():
            self._files.rename(made, path)
        else:
            self._files.exchange(made, path)
            self._keep(path, made)

    def _carry_over(self, view: StoreView, made_in: Path) -> None:
        """Copy queues that have no messages in the log: they know their next queue offset."""
        made = QueueTable(self._system, made_in, view.queue_file_size)
        made.list_folders()
        known = set(made.pairs())
        with closing(made):
            for pair in sorted(set(view.queues.pairs()) - known):
                if pair in view.queue_faults:
                    self._done.append(
                        f"queue {pair[0]}/{pair[1]} could not be read and has no messages in the "
                        "log: it starts over with number 0"
                    )
                else:
                    self._copy_units(view, pair, made)
            made.flush()

    def _copy_units(self, view: StoreView, pair: QueueKey, made: QueueTable) -> None:
        with closing(view.open_queue(*pair)) as old:
            first = old.files.min_offset // UNIT_SIZE
            keep = old.first_where(
                first, old.max_offset, lambda unit: unit.physical_offset >= view.end
            )
            if keep:
                _append_all(made.open(*pair), old, keep)
                made.dirty.add(made.open(*pair))
                self._done.append(
                    f"queue {pair[0]}/{pair[1]} has no messages in the log and continues with "
                    f"number {keep}"
                )

    # -- marks --------------------------------------------------------------------------------

    def _correct_checkpoint(self, view: StoreView) -> None:
        """Rewrite a checkpoint that is unreadable, or that knows of messages that are lost."""
        path = self._root / CHECKPOINT
        try:
            old = decode_checkpoint(self._files.read(path))
        except (FileNotFoundError, FormatError):
            old = Checkpoint()
        newest = store_time_at(view.log, view.last_record) or 0
        new = shortened_checkpoint(old, view.end, view.last_record, newest)
        if not path.exists() or self._files.read(path) == encode_checkpoint(new):
            return
        self._keep(path)
        self._files.replace(path, encode_checkpoint(new))

    def _forget_watermark(self) -> None:
        """Make the watermark and the inventory invalid, except for where topics were deleted."""
        self._keep(self._root / WATERMARK)
        if not (self._kept / INVENTORY).exists():
            self._keep(self._root / INVENTORY)
        if self._removed:
            write_inventory(self._system, self._root, Inventory(removed=self._removed))

    # -- the folder of the repair -------------------------------------------------------------

    def _keep(self, path: Path, moved: Path | None = None) -> None:
        """Move a file or folder to its place in the folder of this repair.

        If ``moved`` is given, it is already there.
        """
        source = moved or path
        if not source.exists():
            return
        target = self._place(path)
        self._files.make_folder(target.parent)
        if path.is_relative_to(self._root):
            self._files.rename(source, target)
            self._files.sync_folder(source.parent)
        else:  # on another disk
            copy_file(self._files, source, target)
            self._files.sync_folder(target.parent)
            self._files.remove(source)
        self._done.append(f"{shown_path(self._root, path)} is now in {self._kept.name}")

    def _place(self, path: Path) -> Path:
        """Return the place of a file; log files of other folders are kept in ``commitlog``."""
        if path.is_relative_to(self._root):
            return self._kept / path.relative_to(self._root)
        return self._kept / COMMIT_LOG / path.name


def _with_former(left_out: Iterable[OmittedMessages], more: Counter[str]) -> list[OmittedMessages]:
    """Return the omitted messages, and further ones of former topics."""
    found = {each[:2]: each for each in left_out}
    for topic, count in more.items():
        known = found.get((topic, Reason.FORMER))
        count += (known and known.messages) or 0
        found[topic, Reason.FORMER] = OmittedMessages(topic, Reason.FORMER, count)
    return list(found.values())


def _append_all(queue: ConsumeQueue, old: ConsumeQueue, end: int) -> None:
    for segment in old.files.segments:
        size = min(segment.wrote, end * UNIT_SIZE - segment.base)
        if size > 0:
            queue.append(segment.base // UNIT_SIZE, segment.view[:size])
