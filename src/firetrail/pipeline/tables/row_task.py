"""The task of a table: it reads a part of a source, decodes the bodies, and writes the rows.

A task decodes with the schema that the driver gives it. If the bodies have more columns or wider
types, it writes nothing and returns the wider schema; the driver then runs it again with the merged
schema of all tasks. So a schema that does not change costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.format.layout import COMPRESSED
from firetrail.pipeline.decoding.body_decoder import (
    BodyDecoder,
    Decoded,
    Operation,
    Reject,
    TableRows,
)
from firetrail.pipeline.decoding.decoder_spec import DecoderSpec
from firetrail.pipeline.decoding.schema.arrow_types import ddl_type
from firetrail.pipeline.decoding.schema.table_schema import TableSchema
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.tables.dry_rows import (
    BucketCounter,
    RowCounter,
    VersionCounter,
    add_reasons,
)
from firetrail.pipeline.tables.files.stored_file import TableFile
from firetrail.pipeline.tables.files.table_columns import (
    REJECTED_SCHEMA,
    TableColumns,
    message_arrays,
)
from firetrail.pipeline.tables.files.table_files import TableWriter
from firetrail.pipeline.tables.files.table_manifest import LOCK, MAIN, REJECTED
from firetrail.pipeline.tables.keyed.bucket_rows import DELETE, BucketRows, BucketStager
from firetrail.pipeline.tables.keyed.keyed_rows import with_keys
from firetrail.pipeline.tables.keyed.keys import keeps_keys
from firetrail.pipeline.tables.messages import reject_reasons
from firetrail.pipeline.tables.messages.broker_progress import NewestMessage, Span, SpanCollector
from firetrail.pipeline.tables.messages.table_sources import SourcePart
from firetrail.pipeline.workers import worker_name

FINAL_REASON = "final_reason"
"""A column of messages that are rejected without being decoded, for this reason."""
_BATCH_ROWS = 4096


class TableTask(NamedTuple):
    """The work of one task."""

    part: SourcePart
    number: int
    spec: DecoderSpec
    columns: TableColumns
    lakes: dict[str, LakeFolder]
    """The folders of the tables by MAIN and REJECTED."""
    written: dict[str, pa.Schema]
    """The columns of their files."""
    key: tuple[str, ...]
    """The columns of the key, as the decoder names them; none if the rows are only added."""
    buckets: int
    in_memory: bool
    """Whether rows with a key stay in memory, because the driver merges them."""
    sequence: int
    token: str
    base: TableSchema | None = None
    """For a dry run, which writes nothing: the schema relative to which versions are counted."""


class TaskResult(NamedTuple):
    """The result of a task."""

    number: int
    wider: TableSchema | None
    """The schema with which the task must run again; None if the rows are written."""
    broker: str
    spans: list[Span]
    anchor: NewestMessage | None
    messages: int
    skipped: int
    files: dict[str, list[TableFile]]
    staged: dict[int, BucketRows]
    tables: frozenset[str]
    """The tables of a database that CDC events name."""
    worker: str
    first_reject: str
    """The position and the reason of the first rejected message; empty if there is none."""
    reasons: Mapping[str, int]
    """In a dry run, the number of rejected messages by reason."""
    versions: Mapping[tuple[str, ...], int]
    """In a dry run, the number of messages by what they add to the schema."""

    def rows(self, table: str) -> int:
        """Return the number of rows that the task wrote for a table."""
        return sum(file.rows for file in self.files.get(table, ()))


def write_rows(task: TableTask) -> TaskResult:
    """Write the rows of a part of a source."""
    if task.base is None:
        task.lakes[MAIN].check_shared(LOCK, task.token)
    with ExitStack() as stack:
        run = _TaskRun(task)
        stack.callback(run.abandon)
        result = run.run()
        if result.wider is None:
            stack.pop_all()
        return result


class _TaskRun:
    """One attempt at a task."""

    def __init__(self, task: TableTask) -> None:
        self._task = task
        self._decoder: BodyDecoder = task.spec.decoder(task.columns.decoded)
        self._schema = task.columns.decoded
        self._spans = SpanCollector()
        self._skipped = 0
        self._tables: set[str] = set()
        self._first_reject = ""
        self._reasons: Counter[str] = Counter()
        self._versions: VersionCounter | None = None
        self._writers: Mapping[str, TableWriter | RowCounter]
        self._stager: BucketStager | BucketCounter
        if task.base is not None:
            self._versions = VersionCounter(task.spec, task.base)
            counters = {table: RowCounter() for table in task.lakes}
            self._writers = counters
            self._stager = BucketCounter(task.buckets, counters[MAIN])
            return
        stem = f"{task.sequence:010d}-{task.number:05d}"
        self._writers = {
            table: TableWriter(lake, stem, task.token, task.written[table])
            for table, lake in task.lakes.items()
        }
        self._stager = BucketStager(
            task.lakes[MAIN], f"{task.token}-{stem}", task.buckets, task.in_memory
        )

    def run(self) -> TaskResult:
        for batch in self._task.part.batches():
            self._spans.add(batch)
            for first in range(0, batch.num_rows, _BATCH_ROWS):
                self._decode(batch.slice(first, _BATCH_ROWS))
        wider = None if self._schema == self._task.columns.decoded else self._schema
        files = {} if wider else {table: each.close() for table, each in self._writers.items()}
        return TaskResult(
            self._task.number,
            wider,
            self._task.part.broker,
            self._spans.spans(),
            self._spans.anchor,
            self._spans.rows,
            self._skipped,
            files,
            {} if wider else self._stager.finish(),
            frozenset(self._tables),
            worker_name(),
            self._first_reject,
            self._reasons,
            {} if self._versions is None else self._versions.counts,
        )

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()

    def _decode(self, batch: pa.RecordBatch) -> None:
        if FINAL_REASON in batch.schema.names:
            final = pc.is_valid(batch.column(FINAL_REASON))
            bad = batch.filter(final)
            reasons = bad.column(FINAL_REASON).to_pylist()
            self._reject(bad, [Reject(*each) for each in enumerate(reasons)])
            batch = batch.filter(pc.invert(final))
        broken = pc.not_equal(pc.bit_wise_and(batch.column("sys_flag"), COMPRESSED), 0)
        if pc.any(broken).as_py():
            bad = batch.filter(broken)
            self._reject(bad, [Reject(at, reject_reasons.COMPRESSED) for at in range(bad.num_rows)])
            batch = batch.filter(pc.invert(broken))
        self._decode_bodies(batch)

    def _decode_bodies(self, batch: pa.RecordBatch) -> None:
        """Decode messages, and reject those whose types would change the keys of the table.

        The decoder gives all rows one schema, so such messages are found by halving the batch.
        """
        found: Decoded = self._decoder.decode(batch.column("body"))
        reason = self._key_change(found)
        if reason and batch.num_rows > 1:
            half = batch.num_rows // 2
            self._decode_bodies(batch.slice(0, half))
            self._decode_bodies(batch.slice(half))
            return
        if reason:
            found = Decoded((), (Reject(0, reason),))
        self._skipped += found.skipped
        for part in found.parts:
            if part.table is not None:
                self._tables.add(str(part.table))
            self._write(batch, part)
        self._reject(batch, found.rejects)
        if self._versions is not None and self._schema is self._task.columns.decoded:
            self._versions.add(batch.column("body"))

    def _key_change(self, found: Decoded) -> str:
        """Return how rows would change the type of the key; empty if they keep its texts."""
        before = self._task.columns.decoded
        for part in found.parts:
            for name in self._task.key:
                kinds = before.arrow.field(name).type, part.schema.type_of(name)
                if not keeps_keys(*kinds):
                    types = " to ".join(map(ddl_type, kinds))
                    return f"the type of the key {name} would change from {types}"
        return ""

    def _write(self, batch: pa.RecordBatch, part: TableRows) -> None:
        if part.rows.schema != self._task.columns.decoded.arrow:
            self._schema = self._schema.widened(part.schema).schema
        if self._schema is not self._task.columns.decoded:
            return  # the task runs again
        if self._task.key:
            self._stage(batch, part)
            return
        rows, messages = part.rows, part.messages
        deletes = pc.equal(part.operations, int(Operation.DELETE))
        if pc.any(deletes).as_py():
            indexes = messages.filter(deletes).to_pylist()
            self._reject(batch, [Reject(at, reject_reasons.DELETE) for at in indexes])
            kept = pc.invert(deletes)
            rows, messages = rows.filter(kept), messages.filter(kept)
        chosen = batch if _is_all(messages, batch) else batch.take(messages)
        self._writers[MAIN].write(self._task.columns.rows(rows, chosen, self._task.part.broker))

    def _stage(self, batch: pa.RecordBatch, part: TableRows) -> None:
        """Stage the rows of a table with a key, if they have one."""
        keyed = with_keys(batch, part, self._task.key, self._task.spec.zone)
        self._reject(batch, keyed.rejects)
        chosen = batch.take(keyed.messages)
        rows = self._task.columns.rows(keyed.rows, chosen, self._task.part.broker)
        self._stager.add(rows.append_column(DELETE, keyed.deletes), keyed.keys)

    def _reject(self, batch: pa.RecordBatch, rejects: Sequence[Reject]) -> None:
        if not rejects or self._schema is not self._task.columns.decoded:
            return
        chosen = batch.take(pa.array([each.message for each in rejects], pa.int32()))
        reasons = pa.array([each.reason for each in rejects], pa.string())
        broker = self._task.part.broker
        arrays = [*message_arrays(chosen, broker), reasons, chosen.column("body")]
        self._writers[REJECTED].write(pa.Table.from_arrays(arrays, schema=REJECTED_SCHEMA))
        if self._versions is not None:
            add_reasons(self._reasons, [each.reason for each in rejects])
        if not self._first_reject:
            row = chosen.slice(0, 1).to_pylist()[0]
            self._first_reject = (
                f"queue {row['queue_id']} of {broker}, offset {row['queue_offset']}: "
                f"{rejects[0].reason}"
            )


def first_reject(results: Iterable[TaskResult]) -> str:
    """Return the position and the reason of the first rejected message; empty without any."""
    return next((result.first_reject for result in results if result.first_reject), "")


def _is_all(messages: pa.Array, batch: pa.RecordBatch) -> bool:
    """Whether there is one row per message, in order, which is nearly always so."""
    count = batch.num_rows
    return len(messages) == count and bool(messages.equals(pa.array(range(count), pa.int32())))


def sample_bodies(parts: Sequence[SourcePart], most: int) -> Iterator[list[bytes | None]]:
    """Yield bodies of the first messages of some parts, at most ``most`` of all together."""
    each = max(most // max(len(parts), 1), 1)
    for part in parts[:most]:
        left = each
        for batch in part.batches():
            some: Any = batch.column("body").slice(0, left).to_pylist()
            left -= len(some)
            yield some
            if left <= 0:
                break
