"""The rows of a batch that have a key, and the messages whose rows have none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.pipeline.decoding.body_decoder import Operation, Reject, TableRows
from firetrail.pipeline.decoding.values.text_values import BodyError, from_text
from firetrail.pipeline.tables.keyed.keys import key_texts
from firetrail.pipeline.tables.messages.reject_reasons import null_key, unusable_key


class KeyedRows(NamedTuple):
    """Rows, and for each of them its message, its key, and whether it deletes."""

    rows: pa.RecordBatch
    messages: pa.Array
    keys: list[str]
    deletes: pa.Array
    rejects: list[Reject]


def with_keys(
    batch: pa.RecordBatch, part: TableRows, key: Sequence[str], zone: tzinfo
) -> KeyedRows:
    """Return the rows of a batch that have a key.

    A message with an empty body deletes the row of its own key: the first of the message's keys,
    which must be a value of the table's key column.

    Args:
        batch: The messages.
        part: Their rows.
        key: The columns of the key.
        zone: The time zone of keys that are times without one.
    """
    rows, deletes = part.rows, pc.equal(part.operations, int(Operation.DELETE))
    texts = key_texts([rows.column(name) for name in key])
    if None not in texts:
        return KeyedRows(rows, part.messages, [str(text) for text in texts], deletes, [])
    messages = part.messages.to_pylist()
    rejects: list[Reject] = []
    values: list[Any] = rows.column(key[0]).to_pylist()
    kind = rows.column(key[0]).type
    for row, text in enumerate(texts):
        if text is not None:
            continue
        names = batch.column("keys")[messages[row]].as_py() or []
        if len(key) == 1 and deletes[row].as_py() and names:
            values[row] = key_value(names[0], kind, zone)
        if values[row] is None or len(key) > 1:
            reason = unusable_key if deletes[row].as_py() else null_key
            rejects.append(Reject(messages[row], reason(key)))
    if len(key) == 1:
        at = rows.schema.get_field_index(key[0])
        rows = rows.set_column(at, key[0], pa.array(values, kind))
        texts = key_texts([rows.column(at)])
    keep = pa.array([text is not None for text in texts])
    return KeyedRows(
        rows.filter(keep),
        part.messages.filter(keep),
        [text for text in texts if text is not None],
        deletes.filter(keep),
        rejects,
    )


def key_value(text: str, kind: pa.DataType, zone: tzinfo) -> Any:
    """Return the key of a message as a value of the key column; None if it does not fit.

    Args:
        text: The key.
        kind: The type of the column.
        zone: The time zone of keys that are times without one.
    """
    read = from_text(kind, zone)
    try:
        return None if read is None else pa.scalar(read(text), kind).as_py()
    except BodyError:
        return None
