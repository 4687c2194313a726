"""The conversion of keys to the buffers of Arrow lists.

See :mod:`~firetrail.pipeline.kernels.arrow`. The number of items is only known after they are
written, so the caller allocates the upper bound and trims the buffers to the returned sizes. The
maps of :mod:`~firetrail.pipeline.kernels.arrow_maps` work in the same way.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.pipeline.kernels.arrow import KEYS

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import find_byte
    from cython.cimports.firetrail.format.kernels.text import copy_text, text_size
    from cython.cimports.firetrail.pipeline.kernels.arrow import Rows
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import find_byte
    from firetrail.format.kernels.text import copy_text, text_size
    from firetrail.pipeline.kernels.arrow import Rows

COMPILED = cython.compiled

_SIZE_MAX = cython.declare(cython.longlong, 2**31 - 1)
_SPARE = cython.declare(cython.longlong, 8)  # room after the text for the last step of a copy
_KEYS = cython.declare(cython.int, KEYS)
_SPACE = cython.declare(cython.int, 32)


def measure_items(rows: Rows, kind: cython.int) -> tuple[int, int]:
    """Return upper bounds for the number of KEYS or PROPERTIES and for the bytes of their text.

    For properties, the names need at most that many bytes, and the values as many again.
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
    rows._measured = kind
    rows._items = items
    rows._bytes = total + _SPARE
    return rows._items, rows._bytes


def check_room(
    rows: Rows,
    kind: cython.int,
    lists: cython.Py_ssize_t,
    offsets: cython.Py_ssize_t,
    text: cython.Py_ssize_t,
) -> cython.void:
    if rows._measured != kind:
        measure_items(rows, kind)
    if lists <= rows.count or offsets <= rows._items or text < rows._bytes:
        raise ValueError(
            f"room for {lists} offsets of lists, {offsets} of items and {text} bytes; "
            f"{rows.count + 1}, {rows._items + 1} and {rows._bytes} are needed"
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
    """Write the keys in ``data[at : end]`` as items from number ``items``; return the next one."""
    stop: cython.Py_ssize_t
    while at < end:
        stop = find_byte(data, _SPACE, at, end)
        if stop > at:
            offsets[items + 1] = copy_text(out, offsets[items], data, at, stop - at)
            items += 1
        at = stop + 1
    return items


def fill_keys(
    rows: Rows, lists: cython.int[::1], offsets: cython.int[::1], out: cython.uchar[::1]
) -> int:
    """Write every row's keys and return their number; ``lists`` are the offsets of the rows."""
    check_room(rows, _KEYS, len(lists), len(offsets), len(out))
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
                source, at, at + cells[k.COL_KEYS_SIZE * rows._capacity + row], items, ends, target
            )
            lists[i + 1] = items
    return items
