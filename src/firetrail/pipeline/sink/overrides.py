"""Columns that take precedence over the property with the same meaning.

The source's column ``properties`` contains all properties of a message, so rows that are read,
changed and written back have their tags and keys twice. A column that has a value takes precedence.
"""

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.format.properties import DELAY, KEYS, TAGS

_COLUMNS = {"tags": TAGS, "keys": KEYS, "delay_level": DELAY}


def prefer_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows without the properties that columns replace."""
    names = batch.schema.names
    if "properties" not in names:
        return batch
    properties = batch.column("properties")
    replaced = {}
    for column, name in _COLUMNS.items():
        if column in names:
            given = _has_value(batch.column(column))
            found = pc.is_valid(pc.map_lookup(properties, pa.scalar(name), "last"))
            if pc.any(pc.and_(given, found)).as_py():
                replaced[name] = given
    if not replaced:
        return batch
    return batch.set_column(names.index("properties"), "properties", _without(properties, replaced))


def _has_value(column: pa.Array) -> pa.Array:
    if pa.types.is_list(column.type):
        given = pc.greater(pc.list_value_length(column), 0)
    elif pa.types.is_integer(column.type):
        given = pc.not_equal(column, 0)
    else:
        given = pc.not_equal(column, "")
    return pc.fill_null(given, False)


def _without(maps: pa.MapArray, replaced: dict[str, pa.Array]) -> pa.MapArray:
    """Remove the entries with some names from maps, in the rows that are true for the name."""
    offsets = pc.subtract(maps.offsets, maps.offsets[0])
    size = maps.offsets[-1].as_py() - maps.offsets[0].as_py()
    names, values = maps.values.slice(maps.offsets[0].as_py(), size).flatten()
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, names))
    kept = pa.repeat(pa.scalar(True), size)
    for name, given in replaced.items():
        kept = pc.and_not(kept, pc.and_(pc.equal(names, name), given.take(rows)))
    counts = pc.cumulative_sum(kept.cast(pa.int32()))
    ends = pa.concat_arrays([pa.array([0], pa.int32()), counts]).take(offsets)
    return pa.MapArray.from_arrays(ends, names.filter(kept), values.filter(kept))
