"""The check of the log, or of a part of it: every record, and the order of the store times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from firetrail.format import columns as col
from firetrail.format.columns import Columns
from firetrail.store.inspect.fsck.report import DamagedRanges, Findings, TornTail
from firetrail.store.inspect.log_tail import is_torn
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.walk import Damage, LogWalk, RecordBatch
from firetrail.store.problems import ProblemKind

NOTED_WITH_THE_FILES = (ProblemKind.FILE_MISSING, ProblemKind.FILE_SIZE)


class TimedRecord(NamedTuple):
    """A record and its store time."""

    physical_offset: int
    time: int


class StoreTimes:
    """The order of the store times of consecutive records."""

    def __init__(self) -> None:
        self.first: TimedRecord | None = None
        self.newest = 0
        self.backwards: tuple[int, int] | None = None
        """The first record that is older than the previous one, and the difference in ms."""

    def take(self, columns: Columns, rows: int) -> None:
        """Note the store times of the first ``rows`` rows of some columns."""
        times = columns.column(col.STORE_TIME)[:rows].tolist()
        if not times:
            return
        offsets = columns.column(col.PHYSICAL_OFFSET)
        found = StoreTimes()
        found.first = TimedRecord(offsets[0], times[0])
        found.newest = max(times)
        if times != sorted(times):
            row = next(row for row in range(1, rows) if times[row] < times[row - 1])
            found.backwards = (offsets[row], times[row - 1] - times[row])
        self.go_on(found)

    def go_on(self, later: StoreTimes) -> None:
        """Append the times of the records that follow."""
        if later.first is None:
            return
        if self.backwards is None:
            if later.first.time < self.newest:
                step = self.newest - later.first.time
                self.backwards = (later.first.physical_offset, step)
            else:
                self.backwards = later.backwards
        self.first = self.first or later.first
        self.newest = max(self.newest, later.newest)

    def note(self, view: StoreView, findings: Findings) -> None:
        """Warn if store times run backwards, as clocks sometimes do."""
        if self.backwards is None:
            return
        offset, step = self.backwards
        segment = view.log.find(offset)
        assert segment is not None
        detail = f"store times run backwards here, by {step} ms, and perhaps again later"
        file = view.relative(segment.path)
        findings.add(file, offset - segment.base, offset, ProblemKind.STORE_TIME, detail)


class LogCheck:
    """One walk over the log; ``compare`` gets the records that queues and index must have."""

    def __init__(
        self,
        view: StoreView,
        findings: Findings,
        damaged: DamagedRanges,
        judged_to: int,
        compare: Callable[[memoryview, Columns, int], None],
    ) -> None:
        self._view = view
        self._findings = findings
        self._damaged = damaged
        self._judged_to = judged_to
        self._compare = compare
        self.messages = 0
        self.times = StoreTimes()
        self.torn: TornTail | None = None
        """The end of the log of a crashed store, if the walk has reached it."""

    def run(self, walk: LogWalk, on_progress: Callable[[int], None]) -> None:
        """Check all records of the walk."""
        for part in walk:
            if isinstance(part, RecordBatch):
                self._check_batch(part)
                if self.torn is None:
                    on_progress(part.segment.base + part.position - self._view.log.min_offset)
            elif is_torn(self._view, part):
                self._note_torn(part)
            else:
                self._note_damage(part)
            if self.torn is not None:
                return

    def _check_batch(self, batch: RecordBatch) -> None:
        rows = self._rows_to_check(batch)
        self.times.take(batch.columns, rows)
        if self._view.state is StoreState.OPEN:
            offsets = batch.columns.column(col.PHYSICAL_OFFSET)[:rows]
            rows = bisect_left(offsets, self._judged_to)
        if rows:
            self._compare(batch.segment.view, batch.columns, rows)
        if batch.failed is not None and batch.failed.kind is ProblemKind.PROPERTY_CRC:
            end = batch.segment.base + batch.position
            self._damaged.add(batch.failed.physical_offset, end)

    def _rows_to_check(self, batch: RecordBatch) -> int:
        """Return the number of rows that can be compared with queues and index.

        A record with a wrong body is compared; a wrong property CRC may be about any field.
        """
        if batch.failed is None:
            self.messages += batch.rows
            return batch.rows
        good = batch.rows - 1
        self.messages += good
        if is_torn(self._view, batch.failed):
            self._note_torn(batch.failed)
            return good
        note_problem(self._view, self._findings, batch.failed)
        return batch.rows if batch.failed.kind is ProblemKind.BODY_CRC else good

    def _note_damage(self, damage: Damage) -> None:
        if damage.kind not in NOTED_WITH_THE_FILES:
            note_problem(self._view, self._findings, damage)
        if damage.kind is not ProblemKind.BLANK_SIZE:
            end = self._view.end if damage.resume is None else damage.resume
            self._damaged.add(damage.physical_offset, end)

    def _note_torn(self, damage: Damage) -> None:
        self.torn = note_torn(self._view, self._findings, damage)


def note_problem(view: StoreView, findings: Findings, damage: Damage) -> None:
    """Report damage in the log."""
    detail = damage.detail
    if damage.resume is not None and damage.kind not in (
        ProblemKind.BODY_CRC,
        ProblemKind.PROPERTY_CRC,
    ):
        detail += f"; the next good record is at {damage.resume}"
    file = view.relative(damage.path)
    findings.add(file, damage.position, damage.physical_offset, damage.kind, detail)


def note_torn(view: StoreView, findings: Findings, damage: Damage) -> TornTail:
    """Report where recovery will end the log of a crashed store."""
    file, end = view.relative(damage.path), damage.physical_offset
    if damage.resume is not None:
        detail = f"recovery ends the log here and drops the good records from {damage.resume} on"
        findings.add(file, damage.position, end, ProblemKind.RECORDS_DROPPED, detail)
    return TornTail(file, damage.position, end, damage.detail)
