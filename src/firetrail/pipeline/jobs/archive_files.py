"""Writing a part of the log into the Parquet files of a lake: what one task does.

Rows are picked by topic and day straight from a scan of the log, gathered into Arrow batches and
written by pyarrow in the task itself. Row groups of a file follow each other as the log does.
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
from firetrail.format.kernels.arrow import Rows
from firetrail.format.kernels.plain import OPEN, OTHER, classify
from firetrail.pipeline.jobs.archive_lake import SUFFIX, HashedFile, Lake, partition
from firetrail.pipeline.jobs.archive_manifest import Anchor, DataFile
from firetrail.pipeline.source.arrays import Gatherer
from firetrail.pipeline.source.batches import BATCH_BYTES
from firetrail.pipeline.source.schema import arrow_schema, fields
from firetrail.storage.segment import Segment
from firetrail.storage.system import System
from firetrail.store.viewlog import ViewLog
from firetrail.store.walk import Batch, Damage, LogWalk

ROW_GROUP_BYTES = 16 << 20
"""Bytes of records in a row group; with more, fresh memory costs half as much as the work."""
WAITING_BYTES = 6 * ROW_GROUP_BYTES
"""Bytes of records that a task holds in memory, of all topics."""
FILES_OPEN_MAX = 32
DAY_MS = 86_400_000

PROPERTIES_OPEN = pa.field("properties_open", pa.bool_())
"""Whether the last property lacks its separator, as RocketMQ 4.9.1 to 5.1.4 write it."""
RECORD = pa.field("record", pa.binary())
"""The whole record, where the other columns do not say every byte of it; else null."""
FULL_SCHEMA: pa.Schema = arrow_schema().append(PROPERTIES_OPEN).append(RECORD)
DICTIONARY_COLUMNS = ["topic", "tags", "born_host", "store_host", "sys_flag", "flag", "queue_id"]
DICTIONARY_COLUMNS += ["reconsume_times", "prepared_offset", "properties.key_value.key"]
DICTIONARY_COLUMNS += ["body"]
"""Columns with a dictionary in each row group. Where that becomes larger than Parquet's limit of
1 MiB, the rest of the column is written as it is: for bodies that never repeat it costs nothing
that can be measured (``benchmarks/bodies.py``)."""
_NO_STATISTICS = {"body", "record", "properties", "keys"}
_GATHERER = Gatherer(fields())


def file_schema(*, topic: bool) -> pa.Schema:
    """The columns of a data file; the topic stands in its path and need not be in the file."""
    if topic:
        return FULL_SCHEMA
    return FULL_SCHEMA.remove(FULL_SCHEMA.get_field_index("topic"))


class Part(NamedTuple):
    """A part of the log that one task archives."""

    store: str
    start: int
    end: int
    lake: Lake
    token: str
    topic_column: bool


class Written(NamedTuple):
    """What a task has made of its part."""

    start: int
    end: int  # where the walk has ended: ``end`` of the part if nothing was missed
    messages: int
    files: list[DataFile]
    last: Anchor | None  # the last record, if there was any


def archive_part(part: Part) -> Written:
    """Write all records of a part of the log. Raises StoreDamagedError at the first bad one."""
    messages = 0
    last: tuple[Segment, int, int] | None = None
    with closing(ViewLog(System(), Path(part.store))) as log, FileSet(part) as files:
        log.load()
        walk = LogWalk(log, part.start, part.end, resync=False)
        for step in walk:
            damage = step if isinstance(step, Damage) else step.failed
            if damage is not None:
                raise _damaged(part, damage)
            assert isinstance(step, Batch)
            messages += step.rows
            for first, behind in _pieces(step):
                for group in _groups(step.segment.view, step.columns, first, behind):
                    files.add(*group)
            size = step.columns.column(col.SIZE)[step.rows - 1]
            last = (step.segment, step.segment.base + step.position - size, size)
        return Written(
            part.start, walk.position, messages, files.finish(), anchor_at(*last) if last else None
        )


def anchor_at(segment: Segment, offset: int, size: int) -> Anchor:
    """The record of ``size`` bytes at a physical offset in ``segment``, to be known again by."""
    at = offset - segment.base
    return Anchor(offset, size, hashlib.sha256(segment.view[at : at + size]).hexdigest())


def _damaged(part: Part, damage: Damage) -> StoreDamagedError:
    return StoreDamagedError(
        damage.path.relative_to(part.store).as_posix(),
        damage.position,
        damage.physical_offset,
        damage.detail,
        f"nothing was archived; see 'firetrail fsck {part.store}' for what can be done",
    )


def _pieces(step: Batch) -> Iterator[tuple[int, int]]:
    """Row numbers from and to, so that what is gathered at once does not become too large."""
    offsets = step.columns.column(col.PHYSICAL_OFFSET)
    first = 0
    while first < step.rows:
        last = bisect_left(offsets, offsets[first] + BATCH_BYTES, first + 1, step.rows)
        yield first, last
        first = last


# -- rows by topic and day --------------------------------------------------------------------


class Group(NamedTuple):
    """Rows of one topic and day; ``size`` counts the bytes of their records."""

    topic: str
    day: str
    batch: pa.RecordBatch
    size: int


def _groups(view: memoryview, columns: Columns, first: int, last: int) -> Iterator[Group]:
    for picks in _picks_by_code(columns, first, last):
        batch = _gathered(view, columns, picks)
        day = _day(columns.column(col.STORE_TIME)[picks[0]] // DAY_MS)
        topics = batch.column("topic").unique()
        if len(topics) == 1:
            yield _group(topics[0].as_py(), day, batch)
            continue
        for topic in topics:  # they have the same hash
            yield _group(topic.as_py(), day, batch.filter(pc.equal(batch.column("topic"), topic)))


def _group(topic: str, day: str, batch: pa.RecordBatch) -> Group:
    return Group(topic, day, batch, pc.sum(batch.column("size")).as_py())


def _picks_by_code(columns: Columns, first: int, last: int) -> Iterator[array[int]]:
    """The rows of each topic (by its hash) and day, in their order."""
    hashes, times = (
        pa.Array.from_buffers(
            pa.int64(), last - first, [None, pa.py_buffer(columns.column(name)[first:last])]
        )
        for name in (col.TOPIC_HASH, col.STORE_TIME)
    )
    codes = pc.add(pc.shift_left(hashes, 31), pc.divide(times, DAY_MS))
    ends = pc.min_max(codes)
    if ends["min"] == ends["max"]:
        yield array("q", range(first, last))
        return
    order = pc.sort_indices(codes)  # stable
    sizes = {found["values"]: found["counts"] for found in pc.value_counts(codes).to_pylist()}
    at = 0
    for code in sorted(sizes):
        picks = pc.add(order[at : at + sizes[code]].cast(pa.int64()), first)
        yield array("q", memoryview(picks.buffers()[1]).cast("q")[: len(picks)])
        at += sizes[code]


def _day(number: int) -> str:
    """Days since 1970 as a date; what is no date of ours is the nearest one."""
    number = min(max(number, 0), 2_932_896)
    return f"{datetime.fromtimestamp(number * 86_400, UTC):%Y-%m-%d}"


def _gathered(view: memoryview, columns: Columns, picks: array[int]) -> pa.RecordBatch:
    """All columns of some rows."""
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
    """The files of one task: one for each topic and day, more if too many are open at once."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._schema = file_schema(topic=part.topic_column)
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
        """Take some rows; they are written with others of their topic and day."""
        waiting = self._waiting.setdefault((topic, day), _Waiting([], 0))
        waiting.batches.append(batch)
        waiting.size += size
        self._size += size
        if waiting.size >= ROW_GROUP_BYTES:
            self._write(topic, day)
        elif self._size >= WAITING_BYTES:
            self._write(*max(self._waiting, key=lambda pair: self._waiting[pair].size))

    def finish(self) -> list[DataFile]:
        """Write what is left and close all files: what was made."""
        for topic, day in list(self._waiting):
            self._write(topic, day)
            self._done.append(self._open.pop((topic, day)).close())
        for file in self._open.values():
            self._done.append(file.close())
        self._open.clear()
        return self._done

    def _write(self, topic: str, day: str) -> None:
        waiting = self._waiting.pop((topic, day))
        self._size -= waiting.size
        file = self._open.pop((topic, day), None)
        if file is None:
            if len(self._open) >= FILES_OPEN_MAX:
                oldest = next(iter(self._open))
                self._done.append(self._open.pop(oldest).close())
            name = f"{partition(topic, day)}/{self._part.start:020d}-{self._number:05d}"
            name += f"-{self._part.token}{SUFFIX}"
            self._number += 1
            file = PartitionFile(self._part.lake, name, topic, day, self._schema)
        self._open[topic, day] = file  # as the last one: the first is the one used longest ago
        table = pa.Table.from_batches(waiting.batches)
        file.write(table.select(self._schema.names))


