"""A new store with every good message of a damaged one.

Up to the first damage the new store equals the old one, with the same positions in the log and in
the queues. The good records after the damage follow without a gap, because a log cannot have one.
Each keeps all its fields, including its store time, except for its position in the log and, in
queues that have lost a message, its queue offset. :class:`Numbering` maps old queue offsets to new
ones. A record whose topic or queue id is damaged is left out and reported; one whose queue offset
is damaged gets the right one. The damaged store is only read.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from firetrail.format.names import COMMIT_LOG, REPAIR_PREFIX, parse_segment_name
from firetrail.format.values.delay import DelayLevels
from firetrail.store.bulk import BulkAppend
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.good_records import GoodRecord, good_records
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.repair.backup import copy_files
from firetrail.store.repair.damage_cut import find_cut
from firetrail.store.repair.losses import find_deleted, find_faults, known_end
from firetrail.store.repair.misplaced_records import MisplacedRecord
from firetrail.store.repair.rebuild import check_outside
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.store.root.confirmed_file import shorten_confirmed
from firetrail.store.root.folder import check_not_in_use
from firetrail.store.root.new_folder import built
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import Files, System


class Run(NamedTuple):
    """Consecutive messages of a queue, with their old and new queue offsets."""

    old: int
    new: int
    length: int


class Numbering:
    """The queue offsets in the new store of messages after the damage."""

    def __init__(self) -> None:
        self._runs: dict[QueueKey, list[Run]] = {}

    def note(self, key: QueueKey, old: int, new: int) -> None:
        """Record the new queue offset of a message."""
        runs = self._runs.setdefault(key, [])
        if new == 0:
            runs.clear()  # a new generation, whose readers know no offset of the former one
        if runs and (old, new) == (runs[-1].old + runs[-1].length, runs[-1].new + runs[-1].length):
            runs[-1] = runs[-1]._replace(length=runs[-1].length + 1)
        else:
            runs.append(Run(old, new, 1))

    def new_offset(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the offset at which a reader continues, so that it repeats and skips nothing."""
        runs = self._runs.get((topic, queue_id))
        if not runs:
            return offset
        for run in reversed(runs):
            if offset >= run.old:
                return run.new + min(offset - run.old, run.length)
        return min(offset, runs[0].new)

    def is_changed(self, topic: str, queue_id: int) -> bool:
        """Return whether any message of a queue has another offset than before."""
        return any(run.old != run.new for run in self._runs.get((topic, queue_id), ()))


class SalvageResult(NamedTuple):
    """The content of the new store."""

    kept: int
    """Good messages after the damage."""
    left_out: int
    """Good records that ``wanted`` rejected."""
    deleted: int
    """Good messages of topics that were deleted."""
    misplaced: list[MisplacedRecord]
    """Records out of order in their queues; those without a number there were left out."""
    cut_at: int
    """Physical offset of the first damage, up to which the stores are the same."""
    numbering: Numbering


Wanted = Callable[[GoodRecord, Numbering], bool]
Finish = Callable[[StoreView, SalvageResult], None]


def salvage_store(
    system: System,
    root: Path,
    target: Path,
    delays: DelayLevels,
    wanted: Wanted = lambda record, numbering: True,
    finish: Finish = lambda view, salvaged: None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> SalvageResult:
    """Create a store in ``target``, a new or empty folder, which is complete or does not exist.

    ``wanted`` is called for each good record after the damage. ``finish`` may change other files of
    the new store before it appears. ``on_progress`` is called with the number of bytes of the log
    that are done. Raises StoreLockedError if the store is in use, and StoreError if it is not
    damaged.
    """
    check_not_in_use(system, root)
    check_outside(root, target)
    with StoreView.open(root, system=system) as view, built(system.files, target) as folder:
        faults = find_faults(view)
        cut = find_cut(view, faults)
        cut_at = cut.damage.physical_offset
        # The first file is copied even if its first record is damaged, for its name.
        copy_files(system, root, folder, log_end=max(cut_at, view.log.min_offset + 1))
        shorten_confirmed(system, folder, cut_at)  # the records after it get other offsets
        _complete(system.files, folder / COMMIT_LOG, view.log.segment_size)
        repair_store(system, folder, Repair.TRUNCATE_LOG, delays, cut=cut)
        for kept in folder.glob(f"{REPAIR_PREFIX}*"):
            system.files.remove_tree(kept)
        # The sizes are those of the damaged store, as the first record may be damaged.
        config = view.config.replace(delay_levels=delays)
        source = _Source(view, cut_at, faults.misplaced)
        salvaged = _append(system, source, folder, config, wanted, on_progress)
        with StoreView.open(folder, system=system) as made:
            finish(made, salvaged)
        return salvaged


def _complete(files: Files, log: Path, size: int) -> None:
    """Give the last file of a log its full size; a truncated one would show a wrong size."""
    last = log / max(name for name in files.names(log) if parse_segment_name(name) is not None)
    descriptor = files.open(last, writable=True)
    try:
        files.set_size(descriptor, size)
    finally:
        files.close(descriptor)


class _Source:
    """The records after the damage."""

    def __init__(self, view: StoreView, begin: int, misplaced: dict[int, MisplacedRecord]) -> None:
        self._view = view
        self.misplaced = misplaced
        self.begin = begin
        self.log_begin = view.log.min_offset
        self.deleted = find_deleted(view)

    def records(self) -> Iterator[GoodRecord]:
        """Yield the good records, with the queue offsets that they had."""
        for record in good_records(self._view.log, self.begin, known_end(self._view)):
            misplaced = self.misplaced.get(record.physical_offset)
            if misplaced is None:
                yield record
            elif misplaced.number is not None:
                yield record._replace(queue_offset=misplaced.number)


def _append(
    system: System,
    source: _Source,
    folder: Path,
    config: StoreConfig,
    wanted: Wanted,
    on_progress: Callable[[int], None],
) -> SalvageResult:
    """Append the good records after the damage to the new store."""
    numbering = Numbering()
    kept = left_out = deleted = 0
    with BulkAppend(folder, config, system=system) as bulk:
        for record in source.records():
            on_progress(record.physical_offset - source.log_begin)
            if source.deleted.has(record):
                deleted += 1
                continue
            if not wanted(record, numbering):
                left_out += 1
                continue
            number = bulk.add_record(record)
            if record.in_queue:
                numbering.note((record.topic, record.queue_id), record.queue_offset, number)
            kept += 1
        bulk.commit()
    misplaced = list(source.misplaced.values())
    return SalvageResult(kept, left_out, deleted, misplaced, source.begin, numbering)
