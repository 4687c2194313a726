"""The restore job: recreates a store from a lake, with its log as it was.

A range of an archive begins at the beginning of a log file and has no gap, so every record is
written to its old position: one task per log file, without sorting. Records are restored byte for
byte, with all their fields, physical offsets and message ids, and everything that refers to them.
The store itself then derives queues, index and marks, and verifies the checksum of every record.
Every attempt at a task writes to a file of its own, so an attempt that Spark takes for dead while
it continues does no harm. The new folder appears when it is complete.

An archive does not contain the files that a broker keeps in ``config/`` (topics, consumer offsets),
the bytes after the end mark of a log file, and the next queue offset of queues whose messages were
all deleted before the range begins.
"""

import hashlib
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from firetrail.errors import LakeError, StoreError
from firetrail.format.kernels.encode import RecordFields, RecordWriter
from firetrail.format.names import COMMIT_LOG, segment_name
from firetrail.format.properties import encode_pairs
from firetrail.format.values.delay import DelayLevels
from firetrail.format.values.hosts import pack_ip, parse_host
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_manifest import DataFile, Manifest, Range
from firetrail.pipeline.tasks import run_tasks
from firetrail.pipeline.workers import (
    check_arrived,
    check_shared,
    make_shared,
    naming_file,
    not_shared,
    worker_name,
)
from firetrail.store.settings.store_config import StoreConfig
from firetrail.store.store import Store
from firetrail.system import SYSTEM

ROWS_PER_BATCH = 8192
_REMEDY = "free some space, or restore to a folder on another disk; nothing was restored"
_FIELDS = (
    "record",
    "physical_offset",
    "size",
    "queue_id",
    "flag",
    "queue_offset",
    "sys_flag",
    "born_time",
    "born_host",
    "store_time",
    "store_host",
    "reconsume_times",
    "prepared_offset",
    "body",
    "properties",
    "properties_open",
)


class RestoreResult(NamedTuple):
    """The result of a restore."""

    store: str
    messages: int
    start: int  # physical offsets of the restored log
    end: int
    segments: int  # log files


def restore(
    spark: SparkSession,
    lake: str | Path,
    into: str | Path,
    *,
    part: int | None = None,
    delays: DelayLevels | None = None,
    on_plan: Callable[[int], Callable[[int], None] | None] = lambda tasks: None,
) -> RestoreResult:
    """Recreate a store from an archive.

    Args:
        spark: The session to run on.
        lake: Folder or URL of the archive. Every worker must reach it.
        into: New or empty folder for the store, which every worker must reach under the same path.
        part: Number of the range to restore if the archive has gaps; 0 is the oldest. None, the
            default, restores the only range.
        delays: The broker's delay levels, which determine the queue units of delayed messages;
            RocketMQ's defaults if None.
        on_plan: Called with the number of log files; may return a function, which is then called
            with the number of completed ones.

    Returns:
        The number of messages and log files, and the range of the log.

    Raises:
        LakeError: There is no archive, it has several ranges and ``part`` is None, or one of its
            files is missing or damaged.
        StoreError: ``into`` is not empty.
        NotSharedError: A worker does not see the same folders as the driver.
    """
    source, target = Lake(str(lake)), Path(into).absolute()
    manifest = source.require_manifest()
    chosen = _choose(manifest, part, str(lake))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{into}: is not an empty folder; restore to a new or empty one")
    making = target.with_name(f"{target.name}.restoring")
    if making.exists():
        SYSTEM.files.remove_tree(making)  # leftovers of a killed restore
    try:
        segments = _write_log(spark, source, manifest, chosen, making, on_plan)
        _derive(making, manifest, chosen, delays)
        SYSTEM.files.rename(making, target)  # replaces an empty folder
    except BaseException:
        SYSTEM.files.remove_tree(making, ignore_errors=True)
        raise
    return RestoreResult(str(into), chosen.messages, chosen.start, chosen.end, segments)


