"""Finding the end of the log, and bringing queues and index up to it.

After a clean stop the end is known: from the watermark, else from the queues; only what stands
behind the last known record is looked at. After an unclean stop the log is scanned, checksums
included, from where queues and index are known to be on disk, and dispatched again from there.

The scan ends at the first bytes that are no good record. If they lie behind everything that is
known to be on disk they are a torn tail: zeroed, synced, forgotten. If not, it is damage, and
recovery refuses: :class:`StoreDamagedError` says where, what would be lost and how to go on.

Every step can be repeated: a recovery that was itself interrupted starts over and ends the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from firetrail.errors import StoreDamagedError
from firetrail.format import layout
from firetrail.format.checkpoint import Checkpoint
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import scan
from firetrail.storage.queue import SegmentQueue
from firetrail.storage.segment import Segment
from firetrail.store.dispatch import Deriver
from firetrail.store.indexes import Index
from firetrail.store.logread import first_store_time, store_time_at
from firetrail.store.queues import QueueTable
from firetrail.store.watermark import Watermark

EVERYTHING = 1 << 62
REMEDY = (
    "nothing was changed; look at it with 'firetrail fsck', then put the file back from a copy "
    "or choose what to give up with 'firetrail fsck --repair'"
)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening the store found and did."""

    clean: bool
    """Whether the last stop was clean."""
    scanned_from: int
    end: int
    """Physical offset behind the last message."""
    messages_scanned: int
    bytes_truncated: int
    """Length of the torn tail that was zeroed."""
    last_record_offset: int
    last_store_time: int


