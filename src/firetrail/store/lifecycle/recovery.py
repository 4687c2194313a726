"""Finding the end of the log, and bringing queues and index up to it.

After a clean stop the end is known: from the watermark, else from the queues; only what stands
behind the last known record is looked at. After an unclean stop the log is scanned, checksums
included, from where queues and index are known to be on disk.

The scan ends at the first bytes that are no good record. If they lie behind everything that is
known to be on disk they are a torn tail: zeroed, synced, forgotten, but for good records in it,
which are copied first (:mod:`firetrail.store.lifecycle.dropped_records`). If not, it is damage,
and recovery refuses: :class:`StoreDamagedError` says where, what would be lost and how to go on.
Until then nothing was changed; only now are queues and index cut back to what is sure, and the log
dispatched again from there.

Every step can be repeated: a recovery that was itself interrupted starts over and ends the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from firetrail.errors import StoreDamagedError
from firetrail.format import layout
from firetrail.format.checkpoint import Checkpoint
from firetrail.format.columns import Check, Stop
from firetrail.format.javahash import java_text
from firetrail.format.layout import UNIT
from firetrail.format.light import is_light
from firetrail.format.names import segment_name
from firetrail.format.unit import PRE_BLANK, ConsumeQueueUnit
from firetrail.storage.queue import SegmentQueue
from firetrail.store.dispatch.deriver import Deriver
from firetrail.store.index.index import Index
from firetrail.store.index.tag_entries import has_tag_entries
from firetrail.store.inspect.problems import LOG_REMEDY
from firetrail.store.lifecycle.dropped_records import find_dropped, set_aside
from firetrail.store.lifecycle.progress import Progress
from firetrail.store.lifecycle.watermark import Watermark
from firetrail.store.log.records import scan_record, store_time_at
from firetrail.store.log.scan import find_record, scan_segment
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.table import QueueTable
from firetrail.text import human_size

_LOGGER = logging.getLogger(__name__)
EVERYTHING = 1 << 62
SCAN_THREADS = 4
"""Segments that are looked at at the same time; more would only compete for the disk."""
REMEDY = f"nothing was changed; look at it with 'firetrail fsck STORE', then {LOG_REMEDY}"


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
    restored_queues: int = 0
    """How many queues lacked files or units and were derived again from the whole log."""
    restored_index: bool = False
    """Whether the index was."""


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
        self._units_known = False  # whether a queue names the record that the scan begins with

    def run(
        self,
        clean: bool,
        watermark: Watermark | None,
        checkpoint: Checkpoint,
        mark_unclean: Callable[[Watermark], None],
    ) -> RecoveryReport:
        """Recover after a clean or unclean stop; ``watermark`` is None if none can be trusted.

        ``mark_unclean`` is called before queues and index of a store that was closed are added to:
        who is stopped meanwhile leaves them half done, and the next one has to know.
        """
        if not self._log.segments:
            return self._nothing(clean)
        if clean and watermark is not None and self._ends_as_told(watermark):
            self._recognize_tags()
            start = end = watermark.durable_offset
            self._last_record = watermark.last_record_offset
            self._last_store_time = watermark.last_store_time
        else:
            start = self._start(clean, watermark, checkpoint)
            self._last_store_time = checkpoint.logics_timestamp  # unless something later is found
            if watermark is not None:
                self._note_last(watermark, start)
            end, stop = self._scan(start)
            self._refuse_damage(end, stop, clean, watermark, checkpoint)
            if clean:
                mark_unclean(Watermark(False, end, start, self._last_record, self._last_store_time))
            self._dispatch_again(start, end, clean, watermark is not None)
            if not clean:  # right before the tail is cleared: who fails and tries again copies once
                self._keep_dropped(end, stop, stale_tails=watermark is None)
        truncated = self._log.truncate(end)
        return RecoveryReport(
            clean, start, end, self._messages, truncated, self._last_record, self._last_store_time
        )

    def _nothing(self, clean: bool) -> RecoveryReport:
        """A store without a log has no messages in its queues either."""
        for queue in self._queues.all():
            if queue.last_unit is not None:
                raise StoreDamagedError(
                    str(self._log.folder),
                    0,
                    None,
                    f"the log has no file, but queue {queue.topic}/{queue.queue_id} has messages",
                    "nothing was changed; put the log back, or move the folders of queues and "
                    "index away as well to begin anew",
                )
        return RecoveryReport(clean, 0, 0, 0, 0, -1, 0)

    # -- where to begin -----------------------------------------------------------------------

    def _ends_as_told(self, watermark: Watermark) -> bool:
        """Whether the log ends, with its last record, where a clean stop has left it.

        Not without queues, unless there were none: who removes them all wants them derived again,
        as with the Java store.
        """
        end = watermark.durable_offset
        if not watermark.clean or watermark.last_record_offset < self._log.min_offset:
            return False
        if not self._queues.pairs() and self._queues.told != {}:
            return False
        segment = self._log.find(watermark.last_record_offset)
        if segment is None or segment is not self._log.segments[-1] or end > segment.end:
            return False
        row = self._row_at(watermark.last_record_offset)
        files = segment.system.files
        behind = files.read_at(segment.descriptor, end - segment.base, layout.BLANK.size)
        return row is not None and _end(row) == end and not any(behind)

    def _start(self, clean: bool, watermark: Watermark | None, checkpoint: Checkpoint) -> int:
        """From where the log must be scanned: before it, queues and index are sure."""
        first = self._log.min_offset
        if clean:
            return self._last_in_queues(first)
        if watermark is not None:
            return max(watermark.dispatched_offset, first)
        start = self._start_by_time(checkpoint)
        if self._index is not None:
            start = min(start, self._index.plan_cut(EVERYTHING, False, self._has_record).resume)
        return max(start, first)

    def _last_in_queues(self, first: int) -> int:
        """Where the last message that is in a queue stands in the log."""
        log_end = self._log.segments[-1].end
        for queue in self._queues.all():
            unit = queue.last_unit
            if unit is None or unit.physical_offset < first:
                continue
            if unit.physical_offset >= log_end:
                raise StoreDamagedError(
                    str(queue.files.folder),
                    (queue.max_offset - 1) * UNIT.size,
                    unit.physical_offset,
                    f"message {queue.max_offset - 1} of the queue stands behind the last file of "
                    f"the log, which ends at {log_end}: the file {segment_name(log_end)} is "
                    "missing, or the queue is wrong",
                    REMEDY,
                )
            first = unit.physical_offset
            self._units_known = True
        return first

    def _start_by_time(self, checkpoint: Checkpoint) -> int:
        """The newest file whose first record was stored before the checkpoint's times."""
        for segment in reversed(self._log.segments):
            row = self._row_at(segment.base)
            time = row["store_time"] if row is not None else 0
            if time and time <= checkpoint.min_timestamp:
                return segment.base
        return self._log.min_offset

    def _time_of(self, offset: int) -> int | None:
        return store_time_at(self._log, offset)

    def _note_last(self, watermark: Watermark, start: int) -> None:
        """The last record before ``start``, which counts if the scan finds none behind it."""
        self._last_store_time = max(self._last_store_time, watermark.last_store_time)
        row = self._row_at(watermark.last_record_offset)
        if row is not None and _end(row) == start:
            self._last_record = watermark.last_record_offset

    # -- the scan -----------------------------------------------------------------------------

    def _scan(self, start: int) -> tuple[int, Stop]:
        """Look at every record from ``start`` on: (where the good ones end, why).

        Every segment begins with a record, so that several can be looked at at once.
        """
        position = min(start, self._log.segments[-1].end)
        segments = list(self._log.from_offset(position))
        with ThreadPoolExecutor(SCAN_THREADS, "firetrail-scan") as pool:
            look = partial(scan_segment, start=position, check=self._check)
            for found in pool.map(look, segments):
                if found.records:
                    self._messages += found.records
                    self._last_store_time = found.last_store_time
                    self._last_record = found.last_record
                if found.stop is not Stop.BLANK:
                    return found.end, found.stop
                position = found.segment_end
        return position, Stop.LIMIT

    # -- queues and index ---------------------------------------------------------------------

    def _dispatch_again(self, start: int, end: int, clean: bool, trusted: bool) -> None:
        """Cut queues and index back to what is sure, and bring them up to ``end``."""
        deriver = self._deriver
        deriver.queues_from = start
        if not clean:
            queues = list(self._queues.all())
            _LOGGER.info(
                "%s was not closed: %s of the log are recovered, for %d queues there are",
                self._log.folder.parent,
                human_size(end - start),
                len(queues),
            )
            cuts = [partial(self._cut, queue, start, end, trusted) for queue in queues]
            self._log.system.files.at_once(cuts)
        if self._index is not None:
            deriver.index_from = self._cut_index(self._index, start, end, clean, trusted)
            if not clean:
                start = max(min(start, deriver.index_from), self._log.min_offset)
        self._recognize_tags()
        segments = list(self._log.from_offset(start))
        progress = Progress(self._log.system.clock, "recovering queues and index", start, end)
        for step in deriver.steps(segments, start, end, Check.NONE):
            progress.note(step.segment.base + step.position)
            if step.stop.is_damage:  # before what was scanned, where only the index lacks it
                where = step.segment.base + step.position
                raise self._damage(where, step.stop, end - where)
        self._queues.number_on()

    def _cut(self, queue: ConsumeQueue, start: int, end: int, trusted: bool) -> None:
        """Cut a queue back to the units of records before ``start``."""
        kept = partial(self._is_for_record, end) if is_light(queue.topic) else None
        queue.cut(start, partial(self._is_unit, queue, trusted), kept)
        unit = queue.last_unit
        deleted = unit is not None and unit.physical_offset < self._log.min_offset
        queue.is_confirmed = not (trusted and deleted)

    def _recognize_tags(self) -> None:
        """Go on with or without tags in the index, as its entries have it."""
        found = None if self._index is None else has_tag_entries(self._index, self._log)
        if found is not None:
            self._deriver.tags = found

    def _cut_index(self, index: Index, start: int, end: int, clean: bool, trusted: bool) -> int:
        """From which physical offset on the log must be indexed again."""
        if clean and index.end_offset < end:
            return index.end_offset + 1 if index.files else self._log.min_offset
        known = start if trusted and not clean else end
        plan = index.plan_cut(known, clean or trusted, self._has_record)
        index.cut(plan, self._time_of)
        return plan.resume

    def _is_unit(
        self, queue: ConsumeQueue, ours: bool, offset: int, unit: ConsumeQueueUnit
    ) -> bool:
        """Whether the log has this message of the queue there.

        Of deleted records nobody knows more than that they follow each other; and Java's queues may
        name messages of other queues.
        """
        if not ours:
            return True
        if unit.physical_offset < self._log.min_offset:
            before = queue.unit(offset - 1)
            if before is None or before == PRE_BLANK:
                return unit.end_offset <= self._log.min_offset
            follows = before.end_offset <= unit.physical_offset
            return follows and unit.end_offset <= self._log.min_offset
        if is_light(queue.topic):
            return self._is_for_record(EVERYTHING, unit)
        row = self._row_at(unit.physical_offset)
        if row is None or (row["size"], row["queue_offset"]) != (unit.size, offset):
            return False
        segment = self._log.find(unit.physical_offset)
        assert segment is not None
        topic = segment.view[row["topic_at"] : row["topic_at"] + row["topic_size"]]
        return row["queue_id"] == queue.queue_id and java_text(bytes(topic)) == queue.topic

    def _is_for_record(self, end: int, unit: ConsumeQueueUnit) -> bool:
        """Whether a light queue's unit points to a good record before ``end``.

        Which records are in a light queue depends on the release of RocketMQ that wrote them, so
        a unit is kept if there is such a record, whether or not it would be derived from it.
        """
        if not unit.is_written or unit.end_offset > end:
            return False
        row = self._row_at(unit.physical_offset)
        return row is not None and row["size"] == unit.size

    def _has_record(self, offset: int) -> bool:
        """Whether the log has a message there; of deleted records, nobody knows."""
        return offset < self._log.min_offset or self._row_at(offset) is not None

    def _row_at(self, offset: int) -> dict[str, int] | None:
        """The fields of the record at ``offset``, if there is a good one."""
        segment = self._log.find(offset)
        if segment is None:
            return None
        stop, columns = scan_record(segment, offset, Check.BODY)
        return columns.row(0) if stop is Stop.LIMIT else None

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
        if watermark is not None:
            if end < watermark.durable_offset:
                raise self._damage(end, stop, watermark.durable_offset - end)
            return
        later = self._next_record(end)
        if later is None:
            damaged = clean and stop.is_damage and not self._units_known
        elif self._is_stale(later):
            damaged = False
        else:
            time = self._time_of(later)
            damaged = clean or (time is not None and time <= checkpoint.physic_timestamp)
        if damaged or (self._units_known and not self._messages):
            raise self._damage(end, stop, self._data_behind(end))

    def _keep_dropped(self, end: int, stop: Stop, *, stale_tails: bool) -> None:
        """Copy good records behind ``end``, which may have been acknowledged, and say so."""
        check = self._check if self._check is Check.SEALED else Check.RECORD
        root, system = self._log.folder.parent, self._log.system
        dropped = find_dropped(system, root, end, check)
        if dropped is None or (stale_tails and self._is_stale(dropped.first)):
            return
        folder = set_aside(system, root, dropped)
        segment = self._log.find(end) or self._log.segments[-1]
        _LOGGER.warning(
            "%s at offset %d (record %d): no good record here (%s), so the log ends here after the "
            "unclean stop; %s stood behind it and are no longer in the store. Their bytes are in "
            "%s: print them with 'firetrail dump', make a store of them with 'firetrail salvage'",
            segment.path,
            end - segment.base,
            end,
            stop.name,
            dropped,
            folder,
        )

    def _is_stale(self, later: int) -> bool:
        """Whether a record behind the end is what the Java store leaves of a tail that it once cut:
        older than the messages that were put since."""
        time = self._time_of(later)
        return self._messages > 0 and time is not None and time < self._last_store_time

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


def _end(row: dict[str, int]) -> int:
    """Physical offset after the record."""
    return row["physical_offset"] + row["size"]
