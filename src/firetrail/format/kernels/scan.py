"""Walk the records of a log range and note what stands where, one column a field.

The scan touches every record's fixed fields and properties, never the body unless its checksum is
wanted, and stops at the first byte that is not a well-formed record, saying where and why.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.properties import DELAY, KEYS, TAGS, UNIQ_KEY

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import (
        find_byte,
        load_i32,
        load_i64,
        load_u32,
    )
    from cython.cimports.firetrail.format.kernels.checksum import crc31
    from cython.cimports.firetrail.format.kernels.text import hash_utf8
else:
    from firetrail.format.kernels._bigendian import (
        find_byte,
        load_i32,
        load_i64,
        load_u32,
    )
    from firetrail.format.kernels.checksum import crc31
    from firetrail.format.kernels.text import hash_utf8

COMPILED = cython.compiled

_MAGIC_V1 = cython.declare(cython.uint, layout.MAGIC_V1)
_MAGIC_V2 = cython.declare(cython.uint, layout.MAGIC_V2)
_MAGIC_BLANK = cython.declare(cython.uint, layout.MAGIC_BLANK)
_AT_CRC = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["body_crc"])
_AT_QUEUE_ID = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["queue_id"])
_AT_FLAG = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["flag"])
_AT_QUEUE_OFFSET = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["queue_offset"])
_AT_OFFSET = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["physical_offset"])
_AT_SYS_FLAG = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["sys_flag"])
_AT_BORN_TIME = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["born_time"])
_HEAD = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.size)
_AT_PREPARED = cython.declare(cython.Py_ssize_t, layout.RECORD_MIDDLE.offsets["prepared_offset"])
_AT_BODY_LENGTH = cython.declare(cython.Py_ssize_t, layout.RECORD_MIDDLE.offsets["body_length"])
_MIDDLE = cython.declare(cython.Py_ssize_t, layout.RECORD_MIDDLE.size)
_HOST_V4 = cython.declare(cython.Py_ssize_t, layout.HOST_V4_SIZE)
_HOST_V6 = cython.declare(cython.Py_ssize_t, layout.HOST_V6_SIZE)
_BORN_V6 = cython.declare(cython.longlong, layout.BORN_HOST_V6)
_STORE_V6 = cython.declare(cython.longlong, layout.STORE_HOST_V6)
_CRC_SIZE = cython.declare(cython.Py_ssize_t, layout.PROPERTY_CRC_SIZE)
_CRC_DIGITS = cython.declare(cython.Py_ssize_t, layout.PROPERTY_CRC_DIGITS)
_MIN_RECORD = cython.declare(cython.Py_ssize_t, layout.RECORD_SIZE_MIN)
_NAME_KEYS = cython.declare(cython.uint, int.from_bytes(KEYS.encode(), "big"))
_NAME_TAGS = cython.declare(cython.uint, int.from_bytes(TAGS.encode(), "big"))
_NAME_DELA = cython.declare(cython.uint, int.from_bytes(DELAY.encode()[:4], "big"))
_NAME_UNIQ = cython.declare(cython.uint, int.from_bytes(UNIQ_KEY.encode()[:4], "big"))
_NAME__KEY = cython.declare(cython.uint, int.from_bytes(UNIQ_KEY.encode()[4:], "big"))
_CRC_MARK_1 = cython.declare(cython.uint, int.from_bytes(layout.PROPERTY_CRC_NAME[:4], "big"))
_CRC_MARK_2 = cython.declare(cython.uint, int.from_bytes(layout.PROPERTY_CRC_NAME[4:], "big"))
_LETTER_Y = cython.declare(cython.uchar, ord("Y"))

_PHYSICAL_OFFSET = cython.declare(cython.Py_ssize_t, col.PHYSICAL_OFFSET)
_SIZE = cython.declare(cython.Py_ssize_t, col.SIZE)
_QUEUE_ID = cython.declare(cython.Py_ssize_t, col.QUEUE_ID)
_QUEUE_OFFSET = cython.declare(cython.Py_ssize_t, col.QUEUE_OFFSET)
_STORE_TIME = cython.declare(cython.Py_ssize_t, col.STORE_TIME)
_BORN_TIME = cython.declare(cython.Py_ssize_t, col.BORN_TIME)
_SYS_FLAG = cython.declare(cython.Py_ssize_t, col.SYS_FLAG)
_FLAG = cython.declare(cython.Py_ssize_t, col.FLAG)
_RECONSUME_TIMES = cython.declare(cython.Py_ssize_t, col.RECONSUME_TIMES)
_PREPARED_OFFSET = cython.declare(cython.Py_ssize_t, col.PREPARED_OFFSET)
_BODY_CRC = cython.declare(cython.Py_ssize_t, col.BODY_CRC)
_TOPIC_AT = cython.declare(cython.Py_ssize_t, col.TOPIC_AT)
_TOPIC_SIZE = cython.declare(cython.Py_ssize_t, col.TOPIC_SIZE)
_TOPIC_HASH = cython.declare(cython.Py_ssize_t, col.TOPIC_HASH)
_BODY_AT = cython.declare(cython.Py_ssize_t, col.BODY_AT)
_BODY_SIZE = cython.declare(cython.Py_ssize_t, col.BODY_SIZE)
_PROPERTIES_AT = cython.declare(cython.Py_ssize_t, col.PROPERTIES_AT)
_PROPERTIES_SIZE = cython.declare(cython.Py_ssize_t, col.PROPERTIES_SIZE)
_TAGS_AT = cython.declare(cython.Py_ssize_t, col.TAGS_AT)
_TAGS_SIZE = cython.declare(cython.Py_ssize_t, col.TAGS_SIZE)
_TAGS_HASH = cython.declare(cython.Py_ssize_t, col.TAGS_HASH)
_KEYS_AT = cython.declare(cython.Py_ssize_t, col.KEYS_AT)
_KEYS_SIZE = cython.declare(cython.Py_ssize_t, col.KEYS_SIZE)
_UNIQUE_KEY_AT = cython.declare(cython.Py_ssize_t, col.UNIQUE_KEY_AT)
_UNIQUE_KEY_SIZE = cython.declare(cython.Py_ssize_t, col.UNIQUE_KEY_SIZE)
_DELAY_LEVEL = cython.declare(cython.Py_ssize_t, col.DELAY_LEVEL)

_STOP_LIMIT = cython.declare(cython.int, col.Stop.LIMIT)
_STOP_FULL = cython.declare(cython.int, col.Stop.FULL)
_STOP_BLANK = cython.declare(cython.int, col.Stop.BLANK)
_STOP_EMPTY = cython.declare(cython.int, col.Stop.EMPTY)
_STOP_MAGIC = cython.declare(cython.int, col.Stop.MAGIC)
_STOP_SIZE = cython.declare(cython.int, col.Stop.SIZE)
_STOP_CUT = cython.declare(cython.int, col.Stop.CUT)
_STOP_OFFSET = cython.declare(cython.int, col.Stop.PHYSICAL_OFFSET)
_STOP_BODY_LENGTH = cython.declare(cython.int, col.Stop.BODY_LENGTH)
_STOP_TOPIC_LENGTH = cython.declare(cython.int, col.Stop.TOPIC_LENGTH)
_STOP_PROPERTIES_LENGTH = cython.declare(cython.int, col.Stop.PROPERTIES_LENGTH)
_STOP_BODY_CRC = cython.declare(cython.int, col.Stop.BODY_CRC)
_STOP_PROPERTY_CRC = cython.declare(cython.int, col.Stop.PROPERTY_CRC)
_COLUMNS = cython.declare(cython.Py_ssize_t, len(col.COLUMN_NAMES))
_CHECK_RECORD = cython.declare(cython.int, col.Check.RECORD)
_GOOD = cython.declare(cython.int, -1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _delay_level(
    data: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    """The decimal number in ``data[at : end]``; 0 if it is none or out of a level's range."""
    level: cython.longlong = 0
    while at < end:
        if data[at] < 48 or data[at] > 57 or level > 1000000:
            return 0
        level = level * 10 + (data[at] - 48)
        at += 1
    return level


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _note_properties(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    table: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
) -> cython.void:
    """Note where TAGS, KEYS and UNIQ_KEY stand. Java's parser: the last of equal names counts,
    an item needs a name, the separator and at least one byte of value."""
    item_end: cython.Py_ssize_t
    word: cython.uint
    table[_TAGS_SIZE * capacity + row] = 0
    table[_TAGS_HASH * capacity + row] = 0
    table[_KEYS_SIZE * capacity + row] = 0
    table[_UNIQUE_KEY_SIZE * capacity + row] = 0
    table[_DELAY_LEVEL * capacity + row] = 0
    while at < end:
        item_end = find_byte(data, 2, at, end)
        if item_end - at >= 6:  # the shortest of the names, the separator and a value
            word = load_u32(data, at)
            if data[at + 4] == 1:
                if word == _NAME_TAGS:
                    table[_TAGS_AT * capacity + row] = at + 5
                    table[_TAGS_SIZE * capacity + row] = item_end - at - 5
                    table[_TAGS_HASH * capacity + row] = hash_utf8(
                        data, at + 5, item_end - at - 5, 0
                    )
                elif word == _NAME_KEYS:
                    table[_KEYS_AT * capacity + row] = at + 5
                    table[_KEYS_SIZE * capacity + row] = item_end - at - 5
            elif word == _NAME_DELA:
                if item_end - at >= 7 and data[at + 4] == _LETTER_Y and data[at + 5] == 1:
                    table[_DELAY_LEVEL * capacity + row] = _delay_level(data, at + 6, item_end)
            elif (
                word == _NAME_UNIQ
                and item_end - at >= 10
                and load_u32(data, at + 4) == _NAME__KEY
                and data[at + 8] == 1
            ):
                table[_UNIQUE_KEY_AT * capacity + row] = at + 9
                table[_UNIQUE_KEY_SIZE * capacity + row] = item_end - at - 9
        at = item_end + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _property_crc(
    data: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    """The number of the ``__CRC32#`` property that ends a record's properties; -1 if none does.

    Its decimal digits stand least significant first.
    """
    value: cython.longlong = 0
    i: cython.Py_ssize_t
    mark: cython.Py_ssize_t = end - _CRC_SIZE
    if (
        mark < at
        or load_u32(data, mark) != _CRC_MARK_1
        or load_u32(data, mark + 4) != _CRC_MARK_2
        or data[mark + 8] != 1
        or data[end - 1] != 2
    ):
        return -1
    i = end - 2
    while i > end - 2 - _CRC_DIGITS:
        if data[i] < 48 or data[i] > 57:
            return -1
        value = value * 10 + (data[i] - 48)
        i -= 1
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _note_record(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base: cython.longlong,
    table: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    check: cython.int,
) -> cython.int:
    """Check the record at ``at`` and note its fields; the Stop it deserves, or _GOOD."""
    size: cython.longlong = load_i32(data, at)
    magic: cython.uint = load_u32(data, at + 4)
    end: cython.Py_ssize_t
    p: cython.Py_ssize_t
    sys_flag: cython.longlong
    length: cython.longlong
    whole: cython.longlong
    if magic == _MAGIC_BLANK:
        return _STOP_BLANK if size >= 8 else _STOP_SIZE
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        return _STOP_EMPTY if magic == 0 and size == 0 else _STOP_MAGIC
    if size < _MIN_RECORD:
        return _STOP_SIZE
    if size > limit - at:
        return _STOP_CUT
    end = at + size
    if load_i64(data, at + _AT_OFFSET) != base + at:
        return _STOP_OFFSET
    sys_flag = load_i32(data, at + _AT_SYS_FLAG)
    table[_PHYSICAL_OFFSET * capacity + row] = base + at
    table[_SIZE * capacity + row] = size
    table[_BODY_CRC * capacity + row] = load_i32(data, at + _AT_CRC)
    table[_QUEUE_ID * capacity + row] = load_i32(data, at + _AT_QUEUE_ID)
    table[_FLAG * capacity + row] = load_i32(data, at + _AT_FLAG)
    table[_QUEUE_OFFSET * capacity + row] = load_i64(data, at + _AT_QUEUE_OFFSET)
    table[_SYS_FLAG * capacity + row] = sys_flag
    table[_BORN_TIME * capacity + row] = load_i64(data, at + _AT_BORN_TIME)
    p = at + _HEAD + (_HOST_V6 if sys_flag & _BORN_V6 else _HOST_V4)
    table[_STORE_TIME * capacity + row] = load_i64(data, p)
    p += 8 + (_HOST_V6 if sys_flag & _STORE_V6 else _HOST_V4)
    table[_RECONSUME_TIMES * capacity + row] = load_i32(data, p)
    table[_PREPARED_OFFSET * capacity + row] = load_i64(data, p + _AT_PREPARED)
    length = load_i32(data, p + _AT_BODY_LENGTH)
    p += _MIDDLE
    if length < 0 or length > end - p - 3:
        return _STOP_BODY_LENGTH
    table[_BODY_AT * capacity + row] = p
    table[_BODY_SIZE * capacity + row] = length
    p += length
    if magic == _MAGIC_V1:
        length = data[p]
        p += 1
    else:
        length = (data[p] << 8) | data[p + 1]
        p += 2
    if length > end - p - 2 or (magic == _MAGIC_V1 and length > 127) or length > 32767:
        return _STOP_TOPIC_LENGTH
    table[_TOPIC_AT * capacity + row] = p
    table[_TOPIC_SIZE * capacity + row] = length
    table[_TOPIC_HASH * capacity + row] = hash_utf8(data, p, length, 0)
    p += length
    length = (data[p] << 8) | data[p + 1]
    p += 2
    if length != end - p or length > 32767:
        return _STOP_PROPERTIES_LENGTH
    table[_PROPERTIES_AT * capacity + row] = p
    table[_PROPERTIES_SIZE * capacity + row] = length
    _note_properties(data, p, end, table, capacity, row)
    if check:
        if check == _CHECK_RECORD:
            whole = _property_crc(data, p, end)
            if whole >= 0:
                if crc31(data, at, end - _CRC_SIZE - at) != whole:
                    return _STOP_PROPERTY_CRC
                return _GOOD
        length = table[_BODY_SIZE * capacity + row]
        if (
            crc31(data, table[_BODY_AT * capacity + row], length)
            != table[_BODY_CRC * capacity + row]
        ):
            return _STOP_BODY_CRC
    return _GOOD


def scan(
    data: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base: cython.longlong,
    table: cython.longlong[::1],
    check: cython.int,
) -> tuple[int, int, int]:
    """Note the records of ``data[at : limit]`` in ``table``: (rows, position, Stop).

    ``base`` is the physical offset of ``data[0]``. The position is that of the first byte which
    is not part of a noted record; at a record that fails only by its checksum (the two CRC
    stops), row ``rows`` of the table is filled as well.
    """
    rows: cython.Py_ssize_t = 0
    capacity: cython.Py_ssize_t = len(table) // _COLUMNS
    stop: cython.int = _STOP_LIMIT
    source: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    if at < 0 or limit > len(data):
        raise ValueError(f"range {at}:{limit} is outside of the buffer of {len(data)} bytes")
    if limit - at < 8 or capacity == 0:
        return 0, at, stop
    if cython.compiled:
        source = cython.address(data[0])
        cells = cython.address(table[0])
    else:
        source = data
        cells = table
    with cython.nogil:
        while limit - at >= 8:
            if rows == capacity:
                stop = _STOP_FULL
                break
            stop = _note_record(source, at, limit, base, cells, capacity, rows, check)
            if stop != _GOOD:
                break
            at += cells[_SIZE * capacity + rows]
            rows += 1
            stop = _STOP_LIMIT
    return rows, at, stop
