"""The interface of decoders, and their results: typed rows, and messages that do not fit.

A message becomes one row, or several, or none (an event of a CDC tool). Rows keep the order of the
messages, and several rows of one message their order in it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from firetrail.pipeline.decoding.schema.arrow_types import INSTANT
from firetrail.pipeline.decoding.schema.table_schema import TableSchema


class Operation(IntEnum):
    """The effect of a row on a table with a key."""

    UPSERT = 0
    """The row is the newest version of its key."""
    DELETE = 1
    """The row is deleted. Only the columns of its key are certain to have values.

    In a row for an empty body all columns are null: its key is that of the message.
    """


class TableName(NamedTuple):
    """The table of a database that a CDC event names; ``database`` may be empty."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}" if self.database else self.table


@dataclass(frozen=True, slots=True)
class Reject:
    """A message that does not fit.

    Args:
        message: Its index in the batch.
        reason: The reason, as text for people: the column, the value and what was expected.
    """

    message: int
    reason: str


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of a batch that belong to one table.

    Args:
        table: The table that the events name; None for formats that name none.
        rows: The rows. Their schema is that of the decoder, widened by what the batch showed.
        messages: Per row, the index of its message in the batch (int32).
        operations: Per row, an :class:`Operation` (int8).
        times: Per row, when the change was made, by the clock of the database; null if the event
            has no time. The order of changes is that of the log, never that of this column.
        key: The names of the primary key that the events name; empty if they name none.
    """

    table: TableName | None
    rows: pa.RecordBatch
    messages: pa.Array
    operations: pa.Array
    times: pa.Array
    key: tuple[str, ...] = ()

    @property
    def schema(self) -> TableSchema:
        return TableSchema(self.rows.schema)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded batch.

    Every message is in exactly one of these: the messages of rows, the rejects, those that only
    change a schema (``ALTER TABLE … ADD COLUMN``), and those that were skipped.

    Args:
        parts: The rows by table. A format that names no tables has exactly one part, whose table
            is None. The part of a table may have no rows if only its schema changed.
        rejects: The messages that do not fit, in the order of the batch.
        skipped: The number of messages that the options exclude, such as events of other tables,
            and of those that never become rows, such as the heartbeats of a CDC tool.
    """

    parts: tuple[TableRows, ...]
    rejects: tuple[Reject, ...]
    skipped: int = 0


Bodies: TypeAlias = pa.Array | Sequence[bytes | None]
"""The bodies of a batch: an Arrow array (binary), or a sequence. None is an empty body."""


class BodyDecoder(ABC):
    """Decodes batches in a worker. It keeps no state that changes results."""

    @abstractmethod
    def decode(self, bodies: Bodies) -> Decoded:
        """Return the rows of a batch. Bad bodies are rejects and raise nothing.

        Raises:
            PipelineError: Nothing can be decoded, such as without the schema registry.
        """


def body_list(bodies: Bodies) -> list[bytes | None]:
    """Return the bodies as a list."""
    return bodies.to_pylist() if isinstance(bodies, pa.Array) else list(bodies)


def plain_rows(rows: pa.RecordBatch, messages: pa.Array, deletes: pa.Array | None) -> TableRows:
    """Return rows that have no table and no time.

    Args:
        rows: The rows.
        messages: The indexes of their messages.
        deletes: Per row, an operation; None if all are upserts.
    """
    operations = pa.repeat(pa.scalar(0, pa.int8()), rows.num_rows) if deletes is None else deletes
    return TableRows(None, rows, messages, operations, pa.nulls(rows.num_rows, INSTANT))
