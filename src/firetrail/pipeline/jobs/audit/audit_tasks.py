"""The tasks of an audit: they check parts of the log, queues and index files as ``fsck`` does.

Tasks over the log check its records and stage the units and entries derived from them. Then other
tasks compare queues and index files with these. All use the code of
``firetrail.store.inspect.fsck``, in log order.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from firetrail.format.columns import Columns
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.format.kernels.derive import derive_entries
from firetrail.format.values.delay import DelayLevels
from firetrail.pipeline.jobs.rebuild.assembly import StagedEntries
from firetrail.pipeline.jobs.rebuild.pieces import DerivedPiece, Stage, StagedFiles, StagedPiece
from firetrail.pipeline.source.plan.fingerprint import LogFingerprint, check_store
from firetrail.pipeline.workers import check_shared, not_shared
from firetrail.store.dispatch.derivation import derive_runs
from firetrail.store.inspect.fsck.entries import ENTRIES_PER_BATCH, IndexCheck
from firetrail.store.inspect.fsck.log_check import LogCheck, StoreTimes
from firetrail.store.inspect.fsck.report import DamagedRanges, Findings, TornTail
from firetrail.store.inspect.fsck.unit_check import QueueChecks
from firetrail.store.inspect.view import StoreView, ViewFindings
from firetrail.store.queues.queue_table import QueueKey
from firetrail.system import SYSTEM, allow_many_files

UNITS_PER_STEP = 4096


class AuditedStore(NamedTuple):
    """The audited store as the driver has seen it."""

    root: str
    known: ViewFindings
    judged_to: int
    """Units and entries of records before this offset must exist."""
    fingerprint: LogFingerprint
    folders: tuple[str, ...]
    """Folders, other than the log's, that were not empty."""

    def open(self) -> StoreView:
        """Open the store; raise NotSharedError unless it is the one that the driver has seen."""
        check_store(self.root, self.fingerprint)
        for name in self.folders:
            folder = Path(self.root, name)
            if not SYSTEM.files.names(folder):
                raise not_shared(folder, "the folder is missing or empty")
        allow_many_files()
        return StoreView.open(self.root, known=self.known)


class LogTask(NamedTuple):
    """The log from ``start`` to the end of the file that holds the byte before ``until``."""

    subject: AuditedStore
    start: int
    until: int
    delays: DelayLevels
    tags: bool
    light: bool
    folder: str


class LogChecked(NamedTuple):
    """The findings in a part of the log, and what was derived from it."""

    position: int
    """The start of the next part: after this one, or after damage that extends beyond it."""
    messages: int
    times: StoreTimes
    torn: TornTail | None
    findings: Findings
    damaged: list[tuple[int, int]]
    staged: StagedPiece


class CheckFindings(NamedTuple):
    """The findings in queues or index files."""

    findings: Findings
    units: int = 0
    entries: int = 0


def check_log(task: LogTask) -> LogChecked:
    """Check a part of the log."""
    check_shared(task.folder)
    findings, damaged = Findings(), DamagedRanges()
    with task.subject.open() as view, Stage(Path(task.folder)) as stage:
        feed = _Feed(stage, damaged, task.delays, task.tags, task.light)
        check = LogCheck(view, findings, damaged, task.subject.judged_to, feed)
        walk = view.walk(task.start, until=task.until)
        check.run(walk, lambda done: None)
        return LogChecked(
            position=walk.position,
            messages=check.messages,
            times=check.times,
            torn=check.torn,
            findings=findings,
            damaged=list(damaged),
            staged=stage.finish(),
        )


class _Feed:
    """Stages the units and entries of records; a piece never extends across damage."""

    def __init__(
        self, stage: Stage, damaged: DamagedRanges, delays: DelayLevels, tags: bool, light: bool
    ) -> None:
        self._stage = stage
        self._damaged = damaged
        self._damage_known = 0
        self._waits = array("q", delays.waits_ms)
        self._tags = tags
        self._light = light
        self._room = memoryview(array("q", bytes(24 * ENTRIES_PER_BATCH)))

    def __call__(self, view: memoryview, columns: Columns, rows: int) -> None:
        if len(self._damaged) > self._damage_known:
            self._damage_known = len(self._damaged)
            self._stage.break_pieces()
        runs = derive_runs(view, columns, rows, self._waits, light=self._light)
        self._stage.add(runs, self._entries(view, columns, rows))

    def _entries(self, view: memoryview, columns: Columns, rows: int) -> Iterator[memoryview]:
        row = 0
        while row < rows:
            count, row = derive_entries(view, columns.table, row, rows, self._room, self._tags)
            yield self._room[: 3 * count]


