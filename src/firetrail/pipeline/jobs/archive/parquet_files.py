"""The task of the archive job: writes a part of the log to the Parquet files of a lake.

Rows are picked by topic and day directly from a scan of the log, gathered into Arrow batches, and
written with pyarrow in the task itself. Each topic has files of its own, with rows in the order of
the log. In the layout "day" this holds only for topics with many records. The others share one file
per day, in which the rows of a row group are sorted by topic.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firetrail.errors import StoreDamagedError
from firetrail.format import columns as col
from firetrail.format.columns import Columns
from firetrail.pipeline.kernels.arrow import Rows
from firetrail.pipeline.kernels.plain import OPEN, OTHER, classify
from firetrail.pipeline.lakes.hashed_file import HashedFile
from firetrail.pipeline.lakes.lake import Lake, partition
from firetrail.pipeline.lakes.lake_manifest import Anchor, DataFile, LakeLayout
from firetrail.pipeline.lakes.lake_schema import FULL_SCHEMA, schema_of
from firetrail.pipeline.source.arrays import BatchBuilder
from firetrail.pipeline.source.plan.fingerprint import LogFingerprint
from firetrail.pipeline.source.schema import fields
from firetrail.pipeline.source.split_reader import BATCH_BYTES
from firetrail.pipeline.workers import worker_name
from firetrail.storage.segment import Segment
from firetrail.store.log.paths import shown_path
from firetrail.store.log.view_log import ViewLog
from firetrail.store.log.walk import Damage, LogWalk, RecordBatch
from firetrail.system import SYSTEM

ROW_GROUP_BYTES = 16 << 20
"""Bytes of records per row group. In larger ones, allocating takes half as long as the work."""
WAITING_BYTES = 6 * ROW_GROUP_BYTES
"""Bytes of records of all topics that a task holds in memory."""
FILES_OPEN_MAX = 32
OWN_BYTES = 4 << 20
"""A topic with at least this many bytes of records per day gets a file of its own."""
SMALL_SHARE = 64
"""A topic with less than 1/64 of the bytes of a scan is gathered together with other small ones."""
SHARED = ""
"""Placeholder for the topic of rows and files that several topics share."""
DAY_MS = 86_400_000

DICTIONARY_COLUMNS = ["topic", "tags", "born_host", "store_host", "sys_flag", "flag", "queue_id"]
DICTIONARY_COLUMNS += ["reconsume_times", "prepared_offset", "properties.key_value.key"]
DICTIONARY_COLUMNS += ["body"]
"""Columns with a dictionary per row group. If the dictionary exceeds Parquet's limit of 1 MiB, the
rest of the column is written without it. For bodies that never repeat, the cost is too small to be
measured (``benchmarks/bodies.py``)."""
_NO_STATISTICS = {"body", "record", "properties", "keys"}
_GATHERER = BatchBuilder(fields())


class ArchivePart(NamedTuple):
    """A part of the log that one task archives."""

    store: str
    fingerprint: LogFingerprint | None
    start: int
    end: int
    lake: Lake
    token: str
    layout: LakeLayout
    topic_column: bool


class WrittenPart(NamedTuple):
    """The result of a task."""

    start: int
    end: int  # where the walk ended, which is the ``end`` of the part if nothing was missed
    messages: int
    files: list[DataFile]
    last: Anchor | None  # the last record, if any
    worker: str


def archive_part(part: ArchivePart) -> WrittenPart:
    """Write all records of a part of the log; raise StoreDamagedError at the first damaged one."""
    part.lake.check_shared(part.token)
    messages = 0
    last: tuple[Segment, int, int] | None = None
    with closing(ViewLog(SYSTEM, Path(part.store))) as log, FileSet(part) as files:
        log.load()
        if part.fingerprint is not None:
            part.fingerprint.check(log, allow_loss=True)
        walk = LogWalk(log, part.start, part.end, resync=False)
        for step in walk:
            damage = step if isinstance(step, Damage) else step.failed
            if damage is not None:
                raise _damaged(part, damage)
            assert isinstance(step, RecordBatch)
            messages += step.rows
            for first, stop in _pieces(step):
                view = step.segment.view
                for rows in _partitions(view, step.columns, first, stop, part.layout):
                    files.add(*rows)
            size = step.columns.column(col.SIZE)[step.rows - 1]
            last = (step.segment, step.segment.base + step.position - size, size)
        return WrittenPart(
            part.start,
            walk.position,
            messages,
            files.finish(),
            anchor_at(*last) if last else None,
            worker_name(),
        )


def anchor_at(segment: Segment, offset: int, size: int) -> Anchor:
    """Return the anchor for the record of ``size`` bytes at a physical offset in ``segment``."""
    at = offset - segment.base
    return Anchor(offset, size, hashlib.sha256(segment.view[at : at + size]).hexdigest())


def _damaged(part: ArchivePart, damage: Damage) -> StoreDamagedError:
    return StoreDamagedError(
        shown_path(Path(part.store), damage.path),
        damage.position,
        damage.physical_offset,
        damage.detail,
        f"nothing was archived; 'firetrail fsck {part.store}' says what can be done",
    )


def _pieces(step: RecordBatch) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of about BATCH_BYTES, the amount that is gathered at a time."""
    offsets = step.columns.column(col.PHYSICAL_OFFSET)
    first = 0
    while first < step.rows:
        last = bisect_left(offsets, offsets[first] + BATCH_BYTES, first + 1, step.rows)
        yield first, last
        first = last


