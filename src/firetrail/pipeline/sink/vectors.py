"""Vectorized encoding of whole batches of rows, without Python code per row.

This is the common case. Batches with delayed messages, values that a property cannot hold, or nulls
in required columns are encoded row by row instead, which can also report the row that is wrong.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.format.layout import BATCH_ITEM, MAX_PROPERTIES, PROPERTY_CRC_SIZE
from firetrail.format.names import QUEUE_ID_MAX
from firetrail.format.properties import DELAY, KEY_SEPARATOR, NAME_END, TIMER_TIMES, VALUE_END
from firetrail.pipeline.kernels.pack import pack_items
from firetrail.store.settings.store_config import StoreConfig

_ITEM_HEAD = BATCH_ITEM.size + 2
_TEXT = pa.string()
_DELAYS = pa.array([DELAY, *TIMER_TIMES], _TEXT)


class Chunk(NamedTuple):
    """Messages of one queue as the items of a client batch."""

    topic: str
    queue_id: int
    items: memoryview
    messages: int


class Vectors(NamedTuple):
    """Rows that can be encoded together."""

    topics: pa.DictionaryArray
    queue_ids: pa.Array
    bodies: pa.Array
    properties: pa.Array


def vectors(batch: pa.RecordBatch, config: StoreConfig, turn: int, queues: int) -> Vectors | None:
    """Return the rows for :func:`chunks`; None if they must be encoded row by row.

    Rows without a queue id are distributed over ``queues`` in turn, beginning with ``turn``.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    topics, bodies = columns["topic"], columns["body"]
    if topics.null_count or bodies.null_count or not _all_zero(columns.get("delay_level")):
        return None
    if bodies.type not in (pa.binary(), _TEXT) or topics.type != _TEXT:
        return None
    properties = _properties(columns, batch.num_rows)
    if properties is None or batch.num_rows == 0:
        return None
    most = MAX_PROPERTIES - (PROPERTY_CRC_SIZE if config.property_crc else 0)
    if _longest(bodies) > config.max_message_size or _longest(properties) > most:
        return None
    queue_ids = columns.get("queue_id")
    if queue_ids is None:
        numbers = array("q", ((turn + row) % queues for row in range(batch.num_rows)))
        queue_ids = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
    elif queue_ids.null_count or not _are_queue_ids(queue_ids):
        return None
    return Vectors(topics.dictionary_encode(), queue_ids.cast(pa.int64()), bodies, properties)


def _are_queue_ids(numbers: pa.Array) -> bool:
    ends: dict[str, int] = pc.min_max(numbers).as_py()
    return ends["min"] >= 0 and ends["max"] <= QUEUE_ID_MAX


def _all_zero(levels: pa.Array | None) -> bool:
    return levels is None or not pc.any(pc.fill_null(pc.not_equal(levels, 0), False)).as_py()


def _longest(values: pa.Array) -> int:
    longest: int = pc.max(pc.binary_length(values)).as_py()
    return longest


def _properties(columns: dict[str, pa.Array], rows: int) -> pa.Array | None:
    """Return the encoded properties of each row; None if they must be encoded row by row."""
    parts: list[pa.Array] = []
    items = 0
    if "keys" in columns:
        keys = columns["keys"]
        if not pa.types.is_list(keys.type) or keys.type.value_type != _TEXT:
            return None
        if _any_missing(keys.flatten()) or _any_with(keys.flatten(), KEY_SEPARATOR):
            return None
        keys = keys.cast(pa.list_(_TEXT))  # Spark may have typed the elements as not null
        parts.append(_named("KEYS", pc.binary_join(keys, KEY_SEPARATOR)))
    if "tags" in columns:
        parts.append(_named("TAGS", columns["tags"]))
    for part in parts:
        items += len(part) - pc.sum(pc.equal(part, "")).as_py()
    if "properties" in columns:
        listed = _map(columns["properties"])
        if listed is None:
            return None
        items += len(listed.flatten())
        parts.append(pc.fill_null(pc.binary_join(listed, ""), ""))
    if not parts:
        return pa.array([b""] * rows, pa.binary())
    joined = pc.binary_join_element_wise(*parts, "") if len(parts) > 1 else parts[0]
    for separator in (NAME_END, VALUE_END):
        if pc.sum(pc.count_substring(joined, separator)).as_py() != items:
            return None
    return joined.cast(pa.binary())


def _named(name: str, values: pa.Array) -> pa.Array:
    """Encode a property with these values; rows without a value get none."""
    values = pc.fill_null(values, "")
    item = pc.binary_join_element_wise(f"{name}{NAME_END}", values, VALUE_END, "")
    return pc.if_else(pc.equal(values, ""), "", item)


def _map(column: pa.Array) -> pa.ListArray | None:
    """Encode the items of each row's map; None if they must be encoded row by row."""
    if column.type.key_type != _TEXT or column.type.item_type != _TEXT or column.null_count:
        return None
    entries = pa.ListArray.from_arrays(column.offsets, column.values).flatten()
    names, values = entries.flatten()
    if _any_missing(names) or _any_missing(values) or pc.any(pc.is_in(names, _DELAYS)).as_py():
        return None
    items = pc.binary_join_element_wise(names, NAME_END, values, VALUE_END, "")
    first = column.offsets[0].as_py() if len(column) else 0
    return pa.ListArray.from_arrays(pc.subtract(column.offsets, first), items)


def _any_missing(texts: pa.Array) -> bool:
    return bool(texts.null_count) or bool(pc.any(pc.equal(texts, "")).as_py())


def _any_with(texts: pa.Array, part: str) -> bool:
    return bool(pc.any(pc.match_substring(texts, part)).as_py())


def chunks(rows: Vectors, size: int) -> Iterator[Chunk]:
    """Yield all rows by topic and queue, in order, in chunks of about ``size`` bytes."""
    room = max(size, _ITEM_HEAD + _longest(rows.bodies) + _longest(rows.properties))
    bodies, properties = _buffers(rows.bodies), _buffers(rows.properties)
    for topic, queue_id, picks in _by_queue(rows):
        first = 0
        while first < len(picks):
            out = bytearray(room)
            following, used = pack_items(*bodies, *properties, picks, first, out)
            yield Chunk(topic, queue_id, memoryview(out)[:used], following - first)
            first = following


def _by_queue(rows: Vectors) -> Iterator[tuple[str, int, memoryview]]:
    codes = pc.add(pc.shift_left(rows.topics.indices.cast(pa.int64()), 32), rows.queue_ids)
    order = pc.sort_indices(codes).cast(pa.int64())  # stable
    picks = memoryview(order.buffers()[1]).cast("B").cast("q")
    at = 0
    for code, count in sorted(_counts(codes).items()):
        topic = rows.topics.dictionary[code >> 32].as_py()
        yield topic, code & 0xFFFFFFFF, picks[at : at + count]
        at += count


def _counts(codes: pa.Array) -> dict[int, int]:
    return {found["values"]: found["counts"] for found in pc.value_counts(codes).to_pylist()}


def _buffers(values: pa.Array) -> tuple[memoryview, memoryview]:
    """Return the offsets and the data of an array, in the form that the kernel needs."""
    _, offsets, data = values.buffers()
    ends = memoryview(offsets).cast("B").cast("i")
    text = memoryview(data).cast("B") if data is not None and data.size else memoryview(b"\0")
    return ends[values.offset : values.offset + len(values) + 1], text
