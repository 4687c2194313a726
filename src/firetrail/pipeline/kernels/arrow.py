"""The conversion of scanned records to the buffers of Arrow arrays.

A scan (:mod:`~firetrail.format.kernels.scan`) records the position of every field. Here numbers,
bytes and text are copied from these positions to offsets and data, one column at a time and without
a Python object per row. Text is decoded as Java decodes it and written as valid UTF-8. Offsets are
int32, so a batch holds less than 2 GiB per column. Lists and maps are in
:mod:`~firetrail.pipeline.kernels.arrow_lists` and :mod:`~firetrail.pipeline.kernels.arrow_maps`.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format import layout

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import copy_bytes, lies_in, same_bytes
    from cython.cimports.firetrail.format.kernels.text import copy_text
    from cython.cimports.firetrail.pipeline.kernels.host_text import copy_hex, copy_host
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import copy_bytes, lies_in, same_bytes
    from firetrail.format.kernels.text import copy_text
    from firetrail.pipeline.kernels.host_text import copy_hex, copy_host

COMPILED = cython.compiled

BODY = 0
TOPIC = 1
TAGS = 2
MESSAGE_ID = 3
"""The unique key that the producing client set, else the offset id."""
BORN_HOST = 4
STORE_HOST = 5
KEYS = 6
PROPERTIES = 7

_BODY = cython.declare(cython.int, BODY)
_TOPIC = cython.declare(cython.int, TOPIC)
_TAGS = cython.declare(cython.int, TAGS)
_MESSAGE_ID = cython.declare(cython.int, MESSAGE_ID)
_BORN_HOST = cython.declare(cython.int, BORN_HOST)
_STORE_HOST = cython.declare(cython.int, STORE_HOST)
_NULL = cython.declare(cython.Py_ssize_t, -1)
_FIXED = cython.declare(cython.longlong, layout.RECORD_SIZE_MIN - 3)
_OFFSET_SIZE = cython.declare(cython.Py_ssize_t, 8)
_SIZE_MAX = cython.declare(cython.longlong, 2**31 - 1)
_MS_MAX = cython.declare(cython.longlong, (2**63 - 1) // 1000)
_HOST_TEXT = cython.declare(cython.longlong, 64)  # more than a host or an offset id needs
_TEXT_GROWTH = cython.declare(cython.longlong, 3)  # bytes of valid UTF-8 that one byte may become


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _span_is_in(
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    at_column: cython.Py_ssize_t,
    size_column: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.bint:
    """Whether the span in two cells is empty or inside a buffer of ``length`` bytes."""
    size: cython.longlong = cells[size_column * capacity + row]
    return size == 0 or lies_in(cells[at_column * capacity + row], size, length)


def row_is_of(
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.longlong,
    length: cython.Py_ssize_t,
) -> cython.bint:
    """Whether a row can belong to a scan of ``length`` bytes: all of its spans are inside."""
    if row < 0 or row >= capacity:
        return False
    sys_flag: cython.longlong = cells[k.COL_SYS_FLAG * capacity + row]
    fixed: cython.longlong = _FIXED
    if sys_flag & k.BORN_V6:
        fixed += k.HOST_V6 - k.HOST_V4
    if sys_flag & k.STORE_V6:
        fixed += k.HOST_V6 - k.HOST_V4
    return (
        cells[k.COL_BODY_AT * capacity + row] >= fixed
        and cells[k.COL_PROPERTIES_SIZE * capacity + row] <= k.PROPERTIES_MAX
        and _span_is_in(cells, capacity, row, k.COL_BODY_AT, k.COL_BODY_SIZE, length)
        and _span_is_in(cells, capacity, row, k.COL_TOPIC_AT, k.COL_TOPIC_SIZE, length)
        and _span_is_in(cells, capacity, row, k.COL_PROPERTIES_AT, k.COL_PROPERTIES_SIZE, length)
        and _span_is_in(cells, capacity, row, k.COL_TAGS_AT, k.COL_TAGS_SIZE, length)
        and _span_is_in(cells, capacity, row, k.COL_KEYS_AT, k.COL_KEYS_SIZE, length)
        and _span_is_in(cells, capacity, row, k.COL_UNIQUE_KEY_AT, k.COL_UNIQUE_KEY_SIZE, length)
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _host_at(
    cells: cython.p_longlong, capacity: cython.Py_ssize_t, row: cython.Py_ssize_t, kind: cython.int
) -> cython.Py_ssize_t:
    sys_flag: cython.longlong = cells[k.COL_SYS_FLAG * capacity + row]
    at: cython.Py_ssize_t = cells[k.COL_BODY_AT * capacity + row] - k.MIDDLE
    at -= k.HOST_V6 if sys_flag & k.STORE_V6 else k.HOST_V4
    if kind == _BORN_HOST:
        at -= k.STORE_TIME + (k.HOST_V6 if sys_flag & k.BORN_V6 else k.HOST_V4)
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _same_host(
    data: cython.pointer(cython.const[cython.uchar]),
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    other: cython.Py_ssize_t,
    kind: cython.int,
) -> cython.bint:
    """Whether two records have the same host, as neighbours mostly do."""
    v6: cython.longlong = k.BORN_V6 if kind == _BORN_HOST else k.STORE_V6
    size: cython.Py_ssize_t = k.HOST_V4
    flags: cython.longlong = cells[k.COL_SYS_FLAG * capacity + row]
    if flags & v6 != cells[k.COL_SYS_FLAG * capacity + other] & v6:
        return False
    if flags & v6:
        size = k.HOST_V6
    return same_bytes(
        data,
        _host_at(cells, capacity, row, kind),
        data,
        _host_at(cells, capacity, other, kind),
        size,
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_value(
    data: cython.pointer(cython.const[cython.uchar]),
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    kind: cython.int,
    out: cython.p_uchar,
    to: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write one value to ``out`` at ``to``; return the position after it, or _NULL."""
    at: cython.Py_ssize_t = cells[k.COL_BODY_AT * capacity + row]
    size: cython.Py_ssize_t
    if kind == _BODY:
        size = cells[k.COL_BODY_SIZE * capacity + row]
        copy_bytes(out, to, data, at, size)
        return to + size
    sys_flag: cython.longlong = cells[k.COL_SYS_FLAG * capacity + row]
    store_host: cython.Py_ssize_t = k.HOST_V6 if sys_flag & k.STORE_V6 else k.HOST_V4
    if kind == _TOPIC:
        at = cells[k.COL_TOPIC_AT * capacity + row]
        size = cells[k.COL_TOPIC_SIZE * capacity + row]
    elif kind == _TAGS:
        at = cells[k.COL_TAGS_AT * capacity + row]
        size = cells[k.COL_TAGS_SIZE * capacity + row]
        if size == 0:
            return _NULL
    elif kind == _MESSAGE_ID:
        size = cells[k.COL_UNIQUE_KEY_SIZE * capacity + row]
        if size == 0:
            at = _host_at(cells, capacity, row, _STORE_HOST)
            copy_hex(out, to, data, at, store_host)
            to += 2 * store_host
            at = _host_at(cells, capacity, row, _BORN_HOST) - k.HEAD + k.AT_PHYSICAL_OFFSET
            copy_hex(out, to, data, at, _OFFSET_SIZE)
            return to + 2 * _OFFSET_SIZE
        at = cells[k.COL_UNIQUE_KEY_AT * capacity + row]
    else:
        at = _host_at(cells, capacity, row, kind)
        sys_flag &= k.BORN_V6 if kind == _BORN_HOST else k.STORE_V6
        return copy_host(out, to, data, at, sys_flag != 0)
    return copy_text(out, to, data, at, size)


