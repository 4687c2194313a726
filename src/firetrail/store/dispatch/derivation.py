"""The derivation of units for the queues and entries for the index from a part of the log.

Deriving only reads; applying changes queues and index. The live dispatcher does one after the
other. Work over much of the log (recovery, rebuilding) derives the next steps in a second thread
while a step is applied; see :meth:`Deriver.steps`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from firetrail.format import columns as col
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.files.unit import PRE_BLANK, UNIT_SIZE, decode_unit
from firetrail.format.kernels.derive import ENTRIES_PER_RECORD_MAX, derive_entries, derive_units
from firetrail.format.kernels.scan import scan
from firetrail.format.light import LIGHT_QUEUE_ID, is_light, light_units
from firetrail.format.values.delay import DelayLevels
from firetrail.format.values.javahash import java_text
from firetrail.storage.segment import Segment
from firetrail.store.index.index import Index
from firetrail.store.log.segment_scan import ROWS_PER_STEP
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.generations import QueueGenerations, begins_generation
from firetrail.store.queues.queue_table import QueueTable

ROWS_PER_STEP_MAX = 1 << 16
"""Maximum size to which steps grow if many queues alternate, because the work per run is in
Python."""
UNITS_PER_RUN = 32
"""The average number of units per run below which steps grow."""
STEPS_AHEAD = 2


class DeadlineExceeded(Exception):
    """The time limit passed before the work was done."""


class Arrival(NamedTuple):
    """New messages in a queue.

    Attributes:
        topic: The topic of the queue.
        queue_id: The number of the queue.
        max_offset: One past the queue offset of the last new message.
        new: The number of messages that are new.
    """

    topic: str
    queue_id: int
    max_offset: int
    new: int


class DerivedRun(NamedTuple):
    """Consecutive units of one queue; ``offset`` is the queue offset of the first."""

    topic: str
    queue_id: int
    offset: int
    units: memoryview

    @property
    def length(self) -> int:
        """The number of units."""
        return len(self.units) // UNIT_SIZE

    @property
    def first(self) -> int:
        """Physical offset of the first unit's record."""
        return decode_unit(self.units).physical_offset

    @property
    def newest(self) -> int:
        """Physical offset of the last unit's record."""
        return decode_unit(self.units, len(self.units) - UNIT_SIZE).physical_offset


LeavesOut = Callable[[DerivedRun], bool]
"""Returns whether to skip messages whose queue lacks the messages before them."""


