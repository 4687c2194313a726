"""The check as a whole: one pass over the log, then the units, entries and files that are left."""

from collections.abc import Callable

from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.values.delay import DelayLevels
from firetrail.store.inspect.fsck.entries import IndexCheck
from firetrail.store.inspect.fsck.log_check import LogCheck, StoreTimes, note_problem, note_torn
from firetrail.store.inspect.fsck.marks import MarkCheck, check_inventory
from firetrail.store.inspect.fsck.report import CheckReport, DamagedRanges, Findings, TornTail
from firetrail.store.inspect.fsck.unit_check import QueueChecks
from firetrail.store.inspect.fsck.unqueued_messages import UnqueuedMessages
from firetrail.store.inspect.log_tail import TailKind, read_tail
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.problems import ProblemKind

EVERYTHING = 1 << 62


def check_store(
    view: StoreView, delays: DelayLevels, on_progress: Callable[[int], None] = lambda done: None
) -> CheckReport:
    """Check everything; ``on_progress`` is called with the bytes of the log that are done."""
    return Checker(view, delays).run(on_progress)


def judged_to(view: StoreView) -> int:
    """Return the offset before which the units and entries of all records must exist.

    After an unclean stop recovery derives the rest again; a live store is about to.
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
        parts = (view, self._findings, self._damaged, judged_to(view))
        self._log = LogCheck(*parts, self._compare)
        self._queues = QueueChecks(*parts)
        self._unqueued = UnqueuedMessages(view)
        self._index = IndexCheck(*parts)
        self._marks = MarkCheck(view, self._findings)

    def run(self, on_progress: Callable[[int], None]) -> CheckReport:
        """Check the store and return the report."""
        view, log, findings = self._view, self._log, self._findings
        findings.extend([*view.log.misfits, *view.index_faults])
        log.run(view.walk(), on_progress)
        torn = log.torn or check_tail(view, findings, self._damaged)
        log.times.note(view, findings)
        self._queues.finish(view.queues.pairs(), self._unqueued.queues)
        self._unqueued.finish(findings)
        self._index.finish()
        end = view.end if torn is None else torn.physical_offset
        self._marks.finish(log.times.newest, end, damaged=len(self._damaged) > 0)
        check_inventory(view, findings)
        counted = (log.messages, self._queues.units, self._index.entries)
        return make_report(view, findings, torn, log.times, *counted)

    def _compare(self, view: memoryview, columns: Columns, rows: int) -> None:
        self._queues.feed(view, columns, rows, self._delays, self._unqueued)
        self._index.feed(view, columns, rows)


def check_tail(view: StoreView, findings: Findings, damaged: DamagedRanges) -> TornTail | None:
    """Check the bytes after the end of the log; return the torn tail, if it is one."""
    tail = read_tail(view)
    if tail.found is None:
        return None
    if tail.kind is TailKind.TORN:
        return note_torn(view, findings, tail.found)
    if tail.kind is TailKind.DAMAGED:
        note_problem(view, findings, tail.found)
        damaged.add(tail.found.physical_offset, EVERYTHING)
    else:
        file = view.relative(tail.found.path)
        detail = "old bytes after the end of the log, which no longer count"
        findings.add(file, tail.found.position, None, ProblemKind.STALE_TAIL, detail)
    return None


def make_report(
    view: StoreView,
    findings: Findings,
    torn: TornTail | None,
    times: StoreTimes,
    messages: int,
    units: int,
    entries: int,
) -> CheckReport:
    """Return the result of a check."""
    return CheckReport(
        store=str(view.root),
        state=view.state.value,
        owner=view.owner,
        problems=findings.problems,
        problems_omitted=findings.omitted,
        warnings=findings.warnings,
        messages=messages,
        begin_offset=view.log.min_offset,
        end_offset=view.end if torn is None else torn.physical_offset,
        last_store_time=times.newest,
        torn_tail=torn,
        log_files=len(view.log.segments),
        queues=len(view.queues.pairs()),
        units=units,
        index_files=len(view.index.files),
        index_entries=entries,
    )
