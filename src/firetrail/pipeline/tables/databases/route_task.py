"""The task that reads a part of a topic once, and sorts its messages by table.

The messages of each table stay in memory, or are written to one file per task, in row groups of one
table each. Other tasks then decode them, table by table. So new columns of a table, which make its
tasks run again, never read the topic again. The files need no sync: a run that is killed begins
again, and removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.decoding.schema.arrow_types import folded_name
from firetrail.pipeline.lakes.lake_folder import LakeFolder, attempt_name
from firetrail.pipeline.lakes.lake_manifest import FOLDER
from firetrail.pipeline.tables.databases.message_routes import (
    MessageRoute,
    MessageRouter,
    RoutingRules,
)
from firetrail.pipeline.tables.files.table_manifest import LOCK
from firetrail.pipeline.tables.messages.broker_progress import NewestMessage, Span, SpanCollector
from firetrail.pipeline.tables.messages.reject_reasons import OTHER_KEY
from firetrail.pipeline.tables.messages.table_sources import COLUMNS, SourcePart
from firetrail.pipeline.tables.row_task import FINAL_REASON

SPOOL = f"{FOLDER}/spool"
BUFFER_BYTES = 64 << 20
"""Bytes of messages that a task gathers before it writes them, and so about its memory."""
_EVENT_KEY = "event_key"
_ROWS = 8192


class RouteTask(NamedTuple):
    """The work of one task."""

    part: SourcePart
    number: int
    rules: RoutingRules
    lake: LakeFolder
    """The folder of the database, or the one in which a dry run works."""
    in_memory: bool
    token: str
    dry: bool = False


class SortedMessages(NamedTuple):
    """Messages of one table: in memory if the driver itself works, else in row groups of a file."""

    batches: tuple[pa.RecordBatch, ...] = ()
    path: str = ""
    groups: tuple[int, ...] = ()

    def read(self, lake: LakeFolder) -> Iterator[pa.RecordBatch]:
        """Yield the messages."""
        yield from self.batches
        if self.groups:
            with lake.filesystem.open_input_file(lake.path(self.path)) as file:
                reader = pq.ParquetFile(file)
                for group in self.groups:
                    yield from reader.iter_batches(_ROWS, row_groups=[group])


@dataclass(frozen=True, slots=True)
class TableMessages:
    """The messages of one table and one broker that a task has found.

    Args:
        messages: The messages; none if they are skipped.
        count: Their number.
        size: Their bytes in memory.
        key: The primary key that the first of them name; empty if none does.
        statements: How many of them only change columns.
    """

    messages: SortedMessages
    count: int
    size: int
    key: tuple[str, ...]
    statements: int


class RouteResult(NamedTuple):
    """The result of a task."""

    number: int
    broker: str
    spans: list[Span]
    anchor: NewestMessage | None
    skipped: int
    found: Mapping[TableName | None, TableMessages]
    """The messages by table; None has those that belong to no table."""


def route_messages(task: RouteTask) -> RouteResult:
    """Sort the messages of a part of a source by table."""
    if not task.dry:
        task.lake.check_shared(LOCK, task.token)
    return _RouteRun(task).run()


class _Gathered:
    """The messages of one table."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.groups: list[int] = []
        self.count = self.size = self.statements = 0
        self.key: tuple[str, ...] = ()


