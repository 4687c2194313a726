"""The decoder of CDC events: changes of rows, with the table and the operation of each.

What differs between the tools is in an *adapter* each, which returns a :class:`ChangeEvent` for
the JSON object of a message. An event is applied as a whole or not at all. If the key of a row
changed, the row with the old key is deleted, and one with the new key follows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import pyarrow as pa

from firetrail.pipeline.decoding.body_decoder import (
    Bodies,
    BodyDecoder,
    Decoded,
    Operation,
    Reject,
    TableName,
    TableRows,
    body_list,
)
from firetrail.pipeline.decoding.schema.arrow_types import INSTANT, folded_name, wider
from firetrail.pipeline.decoding.schema.schema_inference import TypeCounts
from firetrail.pipeline.decoding.schema.table_schema import EMPTY, TableSchema
from firetrail.pipeline.decoding.values.json_values import (
    DecodingRules,
    Evolution,
    converter,
    in_column,
    parse_object,
)
from firetrail.pipeline.decoding.values.text_values import BodyError, Converter, quoted_value
from firetrail.pipeline.decoding.values.widened_values import widening

ChangeRow: TypeAlias = dict[str, Any]
Schemas: TypeAlias = TableSchema | Mapping[TableName, TableSchema]
"""The known columns: one schema for all tables, or one for each table that is known."""


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """The declared type of a column, and the reading of its values.

    Args:
        kind: The type.
        read: Returns a value of this type.
    """

    kind: pa.DataType
    read: Converter


Untyped: TypeAlias = Callable[[pa.DataType, DecodingRules], Converter]
Readers: TypeAlias = Mapping[str, ColumnReader]
NO_READERS: Readers = {}


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """The changes of a message.

    Args:
        table: The table.
        changes: Per row: the operation, the row, and the values before the change of the columns
            that it changed, or of all (None if unknown).
        readers: The declared columns. Events with equal declarations share one object.
        key: The names of the primary key; empty if unknown.
        time: When the change was made, in µs; None if unknown.
    """

    table: TableName
    changes: Sequence[tuple[Operation, ChangeRow, ChangeRow | None]] = ()
    readers: Readers = field(default_factory=lambda: NO_READERS)
    key: tuple[str, ...] = ()
    time: int | None = None


class EventAdapter(ABC):
    """The form of a tool's events."""

    @abstractmethod
    def table(self, value: dict[str, Any]) -> TableName | None:
        """Return the table that a message names; None if it names neither table nor database.

        The name of the table is empty if a message has only that of a database.
        """

    @abstractmethod
    def event(self, value: dict[str, Any]) -> ChangeEvent | None:
        """Return the event of a message; None for messages without rows, such as heartbeats.

        Raises:
            BodyError: The event cannot be applied.
        """

    def untyped(self, kind: pa.DataType, rules: DecodingRules) -> Converter:
        """Return the reading of values whose type the events do not declare."""
        return converter(kind, rules)


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """The choices of the user.

    Args:
        values: Those for values.
        tables: Patterns of ``database.table``, with ``*``; other tables are skipped. Default:
            none, which takes all.
        key: The names of the key. Default: none, which takes the key that the events name.
    """

    values: DecodingRules = field(default_factory=DecodingRules)
    tables: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    def takes(self, table: TableName) -> bool:
        """Whether the events of a table are decoded; for one without a name, its database."""
        if not table.table:
            databases = [each.partition(".")[0] for each in self.tables]
            return not databases or any(fnmatchcase(table.database, each) for each in databases)
        return not self.tables or any(fnmatchcase(str(table), each) for each in self.tables)


class ChangeDecoder(BodyDecoder):
    """Rows of CDC events.

    Args:
        adapter: The form of the events.
        schemas: The known columns.
        rules: The choices of the user.
    """

    def __init__(self, adapter: EventAdapter, schemas: Schemas, rules: ChangeRules) -> None:
        self._adapter = adapter
        self._schemas = schemas
        self._rules = rules

    def decode(self, bodies: Bodies) -> Decoded:
        tables: dict[TableName, RowBuilder] = {}
        rejects: list[Reject] = []
        skipped = 0
        for at, body in enumerate(body_list(bodies)):
            try:
                event = self._event(body)
            except BodyError as error:
                rejects.append(Reject(at, str(error)))
                continue
            if event is None:
                skipped += 1
                continue
            changes = tables.get(event.table)
            if changes is None:
                schema = self._schema_of(event.table)
                changes = RowBuilder(schema, self._adapter.untyped, self._rules)
                tables[event.table] = changes
            changes.add(at, event)
        parts = [changes.rows(table, rejects) for table, changes in tables.items()]
        rejects.sort(key=lambda reject: reject.message)
        return Decoded(tuple(parts), tuple(rejects), skipped)

    def _event(self, body: bytes | None) -> ChangeEvent | None:
        """Return the event of a body; None if there is none, or if it is that of another table.

        Events of other tables need not be understood. Debezium sends an empty body after each
        delete.
        """
        if not body:
            return None
        value = parse_object(body)
        table = self._adapter.table(value) if self._rules.tables else None
        if table is not None and not self._rules.takes(table):
            return None
        return self._adapter.event(value)

    def _schema_of(self, table: TableName) -> TableSchema:
        if isinstance(self._schemas, TableSchema):
            return self._schemas
        return self._schemas.get(table, EMPTY)


