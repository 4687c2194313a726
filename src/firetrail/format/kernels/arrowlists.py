"""Gather keys and properties into the buffers of Arrow lists and maps.

See :mod:`~firetrail.format.kernels.arrow`. How many items there are is known when they are written:
the caller gives room for the upper bounds, and cuts the buffers to what comes back.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format import layout
from firetrail.format.kernels.arrow import KEYS, PROPERTIES

if cython.compiled:
    from cython.cimports.firetrail.format.kernels import _constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import find_byte, same_bytes
    from cython.cimports.firetrail.format.kernels.arrow import Rows
    from cython.cimports.firetrail.format.kernels.text import copy_text, text_size
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import find_byte, same_bytes
    from firetrail.format.kernels.arrow import Rows
    from firetrail.format.kernels.text import copy_text, text_size

COMPILED = cython.compiled

ITEMS_PER_RECORD_MAX = layout.MAX_PROPERTIES // 4 + 1
"""A name, a value and what ends them take four bytes; the last one may lack its end."""

_SIZE_MAX = cython.declare(cython.longlong, 2**31 - 1)
_KEYS = cython.declare(cython.int, KEYS)
_PROPERTIES = cython.declare(cython.int, PROPERTIES)
_SPACE = cython.declare(cython.int, 32)


def measure_items(rows: Rows, kind: cython.int) -> tuple[int, int]:
    """At most how many KEYS or PROPERTIES there are, and how many bytes their text takes.

    The bytes are enough for the names of properties, and as many again for their values.
    """
    at_column: cython.Py_ssize_t = k.COL_PROPERTIES_AT
    size_column: cython.Py_ssize_t = k.COL_PROPERTIES_SIZE
    least: cython.Py_ssize_t = 4
    if kind == _KEYS:
        at_column = k.COL_KEYS_AT
        size_column = k.COL_KEYS_SIZE
        least = 2
    source: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    if cython.compiled:
        source = cython.address(rows._data[0])
        cells = cython.address(rows._table[0])
    else:
        source = rows._data
        cells = rows._table
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    size: cython.Py_ssize_t
    items: cython.longlong = 0
    total: cython.longlong = 0
    with cython.nogil:
        for i in range(rows.count):
            row = rows._picks[i]
            size = cells[size_column * rows._capacity + row]
            if size > 0:
                items += size // least + 1
                total += text_size(source, cells[at_column * rows._capacity + row], size)
    if total > _SIZE_MAX:
        raise ValueError(f"{total} bytes are too many for one batch")
    return items, total


@cython.cfunc
def _check_room(
    rows: Rows,
    kind: cython.int,
    lists: cython.Py_ssize_t,
    offsets: cython.Py_ssize_t,
    text: cython.Py_ssize_t,
) -> cython.void:
    items: cython.longlong
    size: cython.longlong
    items, size = measure_items(rows, kind)
    if lists <= rows.count or offsets <= items or text < size:
        raise ValueError(
            f"room for {lists} offsets of lists, {offsets} of items and {text} bytes; "
            f"{rows.count + 1}, {items + 1} and {size} are needed"
        )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _split_keys(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    items: cython.Py_ssize_t,
    offsets: cython.p_int,
    out: cython.p_uchar,
) -> cython.Py_ssize_t:
    """Write the keys in ``data[at : end]`` as items from number ``items`` on; the next number."""
    stop: cython.Py_ssize_t
    while at < end:
        stop = find_byte(data, _SPACE, at, end)
        if stop > at:
            offsets[items + 1] = copy_text(out, offsets[items], data, at, stop - at)
            items += 1
        at = stop + 1
    return items


def fill_keys(
    rows: Rows,
    lists: cython.int[::1],
    offsets: cython.int[::1],
    out: cython.uchar[::1],
) -> int:
    """Write every row's keys; how many there are. ``lists`` are the offsets of the rows."""
    _check_room(rows, _KEYS, len(lists), len(offsets), len(out))
    source: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    ends: cython.p_int
    target: cython.p_uchar
    if cython.compiled:
        source = cython.address(rows._data[0])
        cells = cython.address(rows._table[0])
        ends = cython.address(offsets[0])
        target = cython.address(out[0])
    else:
        source = rows._data
        cells = rows._table
        ends = offsets
        target = out
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    items: cython.Py_ssize_t = 0
    with cython.nogil:
        lists[0] = 0
        ends[0] = 0
        for i in range(rows.count):
            row = rows._picks[i]
            at = cells[k.COL_KEYS_AT * rows._capacity + row]
            items = _split_keys(
                source,
                at,
                at + cells[k.COL_KEYS_SIZE * rows._capacity + row],
                items,
                ends,
                target,
            )
            lists[i + 1] = items
    return items


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _split_properties(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    name_offsets: cython.p_int,
    names: cython.p_uchar,
    notes: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Write the names in ``data[at : end]`` as items from number ``first`` on; the next number.

    Of each item ``notes`` gets the name's looks and where its value stands: that of the last of
    equal names, in the place of the first one.
    """
    items: cython.Py_ssize_t = first
    item: cython.Py_ssize_t
    item_end: cython.Py_ssize_t
    name_end: cython.Py_ssize_t
    size: cython.Py_ssize_t
    look: cython.longlong
    while at < end:
        item_end = find_byte(data, 2, at, end)
        name_end = find_byte(data, 1, at, item_end)
        if name_end > at and item_end - name_end > 1:
            size = copy_text(names, name_offsets[items], data, at, name_end - at)
            size -= name_offsets[items]
            # Enough to tell most names apart; the bytes are compared where it does not.
            look = (
                size << 16 | names[name_offsets[items]] << 8 | names[name_offsets[items] + size - 1]
            )
            item = first
            while item < items and (
                notes[3 * (item - first)] != look
                or not same_bytes(names, name_offsets[item], names, name_offsets[items], size)
            ):
                item += 1
            if item == items:
                name_offsets[items + 1] = name_offsets[items] + size
                notes[3 * (item - first)] = look
                items += 1
            notes[3 * (item - first) + 1] = name_end + 1
            notes[3 * (item - first) + 2] = item_end - name_end - 1
        at = item_end + 1
    return items


def fill_properties(
    rows: Rows,
    lists: cython.int[::1],
    name_offsets: cython.int[::1],
    names: cython.uchar[::1],
    value_offsets: cython.int[::1],
    values: cython.uchar[::1],
) -> int:
    """Write every row's properties; how many there are. ``lists`` are the offsets of the rows.

    Java's parser: an item needs a name, the separator and a value; the last of equal names counts.
    """
    _check_room(
        rows,
        _PROPERTIES,
        len(lists),
        min(len(name_offsets), len(value_offsets)),
        min(len(names), len(values)),
    )
    notes_array = array("q", bytes(24 * ITEMS_PER_RECORD_MAX))
    notes_view: cython.longlong[::1] = notes_array
    source: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    notes: cython.p_longlong
    name_ends: cython.p_int
    value_ends: cython.p_int
    name_text: cython.p_uchar
    value_text: cython.p_uchar
    if cython.compiled:
        source = cython.address(rows._data[0])
        cells = cython.address(rows._table[0])
        notes = cython.address(notes_view[0])
        name_ends = cython.address(name_offsets[0])
        value_ends = cython.address(value_offsets[0])
        name_text = cython.address(names[0])
        value_text = cython.address(values[0])
    else:
        source = rows._data
        cells = rows._table
        notes = notes_view
        name_ends = name_offsets
        value_ends = value_offsets
        name_text = names
        value_text = values
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    note: cython.Py_ssize_t
    item: cython.Py_ssize_t = 0
    items: cython.Py_ssize_t = 0
    with cython.nogil:
        lists[0] = 0
        name_ends[0] = 0
        value_ends[0] = 0
        for i in range(rows.count):
            at = cells[k.COL_PROPERTIES_AT * rows._capacity + rows._picks[i]]
            end = at + cells[k.COL_PROPERTIES_SIZE * rows._capacity + rows._picks[i]]
            items = _split_properties(source, at, end, item, name_ends, name_text, notes)
            note = 0
            while item < items:
                value_ends[item + 1] = copy_text(
                    value_text, value_ends[item], source, notes[note + 1], notes[note + 2]
                )
                note += 3
                item += 1
            lists[i + 1] = items
    return items
