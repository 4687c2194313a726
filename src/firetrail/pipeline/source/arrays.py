"""Conversion of scan columns to Arrow batches: buffers are allocated here and filled by kernels.

No Python code runs per row. Buffers come from Arrow's own pool, which reuses them.
"""

from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.format import columns as col
from firetrail.format.columns import Columns
from firetrail.format.layout import COMPRESSED, COMPRESSION_MASK
from firetrail.pipeline.kernels.arrow import KEYS, PROPERTIES, Rows
from firetrail.pipeline.kernels.arrow_lists import fill_keys, measure_items
from firetrail.pipeline.kernels.arrow_maps import fill_properties
from firetrail.pipeline.source.decompression import inflate
from firetrail.pipeline.source.schema import TEXT_MAP, TEXTS, SourceField

_OFFSET = 4
_NOT_COMPRESSED = ~(COMPRESSED | COMPRESSION_MASK)


class BatchBuilder:
    """Creates batches with given columns from the records of a scan.

    With ``decompress``, bodies are decompressed. A body that cannot be decompressed is an error, or
    null if ``lenient``.
    """

    def __init__(
        self, fields: Sequence[SourceField], *, decompress: bool = False, lenient: bool = False
    ) -> None:
        self._fields = fields
        self._decompress = decompress
        self._lenient = lenient
        self.schema = pa.schema([pa.field(field.name, field.arrow) for field in fields])

    def batch(
        self, data: memoryview, columns: Columns, picks: memoryview, count: int
    ) -> pa.RecordBatch:
        """Return the rows ``picks[:count]`` of a scan of ``data`` into ``columns``."""
        rows = Rows(data, columns.table, picks, count)
        arrays = [_array(field, rows) for field in self._fields]
        if self._decompress:
            arrays = [
                self._decompressed(field, rows, array)
                for field, array in zip(self._fields, arrays, strict=True)
            ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _decompressed(self, field: SourceField, rows: Rows, array: pa.Array) -> pa.Array:
        """Decompress bodies, and clear their flags as RocketMQ's clients do."""
        if pa.types.is_binary(field.arrow):
            return self._inflated(rows, array)
        if field.source == col.SYS_FLAG and pa.types.is_int32(field.arrow):
            return pc.bit_wise_and(array, pa.scalar(_NOT_COMPRESSED, pa.int32()))
        return array

    def _inflated(self, rows: Rows, bodies: pa.Array) -> pa.Array:
        _, flags = _buffer(4 * rows.count, "i")
        rows.ints(col.SYS_FLAG, flags)
        _, places = _buffer(8 * rows.count, "q")
        rows.longs(col.PHYSICAL_OFFSET, places)
        return inflate(bodies, flags, places, lenient=self._lenient)


def _array(field: SourceField, rows: Rows) -> pa.Array:
    kind = field.arrow
    if pa.types.is_int32(kind):
        values, view = _buffer(4 * rows.count, "i")
        rows.ints(field.source, view)
        return pa.Array.from_buffers(kind, rows.count, [None, values], 0)
    if pa.types.is_int64(kind):
        values, view = _buffer(8 * rows.count, "q")
        rows.longs(field.source, view)
        return pa.Array.from_buffers(kind, rows.count, [None, values], 0)
    if pa.types.is_timestamp(kind):
        return _times(field, rows)
    if field.source == KEYS:
        return _keys(rows)
    if field.source == PROPERTIES:
        return _properties(rows)
    return _values(field, rows)


def _buffer(size: int, code: Literal["B", "i", "q"] = "B") -> tuple[pa.Buffer, memoryview]:
    """Return a buffer of ``size`` bytes and a view of it as numbers, which is never empty."""
    room = pa.allocate_buffer(-(-max(size, 1) // 8) * 8)
    return room.slice(0, size), memoryview(room).cast("B").cast(code)


def _times(field: SourceField, rows: Rows) -> pa.Array:
    values, view = _buffer(8 * rows.count, "q")
    valid, bits = _buffer(-(-rows.count // 8))
    nulls = rows.micros(field.source, view, bits)
    return pa.Array.from_buffers(field.arrow, rows.count, [valid if nulls else None, values], nulls)


def _values(field: SourceField, rows: Rows) -> pa.Array:
    offsets, ends = _buffer(_OFFSET * (rows.count + 1), "i")
    valid, bits = _buffer(-(-rows.count // 8))
    text, view = _buffer(rows.room(field.source))
    size, nulls = rows.fill(field.source, ends, bits, view)
    return pa.Array.from_buffers(
        field.arrow, rows.count, [valid if nulls else None, offsets, text.slice(0, size)], nulls
    )


def _strings(count: int, offsets: pa.Buffer, ends: memoryview, text: pa.Buffer) -> pa.Array:
    """Return the first ``count`` strings of buffers that have room for more."""
    used = [None, offsets.slice(0, _OFFSET * (count + 1)), text.slice(0, ends[count])]
    return pa.Array.from_buffers(pa.string(), count, used, 0)


def _keys(rows: Rows) -> pa.Array:
    items_max, size = measure_items(rows, KEYS)
    lists, list_ends = _buffer(_OFFSET * (rows.count + 1), "i")
    offsets, ends = _buffer(_OFFSET * (items_max + 1), "i")
    text, view = _buffer(size)
    count = fill_keys(rows, list_ends, ends, view)
    child = _strings(count, offsets, ends, text)
    return pa.Array.from_buffers(TEXTS, rows.count, [None, lists], 0, children=[child])


def _properties(rows: Rows) -> pa.Array:
    items_max, size = measure_items(rows, PROPERTIES)
    lists, list_ends = _buffer(_OFFSET * (rows.count + 1), "i")
    name_offsets, name_ends = _buffer(_OFFSET * (items_max + 1), "i")
    value_offsets, value_ends = _buffer(_OFFSET * (items_max + 1), "i")
    names, name_view = _buffer(size)
    values, value_view = _buffer(size)
    count = fill_properties(rows, list_ends, name_ends, name_view, value_ends, value_view)
    children: list[Any] = [
        _strings(count, name_offsets, name_ends, names),
        _strings(count, value_offsets, value_ends, values),
    ]
    entries_type = pa.struct([TEXT_MAP.key_field, TEXT_MAP.item_field])
    entries = pa.Array.from_buffers(entries_type, count, [None], 0, children=children)
    return pa.Array.from_buffers(TEXT_MAP, rows.count, [None, lists], 0, children=[entries])
