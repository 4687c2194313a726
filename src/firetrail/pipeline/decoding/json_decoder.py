"""The decoder of JSON objects, one per message."""

from typing import Any

import pyarrow as pa

from firetrail.pipeline.decoding.decoded import (
    Bodies,
    BodyDecoder,
    Decoded,
    Operation,
    Reject,
    body_list,
    plain_rows,
)
from firetrail.pipeline.decoding.json_values import (
    Evolution,
    JsonRules,
    StructConverter,
    parse_object,
)
from firetrail.pipeline.decoding.shape import shape_of
from firetrail.pipeline.decoding.table_schema import TableSchema
from firetrail.pipeline.decoding.text_values import Misfit

NO_BODY = "the body is empty"
"""The reason of rejects without a body."""


class JsonDecoder(BodyDecoder):
    """Rows of JSON objects.

    Args:
        schema: The columns that are known.
        rules: The choices of the user.
        tombstones: Whether an empty body deletes the row of the message's key. Default: False,
            it is a reject.
    """

    def __init__(self, schema: TableSchema, rules: JsonRules, *, tombstones: bool = False) -> None:
        self._schema = schema
        self._rules = rules
        self._tombstones = tombstones

    def decode(self, bodies: Bodies) -> Decoded:
        return self._exact(body_list(bodies))

    def _exact(self, bodies: list[bytes | None]) -> Decoded:
        parsed: list[tuple[int, dict[str, Any] | None]] = []
        rejects = []
        for at, body in enumerate(bodies):
            try:
                if body:
                    parsed.append((at, parse_object(body)))
                elif self._tombstones:
                    parsed.append((at, None))
                else:
                    raise Misfit(NO_BODY)
            except Misfit as misfit:
                rejects.append(Reject(at, str(misfit)))
        schema = self._schema
        if self._rules.evolution is Evolution.ADD:
            schema = shape_of([value for _, value in parsed]).widened(schema)
        columns = [(field.name, field.type) for field in schema.arrow]
        convert = StructConverter(columns, self._rules)
        rows, messages, operations = [], [], []
        for at, value in parsed:
            try:
                rows.append({} if value is None else convert(value))
            except Misfit as misfit:
                rejects.append(Reject(at, str(misfit)))
                continue
            messages.append(at)
            operations.append(Operation.DELETE if value is None else Operation.UPSERT)
        rejects.sort(key=lambda reject: reject.message)
        batch = pa.RecordBatch.from_pylist(rows, schema.arrow)
        part = plain_rows(batch, pa.array(messages, pa.int32()), pa.array(operations, pa.int8()))
        return Decoded((part,), tuple(rejects))
