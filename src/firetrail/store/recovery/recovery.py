"""The recovery of a store: the end of the log is found, and queues and index are brought up to it.

After a clean stop the end is known from the watermark or else from the queues; only the bytes after
the last known record are read. After an unclean stop the log is scanned, including checksums, from
the position up to which queues and index are known to be on disk.

The scan ends at the first bytes that are not a good record. If they are after everything that is
known to be on disk, they are a torn tail: it is zeroed and synced, but good records in it are
copied first (:mod:`firetrail.store.evidence.dropped_records`). Otherwise they are damage, and
recovery refuses: :class:`StoreDamagedError` says where, what would be lost and how to continue. Up
to here nothing was changed. Only then are queues and index cut back to what is certain, and the log
is dispatched again from there.

Every step can be repeated: a recovery that was interrupted starts over and ends the same.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from firetrail.errors import StoreDamagedError
from firetrail.format import layout
from firetrail.format.columns import Check, Stop
from firetrail.format.files.checkpoint import Checkpoint
from firetrail.format.files.unit import PRE_BLANK, ConsumeQueueUnit
from firetrail.format.layout import UNIT
from firetrail.format.light import is_light
from firetrail.format.names import segment_name
from firetrail.format.values.javahash import java_text
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.dispatch.derivation import DerivePolicy, Deriver
from firetrail.store.evidence.dropped_records import find_dropped, set_aside
from firetrail.store.index.index import Index
from firetrail.store.index.tag_entries import has_tag_entries
from firetrail.store.log.log_records import scan_record, store_time_at
from firetrail.store.log.progress_log import ProgressLog
from firetrail.store.log.segment_scan import find_record, scan_segment
from firetrail.store.problems import LOG_REMEDY
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.generations import QueueGenerations
from firetrail.store.queues.queue_end import QueueEnd
from firetrail.store.queues.queue_table import QueueKey, QueueTable
from firetrail.store.root.watermark import Watermark
from firetrail.text import human_size

_log = logging.getLogger(__name__)
EVERYTHING = 1 << 62
SCAN_THREADS = 4
"""Number of segments that are scanned at the same time; more would only compete for the disk."""
REMEDY = f"nothing was changed; check it with 'firetrail fsck STORE', then {LOG_REMEDY}"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings and changes of opening a store."""

    clean: bool
    """Whether the last stop was clean."""
    scanned_from: int
    """Physical offset from which the log was scanned."""
    end: int
    """Physical offset after the last message."""
    messages_scanned: int
    """The number of messages that the scan has read."""
    bytes_truncated: int
    """Length of the torn tail that was zeroed."""
    last_record_offset: int
    """Physical offset of the last record; -1 if there is none."""
    last_store_time: int
    """Store time (ms) of the last record; 0 if there is none."""
    restored_queues: int = 0
    """The number of queues that lacked files or units and were derived again from the whole log."""
    restored_index: bool = False
    """Whether the index was derived again from the whole log."""


