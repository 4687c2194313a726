"""Good records after the position where a log is cut: counted, and copied to a folder.

Recovery after an unclean stop ends the log at the first bytes that are not a good record. Good
records may follow them: a power cut has lost a page in the middle, or a page was damaged before the
watermark covered it. They may have been acknowledged, and only the log had them. Therefore the tail
is copied, before it is cleared, to a folder ``dropped-<time>`` in the store: the files of the log
with the bytes from the cut to the end of the last good record, at their positions, and a watermark
with their end. ``firetrail dump`` prints such a folder, and ``firetrail salvage`` creates a
store from it. Only the operator removes it.

A replica that is rewound keeps the removed records in the same way.

The search for records is limited by what was written: holes are skipped, and zeros are read once,
as clearing the tail does anyway.
"""

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from firetrail.format.columns import Check
from firetrail.format.names import COMMIT_LOG, CONSUME_QUEUE, DROPPED_PREFIX
from firetrail.storage.copies import copy_file
from firetrail.store.log.good_records import good_records
from firetrail.store.log.lost_part import Loss, QueueLoss, count_records
from firetrail.store.log.view_log import ViewLog
from firetrail.store.root.folder import stamped_folder
from firetrail.store.root.new_folder import built
from firetrail.store.root.watermark import Watermark, WatermarkFile
from firetrail.system import System
from firetrail.text import counted, human_time

QUEUES_NAMED = 5
"""Maximum number of queues that the warning names; the others are counted."""


class DroppedRecords(NamedTuple):
    """The good records that are dropped."""

    loss: Loss
    first: int
    """Physical offset of the first one."""
    last: int
    """Physical offset of the last one."""
    last_stored: int

    def __str__(self) -> str:
        parts = [_queue_text(queue) for queue in self.loss.queues[:QUEUES_NAMED]]
        if len(self.loss.queues) > QUEUES_NAMED:
            parts.append(f"and {counted(len(self.loss.queues) - QUEUES_NAMED, 'queue')} more")
        if self.loss.others:
            parts.append(f"{counted(self.loss.others, 'record')} of transactions")
        return f"{counted(self.loss.readable, 'good message')} ({'; '.join(parts)})"


def _queue_text(queue: QueueLoss) -> str:
    assert queue.first_stored is not None and queue.last_stored is not None
    times = f"{human_time(queue.first_stored)} to {human_time(queue.last_stored)}"
    return (
        f"{queue.topic}/{queue.queue_id}: {queue.readable}, offsets {queue.first_offset} to "
        f"{queue.end_offset - 1}, stored {times}"
    )


def find_dropped(
    system: System, root: Path, cut: int, check: Check, begin: int | None = None
) -> DroppedRecords | None:
    """Return the good records after a cut, or None if there are none.

    Args:
        system: The operating system.
        root: The folder of the store.
        cut: The physical offset at which the log will end.
        check: How closely records are checked.
        begin: Where the first record can begin. Default: after ``cut``, because recovery cuts where
            it has found no good record.
    """
    first = last = last_stored = -1
    loss = Loss(cut, cut, "")
    with closing(ViewLog(system, root)) as log:
        log.load()
        start = cut + 1 if begin is None else begin
        for record in count_records(loss, good_records(log, start, log.limit, check)):
            last, last_stored = record.physical_offset, record.store_time
            first = last if first < 0 else first
            loss.end = last + len(record.content)
    return DroppedRecords(loss, first, last, last_stored) if first >= 0 else None


def is_copy_of_dropped(root: Path) -> bool:
    """Return whether a folder is such a copy: its log has a hole before the first record."""
    return root.resolve().name.startswith(DROPPED_PREFIX) and not (root / CONSUME_QUEUE).exists()


def set_aside(system: System, root: Path, dropped: DroppedRecords) -> Path:
    """Copy the tail of the log that is about to be cleared; return the durable folder."""
    for unfinished in root.glob(f"{DROPPED_PREFIX}*.building"):
        system.files.remove_tree(unfinished)
    target = stamped_folder(system, root, DROPPED_PREFIX)
    begin, end = dropped.loss.begin, dropped.loss.end
    with built(system.files, target) as folder, closing(ViewLog(system, root)) as log:
        log.load()
        system.files.make_folder(folder / COMMIT_LOG)
        for segment in log.segments:
            part = range(max(begin - segment.base, 0), min(end - segment.base, segment.size))
            if part:
                copy_file(system.files, segment.path, folder / COMMIT_LOG / segment.path.name, part)
        with closing(WatermarkFile(system, folder)) as marks:
            marks.write(Watermark(True, end, end, dropped.last, dropped.last_stored))
        system.files.sync_folder(folder / COMMIT_LOG)
        system.files.sync_folder(folder)
    return target
