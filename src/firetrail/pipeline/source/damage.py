"""The table of damage: ``view=damage`` has a row for every damaged position in the log.

These are the positions that a read with ``mode=permissive`` skips: everything is verified,
including checksums. There are further rows for queue and index files that cannot be read, and one
if messages are missing at the end of the log.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from firetrail.format.columns import Check
from firetrail.pipeline.source.places import is_remote, local_path, open_log
from firetrail.pipeline.source.plan.log_splits import plan_log
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS
from firetrail.pipeline.source.plan.remote import plan_remote
from firetrail.pipeline.source.plan.store_splits import EVERYTHING, LogSplit
from firetrail.pipeline.source.source_options import ReadOptions
from firetrail.pipeline.source.split_reader import no_file
from firetrail.store.inspect.log_tail import TailKind, read_tail
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.walk import Damage, LogWalk
from firetrail.store.problems import Problem, ProblemKind

SCHEMA = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("physical_offset", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("resume_offset", pa.int64()),
        pa.field("skipped", pa.int64()),
    ]
)
DDL = (
    "file string, offset bigint, physical_offset bigint, kind string, detail string, "
    "resume_offset bigint, skipped bigint"
)


@dataclass(frozen=True, slots=True)
class FoundSplit:
    """Problems that were found during planning."""

    problems: tuple[Problem, ...]


DamageSplit = LogSplit | FoundSplit


def plan_damage(options: ReadOptions) -> list[DamageSplit]:
    """Return splits that together cover every byte of the log."""
    if is_remote(options.path):
        splits, _ = plan_remote(options, NO_BOUNDS, EVERYTHING)
        return [split for split in splits if isinstance(split, LogSplit)]
    with StoreView.open(local_path(options.path)) as view:
        problems = [*view.queue_faults.values(), *view.index_faults]
        tail = read_tail(view)
        if tail.kind is TailKind.DAMAGED and tail.found is not None:
            end = tail.found
            problems.append(
                Problem(
                    view.relative(end.path), end.position, end.physical_offset, end.kind, end.detail
                )
            )
        logs: list[DamageSplit] = list(plan_log(view, at_least=options.min_partitions))
    return [FoundSplit(tuple(problems)), *logs] if problems else logs


def read_damage(split: DamageSplit) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split."""
    rows = (
        [_row_of_problem(problem) for problem in split.problems]
        if isinstance(split, FoundSplit)
        else list(_walk(split))
    )
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _walk(split: LogSplit) -> Iterator[dict[str, object]]:
    with open_log(split.store, split.start, split.end) as log:
        if split.fingerprint is not None:
            split.fingerprint.check(log, allow_loss=True)
        walk = LogWalk(log, split.start, split.end, Check.RECORD)
        for part in walk:
            damage = part if isinstance(part, Damage) else part.failed
            if damage is None:
                continue
            last = log.last
            empty = damage.kind is ProblemKind.LOG_HOLE and damage.resume is None
            if is_remote(split.store) and empty and last and damage.physical_offset >= last.base:
                continue  # the end of the last archived segment
            yield _row(damage, split.end)
        if log.min_offset <= walk.position < split.end:
            yield _row(no_file(log, walk.position), split.end)


def _row(damage: Damage, end: int) -> dict[str, object]:
    resume = damage.resume if damage.resume is not None else end
    return {
        "file": f"{damage.path.parent.name}/{damage.path.name}",
        "offset": damage.position,
        "physical_offset": damage.physical_offset,
        "kind": damage.kind.value,
        "detail": damage.detail,
        "resume_offset": resume,
        "skipped": resume - damage.physical_offset,
    }


def _row_of_problem(problem: Problem) -> dict[str, object]:
    return {
        "file": problem.file,
        "offset": problem.offset,
        "physical_offset": problem.physical_offset,
        "kind": problem.kind.value,
        "detail": problem.detail,
        "resume_offset": None,
        "skipped": None,
    }