def _choose(manifest: Manifest, part: int | None, lake: str) -> Range:
    ranges = manifest.ranges
    if not ranges:
        raise LakeError(f"{lake}: the archive is empty; archive a store to it first")
    shown = ", ".join(
        f"{number}: {found.start} to {found.end} ({found.messages} messages)"
        for number, found in enumerate(ranges)
    )
    if part is None and len(ranges) > 1:
        raise LakeError(f"{lake}: the archive has gaps; choose a part with --part from {shown}")
    if part is not None and not 0 <= part < len(ranges):
        raise LakeError(f"{lake}: has no part {part}; its parts are {shown}")
    return ranges[part or 0]


def _write_log(
    spark: SparkSession,
    lake: Lake,
    manifest: Manifest,
    chosen: Range,
    making: Path,
    on_plan: Callable[[int], Callable[[int], None] | None],
) -> int:
    """Verify the files, write the segments and return their number."""
    files = [f for f in manifest.files if f.start < chosen.end and f.end > chosen.start]
    size = manifest.store.segment_size
    _check_present(lake, files)
    folder, parts = making / COMMIT_LOG, make_shared(making, "parts")
    SYSTEM.files.make_folder(folder)
    tasks = [
        _Fill(
            lake,
            str(parts),
            base,
            min(chosen.end - base, size),
            size,
            tuple(f for f in files if f.start < base + size and f.end > base),
        )
        for base in range(chosen.start - chosen.start % size, chosen.end, size)
    ]
    checks = [_Verify(lake, file) for file in files]
    run_tasks(spark, _verify, checks, name=f"verify {lake.place}")
    done = run_tasks(
        spark, _fill, tasks, name=f"restore {lake.place}", progress=on_plan(len(tasks))
    )
    messages = sum(filled.messages for filled in done)
    if messages != chosen.messages:
        raise LakeError(
            f"{lake.place}: its files have {messages} messages, but its manifest lists "
            f"{chosen.messages}; put the missing files back from a backup"
        )
    for task, filled in zip(tasks, done, strict=True):
        check_arrived(filled.path, size, filled.worker)
        Path(filled.path).rename(folder / segment_name(task.base))
    SYSTEM.files.remove_tree(parts)
    SYSTEM.files.sync_folder(folder)
    return len(tasks)


def _check_present(lake: Lake, files: list[DataFile]) -> None:
    """Raise LakeError if the driver does not see a file."""
    present = set(lake.data_files())
    for file in files:
        if file.path not in present:
            raise LakeError(f"{lake.folder.show(file.path)}: is missing; put it back from a backup")


def _derive(making: Path, manifest: Manifest, chosen: Range, delays: DelayLevels | None) -> None:
    """Let the store recover queues and index from the log, and verify all checksums."""
    facts = manifest.store
    config = StoreConfig().for_files(
        commit_log_file_size=facts.segment_size,
        consume_queue_file_size=facts.queue_file_size,
        index_slots=facts.index_slots,
        index_entries=facts.index_entries,
    )
    config = config.replace(store_host=parse_host(facts.host), index_tags=facts.index_tags)
    if delays is not None:
        config = config.replace(delay_levels=delays)
    with Store.open(making, config) as store:
        found = store.recovery
    if (found.end, found.messages_scanned) != (chosen.end, chosen.messages):
        raise LakeError(
            f"{making}: {found.messages_scanned} messages up to {found.end} were restored instead "
            f"of {chosen.messages} up to {chosen.end}: a file of the archive has changed; put it "
            "back from a backup"
        )


# -- in the tasks -----------------------------------------------------------------------------


class _Verify(NamedTuple):
    """Task that verifies that a file has not changed since it was archived."""

    lake: Lake
    file: DataFile


class _Fill(NamedTuple):
    """Task that writes one file of the log, in a folder with one file per attempt."""

    lake: Lake
    folder: str
    base: int
    end: int  # position after the last record, or the file's size if the log continues after it
    size: int
    files: tuple[DataFile, ...]


class _Filled(NamedTuple):
    """The result of one attempt."""

    path: str
    messages: int
    worker: str


def _verify(task: _Verify) -> None:
    lake, file = task
    found = hashlib.sha256()
    try:
        with (
            lake.folder.reading(file.path),
            lake.folder.filesystem.open_input_stream(lake.folder.path(file.path)) as stream,
        ):
            while block := stream.read(1 << 20):
                found.update(block)
    except FileNotFoundError:
        raise not_shared(lake.folder.show(file.path), "the file is missing") from None
    if found.hexdigest() != file.sha256:
        raise LakeError(
            f"{lake.folder.show(file.path)}: is not the file that was archived (its SHA-256 "
            f"differs) on the worker {worker_name()}; put it back from a backup"
        )