class _DamageCursor:
    """Reveals the damaged parts of the log as far as the comparison has come."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self._left = ranges[::-1]
        self.known = DamagedRanges()

    def advance(self, offset: int) -> None:
        """Reveal the damage before the record at ``offset``."""
        while self._left and self._left[-1][0] <= offset:
            self.known.add(*self._left.pop())

    def finish(self) -> None:
        """Reveal all damage."""
        while self._left:
            self.known.add(*self._left.pop())


class QueueWork(NamedTuple):
    """A queue, whether it exists, and its pieces in the order of the log."""

    key: QueueKey
    exists: bool
    pieces: list[tuple[str, DerivedPiece]]

    @property
    def weight(self) -> int:
        """Approximate number of bytes to read, with a minimum for the cost of opening a queue."""
        return 4096 + 2 * UNIT_SIZE * sum(piece.length for _, piece in self.pieces)


class QueueTask(NamedTuple):
    """Queues to compare with what was derived from the log."""

    subject: AuditedStore
    damaged: list[tuple[int, int]]
    queues: list[QueueWork]

    def run(self) -> CheckFindings:
        """Compare the queues."""
        findings, staged, units = Findings(), StagedFiles(), 0
        with self.subject.open() as view:
            for queue in self.queues:
                damage = _DamageCursor(self.damaged)
                checks = QueueChecks(view, findings, damage.known, self.subject.judged_to)
                for path, piece in queue.pieces:
                    damage.advance(piece.physical_offset)
                    found = staged.units(path, piece.position, piece.length)
                    for at in range(0, piece.length, UNITS_PER_STEP):
                        part = found[at * UNIT_SIZE : (at + UNITS_PER_STEP) * UNIT_SIZE]
                        checks.take(*queue.key, piece.offset + at, bytearray(part))
                damage.finish()
                checks.finish([queue.key] if queue.exists else [])
                units += checks.units
        return CheckFindings(findings, units=units)


class IndexFileTask(NamedTuple):
    """One index file, by its number, and the entries that should be in it."""

    subject: AuditedStore
    damaged: list[tuple[int, int]]
    number: int
    entries: list[StagedEntries]

    def run(self) -> CheckFindings:
        """Compare the file."""
        findings, damage = Findings(), _DamageCursor(self.damaged)
        damage.finish()
        with self.subject.open() as view:
            parts = (view, findings, damage.known, self.subject.judged_to)
            check = IndexCheck(*parts, only=self.number)
            for path, first, end in self.entries:
                found = StagedFiles().entries(path)
                for at in range(first, end, ENTRIES_PER_BATCH):
                    check.take(found[3 * at : 3 * min(at + ENTRIES_PER_BATCH, end)])
            check.finish()
        return CheckFindings(findings, entries=check.entries)


class IndexTask(NamedTuple):
    """The whole index, and the staged files with all entries that should be in it."""

    subject: AuditedStore
    damaged: list[tuple[int, int]]
    staged: list[tuple[str, array[int]]]
    """Files with the numbers of entries that were derived together, as ``fsck`` checks them."""

    def run(self) -> CheckFindings:
        """Compare the index."""
        findings, damage = Findings(), _DamageCursor(self.damaged)
        with self.subject.open() as view:
            check = IndexCheck(view, findings, damage.known, self.subject.judged_to)
            for entries in self._chunks():
                damage.advance(entries[1])
                check.take(entries)
            damage.finish()
            check.finish()
        return CheckFindings(findings, entries=check.entries)

    def _chunks(self) -> Iterator[memoryview]:
        for path, counts in self.staged:
            at = 0
            found = StagedFiles().entries(path) if sum(counts) else memoryview(b"")
            for count in filter(None, counts):
                yield found[3 * at : 3 * (at + count)]
                at += count


CompareTask = QueueTask | IndexFileTask | IndexTask


def compare(task: CompareTask) -> CheckFindings:
    """Compare queues or index files with what was derived from the log."""
    return task.run()