# -- rows by topic and day --------------------------------------------------------------------


class PartitionRows(NamedTuple):
    """Rows of one topic and day, or SHARED rows of a day; ``size`` is the bytes of the records."""

    topic: str
    day: str
    batch: pa.RecordBatch
    size: int


def _partitions(
    view: memoryview, columns: Columns, first: int, last: int, layout: LakeLayout
) -> Iterator[PartitionRows]:
    found = list(_picks_by_code(columns, first, last))
    least = sum(size for _, size in found) // SMALL_SHARE if layout is LakeLayout.DAY else 0
    shared: dict[int, list[int]] = {}
    for picks, size in found:
        number = columns.column(col.STORE_TIME)[picks[0]] // DAY_MS
        if size < least:
            shared.setdefault(number, []).extend(picks)
            continue
        batch, day = _gathered(view, columns, picks), _day(number)
        topics = batch.column("topic").unique()
        if len(topics) == 1:
            yield PartitionRows(topics[0].as_py(), day, batch, size)
            continue
        for topic in topics:  # several topics with the same hash
            rows = batch.filter(pc.equal(batch.column("topic"), topic))
            yield _partition_rows(topic.as_py(), day, rows)
    for number, picks_of_day in shared.items():
        batch = _gathered(view, columns, array("q", sorted(picks_of_day)))
        yield _partition_rows(SHARED, _day(number), batch)


def _partition_rows(topic: str, day: str, batch: pa.RecordBatch) -> PartitionRows:
    return PartitionRows(topic, day, batch, pc.sum(batch.column("size")).as_py())


def _picks_by_code(columns: Columns, first: int, last: int) -> Iterator[tuple[array[int], int]]:
    """Yield the rows of each topic (by its hash) and day, in order, with their bytes of records."""
    hashes, times, sizes = (
        pa.Array.from_buffers(
            pa.int64(), last - first, [None, pa.py_buffer(columns.column(name)[first:last])]
        )
        for name in (col.TOPIC_HASH, col.STORE_TIME, col.SIZE)
    )
    codes = pc.add(pc.shift_left(hashes, 31), pc.divide(times, DAY_MS))
    ends = pc.min_max(codes)
    if ends["min"] == ends["max"]:
        yield array("q", range(first, last)), pc.sum(sizes).as_py()
        return
    order = pc.sort_indices(codes)  # stable
    table = pa.table({"code": codes, "size": sizes}).group_by("code")
    found = table.aggregate([("size", "sum"), ("size", "count")]).sort_by("code").to_pydict()
    at = 0
    for size, count in zip(found["size_sum"], found["size_count"], strict=True):
        picks = pc.add(order[at : at + count].cast(pa.int64()), first)
        yield array("q", memoryview(picks.buffers()[1]).cast("q")[: len(picks)]), size
        at += count


def _day(number: int) -> str:
    """Return a number of days since 1970 as a date, clamped to the dates that Python supports."""
    number = min(max(number, 0), 2_932_896)
    return f"{datetime.fromtimestamp(number * 86_400, UTC):%Y-%m-%d}"


def _gathered(view: memoryview, columns: Columns, picks: array[int]) -> pa.RecordBatch:
    count = len(picks)
    rows = Rows(view, columns.table, picks, count)
    kinds = bytearray(count)
    others = classify(rows, kinds)
    opened = pc.equal(pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(kinds)]), OPEN)
    records = pa.nulls(count, pa.binary())
    if others:
        records = pa.array(
            (
                _record(view, columns, row) if kind == OTHER else None
                for row, kind in zip(picks, kinds, strict=True)
            ),
            pa.binary(),
        )
    batch = _GATHERER.batch(view, columns, memoryview(picks), count)
    return pa.RecordBatch.from_arrays([*batch.columns, opened, records], schema=FULL_SCHEMA)


def _record(view: memoryview, columns: Columns, row: int) -> bytes:
    end = columns.column(col.PROPERTIES_AT)[row] + columns.column(col.PROPERTIES_SIZE)[row]
    return bytes(view[end - columns.column(col.SIZE)[row] : end])


# -- files ------------------------------------------------------------------------------------


