"""The audit job: checks every record, unit and index entry of a store with Spark tasks.

Checks and verdict are those of ``firetrail fsck``; here they run in parallel:

1. Tasks over the files of the log verify its records and stage the units and entries derived from
   them.
2. If damage extends from one file into the next, the next file is checked again from the end of
   the damage.
3. Tasks compare the queues (several per task) and the index files (one per task) with the staged
   units and entries. Only if an index file differs is the index checked as a whole: entries that
   are missing in one file may be in the next.
"""

import tempfile
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from firetrail.format.names import CONSUME_QUEUE, INDEX
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.pipeline.jobs.audit.audit_tasks import (
    AuditedStore,
    CheckFindings,
    CompareTask,
    IndexFileTask,
    IndexTask,
    LogChecked,
    LogTask,
    QueueTask,
    QueueWork,
    check_log,
    compare,
)
from firetrail.pipeline.jobs.rebuild.arrangement import deal_out, shared_out
from firetrail.pipeline.jobs.rebuild.pieces import DerivedPiece
from firetrail.pipeline.source.plan.fingerprint import whole_fingerprint
from firetrail.pipeline.tasks import run_tasks
from firetrail.pipeline.workers import make_shared
from firetrail.store.index.tag_entries import has_tag_entries
from firetrail.store.inspect.fsck.check import check_tail, judged_to, make_report
from firetrail.store.inspect.fsck.log_check import StoreTimes
from firetrail.store.inspect.fsck.marks import MarkCheck, check_inventory
from firetrail.store.inspect.fsck.report import CheckReport, DamagedRanges, Findings, by_kind
from firetrail.store.inspect.fsck.unqueued_messages import UnqueuedMessages
from firetrail.store.inspect.view import StoreView
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.root.new_folder import claimed
from firetrail.system import allow_many_files

FINDING_SCHEMA = (
    "severity string, kind string, file string, offset long, physical_offset long, detail string"
)


class Audit:
    """The result of an audit: the report of ``fsck``, and its findings as tables.

    Args:
        spark: The session that creates the tables.
        report: The report, also available as the attribute ``report``.
    """

    def __init__(self, spark: SparkSession, report: CheckReport) -> None:
        self._spark = spark
        self.report = report

    @property
    def ok(self) -> bool:
        """Whether the store has no problems; warnings do not count."""
        return self.report.ok

    @cached_property
    def findings(self) -> DataFrame:
        """All findings as a table with one row per finding, problems first."""
        rows = [
            (severity, problem.kind.value, *problem[:3], problem.detail)
            for severity, found in (
                ("problem", self.report.problems),
                ("warning", self.report.warnings),
            )
            for problem in found
        ]
        return self._spark.createDataFrame(rows, FINDING_SCHEMA)

    def tables(self) -> dict[str, DataFrame]:
        """Return a table of findings for each kind that occurs."""
        return {
            kind: self.findings.where(f"kind = '{kind}'").drop("severity", "kind")
            for kind in by_kind([*self.report.problems, *self.report.warnings])
        }


