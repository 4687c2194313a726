"""The columns of a table: of the decoded bodies, of the messages, and of the validity of rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from firetrail.pipeline.decoding.schema.arrow_types import (
    folded_name,
    list_of,
    members_of,
    struct_of,
)
from firetrail.pipeline.decoding.schema.table_schema import TableSchema
from firetrail.pipeline.source.schema import TEXT_MAP, TEXTS, TIMESTAMP
from firetrail.pipeline.tables.files.format_rules import TableFormat

PREFIX = "_"
"""Default of the prefix of message columns."""
BUCKET = "_bucket"
"""The column by which a table with a key is partitioned."""
BROKER = "broker"
_SOURCES = {
    "queue": ("queue_id", pa.int32()),
    "offset": ("queue_offset", pa.int64()),
    "physical_offset": ("physical_offset", pa.int64()),
    "msg_id": ("msg_id", pa.string()),
    "keys": ("keys", TEXTS),
    "tags": ("tags", pa.string()),
    "properties": ("properties", TEXT_MAP),
    "born_time": ("born_time", TIMESTAMP),
    "store_time": ("store_time", TIMESTAMP),
}
"""Per message column, the column of the source, and its type."""
MESSAGE_COLUMNS = (BROKER, *_SOURCES)
VALIDITY = {"valid_from": TIMESTAMP, "valid_to": TIMESTAMP, "is_current": pa.bool_()}
"""Per column of the validity of a row, in a table with history, its type."""
REASON, BODY = "reason", "body"


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table.

    Args:
        decoded: The columns of the bodies, as the decoder names them.
        prefix: The prefix of the message columns; None for a table without them.
        history: Whether the table has the columns of the validity of rows, too. Default: False.
        format: The format of the table. Default: Delta.
    """

    decoded: TableSchema
    prefix: str | None
    history: bool = False
    format: TableFormat = TableFormat.DELTA

    @cached_property
    def message_names(self) -> dict[str, str]:
        """The names of the message columns in the table."""
        prefix = self.prefix
        return {} if prefix is None else {name: prefix + name for name in MESSAGE_COLUMNS}

    @cached_property
    def validity_names(self) -> dict[str, str]:
        """The names of the columns of the validity of rows in the table."""
        return {name: f"{self.prefix}{name}" for name in VALIDITY} if self.history else {}

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of the decoded columns in the table.

        They are the decoder's, without the characters that the format refuses, and with a number
        at the end where the name is taken. Columns are only added at the end, so names never
        change.
        """
        own = *self.message_names.values(), *self.validity_names.values(), BUCKET
        taken = set(map(folded_name, own))
        found = {}
        for name in self.decoded.names:
            found[name] = _free_name(self.format.allowed_name(name), taken)
            taken.add(folded_name(found[name]))
        return found

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The columns of decoded rows, which have no validity yet."""
        fields = [
            pa.field(self.names[field.name], self._named(self.format.stored_type(field.type)))
            for field in self.decoded.arrow
        ]
        return pa.schema([*fields, *message_fields(self.message_names)])

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the table's files."""
        names = self.validity_names
        return pa.schema(
            [*self.row_schema, *(pa.field(names[name], VALIDITY[name]) for name in names)]
        )

    def rows(self, decoded: pa.RecordBatch, messages: pa.RecordBatch, broker: str) -> pa.Table:
        """Return decoded rows with the columns ``row_schema``.

        Args:
            decoded: The decoded columns, with the schema ``decoded``.
            messages: The messages of these rows, one per row, with the columns of the source.
            broker: The broker that has the messages.
        """
        arrays = []
        for column, field in zip(decoded.columns, self.row_schema, strict=False):
            stored = column.cast(self.format.stored_type(column.type))
            arrays.append(stored if stored.type == field.type else stored.view(field.type))
        if self.prefix is not None:
            arrays += message_arrays(messages, broker)
        return pa.Table.from_arrays(arrays, schema=self.row_schema)

    def _named(self, kind: pa.DataType) -> pa.DataType:
        """Return a type whose members have names that the format allows."""
        if pa.types.is_list(kind):
            return list_of(self._named(kind.value_type))
        if pa.types.is_map(kind):
            return pa.map_(kind.key_type, self._named(kind.item_type))
        if not pa.types.is_struct(kind):
            return kind
        taken: set[str] = set()
        members = []
        for name, each in members_of(kind):
            free = _free_name(self.format.allowed_name(name), taken)
            members.append((free, self._named(each)))
            taken.add(folded_name(free))
        return struct_of(members)


REJECTED_SCHEMA = pa.schema(
    [
        pa.field(PREFIX + BROKER, pa.string()),
        *(pa.field(PREFIX + name, kind) for name, (_, kind) in _SOURCES.items()),
        pa.field(REASON, pa.string()),
        pa.field(BODY, pa.binary()),
    ]
)
"""The columns of the table of rejected messages."""


def message_fields(names: dict[str, str]) -> list[pa.Field]:
    """Return the fields of message columns with these names."""
    kinds = {BROKER: pa.string(), **{name: kind for name, (_, kind) in _SOURCES.items()}}
    return [pa.field(shown, kinds[name]) for name, shown in names.items()]


def message_arrays(messages: pa.RecordBatch, broker: str) -> list[pa.Array]:
    """Return the message columns of messages."""
    brokers = pa.repeat(pa.scalar(broker, pa.string()), messages.num_rows)
    return [brokers, *(messages.column(source) for source, _ in _SOURCES.values())]


def rejected_messages(rows: pa.Table) -> pa.Table:
    """Return rows of the table of rejected messages with the names of the source."""
    names = [source for source, _ in _SOURCES.values()]
    return rows.rename_columns([BROKER, *names, REASON, BODY])


def _free_name(base: str, taken: set[str]) -> str:
    found = base
    number = 2
    while folded_name(found) in taken:
        found = f"{base}_{number}"
        number += 1
    return found