class FileSet:
    """The files of one task.

    There is one file per topic and day, and more if too many would be open at the same time. In the
    layout "day", topics with less than OWN_BYTES when they must be written share a file per day.
    """

    def __init__(self, part: ArchivePart) -> None:
        self._part = part
        self._schema = schema_of(part.layout, topic_column=part.topic_column)
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._open: dict[tuple[str, str], PartitionFile] = {}
        self._done: list[DataFile] = []
        self._size = 0
        self._number = 0

    def __enter__(self) -> FileSet:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.abandon()

    def add(self, topic: str, day: str, batch: pa.RecordBatch, size: int) -> None:
        """Add rows, which are written together with others of the same topic and day."""
        waiting = self._waiting.setdefault((topic, day), _Waiting([], 0))
        waiting.batches.append(batch)
        waiting.size += size
        self._size += size
        if waiting.size >= ROW_GROUP_BYTES:
            self._write(topic, day)
        elif self._size >= WAITING_BYTES:
            topic, day = max(self._waiting, key=lambda pair: self._waiting[pair].size)
            if self._is_shared(topic, day):
                self._share(day)
            self._write(*max(self._waiting, key=lambda pair: self._waiting[pair].size))

    def finish(self) -> list[DataFile]:
        """Write the remaining rows, close all files and return them."""
        for topic, day in list(self._waiting):
            if self._is_shared(topic, day):
                self._share(day)
        for topic, day in list(self._waiting):
            self._write(topic, day)
            self._done.append(self._open.pop((topic, day)).close())
        for file in self._open.values():
            self._done.append(file.close())
        self._open.clear()
        return self._done

    def _is_shared(self, topic: str, day: str) -> bool:
        """Whether the waiting rows of a topic are too few for a file of their own."""
        return (
            self._part.layout is LakeLayout.DAY
            and topic != SHARED
            and (topic, day) in self._waiting
            and (topic, day) not in self._open
            and self._waiting[topic, day].size < OWN_BYTES
        )

    def _share(self, day: str) -> None:
        """Move the waiting rows of all small topics of a day to the shared rows of that day."""
        few = [pair for pair in self._waiting if pair[1] == day and self._is_shared(*pair)]
        together = self._waiting.setdefault((SHARED, day), _Waiting([], 0))
        for pair in few:
            moved = self._waiting.pop(pair)
            together.batches += moved.batches
            together.size += moved.size

    def _write(self, topic: str, day: str) -> None:
        waiting = self._waiting.pop((topic, day))
        self._size -= waiting.size
        file = self._open.pop((topic, day), None)
        if file is None:
            if len(self._open) >= FILES_OPEN_MAX:
                oldest = next(iter(self._open))
                self._done.append(self._open.pop(oldest).close())
            folder = partition(self._part.layout, topic, day)
            stem = f"{self._part.start:020d}-{self._number:05d}"
            self._number += 1
            name = self._part.lake.new_name(folder, stem, self._part.token)
            file = PartitionFile(self._part.lake, name, topic, day, self._schema)
        self._open[topic, day] = file  # last, so that the first is the least recently used
        table = pa.Table.from_batches(waiting.batches)
        file.write(table, table.num_rows * ROW_GROUP_BYTES // max(waiting.size, ROW_GROUP_BYTES))


class _Waiting:
    """Rows that will become a row group."""

    def __init__(self, batches: list[pa.RecordBatch], size: int) -> None:
        self.batches = batches
        self.size = size


class PartitionFile:
    """A Parquet file that is being written, of one topic or with SHARED rows."""

    def __init__(self, lake: Lake, name: str, topic: str, day: str, schema: pa.Schema) -> None:
        self._name, self._topic, self._day = name, topic, day
        self._topics: set[str] = set() if topic == SHARED else {topic}
        self._schema = schema
        self._file: HashedFile = lake.folder.create(name)
        self._start = self._last = self._end = -1
        self._messages = 0
        statistics = [field for field in schema.names if field not in _NO_STATISTICS]
        coded = [name for name in DICTIONARY_COLUMNS if name.split(".")[0] in schema.names]
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=coded,
            write_statistics=statistics,
            store_schema=False,
        )

    def write(self, table: pa.Table, group_rows: int | None = None) -> None:
        """Append a row group, or several with at most ``group_rows`` each."""
        offsets = table.column("physical_offset")
        ends = pc.min_max(offsets).as_py()
        self._start = min(self._start, ends["min"]) if self._messages else ends["min"]
        self._last = max(self._last, ends["max"])
        self._end = max(self._end, pc.max(pc.add(offsets, table.column("size"))).as_py())
        self._messages += table.num_rows
        if self._topic == SHARED:
            table = table.sort_by([("topic", "ascending"), ("physical_offset", "ascending")])
            self._topics.update(
                (table.column("topic")[0].as_py(), table.column("topic")[-1].as_py())
            )
        table = table.select(self._schema.names)
        self._writer.write_table(table, row_group_size=max(group_rows or table.num_rows, 1))

    def close(self) -> DataFile:
        """Complete and sync the file, and return its description."""
        self._writer.close()
        self._file.close()
        return DataFile(
            path=self._name,
            topic=min(self._topics),
            last_topic=max(self._topics),
            day=self._day,
            start=self._start,
            last=self._last,
            end=self._end,
            messages=self._messages,
            size=self._file.size,
            sha256=self._file.sha256,
        )

    def abandon(self) -> None:
        """Remove the file of a failed task."""
        self._file.abandon()
        self._writer.close()
        self._file.close()