class Recovery:
    """One recovery of the log in ``log``, and of the queues and the index that belong to it."""

    def __init__(
        self,
        log: SegmentQueue,
        queues: QueueTable,
        index: Index | None,
        deriver: Deriver,
        check: Check,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._deriver = deriver
        self._check = check
        self._messages = 0
        self._last_record = -1
        self._last_store_time = 0

    def run(
        self, clean: bool, watermark: Watermark | None, checkpoint: Checkpoint
    ) -> RecoveryReport:
        """Recover after a clean or unclean stop; ``watermark`` is None if none can be trusted."""
        if not self._log.segments:
            return self._nothing(clean)
        if clean and watermark is not None and self._ends_as_told(watermark):
            start = end = watermark.durable_offset
            self._last_record = watermark.last_record_offset
            self._last_store_time = watermark.last_store_time
        else:
            start = self._prepare(clean, watermark, checkpoint)
            end, stop = self._scan(start)
            self._refuse_damage(end, stop, clean, watermark, checkpoint)
            if self._index is not None and self._index.end_offset >= end:
                self._index.recover(end, True, self._time_of)
            self._queues.number_on()
        truncated = self._log.truncate(end)
        return RecoveryReport(
            clean, start, end, self._messages, truncated, self._last_record, self._last_store_time
        )

    def _nothing(self, clean: bool) -> RecoveryReport:
        """A store without a log has no queues either."""
        for queue in self._queues.all():
            queue.cut(0)
        return RecoveryReport(clean, 0, 0, 0, 0, -1, 0)

    # -- where to begin -----------------------------------------------------------------------

    def _ends_as_told(self, watermark: Watermark) -> bool:
        """Whether the log ends, with its last record, where a clean stop has left it.

        Not without queues: who removes them all wants them derived again, as with the Java store.
        """
        end = watermark.durable_offset
        if not watermark.clean or watermark.last_record_offset < self._log.min_offset:
            return False
        if not self._queues.pairs():
            return False
        segment = self._log.find(watermark.last_record_offset)
        if segment is None or segment is not self._log.segments[-1]:
            return False
        at = watermark.last_record_offset - segment.base
        limit = end - segment.base
        rows, position, _ = scan(
            segment.view, at, limit, segment.base, Columns(1).table, Check.BODY
        )
        behind = segment.view[limit : limit + layout.BLANK.size]
        return rows == 1 and position == limit and not any(behind)

    def _prepare(self, clean: bool, watermark: Watermark | None, checkpoint: Checkpoint) -> int:
        """Cut queues and index back to what is sure; from where the log must be scanned."""
        first = self._log.min_offset
        if clean:
            return self._prepare_clean(first)
        if watermark is not None:
            start = max(watermark.dispatched_offset, first)
        else:
            start = self._start_by_time(checkpoint)
        for queue in self._queues.all():
            queue.cut(start)
        index_start = start
        if self._index is not None:
            known = start if watermark is not None else EVERYTHING
            index_start = self._index.recover(known, watermark is not None, self._time_of)
        self._deriver.queues_from = start
        self._deriver.index_from = max(index_start, first)
        return max(min(start, index_start), first)

    def _prepare_clean(self, first: int) -> int:
        """After a clean stop queues and index are whole; the scan starts at the last unit."""
        start = first
        for queue in self._queues.all():
            unit = queue.last_unit
            if unit is not None and unit.physical_offset > start:
                start = unit.physical_offset
        self._deriver.queues_from = start
        if self._index is not None:
            self._deriver.index_from = self._index.end_offset + 1 if self._index.files else first
        return start

    def _start_by_time(self, checkpoint: Checkpoint) -> int:
        """The newest file whose first record was stored before the checkpoint's times."""
        for segment in reversed(self._log.segments):
            time = first_store_time(segment)
            if time and time <= checkpoint.min_timestamp:
                return segment.base
        return self._log.min_offset

    def _time_of(self, offset: int) -> int | None:
        return store_time_at(self._log, offset)

    # -- the scan -----------------------------------------------------------------------------

    def _scan(self, start: int) -> tuple[int, Stop]:
        """Dispatch every good record from ``start`` on: (where that ended, why)."""
        position = start
        for segment in self._log.from_offset(start):
            at = max(position - segment.base, 0)
            stop = Stop.FULL
            while stop is Stop.FULL:
                step = self._deriver.step(segment, at, segment.size, self._check)
                if step.rows:
                    self._messages += step.rows
                    self._last_store_time = step.last_store_time
                    self._last_record = step.last_record_offset
                at, stop = step.position, step.stop
            position = segment.base + at
            if stop is not Stop.BLANK:
                return position, stop
            position = segment.end
        return position, Stop.LIMIT

    # -- torn or damaged ----------------------------------------------------------------------

    def _refuse_damage(
        self,
        end: int,
        stop: Stop,
        clean: bool,
        watermark: Watermark | None,
        checkpoint: Checkpoint,
    ) -> None:
        """Raise if what ends the log at ``end`` is not just a tail that was never on disk."""
        if not clean and watermark is not None:
            if end < watermark.durable_offset:
                raise self._damage(end, stop, watermark.durable_offset - end)
            return
        later = self._next_record(end)
        if clean and (stop.is_damage or later is not None):
            raise self._damage(end, stop, self._data_behind(end))
        if later is not None:
            time = self._time_of(later)
            if time is not None and time <= checkpoint.physic_timestamp:
                raise self._damage(end, stop, self._data_behind(end))

    def _damage(self, end: int, stop: Stop, lost: int) -> StoreDamagedError:
        segment = self._log.find(end) or self._log.segments[-1]
        return StoreDamagedError(
            str(segment.path),
            end - segment.base,
            end,
            f"no good record here ({stop.name}) although the log went on; "
            f"to end the log here would lose up to {lost} bytes of messages",
            REMEDY,
        )

    def _data_behind(self, end: int) -> int:
        return sum(
            segment.data_size(max(end - segment.base, 0)) for segment in self._log.from_offset(end)
        )

    def _next_record(self, end: int) -> int | None:
        """Physical offset of the first good record behind ``end``, if any."""
        for segment in self._log.from_offset(end):
            found = find_record(segment, max(end - segment.base, 0))
            if found is not None:
                return segment.base + found
        return None


_MAGIC = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (layout.MAGIC_V1, layout.MAGIC_V2))
)


def find_record(segment: Segment, at: int) -> int | None:
    """Position of the first good record at or behind ``at`` of a segment."""
    columns = Columns(1)
    for start, end in segment.system.files.data_ranges(segment.descriptor, at, segment.size):
        for magic in _MAGIC.finditer(segment.mapping, max(start, at + 4), end):
            position = magic.start() - 4
            rows, _, _ = scan(
                segment.view, position, segment.size, segment.base, columns.table, Check.BODY
            )
            if rows:
                return position
    return None
