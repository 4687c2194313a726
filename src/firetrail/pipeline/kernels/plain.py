"""The classification of records by whether their fields determine all of their bytes.

Almost all records are plain in this sense. An archive keeps the bytes of the others in addition to
their fields: records with properties that readers drop, replace or skip, with text that is not
UTF-8, with times or ports out of range, or with a short topic in the format for long ones.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import find_byte, load_i32, same_bytes
    from cython.cimports.firetrail.pipeline.kernels.arrow import Rows
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import find_byte, load_i32, same_bytes
    from firetrail.pipeline.kernels.arrow import Rows

COMPILED = cython.compiled

PLAIN = 0
OPEN = 1
"""Like PLAIN, but the last property lacks the separator at its end."""
OTHER = 2

_PLAIN = cython.declare(cython.int, PLAIN)
_OPEN = cython.declare(cython.int, OPEN)
_OTHER = cython.declare(cython.int, OTHER)
_MS_MAX = cython.declare(cython.longlong, (2**63 - 1) // 1000)
_PORT_MAX = cython.declare(cython.longlong, 65535)
_ITEMS_MAX = cython.declare(cython.Py_ssize_t, 64)
"""A record with more properties is not plain: their names are not compared with each other."""


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_utf8(
    data: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Whether ``data[at : end]`` is valid UTF-8: shortest forms, no surrogates."""
    c: cython.int
    more: cython.Py_ssize_t
    low: cython.int
    high: cython.int
    while at < end:
        c = data[at]
        at += 1
        if c < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= c < 0xE0:
            more = 1
        elif 0xE0 <= c < 0xF0:
            more = 2
            if c == 0xE0:
                low = 0xA0
            elif c == 0xED:
                high = 0x9F
        elif 0xF0 <= c <= 0xF4:
            more = 3
            if c == 0xF0:
                low = 0x90
            elif c == 0xF4:
                high = 0x8F
        else:
            return False
        while more > 0:
            if at >= end or data[at] < low or data[at] > high:
                return False
            low = 0x80
            high = 0xBF
            at += 1
            more -= 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _properties(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    names: cython.p_longlong,
) -> cython.int:
    """Return PLAIN or OPEN if every item has a unique name and a value, else OTHER.

    ``names`` has room for the positions and sizes of _ITEMS_MAX names.
    """
    item_end: cython.Py_ssize_t
    name_end: cython.Py_ssize_t
    items: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    if at < end and not _is_utf8(data, at, end):
        return _OTHER
    while at < end:
        item_end = find_byte(data, 2, at, end)
        name_end = find_byte(data, 1, at, item_end)
        if name_end == at or item_end - name_end < 2 or items == _ITEMS_MAX:
            return _OTHER
        for i in range(items):
            if names[2 * i + 1] == name_end - at and same_bytes(
                data, names[2 * i], data, at, name_end - at
            ):
                return _OTHER
        names[2 * items] = at
        names[2 * items + 1] = name_end - at
        items += 1
        if item_end == end:
            return _OPEN
        at = item_end + 1
    return _PLAIN


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _has_plain_head(
    data: cython.pointer(cython.const[cython.uchar]),
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
) -> cython.bint:
    """Whether the columns of times, hosts and topic determine their bytes."""
    sys_flag: cython.longlong = cells[k.COL_SYS_FLAG * capacity + row]
    body_at: cython.Py_ssize_t = cells[k.COL_BODY_AT * capacity + row]
    topic_at: cython.Py_ssize_t = cells[k.COL_TOPIC_AT * capacity + row]
    topic_size: cython.Py_ssize_t = cells[k.COL_TOPIC_SIZE * capacity + row]
    store_time_at: cython.Py_ssize_t = body_at - k.MIDDLE - k.STORE_TIME
    store_time_at -= k.HOST_V6 if sys_flag & k.STORE_V6 else k.HOST_V4
    start: cython.Py_ssize_t = store_time_at - k.HEAD
    start -= k.HOST_V6 if sys_flag & k.BORN_V6 else k.HOST_V4
    born: cython.longlong = cells[k.COL_BORN_TIME * capacity + row]
    stored: cython.longlong = cells[k.COL_STORE_TIME * capacity + row]
    port: cython.longlong
    if not -_MS_MAX <= born <= _MS_MAX or not -_MS_MAX <= stored <= _MS_MAX:
        return False
    port = load_i32(data, body_at - k.MIDDLE - 4)
    if port < 0 or port > _PORT_MAX:
        return False
    port = load_i32(data, store_time_at - 4)
    if port < 0 or port > _PORT_MAX:
        return False
    if (load_i32(data, start + k.AT_MAGIC) == k.MAGIC_V1) != (topic_size <= k.TOPIC_V1_MAX):
        return False
    return topic_size > 0 and _is_utf8(data, topic_at, topic_at + topic_size)


def classify(rows: Rows, kinds: cython.uchar[::1]) -> int:
    """Write PLAIN, OPEN or OTHER for each row to ``kinds``; return the number of OTHER."""
    others: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    kind: cython.int
    source: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    names: cython.p_longlong
    names_view: cython.longlong[::1] = array("q", bytes(16 * _ITEMS_MAX))
    if len(kinds) < rows.count:
        raise ValueError(f"room for {len(kinds)}, {rows.count} needed")
    if rows.count == 0:
        return 0
    if cython.compiled:
        source = cython.address(rows._data[0])
        cells = cython.address(rows._table[0])
        names = cython.address(names_view[0])
    else:
        source = rows._data
        cells = rows._table
        names = names_view
    with cython.nogil:
        for i in range(rows.count):
            row = rows._picks[i]
            kind = _OTHER
            if _has_plain_head(source, cells, rows._capacity, row):
                at = cells[k.COL_PROPERTIES_AT * rows._capacity + row]
                kind = _properties(
                    source, at, at + cells[k.COL_PROPERTIES_SIZE * rows._capacity + row], names
                )
            kinds[i] = kind
            others += kind == _OTHER
    return others
