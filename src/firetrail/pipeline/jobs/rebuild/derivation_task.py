"""The tasks of a rebuild that read the log; ``assembly`` has those that write files."""

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import StoreError
from firetrail.format.columns import Check, Stop
from firetrail.format.values.delay import DelayLevels
from firetrail.pipeline.jobs.rebuild.pieces import Stage, StagedPiece
from firetrail.pipeline.source.plan.fingerprint import LogFingerprint, check_store
from firetrail.pipeline.workers import check_shared
from firetrail.storage.segment import Segment
from firetrail.store.dispatch.derivation import Derivation, DerivePolicy
from firetrail.system import SYSTEM


class DeriveTask(NamedTuple):
    """A part of the log: the records from ``start`` to ``end`` of one file."""

    root: str
    fingerprint: LogFingerprint
    path: str
    base: int
    size: int
    start: int
    end: int
    folder: str
    delays: DelayLevels
    tags: bool
    light: bool


class DerivedPart(NamedTuple):
    """The units and entries that were derived from a part of the log."""

    messages: int
    position: int
    """Physical offset after the last record."""
    stop: Stop
    staged: StagedPiece


def derive(task: DeriveTask) -> DerivedPart:
    """Derive units and entries from a part of the log and stage them."""
    check_store(task.root, task.fingerprint)
    check_shared(task.folder)
    messages, position, stop = 0, task.start, Stop.LIMIT
    segment = Segment(SYSTEM, Path(task.path), task.base, task.size, writable=False)
    derivation = Derivation(DerivePolicy(task.delays, task.light, task.tags))
    try:
        with closing(segment), Stage(Path(task.folder)) as stage:
            for step in derivation.derive_all([segment], task.start, task.end, Check.NONE):
                stage.add(step.runs, step.entries)
                messages += step.rows
                position, stop = segment.base + step.position, step.stop
            return DerivedPart(messages, position, stop, stage.finish())
    except FileNotFoundError as error:
        raise StoreError(
            f"{task.path}: was deleted during the job, probably by retention; run the job again"
        ) from error