class Step:
    """The units and entries derived from some records, and how much of them has been applied."""

    __slots__ = (
        "_chunk",
        "_entry",
        "_run",
        "arrivals",
        "entries",
        "first",
        "last_record_offset",
        "last_store_time",
        "position",
        "rows",
        "runs",
        "segment",
        "stop",
    )

    def __init__(self, segment: Segment, at: int, rows: int, position: int, stop: Stop) -> None:
        self.segment = segment
        self.first = segment.base + at
        """Physical offset of the first record."""
        self.rows = rows
        self.position = position
        """Position in the segment after the last record."""
        self.stop = stop
        self.last_record_offset = -1
        self.last_store_time = 0
        self.arrivals: list[Arrival] = []
        self.runs: list[DerivedRun] = []
        """Units for the queues."""
        self.entries: list[array[int]] = []
        """Entries for the index, as the kernel returns them."""
        self._run = self._chunk = self._entry = 0

    def apply(
        self,
        queues: QueueTable,
        index: Index | None,
        *,
        rebuilding: bool = False,
        copying: bool = False,
        leaves_out: LeavesOut | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> None:
        """Add the units and entries to queues and index.

        Call it again after a DiskFullError to continue. Raises DeadlineExceeded if ``is_over``
        returns True before all is done.

        If queues are ``rebuilding``, the range may begin before what they have and may contain
        several generations of a queue: see :func:`_enters`. A replica that is ``copying`` a log
        meets a new generation when its master has created a topic again. A queue that lacks the
        messages before those of a run stays as it is if ``leaves_out`` returns True.
        """
        while self._run < len(self.runs):
            if is_over is not None and is_over():
                raise DeadlineExceeded
            run = self.runs[self._run]
            queue = queues.open(run.topic, run.queue_id)
            may_be_known = rebuilding or (copying and run.offset == 0)
            if may_be_known and not _enters(queue, run):
                self._run += 1
                continue
            light = is_light(run.topic)
            has_gap = run.offset > queue.max_offset and not light
            if has_gap and leaves_out is not None and leaves_out(run):
                self._run += 1
                continue
            if light:
                written = queue.append_light(run.offset, run.units)
                end = queue.max_offset
            else:
                written = queue.append(run.offset, run.units)
                end = run.offset + run.length
            queues.dirty.add(queue)  # always: a MemoryError may have come after an earlier write
            if written:
                self.arrivals.append(Arrival(run.topic, run.queue_id, end, written))
            self._run += 1
        while index is not None and self._chunk < len(self.entries):
            entries = self.entries[self._chunk]
            count = len(entries) // 3
            while self._entry < count:
                self._entry = index.append(entries, self._entry, count)
            self._chunk += 1
            self._entry = 0


def note_runs(runs: Iterable[DerivedRun], generations: QueueGenerations) -> None:
    """Pass runs to ``generations``."""
    for run in runs:
        generations.note(run[:2], run.offset, run.length, run.first, run.newest)


def _enters(queue: ConsumeQueue, run: DerivedRun) -> bool:
    """Make room for a new generation of a queue; return whether the run is new to the queue.

    A run before the record of the last unit is in the queue, or was dropped when a new generation
    began.
    """
    last = queue.last_unit
    if last is None:
        return True
    known_to = -1 if last == PRE_BLANK else last.physical_offset
    if run.newest <= known_to:
        return False
    if run.first > known_to and begins_generation(run.offset, queue.max_offset):
        queue.begin_generation()
    return True


@dataclass(frozen=True, slots=True)
class DerivePolicy:
    """The units and entries that one run over the log derives."""

    delays: DelayLevels
    """The waits of the delay levels."""
    light: bool = False
    """Whether light queues are derived."""
    tags: bool = False
    """Whether the index contains tags beside the keys."""
    queues_from: int = 0
    index_from: int = 0
    """Records before these physical offsets are skipped: queues and index have them."""
    wants: Callable[[DerivedRun], bool] | None = None
    """Returns whether a run of units is derived; None derives all."""
    leaves_out: LeavesOut | None = None
    """Called for messages whose queue lacks those before them; see :meth:`Step.apply`."""
    copying: bool = False
    """Whether the log is a copy of a master's, which may create topics again."""


class Derivation:
    """Derives steps from segments."""

    def __init__(self, policy: DerivePolicy, *, keys: bool = True, rows: int | None = None) -> None:
        self.policy = policy
        self._keys = keys
        self._waits = array("q", policy.delays.waits_ms)
        self._make_room(rows or ROWS_PER_STEP)

    def _make_room(self, rows: int) -> None:
        """Allocate room for steps of ``rows`` records."""
        self._rows = rows
        self._columns = Columns(rows)
        self._entries = array("q", bytes(24 * max(ENTRIES_PER_RECORD_MAX, 4 * rows)))

    def derive_all(
        self, segments: list[Segment], start: int, end: int, check: Check
    ) -> Iterator[Step]:
        """Yield the steps that are derived from all records from ``start`` to ``end``.

        Ends with the first step that stops for another reason than a full step or the end of a
        file.
        """
        for segment in segments:
            at = max(start - segment.base, 0)
            limit = min(end - segment.base, segment.size)
            stop = Stop.FULL
            while stop is Stop.FULL:
                step = self.derive(segment, at, limit, check)
                at, stop = step.position, step.stop
                yield step
            if stop is not Stop.BLANK:
                return

    def derive(self, segment: Segment, at: int, limit: int, check: Check) -> Step:
        """Derive from the first records of ``segment.view[at : limit]``."""
        view, policy = segment.view, self.policy
        rows, position, stop = scan(view, at, limit, segment.base, self._columns.table, check)
        step = Step(segment, at, rows, position, Stop(stop))
        if rows:
            step.last_record_offset = self._columns.column(col.PHYSICAL_OFFSET)[rows - 1]
            step.last_store_time = self._columns.column(col.STORE_TIME)[rows - 1]
            if segment.base + position > policy.queues_from:
                step.runs = derive_runs(view, self._columns, rows, self._waits, light=policy.light)
                if policy.wants is not None:
                    step.runs = list(filter(policy.wants, step.runs))
            if self._keys and segment.base + position > policy.index_from:
                step.entries = list(self._index_entries(view, rows, step.first))
            short = rows < UNITS_PER_RUN * len(step.runs) and step.stop is Stop.FULL
            if short and self._rows < ROWS_PER_STEP_MAX:
                self._make_room(4 * self._rows)
        return step

    def _index_entries(self, view: memoryview, rows: int, first: int) -> Iterator[array[int]]:
        row = self._first_row(rows) if first < self.policy.index_from else 0
        while row < rows:
            count, row = derive_entries(
                view, self._columns.table, row, rows, self._entries, self.policy.tags
            )
            if count:
                yield self._entries[: 3 * count]

    def _first_row(self, rows: int) -> int:
        offsets = self._columns.column(col.PHYSICAL_OFFSET)
        return next((row for row in range(rows) if offsets[row] >= self.policy.index_from), rows)


def derive_runs(
    view: memoryview, columns: Columns, rows: int, waits: array[int], *, light: bool
) -> list[DerivedRun]:
    """Return the units of the first ``rows`` records of a scan, with ``light`` queues if set."""
    units, runs = derive_units(view, columns.table, rows, waits)
    content = memoryview(units)
    topic_at = columns.column(col.TOPIC_AT)
    topic_size = columns.column(col.TOPIC_SIZE)
    queue_ids = columns.column(col.QUEUE_ID)
    queue_offsets = columns.column(col.QUEUE_OFFSET)
    found = [
        DerivedRun(
            java_text(bytes(view[topic_at[row] : topic_at[row] + topic_size[row]])),
            queue_ids[row],
            queue_offsets[row],
            content[start : start + count * UNIT_SIZE],
        )
        for row, count, start in runs
    ]
    if light:
        found += (
            DerivedRun(name, LIGHT_QUEUE_ID, number, memoryview(content))
            for name, number, content in light_units(view, columns, rows)
        )
    return found


class Deriver(Derivation):
    """Derives steps from segments and applies them, in one run with one policy."""

    def __init__(self, queues: QueueTable, index: Index | None, policy: DerivePolicy) -> None:
        super().__init__(policy, keys=index is not None)
        self._queues = queues
        self._index = index
        self._unfinished: Step | None = None
        self.generations = QueueGenerations()
        """The generations of the queues that :meth:`steps` has derived."""

    def step(
        self,
        segment: Segment,
        at: int,
        limit: int,
        check: Check,
        is_over: Callable[[], bool] | None = None,
    ) -> Step:
        """Derive and apply the next records of ``segment.view[at : limit]``.

        Raises DiskFullError, and DeadlineExceeded if ``is_over`` returns True before all is done;
        the next call with the same position continues.
        """
        step = self._unfinished
        if step is None or step.first != segment.base + at:
            step = self.derive(segment, at, limit, check)
        self._unfinished = step
        step.apply(self._queues, self._index, copying=self.policy.copying, is_over=is_over)
        self._unfinished = None
        return step

    def steps(self, segments: list[Segment], start: int, end: int, check: Check) -> Iterator[Step]:
        """Derive and apply all records from ``start`` to ``end``; yield each step when it is done.

        Ends with the first step that stops for another reason than a full step or the end of a
        file. Errors of the deriving thread are raised here.
        """
        threads, leaves_out = self._queues.system.threads, self.policy.leaves_out
        derived = self.derive_all(segments, start, end, check)
        for step in threads.ahead("firetrail-derive", derived, STEPS_AHEAD):
            step.apply(self._queues, self._index, rebuilding=True, leaves_out=leaves_out)
            note_runs(step.runs, self.generations)
            yield step