def audit(
    spark: SparkSession,
    store: str | Path,
    *,
    delays: DelayLevels | None = None,
    work: str | Path | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Audit:
    """Check every record, unit and index entry of a store.

    The store is only read and may be in use.

    Args:
        spark: The session to run on.
        store: Folder of the store. Every worker must reach it under the same path.
        delays: The broker's delay levels; RocketMQ's defaults if None.
        work: Folder for temporary files of about a fifth of the size of the log. Every worker must
            reach it under the same path. None, the default, is the system's temporary folder.
        on_progress: Called with the number of bytes of the log that are checked.

    Returns:
        The findings. A damaged store is not an error.

    Raises:
        NotAStoreError: The folder is not a store.
        NotSharedError: A worker does not see the same folders as the driver.
        DiskFullError: ``work`` has too little space.
    """
    allow_many_files()
    delays = delays or DelayLevels.parse(DEFAULT_DELAY_LEVELS)
    root = Path(store).absolute()
    with StoreView.open(root) as view:
        folder = work_folder(root, Path(work or tempfile.gettempdir()))
        with claimed(view.system.files, folder, root, "auditing"):
            report = _AuditRun(
                spark, view, delays, make_shared(folder, "staged"), on_progress
            ).run()
    report.store = str(store)
    return Audit(spark, report)


def work_folder(root: Path, work: Path) -> Path:
    """Return the work folder for audits of a store; each removes the leftovers of a killed one."""
    name = sha256(str(root).encode()).hexdigest()[:16]
    return work.absolute() / f"firetrail-audit-{name}"


class _AuditRun:
    """One audit."""

    def __init__(
        self,
        spark: SparkSession,
        view: StoreView,
        delays: DelayLevels,
        folder: Path,
        on_progress: Callable[[int], None],
    ) -> None:
        self._spark = spark
        self._view = view
        self._delays = delays
        self._folder = folder
        self._on_progress = on_progress
        self._judged_to = judged_to(view)
        self._fingerprint = whole_fingerprint(view)
        contents = {CONSUME_QUEUE: view.tails, INDEX: view.index.files}
        self._folders = tuple(name for name, found in contents.items() if found)
        self._findings = Findings()
        self._damaged = DamagedRanges()
        self._marks = MarkCheck(view, self._findings)

    def run(self) -> CheckReport:
        """Check the store and return the report."""
        view, findings = self._view, self._findings
        findings.extend([*view.log.misfits, *view.index_faults])
        parts = self._check_log()
        times = StoreTimes()
        for part in parts:
            findings.merge(part.findings)
            times.go_on(part.times)
            for start, end in part.damaged:
                self._damaged.add(start, end)
        torn = parts[-1].torn if parts else None
        torn = torn or check_tail(view, findings, self._damaged)
        times.note(view, findings)
        compared = self._compare(parts)
        for result in compared:
            findings.merge(result.findings)
        end = view.end if torn is None else torn.physical_offset
        self._marks.finish(times.newest, end, damaged=len(self._damaged) > 0)
        check_inventory(view, findings)
        return make_report(
            view,
            findings,
            torn,
            times,
            sum(part.messages for part in parts),
            sum(result.units for result in compared),
            sum(result.entries for result in compared),
        )

    def _subject(self, queues: list[QueueKey]) -> AuditedStore:
        root, known = str(self._view.root), self._view.known(queues)
        return AuditedStore(root, known, self._judged_to, self._fingerprint, self._folders)

    # -- the log ------------------------------------------------------------------------------

    def _check_log(self) -> list[LogChecked]:
        """Check the log; return the results in order, up to its end or its torn tail."""
        view = self._view
        tags = bool(has_tag_entries(view.index, view.log))
        light = view.queues.may_lack_light_queues
        bases = [segment.base for segment in view.log.segments if segment.base < view.end]
        tasks = [
            LogTask(
                subject=self._subject([]),
                start=start,
                until=until,
                delays=self._delays,
                tags=tags,
                light=light,
                folder=str(self._folder),
            )
            for start, until in pairwise([*bases, view.end])
        ]
        sizes = [task.until - task.start for task in tasks]
        checked = run_tasks(
            self._spark,
            check_log,
            tasks,
            name="audit: the log",
            progress=lambda done: self._on_progress(sum(sizes[:done])),
        )
        return self._contiguous(tasks, checked)

    def _contiguous(self, tasks: list[LogTask], checked: list[LogChecked]) -> list[LogChecked]:
        """Return the results that a single walk over the whole log would have."""
        results: list[LogChecked] = []
        position = tasks[0].start if tasks else 0
        for task, part in zip(tasks, checked, strict=True):
            if position >= task.until:
                continue
            if position != task.start:
                again = [task._replace(start=position)]
                (part,) = run_tasks(self._spark, check_log, again, name="audit: after damage")
            results.append(part)
            position = part.position
            if part.torn is not None:
                break
        return results

    # -- queues and index ---------------------------------------------------------------------

    def _compare(self, parts: list[LogChecked]) -> list[CheckFindings]:
        queues = self._queue_tasks(parts)
        index = self._index_tasks(parts)
        entries = [(part.staged.entries, part.staged.chunks) for part in parts]
        whole = IndexTask(self._subject([]), list(self._damaged), entries)
        tasks: list[CompareTask] = [*queues, *index] if index else [*queues, whole]
        compared = run_tasks(self._spark, compare, tasks, name="audit: queues and index")
        if any(result.findings for result in compared[len(queues) :]) and index:
            del compared[len(queues) :]
            compared += run_tasks(self._spark, compare, [whole], name="audit: the whole index")
        return compared

    def _queue_tasks(self, parts: list[LogChecked]) -> list[QueueTask]:
        present = self._view.queues.pairs()
        pieces: dict[QueueKey, list[tuple[str, DerivedPiece]]] = {key: [] for key in present}
        unqueued = UnqueuedMessages(self._view)
        for part in parts:
            for piece in part.staged.pieces:
                key = (piece.topic, piece.queue_id)
                places = (piece.physical_offset, piece.newest)
                if unqueued.admits(key, piece.offset, piece.length, *places):
                    pieces.setdefault(key, []).append((part.staged.units, piece))
        unqueued.finish(self._findings)
        existing = set(present)
        work = [
            QueueWork(key, key in existing, found)
            for key, found in pieces.items()
            if key not in unqueued.queues
        ]
        slots = self._spark.sparkContext.defaultParallelism
        return [
            QueueTask(self._subject([queue.key for queue in share]), list(self._damaged), share)
            for share in shared_out(work, slots)
        ]

    def _index_tasks(self, parts: list[LogChecked]) -> list[IndexFileTask]:
        """Return a task per index file, with the entries that the file should hold.

        Return no tasks if these cannot be determined, or if there is only one file.
        """
        view = self._view
        files = view.index.files
        if len(files) < 2 or view.index_faults:
            return []
        expired = (file.kept_before(view.log.min_offset) for file in files)
        last = (min(file.header.next_entry, file.entries) - 1 for file in files[:-1])
        held = [max(end - start, 0) for end, start in zip(last, expired, strict=False)]
        counts = [(part.staged.entries, part.staged.entry_count) for part in parts]
        total = sum(count for _, count in counts)
        shares = deal_out(counts, [*held, total])
        subject, damaged = self._subject([]), list(self._damaged)
        return [
            IndexFileTask(subject, damaged, number, entries)
            for number, entries in enumerate(shares)
        ]
