"""The decoder of JSON objects, one per message."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from firetrail.pipeline.decoding.body_decoder import (
    Bodies,
    BodyDecoder,
    Decoded,
    Operation,
    Reject,
    body_list,
    plain_rows,
)
from firetrail.pipeline.decoding.formats.json_arrow import ArrowReader
from firetrail.pipeline.decoding.schema.schema_inference import type_counts
from firetrail.pipeline.decoding.schema.table_schema import TableSchema
from firetrail.pipeline.decoding.values.json_values import (
    DecodingRules,
    Evolution,
    StructConverter,
    parse_object,
)
from firetrail.pipeline.decoding.values.text_values import BodyError

NO_BODY = "the body is empty"
"""The reason of rejects without a body."""
FAST_BYTES = 8 << 20
"""Bytes of bodies that are parsed at once. Arrow needs several times as much memory meanwhile."""
_PARTS = 8
"""Parts into which bodies are cut if one of them needs the exact rules."""
_EXACT_ROWS = 32
"""Bodies that are not cut further; for so few, a call of Arrow costs as much as the exact rules."""


@dataclass(frozen=True, slots=True)
class BodyRange:
    """Neighbouring bodies, and their rows if the fast path has decoded them."""

    start: int
    end: int
    rows: pa.RecordBatch | None


class JsonDecoder(BodyDecoder):
    """Rows of JSON objects.

    Args:
        schema: The columns that are known.
        rules: The choices of the user.
        tombstones: Whether an empty body deletes the row of the message's key. Default: False,
            it is a reject.
    """

    def __init__(
        self, schema: TableSchema, rules: DecodingRules, *, tombstones: bool = False
    ) -> None:
        self._schema = schema
        self._rules = rules
        self._tombstones = tombstones

    def decode(self, bodies: Bodies) -> Decoded:
        given = body_list(bodies)
        schema = self._schema
        pieces = list(self._pieces(given, schema))
        parsed = {
            at: _parsed(given[at])
            for piece in pieces
            if piece.rows is None
            for at in range(piece.start, piece.end)
        }
        if self._rules.evolution is Evolution.ADD:
            objects = (value for value in parsed.values() if type(value) is dict)
            schema = type_counts(objects).widened(schema)
            if schema is not self._schema:
                pieces = list(self._pieces(given, schema))
        exact = ExactRows(schema, self._rules, tombstones=self._tombstones)
        for piece in pieces:
            if piece.rows is not None:
                exact.add_batch(piece.start, piece.rows)
                continue
            for at in range(piece.start, piece.end):
                exact.add(at, parsed[at] if at in parsed else _parsed(given[at]))
        return exact.decoded()

    def _pieces(self, bodies: Sequence[bytes | None], schema: TableSchema) -> Iterator[BodyRange]:
        reader = ArrowReader(schema, self._rules)
        start = size = 0
        for at, body in enumerate(bodies):
            if size > FAST_BYTES:
                yield from _cut(reader.rows, bodies, start, at)
                start, size = at, 0
            size += len(body or b"")
        yield from _cut(reader.rows, bodies, start, len(bodies))


def _cut(
    rows: Callable[[Sequence[bytes | None]], pa.RecordBatch | None],
    bodies: Sequence[bytes | None],
    start: int,
    end: int,
) -> Iterator[BodyRange]:
    batch = rows(bodies[start:end])
    count = end - start
    if batch is not None or count <= _EXACT_ROWS:
        yield BodyRange(start, end, batch)
        return
    step = -(-count // _PARTS)
    for at in range(start, end, step):
        yield from _cut(rows, bodies, at, min(at + step, end))


def _parsed(body: bytes | None) -> dict[str, Any] | BodyError | None:
    """Return the object of a body, or the reason why it has none; None if it is empty."""
    try:
        return parse_object(body) if body else None
    except BodyError as error:
        return error


class ExactRows:
    """Rows and rejects in the order of their messages.

    Args:
        schema: The columns.
        rules: The choices of the user.
        tombstones: Whether an empty body deletes.
    """

    def __init__(self, schema: TableSchema, rules: DecodingRules, *, tombstones: bool) -> None:
        self._schema = schema.arrow
        self._convert = StructConverter([(each.name, each.type) for each in self._schema], rules)
        self._tombstones = tombstones
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[dict[str, Any]] = []
        self._messages: list[int] = []
        self._deletes: set[int] = set()
        self._rejects: list[Reject] = []

    def add_batch(self, start: int, rows: pa.RecordBatch) -> None:
        """Add the rows of the messages from ``start`` on."""
        self._close()
        self._batches.append(rows)
        self._messages += range(start, start + rows.num_rows)

    def add(self, message: int, value: dict[str, Any] | BodyError | None) -> None:
        """Add a parsed object, a reject, or (None) an empty body."""
        try:
            if isinstance(value, BodyError):
                raise value
            if value is not None:
                self._rows.append(self._convert(value))
            elif self._tombstones:
                self._rows.append({})
                self._deletes.add(len(self._messages))
            else:
                raise BodyError(NO_BODY)
        except BodyError as error:
            self._rejects.append(Reject(message, str(error)))
        else:
            self._messages.append(message)

    def _close(self) -> None:
        if self._rows:
            self._batches.append(pa.RecordBatch.from_pylist(self._rows, self._schema))
            self._rows = []

    def decoded(self) -> Decoded:
        """Return all that was added."""
        self._close()
        count = len(self._messages)
        operations = None
        if self._deletes:
            effects = (Operation.DELETE if at in self._deletes else 0 for at in range(count))
            operations = pa.array(effects, pa.int8())
        part = plain_rows(
            joined(self._batches, self._schema), pa.array(self._messages, pa.int32()), operations
        )
        return Decoded((part,), tuple(self._rejects))


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return batches of a schema as one."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    whole = table.to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema)
