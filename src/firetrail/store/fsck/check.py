"""The check as a whole: one pass over the log, then what is left."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from firetrail.format import columns as col
from firetrail.format.columns import Check, Stop
from firetrail.format.delay import DelayLevels
from firetrail.store.fsck.entries import IndexCheck
from firetrail.store.fsck.marks import MarkCheck
from firetrail.store.fsck.report import CheckReport, DamagedRanges, Findings, TornTail
from firetrail.store.fsck.units import QueueChecks
from firetrail.store.problems import Kind, Problem
from firetrail.store.tail import TailKind, is_torn, read_tail
from firetrail.store.view import StoreState, StoreView
from firetrail.store.walk import Batch, Damage

EVERYTHING = 1 << 62
NOTED_WITH_THE_FILES = (Kind.FILE_MISSING, Kind.FILE_SIZE)


def check_store(
    view: StoreView, delays: DelayLevels, on_progress: Callable[[int], None] = lambda done: None
) -> CheckReport:
    """Check everything. ``on_progress`` is told how many bytes of the log are done."""
    return Checker(view, delays).run(on_progress)


def judged_to(view: StoreView) -> int:
    """Units and entries of records before this offset must be there.

    After an unclean stop recovery derives the rest again; a store in use is about to.
    """
    if view.state is StoreState.CLOSED:
        return EVERYTHING
    if view.watermark is not None:
        return view.watermark.dispatched_offset
    if view.state is StoreState.OPEN:
        last = (tail.last.physical_offset for tail in view.tails.values() if tail.last is not None)
        return max(last, default=0)
    for segment in reversed(view.log.segments):
        stop, columns = view.log.scan_one(segment.base, Check.BODY)
        if stop is Stop.LIMIT and columns.row(0)["store_time"] <= view.checkpoint.min_timestamp:
            return segment.base
    return view.log.min_offset


class Checker:
    """One check of one store."""

    def __init__(self, view: StoreView, delays: DelayLevels) -> None:
        self._view = view
        self._delays = delays
        self._findings = Findings()
        self._damaged = DamagedRanges()
        self._judged_to = judged_to(view)
        parts = (view, self._findings, self._damaged, self._judged_to)
        self._queues = QueueChecks(*parts)
        self._index = IndexCheck(*parts)
        self._marks = MarkCheck(view, self._findings)
        self._messages = 0
        self._last_time = 0
        self._backwards: Problem | None = None
        self._torn: TornTail | None = None
        self._end = view.end

    def run(self, on_progress: Callable[[int], None]) -> CheckReport:
        """Check, and report."""
        view = self._view
        self._findings.extend([*view.log.misfits, *view.index_faults])
        for part in view.walk():
            if isinstance(part, Batch):
                self._check_batch(part)
                if self._torn is not None:
                    break
                on_progress(part.segment.base + part.position - view.log.min_offset)
            elif is_torn(view, part):
                self._note_torn(part)
                break
            else:
                self._note_damage(part)
        else:
            self._check_tail()
        if self._backwards is not None:
            self._findings.extend([self._backwards])
        self._queues.finish()
        self._index.finish()
        self._marks.finish(self._last_time, self._end, damaged=len(self._damaged) > 0)
        return self._report()

    def _report(self) -> CheckReport:
        view, findings = self._view, self._findings
        return CheckReport(
            store=str(view.root),
            state=view.state.value,
            owner=view.owner,
            problems=findings.problems,
            problems_omitted=findings.omitted,
            warnings=findings.warnings,
            messages=self._messages,
            begin_offset=view.log.min_offset,
            end_offset=self._end,
            last_store_time=self._last_time,
            torn_tail=self._torn,
            log_files=len(view.log.segments),
            queues=len(view.queues.pairs()),
            units=self._queues.units,
            index_files=len(view.index.files),
            index_entries=self._index.entries,
        )

    # -- the log ------------------------------------------------------------------------------

    def _check_batch(self, batch: Batch) -> None:
        rows = self._rows_to_check(batch)
        self._check_times(batch, rows)
        if self._view.state is StoreState.OPEN:
            offsets = batch.columns.column(col.PHYSICAL_OFFSET)[:rows]
            rows = bisect_left(offsets, self._judged_to)
        if rows:
            view = batch.segment.view
            self._queues.feed(view, batch.columns, rows, self._delays)
            self._index.feed(view, batch.columns, rows)
        if batch.failed is not None and batch.failed.kind is Kind.PROPERTY_CRC:
            end = batch.segment.base + batch.position
            self._damaged.add(batch.failed.physical_offset, end)

    def _rows_to_check(self, batch: Batch) -> int:
        """How many of the rows can be compared with queues and index.

        Of a record with a wrong body the rest counts; a wrong property CRC may be about any field.
        """
        if batch.failed is None:
            self._messages += batch.rows
            return batch.rows
        good = batch.rows - 1
        self._messages += good
        if is_torn(self._view, batch.failed):
            self._note_torn(batch.failed)
            return good
        self._note_problem(batch.failed)
        return batch.rows if batch.failed.kind is Kind.BODY_CRC else good

    def _check_times(self, batch: Batch, rows: int) -> None:
        """Store times should not run backwards; a warning, for clocks do."""
        times = batch.columns.column(col.STORE_TIME)[:rows].tolist()
        if not times:
            return
        if self._backwards is None and (times[0] < self._last_time or times != sorted(times)):
            before = self._last_time
            for row, time in enumerate(times):
                if time < before:
                    self._note_backwards(batch, row, before - time)
                    break
                before = time
        self._last_time = max(self._last_time, max(times))

    def _note_backwards(self, batch: Batch, row: int, step: int) -> None:
        offset = batch.columns.column(col.PHYSICAL_OFFSET)[row]
        file = self._view.relative(batch.segment.path)
        detail = f"store times run backwards here, by {step} ms, and perhaps again later"
        at = offset - batch.segment.base
        self._backwards = Problem(file, at, offset, Kind.STORE_TIME, detail)

    def _note_problem(self, damage: Damage) -> None:
        detail = damage.detail
        if damage.resume is not None and damage.kind not in (Kind.BODY_CRC, Kind.PROPERTY_CRC):
            detail += f"; the next good record is at {damage.resume}"
        self._findings.add(
            self._view.relative(damage.path),
            damage.position,
            damage.physical_offset,
            damage.kind,
            detail,
        )

    def _note_damage(self, damage: Damage) -> None:
        if damage.kind not in NOTED_WITH_THE_FILES:
            self._note_problem(damage)
        if damage.kind is not Kind.BLANK_SIZE:
            end = self._view.end if damage.resume is None else damage.resume
            self._damaged.add(damage.physical_offset, end)

    def _note_torn(self, damage: Damage) -> None:
        file = self._view.relative(damage.path)
        self._end = damage.physical_offset
        self._torn = TornTail(file, damage.position, self._end, damage.detail)
        if damage.resume is not None:
            detail = (
                f"recovery ends the log here and drops the good records from {damage.resume} on"
            )
            self._findings.add(file, damage.position, self._end, Kind.RECORDS_DROPPED, detail)

    def _check_tail(self) -> None:
        tail = read_tail(self._view)
        if tail.found is None:
            return
        if tail.kind is TailKind.DAMAGED:
            self._note_problem(tail.found)
            self._damaged.add(tail.found.physical_offset, EVERYTHING)
        elif tail.kind is TailKind.TORN:
            self._note_torn(tail.found)
        else:
            file = self._view.relative(tail.found.path)
            detail = "old bytes behind the end of the log, which no longer count"
            self._findings.add(file, tail.found.position, None, Kind.STALE_TAIL, detail)