class Rows:
    """The records ``picks[:count]`` of a scan of ``data`` into ``table``, as columns of a batch.

    The caller provides the buffers to fill: ``offsets`` of count + 1 int32, ``valid``, a bitmap
    with one bit per row, and a buffer for bytes.
    """

    def __init__(self, data: Any, table: Any, picks: Any, count: cython.Py_ssize_t) -> None:
        self._data = data
        self._table = table
        self._picks = picks
        self._capacity = len(self._table) // k.COLUMNS
        self._measured = -1  # the kind of list or map that was measured last; its size follows
        self._items = 0
        self._bytes = 0
        if count < 0 or count > len(self._picks):
            raise ValueError(f"{count} of {len(self._picks)} picks")
        self.count = count
        cells: cython.p_longlong
        rows: cython.p_longlong
        if cython.compiled:
            cells = cython.address(self._table[0])
            rows = cython.address(self._picks[0])
        else:
            cells = self._table
            rows = self._picks
        i: cython.Py_ssize_t
        length: cython.Py_ssize_t = len(self._data)
        foreign: cython.Py_ssize_t = -1
        with cython.nogil:
            for i in range(count):
                if not row_is_of(cells, self._capacity, rows[i], length):
                    foreign = i
                    break
        if foreign >= 0:
            raise ValueError(f"row {picks[foreign]} is not of a scan of these {length} bytes")

    # -- numbers ------------------------------------------------------------------------------

    def longs(self, column: cython.Py_ssize_t, out: cython.longlong[::1]) -> None:
        """Write a column of the scan as int64."""
        self._fits(len(out), self.count)
        start: cython.Py_ssize_t = self._start_of(column)
        i: cython.Py_ssize_t
        for i in range(self.count):
            out[i] = self._table[start + self._picks[i]]

    def ints(self, column: cython.Py_ssize_t, out: cython.int[::1]) -> None:
        """Write a column of the scan as int32, the size that it has in the record."""
        self._fits(len(out), self.count)
        start: cython.Py_ssize_t = self._start_of(column)
        i: cython.Py_ssize_t
        for i in range(self.count):
            out[i] = self._table[start + self._picks[i]]

    def micros(
        self, column: cython.Py_ssize_t, out: cython.longlong[::1], valid: cython.uchar[::1]
    ) -> int:
        """Write times in ms as µs; return the number of nulls, which are out of range."""
        self._fits(len(out), self.count)
        self._fits(8 * len(valid), self.count)
        start: cython.Py_ssize_t = self._start_of(column)
        i: cython.Py_ssize_t
        ms: cython.longlong
        nulls: cython.Py_ssize_t = 0
        for i in range(self.count):
            ms = self._table[start + self._picks[i]]
            if i & 7 == 0:
                valid[i >> 3] = 0
            if -_MS_MAX <= ms <= _MS_MAX:
                out[i] = ms * 1000
                valid[i >> 3] |= 1 << (i & 7)
            else:
                out[i] = 0
                nulls += 1
        return nulls

    # -- bytes and text -----------------------------------------------------------------------

    def room(self, kind: cython.int) -> int:
        """Return an upper bound for the bytes of a column's values."""
        if not _BODY <= kind <= _STORE_HOST:
            raise ValueError(f"there is no column {kind} of bytes or text")
        if kind >= _BORN_HOST:
            return self.count * _HOST_TEXT
        start: cython.Py_ssize_t = self._start_of(k.COL_BODY_SIZE)
        if kind == _TOPIC:
            start = self._start_of(k.COL_TOPIC_SIZE)
        elif kind == _TAGS:
            start = self._start_of(k.COL_TAGS_SIZE)
        elif kind == _MESSAGE_ID:
            start = self._start_of(k.COL_UNIQUE_KEY_SIZE)
        i: cython.Py_ssize_t
        total: cython.longlong = 0
        for i in range(self.count):
            total += self._table[start + self._picks[i]]
        if kind != _BODY:
            total *= _TEXT_GROWTH
        if kind == _MESSAGE_ID:
            total += self.count * _HOST_TEXT
        self._fits(_SIZE_MAX, total)
        return total

    def fill(
        self,
        kind: cython.int,
        offsets: cython.int[::1],
        valid: cython.uchar[::1],
        out: cython.uchar[::1],
    ) -> tuple[int, int]:
        """Write a column of bytes or text; return (bytes written, nulls)."""
        self._fits(len(offsets), self.count + 1)
        self._fits(8 * len(valid), self.count)
        self._fits(len(out), self.room(kind))
        cells: cython.p_longlong
        source: cython.pointer(cython.const[cython.uchar])
        target: cython.p_uchar
        if cython.compiled:
            source = cython.address(self._data[0])
            cells = cython.address(self._table[0])
            target = cython.address(out[0])
        else:
            source = self._data
            cells = self._table
            target = out
        i: cython.Py_ssize_t
        row: cython.Py_ssize_t
        to: cython.Py_ssize_t = 0
        before: cython.Py_ssize_t = 0
        after: cython.Py_ssize_t
        nulls: cython.Py_ssize_t = 0
        with cython.nogil:
            offsets[0] = 0
            for i in range(self.count):
                row = self._picks[i]
                if (
                    kind < _BORN_HOST
                    or i == 0
                    or not _same_host(source, cells, self._capacity, row, self._picks[i - 1], kind)
                ):
                    after = _put_value(source, cells, self._capacity, row, kind, target, to)
                else:
                    after = to + to - before
                    copy_bytes(target, to, target, before, to - before)
                if i & 7 == 0:
                    valid[i >> 3] = 0
                if after == _NULL:
                    nulls += 1
                else:
                    valid[i >> 3] |= 1 << (i & 7)
                    before = to
                    to = after
                offsets[i + 1] = to
        return to, nulls

    def _start_of(self, column: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if column < 0 or column >= k.COLUMNS:
            raise ValueError(f"a scan has no column {column}")
        return column * self._capacity

    def _fits(self, room: cython.longlong, needed: cython.longlong) -> cython.void:
        if room < needed:
            raise ValueError(f"room for {room}, {needed} needed")
