"""The conversion of properties to the buffers of Arrow maps.

Nearly all properties are plain: ASCII, each with a name and a value, and no name twice. They are
copied in one pass. The others are parsed as Java parses them.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format import layout
from firetrail.pipeline.kernels.arrow import PROPERTIES

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import (
        copy_bytes,
        find_byte,
        load_little_u64,
        same_bytes,
        zeros_below,
    )
    from cython.cimports.firetrail.format.kernels.text import copy_text
    from cython.cimports.firetrail.pipeline.kernels.arrow import Rows
    from cython.cimports.firetrail.pipeline.kernels.arrow_lists import check_room
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import (
        copy_bytes,
        find_byte,
        load_little_u64,
        same_bytes,
        zeros_below,
    )
    from firetrail.format.kernels.text import copy_text
    from firetrail.pipeline.kernels.arrow import Rows
    from firetrail.pipeline.kernels.arrow_lists import check_room

COMPILED = cython.compiled

ITEMS_PER_RECORD_MAX = layout.MAX_PROPERTIES // 4 + 1
"""An item has at least four bytes: name, value and two separators, of which the last may lack."""

_ITEMS_MAX = cython.declare(cython.Py_ssize_t, ITEMS_PER_RECORD_MAX)
_ONES = cython.declare(cython.ulonglong, 0x0101010101010101)
_TOP_BITS = cython.declare(cython.ulonglong, 0x8080808080808080)
_NAME_ENDS = cython.declare(cython.ulonglong, 0x0101010101010101)
_ITEM_ENDS = cython.declare(cython.ulonglong, 0x0202020202020202)
_PROPERTIES = cython.declare(cython.int, PROPERTIES)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy_until(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    marks: cython.ulonglong,
    other_marks: cython.ulonglong,
    out: cython.p_uchar,
    to: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy ASCII up to a mark, a byte that is not ASCII, or ``end``; return that position.

    Each step copies eight bytes; the last may write up to seven bytes beyond the copied text.
    """
    word: cython.ulonglong
    found: cython.ulonglong
    one: cython.ulonglong
    other: cython.ulonglong
    while end - at >= 8:
        word = load_little_u64(data, at)
        one = word ^ marks
        other = word ^ other_marks
        # A byte's top bit is set if the byte is a mark. Borrows only affect later bytes.
        found = ((one - _ONES) & ~one) | ((other - _ONES) & ~other) | word
        found &= _TOP_BITS
        copy_bytes(out, to, data, at, 8)
        if found:
            return at + (zeros_below(found) >> 3)
        at += 8
        to += 8
    while (
        at < end and data[at] < 0x80 and data[at] != marks & 0xFF and data[at] != other_marks & 0xFF
    ):
        out[to] = data[at]
        at += 1
        to += 1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _find_name(
    names: cython.p_uchar,
    offsets: cython.p_int,
    looks: cython.p_longlong,
    first: cython.Py_ssize_t,
    items: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Find the name that was written after the last item among the items from ``first`` on.

    Return the number of the item with that name, or ``items`` if the name is new. Then its length
    and its first and last byte are added to ``looks``, which distinguish most names quickly.
    """
    at: cython.Py_ssize_t = offsets[items]
    look: cython.longlong = size << 16 | names[at] << 8 | names[at + size - 1]
    item: cython.Py_ssize_t = first
    while item < items:
        if looks[item - first] == look and same_bytes(names, offsets[item], names, at, size):
            return item
        item += 1
    looks[items - first] = look
    return items


@cython.final
@cython.cclass
class _Items:
    """The names and values of the items, and notes on those of one row."""

    name_offsets: cython.p_int
    names: cython.p_uchar
    value_offsets: cython.p_int
    values: cython.p_uchar
    looks: cython.p_longlong
    spans: cython.p_longlong

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def copy_plain(
        self,
        data: cython.pointer(cython.const[cython.uchar]),
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        first: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Write the properties in ``data[at : end]`` as items from ``first``; return the next one.

        Return -1 if they are not plain: a byte is not ASCII, a name occurs twice, or a part is
        missing.
        """
        items: cython.Py_ssize_t = first
        stop: cython.Py_ssize_t
        name_offsets: cython.p_int = self.name_offsets
        value_offsets: cython.p_int = self.value_offsets
        names: cython.p_uchar = self.names
        while at < end:
            stop = _copy_until(data, at, end, _NAME_ENDS, _ITEM_ENDS, names, name_offsets[items])
            if stop in (at, end) or data[stop] != 1:
                return -1
            if _find_name(names, name_offsets, self.looks, first, items, stop - at) != items:
                return -1
            name_offsets[items + 1] = name_offsets[items] + stop - at
            at = stop + 1
            stop = _copy_until(
                data, at, end, _ITEM_ENDS, _ITEM_ENDS, self.values, value_offsets[items]
            )
            if stop == at or (stop < end and data[stop] != 2):
                return -1
            value_offsets[items + 1] = value_offsets[items] + stop - at
            at = stop + 1
            items += 1
        return items

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def copy_any(
        self,
        data: cython.pointer(cython.const[cython.uchar]),
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        first: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Do the same for any properties: the last of equal names counts, in the first's place."""
        items: cython.Py_ssize_t = first
        item: cython.Py_ssize_t
        item_end: cython.Py_ssize_t
        name_end: cython.Py_ssize_t
        size: cython.Py_ssize_t
        offsets: cython.p_int = self.name_offsets
        spans: cython.p_longlong = self.spans
        while at < end:
            item_end = find_byte(data, 2, at, end)
            name_end = find_byte(data, 1, at, item_end)
            if name_end > at and item_end - name_end > 1:
                size = copy_text(self.names, offsets[items], data, at, name_end - at)
                size -= offsets[items]
                item = _find_name(self.names, offsets, self.looks, first, items, size)
                if item == items:
                    offsets[items + 1] = offsets[items] + size
                    items += 1
                spans[2 * (item - first)] = name_end + 1
                spans[2 * (item - first) + 1] = item_end - name_end - 1
            at = item_end + 1
        offsets = self.value_offsets
        for item in range(first, items):
            at = spans[2 * (item - first)]
            size = spans[2 * (item - first) + 1]
            offsets[item + 1] = copy_text(self.values, offsets[item], data, at, size)
        return items


def fill_properties(
    rows: Rows,
    lists: cython.int[::1],
    name_offsets: cython.int[::1],
    names: cython.uchar[::1],
    value_offsets: cython.int[::1],
    values: cython.uchar[::1],
) -> int:
    """Write every row's properties and return their number; ``lists`` are the offsets of the rows.

    As in Java, an item needs a name, the separator and a value; the last of equal names counts.
    """
    check_room(
        rows,
        _PROPERTIES,
        len(lists),
        min(len(name_offsets), len(value_offsets)),
        min(len(names), len(values)),
    )
    notes = array("q", bytes(24 * ITEMS_PER_RECORD_MAX))
    notes_view: cython.longlong[::1] = notes
    source: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    all_items: _Items = _Items()
    if cython.compiled:
        source = cython.address(rows._data[0])
        cells = cython.address(rows._table[0])
        all_items.looks = cython.address(notes_view[0])
        all_items.spans = cython.address(notes_view[_ITEMS_MAX])
        all_items.name_offsets = cython.address(name_offsets[0])
        all_items.value_offsets = cython.address(value_offsets[0])
        all_items.names = cython.address(names[0])
        all_items.values = cython.address(values[0])
    else:
        source = rows._data
        cells = rows._table
        all_items.looks = memoryview(notes)
        all_items.spans = all_items.looks[_ITEMS_MAX:]
        all_items.name_offsets = name_offsets
        all_items.value_offsets = value_offsets
        all_items.names = names
        all_items.values = values
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    items: cython.Py_ssize_t = 0
    first: cython.Py_ssize_t
    with cython.nogil:
        lists[0] = 0
        name_offsets[0] = 0
        value_offsets[0] = 0
        for i in range(rows.count):
            at = cells[k.COL_PROPERTIES_AT * rows._capacity + rows._picks[i]]
            end = at + cells[k.COL_PROPERTIES_SIZE * rows._capacity + rows._picks[i]]
            first = items
            items = all_items.copy_plain(source, at, end, first)
            if items < 0:
                items = all_items.copy_any(source, at, end, first)
            lists[i + 1] = items
    return items