class _Waiting:
    """Rows that will become a row group."""

    def __init__(self, batches: list[pa.RecordBatch], size: int) -> None:
        self.batches = batches
        self.size = size


class PartitionFile:
    """A Parquet file under way."""

    def __init__(self, lake: Lake, name: str, topic: str, day: str, schema: pa.Schema) -> None:
        self._name, self._topic, self._day = name, topic, day
        self._file: HashedFile = lake.create(name)
        self._start = self._last = self._end = -1
        self._messages = 0
        statistics = [field for field in schema.names if field not in _NO_STATISTICS]
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[
                name for name in DICTIONARY_COLUMNS if name.split(".")[0] in schema.names
            ],
            write_statistics=statistics,
            store_schema=False,
        )

    def write(self, table: pa.Table) -> None:
        """Append a row group."""
        offsets = table.column("physical_offset")
        if self._start < 0:
            self._start = offsets[0].as_py()
        self._last = offsets[-1].as_py()
        self._end = self._last + table.column("size")[-1].as_py()
        self._messages += table.num_rows
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> DataFile:
        """Finish and sync the file: what it holds."""
        self._writer.close()
        self._file.close()
        return DataFile(
            self._name,
            self._topic,
            self._day,
            self._start,
            self._last,
            self._end,
            self._messages,
            self._file.size,
            self._file.sha256,
        )

    def abandon(self) -> None:
        """Close the file of a task that failed; nobody will name it."""
        self._writer.close()
        self._file.close()
