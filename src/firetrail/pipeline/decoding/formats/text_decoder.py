"""The decoder of plain text: one column, ``value``."""

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
from firetrail.pipeline.decoding.schema.table_schema import TableSchema

TEXT_SCHEMA = TableSchema.from_ddl("value string")


class TextDecoder(BodyDecoder):
    """Rows with the body as text in UTF-8. An empty body is an empty text.

    Args:
        tombstones: Whether an empty body deletes the row of the message's key. Default: False.
    """

    def __init__(self, *, tombstones: bool = False) -> None:
        self._tombstones = tombstones

    def decode(self, bodies: Bodies) -> Decoded:
        values: list[str | None] = []
        messages, operations, rejects = [], [], []
        for at, body in enumerate(body_list(bodies)):
            deletes = self._tombstones and not body
            try:
                values.append(None if deletes else (body or b"").decode())
            except UnicodeDecodeError as error:
                rejects.append(Reject(at, f"not UTF-8 at byte {error.start}"))
                continue
            messages.append(at)
            operations.append(Operation.DELETE if deletes else Operation.UPSERT)
        rows = pa.RecordBatch.from_arrays([pa.array(values, pa.string())], schema=TEXT_SCHEMA.arrow)
        part = plain_rows(rows, pa.array(messages, pa.int32()), pa.array(operations, pa.int8()))
        return Decoded((part,), tuple(rejects))
