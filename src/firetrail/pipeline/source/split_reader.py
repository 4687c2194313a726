"""The reader of a split: it returns Arrow batches, inside a task and without Spark."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import pyarrow as pa

from firetrail.errors import StoreDamagedError
from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.format.kernels.scan import scan_units
from firetrail.format.names import queue_folder
from firetrail.pipeline.source.arrays import BatchBuilder
from firetrail.pipeline.source.damage_text import SKIP_DAMAGED
from firetrail.pipeline.source.places import is_remote, open_log
from firetrail.pipeline.source.plan.fingerprint import LogFingerprint, log_lost
from firetrail.pipeline.source.plan.store_splits import (
    EVERYTHING,
    LogSplit,
    OffsetSplit,
    StoreSplit,
    UnitSplit,
)
from firetrail.pipeline.source.schema import NAMES, fields
from firetrail.pipeline.source.unit_reader import (
    RecordSelector,
    check_queue,
    open_queue,
    read_units,
)
from firetrail.store.log.view_log import ViewLog
from firetrail.store.log.walk import ROWS_PER_BATCH, Damage, LogWalk, RecordBatch, describe_stop
from firetrail.store.problems import KIND_OF_STOP, ProblemKind

BATCH_BYTES = 16 << 20
"""Bytes of log per batch; a single record may have more."""
_ALL = memoryview(array("q", range(ROWS_PER_BATCH + 64)))
_UNIT = layout.UNIT.struct
_SIZE = layout.BLANK.struct.unpack_from


def read_split(
    split: StoreSplit,
    columns: Sequence[str] = NAMES,
    *,
    permissive: bool = False,
    decompress: bool = False,
    allow_loss: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a split in batches of at most ROWS_PER_BATCH rows.

    Args:
        split: The part of a store to read.
        columns: The columns to return. Every record is verified completely.
        permissive: Skip damaged records.
        decompress: Decompress bodies.
        allow_loss: Skip records that retention deleted after planning.

    Raises:
        StoreDamagedError: A record is damaged, unless ``permissive``.
        DataLostError: Retention deleted records after planning, unless ``allow_loss``.
        NotSharedError: This worker does not see the store that the driver planned with.
        FormatError: A body cannot be decompressed, unless ``permissive``.
    """
    builder = BatchBuilder(fields(columns), decompress=decompress, lenient=permissive)
    reader = _SplitReader(split.store, split.fingerprint, builder, permissive, allow_loss)
    if isinstance(split, LogSplit):
        return reader.log(split)
    return reader.units(split) if isinstance(split, UnitSplit) else reader.looked_up(split)