class Recovery:
    """One recovery of the log and of the queues and the index that belong to it."""

    def __init__(
        self,
        log: SegmentQueue,
        queues: QueueTable,
        index: Index | None,
        policy: DerivePolicy,
        check: Check,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self.policy = policy
        """The parts to derive; :meth:`run` adds its findings about the index."""
        self.generations = QueueGenerations()
        """The generations of the queues that :meth:`run` has derived."""
        self._check = check
        self._messages = 0
        self._last_record = -1
        self._last_store_time = 0
        self._units_known = False  # whether a queue contains the record that the scan begins with

    def run(
        self,
        clean: bool,
        watermark: Watermark | None,
        checkpoint: Checkpoint,
        mark_unclean: Callable[[Watermark], None],
    ) -> RecoveryReport:
        """Recover after a clean or unclean stop; ``watermark`` is None if none is valid.

        ``mark_unclean`` is called before queues and index of a cleanly closed store are changed: if
        this process is stopped halfway, the next one has to know.
        """
        if not self._log.segments:
            return self._nothing(clean)
        if clean and watermark is not None and self._ends_at_watermark(watermark):
            self._recognize_tags()
            start = end = watermark.durable_offset
            self._last_record = watermark.last_record_offset
            self._last_store_time = watermark.last_store_time
        else:
            start = self._start(clean, watermark, checkpoint)
            self._last_store_time = checkpoint.logics_timestamp  # unless the scan finds a later one
            if watermark is not None:
                self._note_last(watermark, start)
            end, stop = self._scan(start)
            self._refuse_damage(end, stop, clean, watermark, checkpoint)
            if clean:
                mark_unclean(Watermark(False, end, start, self._last_record, self._last_store_time))
            self._dispatch_again(start, end, clean, watermark is not None)
            if not clean:  # right before the tail is cleared, so that a retry does not copy twice
                self._keep_dropped(end, stop, stale_tails=watermark is None)
        truncated = self._log.truncate(end)
        return RecoveryReport(
            clean=clean,
            scanned_from=start,
            end=end,
            messages_scanned=self._messages,
            bytes_truncated=truncated,
            last_record_offset=self._last_record,
            last_store_time=self._last_store_time,
        )

    def _nothing(self, clean: bool) -> RecoveryReport:
        """Report on a store without a log, whose queues must be empty as well."""
        for queue in self._queues.all():
            if queue.last_unit is not None:
                raise StoreDamagedError(
                    str(self._log.folder),
                    0,
                    None,
                    f"the log has no file, but queue {queue.topic}/{queue.queue_id} has messages",
                    "nothing was changed; restore the log, or move the folders of queues and "
                    "index away as well to start over",
                )
        return RecoveryReport(
            clean=clean,
            scanned_from=0,
            end=0,
            messages_scanned=0,
            bytes_truncated=0,
            last_record_offset=-1,
            last_store_time=0,
        )

    # -- where to begin -----------------------------------------------------------------------

    def _ends_at_watermark(self, watermark: Watermark) -> bool:
        """Return whether the log ends, with its last record, where a clean stop has left it.

        If there were queues and all are gone, the answer is no: an operator who removes all of
        them wants them derived again, as with the Java store.
        """
        end = watermark.durable_offset
        if not watermark.clean or watermark.last_record_offset < self._log.min_offset:
            return False
        if not self._queues.pairs() and self._queues.known_extents != {}:
            return False
        segment = self._log.find(watermark.last_record_offset)
        if segment is None or segment is not self._log.segments[-1] or end > segment.end:
            return False
        row = self._row_at(watermark.last_record_offset)
        files = segment.system.files
        following = files.read_at(segment.descriptor, end - segment.base, layout.BLANK.size)
        return row is not None and _end(row) == end and not any(following)

    def _start(self, clean: bool, watermark: Watermark | None, checkpoint: Checkpoint) -> int:
        """Return the beginning of the scan of the log; queues and index are certain before it."""
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
        """Return the position of the newest message that is in a queue."""
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
                    f"message {queue.max_offset - 1} of the queue points after the last file of "
                    f"the log, which ends at {log_end}: the file {segment_name(log_end)} is "
                    "missing, or the queue is wrong",
                    REMEDY,
                )
            first = unit.physical_offset
            self._units_known = True
        return first

    def _start_by_time(self, checkpoint: Checkpoint) -> int:
        """Return the newest file whose first record was stored before the checkpoint's times."""
        for segment in reversed(self._log.segments):
            row = self._row_at(segment.base)
            time = row["store_time"] if row is not None else 0
            if time and time <= checkpoint.min_timestamp:
                return segment.base
        return self._log.min_offset

    def _time_of(self, offset: int) -> int | None:
        return store_time_at(self._log, offset)

    def _note_last(self, watermark: Watermark, start: int) -> None:
        """Note the last record before ``start``, which counts if the scan finds no other."""
        self._last_store_time = max(self._last_store_time, watermark.last_store_time)
        row = self._row_at(watermark.last_record_offset)
        if row is not None and _end(row) == start:
            self._last_record = watermark.last_record_offset

    # -- the scan -----------------------------------------------------------------------------

    def _scan(self, start: int) -> tuple[int, Stop]:
        """Scan every record from ``start``; return where the good ones end, and why.

        Every segment begins with a record, so several segments can be scanned at the same time.
        """
        position = min(start, self._log.segments[-1].end)
        segments = list(self._log.from_offset(position))
        scan_one = partial(scan_segment, start=position, check=self._check)
        threads = self._log.system.threads
        with closing(threads.map("firetrail-scan", SCAN_THREADS, scan_one, segments)) as scans:
            for found in scans:
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
        """Cut queues and index back to the part that is certain, and bring them up to ``end``."""
        queues_from, index_from = start, EVERYTHING
        if not clean:
            self._cut_queues(start, end, trusted)
        if self._index is not None:
            index_from = self._cut_index(self._index, start, end, clean, trusted)
            if not clean:
                start = max(min(start, index_from), self._log.min_offset)
        self._recognize_tags()
        run = replace(self.policy, queues_from=queues_from, index_from=index_from)
        deriver = Deriver(self._queues, self._index, run)
        self.generations = deriver.generations
        segments = list(self._log.from_offset(start))
        progress = ProgressLog(self._log.system.clock, "recovering queues and index", start, end)
        for step in deriver.steps(segments, start, end, Check.NONE):
            progress.note(step.segment.base + step.position)
            if step.stop.is_damage:  # before the scanned range, where only the index lacks entries
                where = step.segment.base + step.position
                raise self._damage(where, step.stop, end - where)
        self._queues.continue_numbering()

    def _cut_queues(self, start: int, end: int, trusted: bool) -> None:
        """Cut all queues back to the units of records before ``start``.

        If the queues are known to be on disk up to there (``trusted``), most of them have nothing
        after it. Those stay closed.
        """
        if trusted:
            self._queues.leave_certain(partial(self._is_certain, start))
        queues = list(self._queues.uncertain())
        _log.info(
            "%s was not closed: recovering %s of the log for %d of %d existing queues",
            self._log.folder.parent,
            human_size(end - start),
            len(queues),
            self._queues.count,
        )
        cuts = [partial(self._cut, queue, start, end, trusted) for queue in queues]
        self._log.system.files.run_in_threads(cuts)

    def _is_certain(self, start: int, key: QueueKey, end: QueueEnd) -> bool:
        """Return whether the last unit of a queue is that of a record in the log before start."""
        unit = end.last_unit
        if not self._log.min_offset <= unit.physical_offset < start:
            return False
        return self._is_of_record(key, end.max_offset - 1, unit)

    def _cut(self, queue: ConsumeQueue, start: int, end: int, trusted: bool) -> None:
        """Cut a queue back to the units of records before ``start``."""
        kept = partial(self._is_for_record, end) if is_light(queue.topic) else None
        queue.cut(start, partial(self._is_unit, queue, trusted), kept)
        unit = queue.last_unit
        deleted = unit is not None and unit.physical_offset < self._log.min_offset
        queue.is_confirmed = not (trusted and deleted)

    def _recognize_tags(self) -> None:
        """Keep or leave out tags in the index, as its existing entries do."""
        found = None if self._index is None else has_tag_entries(self._index, self._log)
        if found is not None:
            self.policy = replace(self.policy, tags=found)

    def _cut_index(self, index: Index, start: int, end: int, clean: bool, trusted: bool) -> int:
        """Return the physical offset from which the log must be indexed again."""
        if clean and index.end_offset < end:
            return index.end_offset + 1 if index.files else self._log.min_offset
        known = start if trusted and not clean else end
        plan = index.plan_cut(known, clean or trusted, self._has_record)
        index.cut(plan, self._time_of)
        return plan.resume

    def _is_unit(
        self, queue: ConsumeQueue, ours: bool, offset: int, unit: ConsumeQueueUnit
    ) -> bool:
        """Return whether the log has this message of the queue where the unit points.

        Of deleted records it is only known that they follow each other. Java's queues may contain
        messages of other queues.
        """
        if not ours:
            return True
        if unit.physical_offset < self._log.min_offset:
            before = queue.unit(offset - 1)
            if before is None or before == PRE_BLANK:
                return unit.end_offset <= self._log.min_offset
            follows = before.end_offset <= unit.physical_offset
            return follows and unit.end_offset <= self._log.min_offset
        return self._is_of_record((queue.topic, queue.queue_id), offset, unit)

    def _is_of_record(self, key: QueueKey, offset: int, unit: ConsumeQueueUnit) -> bool:
        """Return whether the log has message ``offset`` of a queue where the unit points."""
        if is_light(key[0]):
            return self._is_for_record(EVERYTHING, unit)
        row = self._row_at(unit.physical_offset)
        if row is None or (row["size"], row["queue_offset"]) != (unit.size, offset):
            return False
        segment = self._log.find(unit.physical_offset)
        assert segment is not None
        topic = segment.view[row["topic_at"] : row["topic_at"] + row["topic_size"]]
        return (java_text(bytes(topic)), row["queue_id"]) == key

    def _is_for_record(self, end: int, unit: ConsumeQueueUnit) -> bool:
        """Return whether a unit of a light queue points to a good record before ``end``.

        Which records are in a light queue depends on the release of RocketMQ that wrote them, so
        a unit is kept if there is such a record, whether or not it would be derived from it.
        """
        if not unit.is_written or unit.end_offset > end:
            return False
        row = self._row_at(unit.physical_offset)
        return row is not None and row["size"] == unit.size

    def _has_record(self, offset: int) -> bool:
        """Return whether the log has a message there; deleted records count as such."""
        return offset < self._log.min_offset or self._row_at(offset) is not None

    def _row_at(self, offset: int) -> dict[str, int] | None:
        """Return the fields of the record at ``offset``, or None if there is no good one."""
        segment = self._log.find(offset)
        if segment is None:
            return None
        stop, columns = scan_record(segment, offset, Check.BODY)
        return columns.row(0) if stop is Stop.LIMIT else None

    # -- torn or damaged ----------------------------------------------------------------------

    def _refuse_damage(
        self, end: int, stop: Stop, clean: bool, watermark: Watermark | None, checkpoint: Checkpoint
    ) -> None:
        """Raise if the bytes at ``end`` are more than a torn tail that was never synced."""
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
            raise self._damage(end, stop, self._data_after(end))

    def _keep_dropped(self, end: int, stop: Stop, *, stale_tails: bool) -> None:
        """Copy good records after ``end``, which may have been acknowledged, and log a warning."""
        check = self._check if self._check is Check.SEALED else Check.RECORD
        root, system = self._log.folder.parent, self._log.system
        dropped = find_dropped(system, root, end, check)
        if dropped is None or (stale_tails and self._is_stale(dropped.first)):
            return
        folder = set_aside(system, root, dropped)
        segment = self._log.find(end) or self._log.segments[-1]
        _log.warning(
            "%s at offset %d (record %d): no good record here (%s), so the log ends here after the "
            "unclean stop; %s came after it and are no longer in the store. Their bytes are in "
            "%s: print them with 'firetrail dump', copy them to a store with 'firetrail salvage'",
            segment.path,
            end - segment.base,
            end,
            stop.name,
            dropped,
            folder,
        )

    def _is_stale(self, later: int) -> bool:
        """Return whether a record after the end is a leftover of a tail that the Java store cut.

        Such a record is older than the messages that were put since.
        """
        time = self._time_of(later)
        return self._messages > 0 and time is not None and time < self._last_store_time

    def _damage(self, end: int, stop: Stop, lost: int) -> StoreDamagedError:
        segment = self._log.find(end) or self._log.segments[-1]
        return StoreDamagedError(
            str(segment.path),
            end - segment.base,
            end,
            f"no good record here ({stop.name}) although the log continued; "
            f"ending the log here would lose up to {lost} bytes of messages",
            REMEDY,
        )

    def _data_after(self, end: int) -> int:
        return sum(
            segment.data_size(max(end - segment.base, 0)) for segment in self._log.from_offset(end)
        )

    def _next_record(self, end: int) -> int | None:
        """Return the physical offset of the first good record after ``end``, or None."""
        for segment in self._log.from_offset(end):
            found = find_record(segment, max(end - segment.base, 0))
            if found is not None:
                return segment.base + found
        return None


def _end(row: dict[str, int]) -> int:
    return row["physical_offset"] + row["size"]
