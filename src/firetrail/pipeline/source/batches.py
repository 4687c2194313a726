"""Read a split into Arrow batches, inside of a task and without Spark."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from firetrail.errors import StoreDamagedError
from firetrail.format import columns as col
from firetrail.format.columns import Check
from firetrail.pipeline.source.arrays import Gatherer
from firetrail.pipeline.source.schema import NAMES, fields
from firetrail.pipeline.source.splits import Split
from firetrail.storage.system import System
from firetrail.store.viewlog import ViewLog
from firetrail.store.walk import ROWS_PER_BATCH, Batch, Damage, LogWalk

BATCH_BYTES = 16 << 20
"""Of log a batch; one record may have more."""
_ALL = memoryview(array("q", range(ROWS_PER_BATCH + 64)))


def read_split(split: Split, columns: Sequence[str] = NAMES) -> Iterator[pa.RecordBatch]:
    """The messages of a split in batches of at most ROWS_PER_BATCH rows.

    Bodies are verified if they are asked for; what is not read is not verified. Raises
    StoreDamagedError at the first place that is no good record.
    """
    check = Check.RECORD if "body" in columns else Check.NONE
    gatherer = Gatherer(fields(columns))
    log = ViewLog(System(), Path(split.store))
    log.load()
    try:
        for part in LogWalk(log, split.start, split.end, check):
            damage = part if isinstance(part, Damage) else part.failed
            if isinstance(part, Batch):
                yield from _batches(part, gatherer)
            if damage is not None:
                raise _damaged(split, damage)
    finally:
        log.close()


def _batches(part: Batch, gatherer: Gatherer) -> Iterator[pa.RecordBatch]:
    rows = part.rows - 1 if part.failed else part.rows
    offsets = part.columns.column(col.PHYSICAL_OFFSET)
    first = 0
    while first < rows:
        last = bisect_left(offsets, offsets[first] + BATCH_BYTES, first + 1, rows)
        picks = _ALL[first:last]
        yield gatherer.batch(part.segment.view, part.columns, picks, last - first)
        first = last


def _damaged(split: Split, damage: Damage) -> StoreDamagedError:
    return StoreDamagedError(
        damage.path.relative_to(split.store).as_posix(),
        damage.position,
        damage.physical_offset,
        damage.detail,
        f"see `firetrail fsck {split.store}`, or read with mode=permissive to pass over it",
    )