class _SplitReader:
    """Reads splits of one store with fixed options."""

    def __init__(
        self,
        store: str,
        fingerprint: LogFingerprint | None,
        builder: BatchBuilder,
        permissive: bool,
        allow_loss: bool,
    ) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._builder = builder
        self._permissive = permissive
        self._allow_loss = allow_loss
        self._picks = memoryview(array("q", bytes(8 * len(_ALL))))

    # -- a range of the log -------------------------------------------------------------------

    def log(self, split: LogSplit) -> Iterator[pa.RecordBatch]:
        """Walk over the log and yield the selected records."""
        lost = damaged = False
        with open_log(split.store, split.start, split.end) as log:
            if self._fingerprint is not None:
                self._fingerprint.check(log, allow_loss=self._allow_loss)
            selector = None
            if split.queues is not None or split.wanted != EVERYTHING:
                selector = RecordSelector.of_log(
                    split.store, split.queues, split.wanted, split.start, split.end
                )
            for part in self._walk(log, split):
                if isinstance(part, RecordBatch):
                    rows = part.rows - 1 if part.failed else part.rows
                    view = part.segment.view
                    yield from self._batches(view, part.columns, rows, selector)
                damage = part if isinstance(part, Damage) else part.failed
                if damage is None or self._is_end(log, damage):
                    continue
                if self._is_lost(damage):
                    lost = True
                else:
                    damaged = True
                    self._report(damage)
        if selector is not None and not lost and not damaged:
            self._check_all_seen(selector)

    def _walk(self, log: ViewLog, split: LogSplit) -> Iterator[RecordBatch | Damage]:
        """Yield the records and the damage of a split, including files missing at its end."""
        walk = LogWalk(log, split.start, split.end, Check.RECORD)
        yield from walk
        if walk.position < split.end:
            yield no_file(log, walk.position)

    def _is_end(self, log: ViewLog, damage: Damage) -> bool:
        """Whether a remote log ends here: only zeros follow in its last file."""
        last = log.last
        return (
            is_remote(self._store)
            and damage.kind is ProblemKind.LOG_HOLE
            and damage.resume is None
            and last is not None
            and damage.physical_offset >= last.base
        )

    def _is_lost(self, damage: Damage) -> bool:
        """Whether retention deleted these records; raise DataLostError unless that is allowed."""
        if damage.kind not in (ProblemKind.FILE_MISSING, ProblemKind.FILE_UNREADABLE):
            return False
        return self._is_deleted(damage.physical_offset)

    def _is_deleted(self, physical_offset: int) -> bool:
        with open_log(self._store, 0, 0) as log:
            # The store itself may be missing or no longer mounted.
            if self._fingerprint is not None:
                self._fingerprint.check(log, allow_loss=True)
            begin = log.min_offset
        if physical_offset >= begin:
            return False
        if not self._allow_loss:
            raise log_lost(self._store, physical_offset, begin)
        return True

    def _report(self, damage: Damage) -> None:
        """Raise StoreDamagedError, unless damage is to be skipped."""
        if not self._permissive:
            raise StoreDamagedError(
                f"{self._store}/{damage.path.parent.name}/{damage.path.name}",
                damage.position,
                damage.physical_offset,
                damage.detail,
                f"check the store with 'firetrail fsck', or {SKIP_DAMAGED}",
            )

    def _check_all_seen(self, selector: RecordSelector) -> None:
        """Raise StoreDamagedError unless every unit points to a record, or if ``permissive``."""
        missed = None if self._permissive else selector.missed()
        if missed is not None:
            part, seen = missed
            raise StoreDamagedError(
                f"{self._store}/{queue_folder(part.topic, part.queue_id)}",
                part.begin * UNIT_SIZE,
                None,
                f"{part.count - seen} of the units {part.begin} up to {part.end} do not point to a "
                "message of this queue",
                f"rebuild the queues with 'firetrail rebuild', or {SKIP_DAMAGED}",
            )

    # -- single records -----------------------------------------------------------------------

    @contextmanager
    def _open_whole(self) -> Iterator[ViewLog]:
        """Open the log for lookups anywhere; deleted files are no error yet."""
        with open_log(self._store, 0, 0) as log:
            if self._fingerprint is not None:
                self._fingerprint.check(log, allow_loss=True)
            yield log

    def units(self, split: UnitSplit) -> Iterator[pa.RecordBatch]:
        """Look up the messages of queues through their units, queue after queue."""
        queues = split.queues
        with self._open_whole() as log:
            for part in queues.ranges:
                with open_queue(split.store, part.topic, part.queue_id, queues.file_size) as queue:
                    check_queue(queue, part.end)
                    start = part.begin
                    if self._allow_loss:
                        start = max(start, queue.files.min_offset // UNIT_SIZE)
                    for begin in range(start, part.end, ROWS_PER_BATCH):
                        end = min(begin + ROWS_PER_BATCH, part.end)
                        units = read_units(queue, begin, end)
                        selector = RecordSelector.of_units(part, begin, end, units, split.wanted)
                        yield from self._look_up(log, units, selector)
                        self._check_all_seen(selector)

    def looked_up(self, split: OffsetSplit) -> Iterator[pa.RecordBatch]:
        """Yield the records at given physical offsets."""
        with self._open_whole() as log:
            units = bytearray()
            for offset in split.physical_offsets:
                segment = log.find(offset)
                view = log.look(segment) if segment is not None else None
                if segment is None or view is None:
                    if not self._is_deleted(offset):
                        self._report(no_file(log, offset))
                    continue
                units += _UNIT.pack(offset, _SIZE(view, offset - segment.base)[0], 0)
            yield from self._look_up(log, bytes(units), RecordSelector(None, b"", split.wanted))

    def _look_up(
        self, log: ViewLog, units: bytes, selector: RecordSelector
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records that units point to."""
        first, count = 0, len(units) // UNIT_SIZE
        columns = Columns(min(count, ROWS_PER_BATCH))
        while first < count:
            offset = _UNIT.unpack_from(units, first * UNIT_SIZE)[0]
            segment = log.find(offset)
            view = log.look(segment) if segment is not None else None
            if segment is None or view is None:
                if not self._is_deleted(offset):
                    self._report(no_file(log, offset))
                first += 1
                continue
            limit = log.length_of(segment)
            rows, number = scan_units(
                view, limit, segment.base, units, first, count, columns.table, Check.RECORD
            )
            yield from self._batches(view, columns, rows, selector)
            first += rows
            stop = Stop(number)
            if stop not in (Stop.LIMIT, Stop.FULL):
                at = _UNIT.unpack_from(units, first * UNIT_SIZE)[0] - segment.base
                detail = describe_stop(view, at, limit, stop)
                kind = KIND_OF_STOP.get(stop, ProblemKind.UNIT_WRONG)
                self._report(Damage(segment.path, at, segment.base + at, kind, detail, None))
                first += 1

    # -- batches ------------------------------------------------------------------------------

    def _batches(
        self, view: memoryview, columns: Columns, rows: int, selector: RecordSelector | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows of a scan, cut so that no batch becomes too large."""
        picks, count = _ALL, rows
        if selector is not None:
            picks = self._picks
            count = selector.picker.pick(view, columns.table, 0, rows, picks)
        for first, last in self._pieces(columns, picks, count):
            yield self._builder.batch(view, columns, picks[first:last], last - first)

    def _pieces(self, columns: Columns, picks: memoryview, count: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows of about BATCH_BYTES of log each."""
        if count == 0:
            return
        offsets, sizes = columns.column(col.PHYSICAL_OFFSET), columns.column(col.SIZE)
        if offsets[picks[count - 1]] - offsets[picks[0]] <= BATCH_BYTES:
            yield 0, count
            return
        ends = list(accumulate(sizes[row] for row in picks[:count]))
        first = 0
        while first < count:
            before = ends[first - 1] if first else 0
            last = bisect_left(ends, before + BATCH_BYTES, first + 1, count)
            yield first, last
            first = last


def no_file(log: ViewLog, offset: int) -> Damage:
    """Return the damage that the file with a physical offset is missing."""
    path = log.path_of(offset - offset % log.segment_size if log.segment_size else 0)
    return Damage(
        path, 0, offset, ProblemKind.FILE_MISSING, "the file is missing or cannot be read", None
    )
