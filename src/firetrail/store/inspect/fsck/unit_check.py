"""Consume queues compared with the log: each unit must be the one derived from its record.

Units without a record are examined when the log is done: those before the first record must be
blank or expired, those after the last one unwritten.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable
from contextlib import closing
from struct import iter_unpack
from typing import NamedTuple

from firetrail.errors import SegmentSizeError
from firetrail.format import layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.files.unit import PRE_BLANK, UNIT_SIZE, ConsumeQueueUnit, decode_unit
from firetrail.format.light import is_light
from firetrail.format.names import is_queue, queue_folder, segment_name
from firetrail.format.values.delay import DelayLevels
from firetrail.storage.segment import Segment, any_data
from firetrail.store.dispatch.derivation import derive_runs
from firetrail.store.inspect.fsck.extended import ExtendedUnits
from firetrail.store.inspect.fsck.queue_files import OpenFiles
from firetrail.store.inspect.fsck.report import DamagedRanges, Findings
from firetrail.store.inspect.fsck.unqueued_messages import UnqueuedMessages
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.view_log import misfits, segment_sizes
from firetrail.store.problems import Problem, ProblemKind
from firetrail.store.queues.generations import begins_generation
from firetrail.store.queues.queue_table import QueueKey

_ABOUT_UNITS = (ProblemKind.UNIT_WRONG, ProblemKind.UNIT_MISSING, ProblemKind.UNIT_STRAY)


class UnitRun(NamedTuple):
    """Consecutive units with the same fault."""

    first: int  # queue offset
    length: int
    physical_offset: int
    last_physical_offset: int


class QueueChecks:
    """The check of all queues of a store."""

    def __init__(
        self, view: StoreView, findings: Findings, damaged: DamagedRanges, judged_to: int
    ) -> None:
        self.view = view
        self.findings = findings
        self.damaged = damaged
        self.judged_to = judged_to
        """Units of records from this offset on may still have to be derived."""
        self.files = OpenFiles(view)
        self.extended = ExtendedUnits(view)
        self.log_min = view.log.min_offset
        self.units = 0
        self._queues: dict[QueueKey, QueueCheck | None] = {}

    def feed(
        self,
        view: memoryview,
        columns: Columns,
        rows: int,
        delays: DelayLevels,
        unqueued: UnqueuedMessages,
    ) -> None:
        """Compare the units of some records."""
        waits = array("q", delays.waits_ms)
        light = self.view.queues.may_lack_light_queues
        for run in derive_runs(view, columns, rows, waits, light=light):
            key = (run.topic, run.queue_id)
            if unqueued.admits(key, run.offset, run.length, run.first, run.newest):
                self.take(*key, run.offset, bytearray(run.units))

    def take(self, topic: str, queue_id: int, offset: int, units: bytearray) -> None:
        """Compare consecutive units of a queue, the first of which should be ``offset``."""
        key = (topic, queue_id)
        if key not in self._queues:
            self._queues[key] = self._begin(*key, decode_unit(units).physical_offset)
        queue = self._queues[key]
        if queue is not None:
            queue.feed(offset, units)

    def _begin(self, topic: str, queue_id: int, offset: int) -> QueueCheck | None:
        if is_queue(topic, queue_id):
            return QueueCheck(self, topic, queue_id)
        segment = self.view.log.find(offset)
        assert segment is not None
        self.findings.add(
            self.view.relative(segment.path),
            offset - segment.base,
            offset,
            ProblemKind.RECORD_QUEUE,
            f"topic {topic!r}, queue {queue_id} cannot be a consume queue",
        )
        return None

    def finish(self, existing: Iterable[QueueKey], absent: Container[QueueKey] = ()) -> None:
        """Check the rest of the ``existing`` queues after the end of the log.

        The ``absent`` queues were deleted with their topic, so they rightly do not exist.
        """
        for key in existing:
            if self._queues.get(key) is None:
                self._queues[key] = QueueCheck(self, *key)
        for key, check in self._queues.items():
            if check is not None and key not in absent:
                check.finish()
                self.units += check.units
        self.files.close()
        self.extended.close()


class QueueCheck:
    """The check of one queue."""

    def __init__(self, checks: QueueChecks, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._checks = checks
        self._folder = queue_folder(topic, queue_id)
        self._path = checks.view.root / self._folder
        self._sizes = segment_sizes(checks.view.system, self._path)
        self._bases = [base for base, _ in self._sizes]
        self._file_size = checks.view.queue_file_size
        self._found: list[Problem] = [
            problem._replace(physical_offset=None)
            for problem in misfits(self._folder, self._sizes, self._file_size)
        ]
        self._unreadable: set[int] = set()
        self.units = 0
        self._first: int | None = None
        self._next = 0
        self._numbered = 0  # one past the last number in a record of a light queue
        self._damage_known = 0
        self._missing: UnitRun | None = None
        self._stray: UnitRun | None = None
        self._expired: UnitRun | None = None

    # -- along the log ------------------------------------------------------------------------

    def feed(self, offset: int, units: bytearray) -> None:
        """Compare the units of consecutive messages, the first of which has number ``offset``."""
        if is_light(self.topic):
            self._feed_light(offset, units)
            return
        expected = self._expected_first() if self._first is None else self._next
        if offset != expected:
            offset = self._jump(expected, offset, units)
        if self._first is None:
            self._first = offset
        self._damage_known = len(self._checks.damaged)
        self._next = offset + len(units) // UNIT_SIZE
        if offset >= 0:
            self._compare(offset * UNIT_SIZE, units)

    def _expected_first(self) -> int:
        """Return the number of the first message that the log should have."""
        key = (self.topic, self.queue_id)
        if key not in self._checks.view.tails:
            return 0
        with closing(self._checks.view.open_queue(*key)) as queue:
            return queue.min_offset(self._checks.log_min)

    def _jump(self, expected: int, offset: int, units: bytearray) -> int:
        """Handle a message with an unexpected number; return the number to continue with."""
        record = decode_unit(units).physical_offset
        found = self._read(expected * UNIT_SIZE, UNIT_SIZE)
        damage = len(self._checks.damaged) > self._damage_known
        if found is not None and units[:UNIT_SIZE] == found:
            self._note_record(record, f"is marked as message {offset}, but its unit is {expected}")
            return expected
        if self._first is None:
            # A log that begins at 0 has every message of every queue; others do not.
            if self._checks.log_min == 0 and offset != 0 and not damage:
                self._note_record(record, f"is message {offset} of its queue, but 0 was expected")
        elif begins_generation(offset, expected):
            self._restart(record, expected)
        elif offset > expected and damage:
            self._check_unclaimed(expected, offset)
        else:
            self._note_record(
                record, f"is message {offset} of its queue, but {expected} was expected"
            )
        return offset

    def _restart(self, record: int, expected: int) -> None:
        """Begin a new generation of the queue, which does not have the faulty units so far."""
        detail = (
            f"{self._folder}: message {expected - 1} is followed by message 0: the topic was "
            "deleted and created again"
        )
        self._note_record(record, detail, ProblemKind.QUEUE_RESTART)
        self._found = [problem for problem in self._found if problem.kind not in _ABOUT_UNITS]
        self._missing = None
        self._first = 0

    def _note_record(
        self, record: int, detail: str, kind: ProblemKind = ProblemKind.QUEUE_OFFSET
    ) -> None:
        segment = self._checks.view.log.find(record)
        assert segment is not None
        file = self._checks.view.relative(segment.path)
        self._found.append(Problem(file, record - segment.base, record, kind, detail))

    def _compare(self, at: int, units: bytearray) -> None:
        done = 0
        while done < len(units):
            base = at + done - (at + done) % self._file_size
            size = min(len(units) - done, base + self._file_size - at - done)
            part = units[done : done + size]
            actual = self._read(at + done, size)
            if actual is None or part != actual:
                for number in range(0, size, UNIT_SIZE):
                    unit = part[number : number + UNIT_SIZE]
                    found = self._read(at + done + number, UNIT_SIZE)
                    self._compare_one((at + done + number) // UNIT_SIZE, unit, found)
            else:
                self._end_missing()
            done += size
        self.units += len(units) // UNIT_SIZE

    def _compare_one(self, offset: int, unit: bytearray, found: memoryview | None) -> None:
        expected = decode_unit(unit)
        actual = decode_unit(found) if found is not None else None
        if actual is None or not actual.is_written or actual == PRE_BLANK:
            self._note_missing(offset, expected.physical_offset)
            return
        self._end_missing()
        key = (self.topic, self.queue_id)
        if actual == expected or self._checks.extended.describes(key, expected, actual):
            return
        differences = [
            f"{name.replace('_', ' ')} {got} instead of {wanted}"
            for name, got, wanted in zip(expected._fields, actual, expected, strict=True)
            if got != wanted
        ]
        self._note(offset, expected.physical_offset, ProblemKind.UNIT_WRONG, ", ".join(differences))

    # -- light queues -------------------------------------------------------------------------

    def _feed_light(self, offset: int, units: bytearray) -> None:
        """Compare the units of messages of other topics that should be in this queue.

        They are consecutive, regardless of the numbers that Java has given to them. RocketMQ 4.9
        puts more messages into light queues than 5.x does: those may be between them.
        """
        if self._first is None:
            self._first = self._next = self._expected_first()
        elif begins_generation(offset, self._numbered):
            self._restart(decode_unit(units).physical_offset, self._numbered)
            self._next = 0
        self._numbered = offset + len(units) // UNIT_SIZE
        for at in range(0, len(units), UNIT_SIZE):
            expected = decode_unit(units, at)
            self._skip_units(expected.physical_offset)
            found = self._read(self._next * UNIT_SIZE, UNIT_SIZE)
            if found is None or decode_unit(found).physical_offset != expected.physical_offset:
                self._note_missing(self._next, expected.physical_offset)
                continue
            self._compare_one(self._next, units[at : at + UNIT_SIZE], found)
            self._next += 1
        self.units += len(units) // UNIT_SIZE

    def _skip_units(self, end: int) -> None:
        """Skip the units of records before ``end``, which should be in the log."""
        while (found := self._read(self._next * UNIT_SIZE, UNIT_SIZE)) is not None:
            unit = decode_unit(found)
            if not unit.is_written or unit.physical_offset >= end:
                break
            stop, columns = self._checks.view.log.scan_one(unit.physical_offset, Check.NONE)
            if stop is not Stop.LIMIT or columns.row(0)["size"] != unit.size:
                self._check_one(self._next, unit)
            self._next += 1

    # -- the files ----------------------------------------------------------------------------

    def _segment(self, at: int) -> Segment | None:
        """Return the file that holds byte ``at`` of the queue, or None if it cannot be read."""
        index = bisect_right(self._bases, at) - 1
        if index < 0:
            return None
        base, size = self._sizes[index]
        if at >= base + size or base in self._unreadable:
            return None
        segment = self._checks.files.get(self._path / segment_name(base), base, size)
        try:
            _ = segment.descriptor
        except OSError as error:
            self._note_unreadable(segment, error)
            return None
        return segment

    def _read(self, at: int, size: int) -> memoryview | None:
        """Return bytes of the queue, all of them in one file, or None if they do not exist."""
        segment = self._segment(at)
        if segment is None or at - segment.base + size > segment.size:
            return None
        return self._content(segment, at - segment.base, size)

    def _content(self, segment: Segment, at: int, size: int) -> memoryview | None:
        """Return bytes of a file, or None if it cannot be read."""
        try:
            return memoryview(segment.read(at, size))
        except (OSError, SegmentSizeError) as error:
            self._note_unreadable(segment, error)
            return None

    def _note_unreadable(self, segment: Segment, error: OSError | SegmentSizeError) -> None:
        self._unreadable.add(segment.base)
        if not isinstance(error, FileNotFoundError):
            reason = str(error.strerror if isinstance(error, OSError) else error)
            file = f"{self._folder}/{segment.path.name}"
            self._found.append(Problem(file, 0, None, ProblemKind.FILE_UNREADABLE, reason))

    # -- findings -----------------------------------------------------------------------------

    def _note(
        self, offset: int, physical_offset: int | None, kind: ProblemKind, detail: str
    ) -> None:
        at = offset * UNIT_SIZE
        index = max(bisect_right(self._bases, at) - 1, 0)
        base = self._bases[index] if self._bases else at - at % self._file_size
        file = f"{self._folder}/{segment_name(base)}"
        self._found.append(Problem(file, at - base, physical_offset, kind, detail))

    def _note_missing(self, offset: int, physical_offset: int) -> None:
        if physical_offset >= self._checks.judged_to:
            return
        self._missing = _extend(self._missing, offset, physical_offset)

    def _end_missing(self) -> None:
        run, self._missing = self._missing, None
        if run is not None:
            detail = f"message {run.first} of the queue has no unit"
            if run.length > 1:
                detail = (
                    f"messages {run.first} to {run.first + run.length - 1} of the queue (physical "
                    f"offsets {run.physical_offset} to {run.last_physical_offset}) have no units"
                )
            self._note(run.first, run.physical_offset, ProblemKind.UNIT_MISSING, detail)

    # -- units without a record ---------------------------------------------------------------

    def finish(self) -> None:
        """Check the units before the first message of the log and after the last one."""
        self._end_missing()
        state = self._checks.view.state
        if state is not StoreState.OPEN:
            begin = self._bases[0] // UNIT_SIZE if self._bases else 0
            end = (self._bases[-1] + self._sizes[-1][1]) // UNIT_SIZE if self._bases else 0
            if is_light(self.topic):
                if self._first is None:
                    self._first = self._next = self._expected_first()
                self._skip_units(self._checks.view.end)
            if self._first is None:
                self._check_unclaimed(begin, end)
            else:
                self._check_unclaimed(begin, self._first)
                self._check_unclaimed(self._next, end)
        self._checks.findings.extend(self._found)

    def _check_unclaimed(self, first: int, end: int) -> None:
        """Check units ``first`` to ``end``, for which the log has no record."""
        at = first * UNIT_SIZE
        while at < end * UNIT_SIZE:
            segment = self._segment(at)
            if segment is None:
                index = bisect_right(self._bases, at)
                at = self._bases[index] if index < len(self._bases) else end * UNIT_SIZE
                continue
            limit = min(segment.size, end * UNIT_SIZE - segment.base)
            self._check_part(segment, at - segment.base, limit - limit % UNIT_SIZE)
            at = segment.base + segment.size
        self._end_stray()
        self._expired = None

    def _check_part(self, segment: Segment, start: int, end: int) -> None:
        files = segment.system.files
        for low, high in files.data_ranges(segment.descriptor, start, end):
            low -= (low - start) % UNIT_SIZE
            high = min(end, high + -(high - start) % UNIT_SIZE)
            content = self._content(segment, low, high - low)
            if content is None:
                return
            if not any_data(content, 0, len(content)):
                continue
            units = iter_unpack(layout.UNIT.struct.format, content)
            offset = (segment.base + low) // UNIT_SIZE
            for number, fields in enumerate(units, offset):
                if any(fields):
                    self._check_one(number, ConsumeQueueUnit._make(fields))

    def _check_one(self, offset: int, unit: ConsumeQueueUnit) -> None:
        checks = self._checks
        crashed = checks.view.state is StoreState.CRASHED
        if unit == PRE_BLANK:
            # Blanks fill up the beginning of a queue: a unit before one must be blank as well.
            self._end_stray()
            self._stray, self._expired = self._expired, None
            self._end_stray()
        elif unit.is_written and unit.physical_offset < checks.log_min:
            self._expired = _extend(self._expired, offset, unit.physical_offset)
        elif unit.physical_offset in checks.damaged or (
            crashed and (not unit.is_written or unit.physical_offset >= checks.judged_to)
        ):
            self._end_stray()
        elif not unit.is_written:
            self._note(
                offset, None, ProblemKind.UNIT_STRAY, f"bytes that are not a unit: {tuple(unit)}"
            )
        else:
            self._stray = _extend(self._stray, offset, unit.physical_offset)

    def _end_stray(self) -> None:
        run, self._stray = self._stray, None
        if run is not None:
            detail = f"unit {run.first} points to {run.physical_offset}"
            if run.length > 1:
                detail = (
                    f"{run.length} units from {run.first} on point to {run.physical_offset} … "
                    f"{run.last_physical_offset}"
                )
            detail += ": the log has no such messages of this queue"
            self._note(run.first, run.physical_offset, ProblemKind.UNIT_STRAY, detail)


def _extend(run: UnitRun | None, offset: int, physical_offset: int) -> UnitRun:
    if run is None:
        return UnitRun(offset, 1, physical_offset, physical_offset)
    return run._replace(length=run.length + 1, last_physical_offset=physical_offset)