class RowBuilder:
    """The events of a batch for one table.

    Args:
        schema: The known columns.
        untyped: Returns the reading of values without a declared type, for a type and rules.
        rules: The choices of the user.
    """

    def __init__(self, schema: TableSchema, untyped: Untyped, rules: ChangeRules) -> None:
        self._schema = schema
        self._untyped = untyped
        self._rules = rules
        self._events: list[tuple[int, ChangeEvent]] = []
        self._declared: dict[int, Readers] = {}
        self._counts = TypeCounts()
        self._plans: dict[tuple[int, tuple[str, ...]], list[tuple[str, str, Converter]]] = {}

    def add(self, message: int, event: ChangeEvent) -> None:
        """Add the event of a message, and the columns that it shows."""
        self._events.append((message, event))
        if self._rules.values.evolution is not Evolution.ADD:
            return
        readers = event.readers
        if readers and id(readers) not in self._declared:
            self._declared[id(readers)] = readers
            kinds = {name: reader.kind for name, reader in readers.items()}
            self._schema = self._schema.widened(_schema_of(kinds)).schema
        for _, row, _ in event.changes:
            if not readers.keys() >= row.keys():
                self._counts.add(
                    {name: value for name, value in row.items() if name not in readers}
                )

    def rows(self, table: TableName | None, rejects: list[Reject]) -> TableRows:
        """Return the rows, and add the rejects."""
        if self._rules.values.evolution is Evolution.ADD:
            self._schema = self._counts.widened(self._schema)
        rows: list[ChangeRow] = []
        messages: list[int] = []
        operations: list[Operation] = []
        times: list[int | None] = []
        key: tuple[str, ...] = ()
        for message, event in self._events:
            key = event.key or key
            try:
                changes = self._changes(event)
            except BodyError as error:
                rejects.append(Reject(message, str(error)))
                continue
            for operation, row in changes:
                rows.append(row)
                messages.append(message)
                operations.append(operation)
                times.append(event.time)
        return TableRows(
            table,
            pa.RecordBatch.from_pylist(rows, self._schema.arrow),
            pa.array(messages, pa.int32()),
            pa.array(operations, pa.int8()),
            pa.array(times, INSTANT),
            tuple(self._schema.own_name(name) or name for name in key),
        )

    def _changes(self, event: ChangeEvent) -> list[tuple[Operation, ChangeRow]]:
        return [each for change in event.changes for each in self._applied(event, *change)]

    def _applied(
        self, event: ChangeEvent, operation: Operation, row: ChangeRow, before: ChangeRow | None
    ) -> list[tuple[Operation, ChangeRow]]:
        """Return the changes that a row causes, converted to the types of the table."""
        done = [(operation, self._converted(event, row))]
        key = self._rules.key or event.key
        if operation is Operation.UPSERT and before and key:
            changed = _named(before, row)
            names = [name for name in _named(dict.fromkeys(key), row) if name in changed]
            if any(changed[name] != row.get(name) for name in names):
                old = self._converted(event, {**row, **changed})
                own = [self._schema.own_name(name) or name for name in key]
                if any(old.get(name) != done[0][1].get(name) for name in own):
                    done.insert(0, (Operation.DELETE, old))
        return done

    def _converted(self, event: ChangeEvent, row: ChangeRow) -> ChangeRow:
        plan_key = (id(event.readers), tuple(row))
        plan = self._plans.get(plan_key)
        if plan is None:
            plan = self._plans[plan_key] = self._plan(event.readers, row)
        converted: ChangeRow = {}
        for name, column, read in plan:
            value = row[name]
            try:
                converted[column] = None if value is None else read(value)
            except BodyError as error:
                raise in_column(name, error) from None
        return converted

    def _plan(self, readers: Readers, row: Collection[str]) -> list[tuple[str, str, Converter]]:
        """Return per column of an event its name, that in the table, and the reading."""
        plan: list[tuple[str, str, Converter]] = []
        seen: dict[str, str] = {}
        for name in row:
            column, kind = self._schema.own_name(name), self._schema.type_of(name)
            if column is None or kind is None:
                if self._rules.values.evolution is not Evolution.IGNORE:
                    plan.append((name, name, _no_column))
                continue
            if (other := seen.setdefault(column, name)) is not name:
                both = f"{quoted_value(other)} and {quoted_value(name)}"
                raise BodyError(f"the columns {both} differ only in case")
            reader = readers.get(name)
            read = self._untyped(kind, self._rules.values)
            if reader is not None:
                read = fitted(reader, kind, read, self._rules.values.zone)
            plan.append((name, column, read))
        return plan


def _no_column(value: Any) -> Any:
    raise BodyError(f"{quoted_value(value)} has no column in the table")


def _named(before: ChangeRow, row: ChangeRow) -> ChangeRow:
    """Return old values by the names that the new row has."""
    own = {folded_name(name): name for name in row}
    return {own.get(folded_name(name), name): value for name, value in before.items()}


def _schema_of(kinds: dict[str, pa.DataType]) -> TableSchema:
    """Return the declared columns; of names that differ only in case, rows are refused later."""
    unique: dict[str, tuple[str, pa.DataType]] = {}
    for name, kind in kinds.items():
        if name:
            unique.setdefault(folded_name(name), (name, kind))
    return TableSchema.of(unique.values())


def fitted(reader: ColumnReader, kind: pa.DataType, untyped: Converter, zone: tzinfo) -> Converter:
    """Return the reading of declared values for a column of another type.

    Args:
        reader: The reading by the declared type.
        kind: The type of the column. If it does not have all values of the declared type, each
            value decides whether it fits.
        untyped: The reading of values without a declared type.
        zone: The time zone of dates that become instants.
    """
    read, declared = reader.read, reader.kind
    if declared == kind:
        return read
    if wider(kind, declared) != kind:
        return untyped
    widen = widening(declared, kind, zone)
    return lambda value: widen(read(value))