class _RouteRun:
    """One attempt at a task."""

    def __init__(self, task: RouteTask) -> None:
        self._task = task
        self._router = MessageRouter(task.rules)
        self._spans = SpanCollector()
        self._tables: dict[TableName | None, _Gathered] = {}
        self._skipped = 0
        self._waiting = 0
        self._groups = 0
        self._path = f"{SPOOL}/{task.token}-{task.number:05d}-{attempt_name()}.parquet"
        self._writer: Any = None

    def run(self) -> RouteResult:
        try:
            for batch in self._task.part.batches():
                self._spans.add(batch)
                for first in range(0, batch.num_rows, _ROWS):
                    self._sort(batch.slice(first, _ROWS))
            if not self._task.in_memory:
                self._write()
        finally:
            if self._writer is not None:
                self._writer.close()
        found = {
            name: TableMessages(
                SortedMessages(tuple(each.batches), self._path, tuple(each.groups)),
                each.count,
                each.size,
                each.key,
                each.statements,
            )
            for name, each in self._tables.items()
        }
        return RouteResult(
            self._task.number,
            self._task.part.broker,
            self._spans.spans(),
            self._spans.anchor,
            self._skipped,
            found,
        )

    def _sort(self, batch: pa.RecordBatch) -> None:
        given = batch.column(FINAL_REASON).to_pylist() if FINAL_REASON in batch.schema.names else ()
        batch = batch.select(list(COLUMNS))
        routes = self._router.routes(batch)
        for at, reason in enumerate(given):
            if reason:
                routes[at] = MessageRoute(None, reason)
        places: dict[TableName | None, list[int]] = {}
        for at, route in enumerate(routes):
            if route.table is None and not route.reason:
                self._skipped += 1
            else:
                places.setdefault(route.table, []).append(at)
        for name, rows in places.items():
            chosen = (
                batch if len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int32()))
            )
            self._add(name, chosen, [routes[at] for at in rows])
        if not self._task.in_memory and self._waiting >= BUFFER_BYTES:
            self._write()

    def _add(
        self, name: TableName | None, batch: pa.RecordBatch, routes: Sequence[MessageRoute]
    ) -> None:
        table = self._tables.setdefault(name, _Gathered())
        reasons = pa.array([route.reason or None for route in routes], pa.string())
        keys = pa.array([_key_text(route.key) for route in routes], pa.string())
        batch = batch.append_column(FINAL_REASON, reasons).append_column(_EVENT_KEY, keys)
        table.batches.append(batch)
        table.count += batch.num_rows
        table.size += batch.nbytes
        table.statements += sum(route.is_statement for route in routes)
        table.key = table.key or next((route.key for route in routes if route.key), ())
        self._waiting += batch.nbytes

    def _write(self) -> None:
        """Write what was gathered, as a row group for each table."""
        lake = self._task.lake
        for table in self._tables.values():
            if not table.batches:
                continue
            rows = pa.Table.from_batches(table.batches)
            table.batches = []
            if self._writer is None:
                path = lake.path(self._path)
                lake.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
                self._writer = pq.ParquetWriter(
                    path, rows.schema, filesystem=lake.filesystem, compression="zstd"
                )
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            table.groups.append(self._groups)
            self._groups += 1
        self._waiting = 0


def _key_text(key: Sequence[str]) -> str | None:
    """Return the columns of a key as a text that is equal for equal keys; None without any."""
    return "\n".join(sorted(map(folded_name, key))) or None


@dataclass(frozen=True, slots=True)
class RoutedMessages:
    """Messages of one table and one broker, which a task decodes.

    Args:
        broker: The broker.
        lake: The folder with the files.
        pieces: The messages.
        size: Their bytes in memory.
        key: The primary key that events must name, if they name one. Default: (), any.
        reason: The reason for which all of them are rejected. Default: "", they are not.
    """

    broker: str
    lake: LakeFolder
    pieces: tuple[SortedMessages, ...]
    size: int
    key: tuple[str, ...] = ()
    reason: str = ""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages, with the reasons of those that are rejected."""
        for piece in self.pieces:
            for batch in piece.read(self.lake):
                yield self._marked(batch)

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        reasons = batch.column(FINAL_REASON)
        if self.reason:
            reasons = pc.fill_null(reasons, self.reason)
        elif self.key:
            named = batch.column(_EVENT_KEY)
            other = pc.fill_null(pc.not_equal(named, _key_text(self.key)), False)
            reasons = pc.if_else(other, pa.scalar(OTHER_KEY), reasons)
        at = batch.schema.get_field_index(FINAL_REASON)
        return batch.set_column(at, FINAL_REASON, reasons)