def _fill(task: _Fill) -> _Filled:
    """Write the records of a segment to their positions, durably."""
    check_shared(task.folder)
    messages = written_to = 0
    path = Path(task.folder) / uuid4().hex  # attempts at a task may overlap
    with open(path, "xb+") as file:
        with naming_file(path, _REMEDY):
            file.truncate(task.size)
            SYSTEM.files.allocate(file.fileno(), 0, task.end)  # else a full disk raises SIGBUS
        with mmap.mmap(file.fileno(), task.size) as mapping:
            writer = RecordWriter(mapping)
            try:
                for data_file in task.files:
                    for batch in _rows(task, data_file):
                        end = _write_rows(task, data_file.topic, batch, writer, mapping)
                        written_to = max(written_to, end)
                        messages += batch.num_rows
                if task.end == task.size and written_to < task.size:
                    writer.blank(written_to, task.size - written_to)
            finally:
                del writer  # else the mapping could not be closed
        with naming_file(path, _REMEDY):
            SYSTEM.files.sync(file.fileno())
    return _Filled(str(path), messages, worker_name())


def _rows(task: _Fill, data_file: DataFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that belong to the segment."""
    low, high = task.base, task.base + task.size
    with task.lake.folder.reading(data_file.path), _opened(task.lake, data_file) as source:
        metadata = source.metadata
        leaves = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
        leaf = leaves.index("physical_offset")
        known = [
            metadata.row_group(n).column(leaf).statistics for n in range(metadata.num_row_groups)
        ]
        wanted = [n for n, found in enumerate(known) if found.min < high and found.max >= low]
        for batch in source.iter_batches(ROWS_PER_BATCH, row_groups=wanted) if wanted else ():
            offsets = batch.column("physical_offset")
            kept = batch.filter(pc.and_(pc.greater_equal(offsets, low), pc.less(offsets, high)))
            if kept.num_rows:
                yield kept


def _opened(lake: Lake, file: DataFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(lake.folder.path(file.path), filesystem=lake.folder.filesystem)
    except FileNotFoundError:
        raise not_shared(lake.folder.show(file.path), "the file is missing") from None


def _write_rows(
    task: _Fill, topic: str, batch: pa.RecordBatch, writer: RecordWriter, mapping: mmap.mmap
) -> int:
    """Write each row's record and return the position after the last one.

    ``topic`` is the topic of all rows, unless the file has a column for it.
    """
    hosts: dict[str, bytes] = {}
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name in ("born_time", "store_time"):
        columns[name] = columns[name].cast(pa.int64())
    topics = columns["topic"].to_pylist() if "topic" in columns else [topic] * batch.num_rows
    written_to = 0
    fields = zip(*(columns[name].to_pylist() for name in _FIELDS), strict=True)
    for name, row in zip(topics, fields, strict=True):
        record, offset, size, queue_id, flag, queue_offset, sys_flag, *rest = row
        at = offset - task.base
        written_to = max(written_to, at + size)
        if record is not None:
            mapping[at : at + size] = record
            continue
        born_time, born_host, store_time, store_host, reconsumed, prepared, body, items, opened = (
            rest
        )
        properties = encode_pairs(items)
        written = RecordFields(
            name.encode(),
            hosts.get(born_host) or hosts.setdefault(born_host, _host(born_host)),
            hosts.get(store_host) or hosts.setdefault(store_host, _host(store_host)),
            body=body,
            properties=properties[:-1] if opened else properties,
            queue_id=queue_id,
            flag=flag,
            queue_offset=queue_offset,
            physical_offset=offset,
            sys_flag=sys_flag,
            born_time=born_time // 1000,
            store_time=store_time // 1000,
            reconsume_times=reconsumed,
            prepared_offset=prepared,
        )
        if written.size != size:
            raise ValueError(f"{size} bytes are not the size of the record at {offset}")
        writer.write(at, written)
    return written_to


def _host(text: str) -> bytes:
    """Return a host as it is stored in records."""
    host = parse_host(text)
    return pack_ip(host.ip) + host.port.to_bytes(4, "big")
