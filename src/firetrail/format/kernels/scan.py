"""The scan of a log range into a table with one row per record and one column per field.

The scan reads the fixed fields and properties of every record, but the body only to verify its
checksum. It stops at the first byte that does not belong to a well-formed record, and returns the
position and the reason. It accepts what :func:`~firetrail.format.record.decode_record` accepts, at
the right physical offset.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import (
        find_byte,
        load_i32,
        load_i64,
        load_u16,
        load_u32,
        same_bytes,
    )
    from cython.cimports.firetrail.format.kernels.checksum import crc31
    from cython.cimports.firetrail.format.kernels.text import hash_utf8
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import (
        find_byte,
        load_i32,
        load_i64,
        load_u16,
        load_u32,
        same_bytes,
    )
    from firetrail.format.kernels.checksum import crc31
    from firetrail.format.kernels.text import hash_utf8

COMPILED = cython.compiled

ANYWHERE = -(2**62)
"""The value instead of a base for consecutive records that were not consecutive in their log."""
_ANYWHERE = cython.declare(cython.longlong, -(2**62))
_GOOD = cython.declare(cython.int, -1)
_INT_MAX = cython.declare(cython.longlong, 2**31 - 1)
_OFFSET_MAX = cython.declare(cython.longlong, 2**63 - 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _delay_level(
    data: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    """Parse ``data[at : end]`` as ``Integer.parseInt`` does; 0 if negative or not a number."""
    level: cython.longlong = 0
    if data[at] == 43 and end - at > 1:  # a plus
        at += 1
    while at < end:
        if data[at] < 48 or data[at] > 57:
            return 0
        level = level * 10 + (data[at] - 48)
        if level > _INT_MAX:
            return 0
        at += 1
    return level


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _note_properties(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
) -> cython.void:
    """Record the positions of TAGS, KEYS and UNIQ_KEY, as Java's parser finds them.

    The last of equal names counts; an item needs a name, the separator and a value.
    """
    item_end: cython.Py_ssize_t
    name: cython.uint
    cells[k.COL_TAGS_SIZE * capacity + row] = 0
    cells[k.COL_TAGS_HASH * capacity + row] = 0
    cells[k.COL_KEYS_SIZE * capacity + row] = 0
    cells[k.COL_UNIQUE_KEY_SIZE * capacity + row] = 0
    cells[k.COL_DELAY_LEVEL * capacity + row] = 0
    while end - at >= 6:  # the shortest of the names, the separator and a value
        item_end = find_byte(data, 2, at, end)
        if item_end - at >= 6:
            name = load_u32(data, at)
            if data[at + 4] == 1:
                if name == k.NAME_TAGS:
                    cells[k.COL_TAGS_AT * capacity + row] = at + 5
                    cells[k.COL_TAGS_SIZE * capacity + row] = item_end - at - 5
                    cells[k.COL_TAGS_HASH * capacity + row] = hash_utf8(
                        data, at + 5, item_end - at - 5, 0
                    )
                elif name == k.NAME_KEYS:
                    cells[k.COL_KEYS_AT * capacity + row] = at + 5
                    cells[k.COL_KEYS_SIZE * capacity + row] = item_end - at - 5
            elif name == k.NAME_UNIQ:
                if (
                    item_end - at >= 10
                    and load_u32(data, at + 4) == k.NAME__KEY
                    and data[at + 8] == 1
                ):
                    cells[k.COL_UNIQUE_KEY_AT * capacity + row] = at + 9
                    cells[k.COL_UNIQUE_KEY_SIZE * capacity + row] = item_end - at - 9
            elif (
                name == k.NAME_DELA
                and item_end - at >= 7
                and load_u16(data, at + 4) == k.NAME_Y_END
            ):
                cells[k.COL_DELAY_LEVEL * capacity + row] = _delay_level(data, at + 6, item_end)
        at = item_end + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _property_crc(
    data: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    """Return the number in the ``__CRC32#`` property at the end of the properties; -1 without one.

    Its least significant decimal digit is the first. A byte that is not a digit yields a number
    that no record has, and so does a mark in which one bit is wrong: it is not covered by the
    checksum.
    """
    value: cython.longlong = 0
    i: cython.Py_ssize_t = end - 2
    mark: cython.Py_ssize_t = end - k.CRC_SIZE
    name: cython.ulonglong
    signs: cython.uint
    if mark < at:
        return -1
    name = load_u32(data, mark) ^ k.CRC_NAME_1
    name = name << 32 | (load_u32(data, mark + 4) ^ k.CRC_NAME_2)
    signs = (data[mark + 8] ^ 1) << 8 | (data[end - 1] ^ 2)
    if name or signs:
        one_bit: cython.bint = name & (name - 1) == 0 and signs & (signs - 1) == 0
        return _OFFSET_MAX if one_bit and (name == 0 or signs == 0) else -1
    while i > end - 2 - k.CRC_DIGITS:
        if data[i] < 48 or data[i] > 57:
            return _OFFSET_MAX
        value = value * 10 + (data[i] - 48)
        i -= 1
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check_sums(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    check: cython.int,
) -> cython.int:
    """Verify the checksums that ``check`` asks for, of the record in ``row``."""
    end: cython.Py_ssize_t = at + cells[k.COL_SIZE * capacity + row]
    whole: cython.longlong = -1
    if check >= k.CHECK_RECORD:
        whole = _property_crc(data, cells[k.COL_PROPERTIES_AT * capacity + row], end)
    if whole < 0 and check == k.CHECK_SEALED:
        return k.STOP_PROPERTY_CRC
    if whole >= 0:
        if crc31(data, at, end - k.CRC_SIZE - at) != whole:
            return k.STOP_PROPERTY_CRC
    elif (
        crc31(data, cells[k.COL_BODY_AT * capacity + row], cells[k.COL_BODY_SIZE * capacity + row])
        != cells[k.COL_BODY_CRC * capacity + row]
    ):
        return k.STOP_BODY_CRC
    return _GOOD


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _no_record(magic: cython.longlong, size: cython.longlong) -> cython.int:
    """Classify bytes that are not the start of a record."""
    if magic == k.MAGIC_BLANK:
        return k.STOP_BLANK if size >= k.BLANK else k.STOP_SIZE
    return k.STOP_EMPTY if magic == 0 and size == 0 else k.STOP_MAGIC


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _locate(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base: cython.longlong,
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
) -> cython.int:
    """Check the lengths of the record at ``at``; write them and the positions of its parts.

    Returns its Stop, or _GOOD.
    """
    size: cython.longlong = load_i32(data, at)
    magic: cython.longlong = load_i32(data, at + k.AT_MAGIC)
    if magic != k.MAGIC_V1 and magic != k.MAGIC_V2:
        return _no_record(magic, size)
    if size < k.RECORD_MIN:
        return k.STOP_SIZE
    if size > limit - at:
        return k.STOP_CUT
    end: cython.Py_ssize_t = at + size
    if load_i64(data, at + k.AT_PHYSICAL_OFFSET) != base + at:
        return k.STOP_PHYSICAL_OFFSET
    sys_flag: cython.longlong = load_i32(data, at + k.AT_SYS_FLAG)
    p: cython.Py_ssize_t = at + k.HEAD + (k.HOST_V6 if sys_flag & k.BORN_V6 else k.HOST_V4)
    p += k.STORE_TIME + (k.HOST_V6 if sys_flag & k.STORE_V6 else k.HOST_V4)
    if p + k.MIDDLE > end:
        return k.STOP_SIZE
    length: cython.longlong = load_i32(data, p + k.AT_BODY_LENGTH)
    p += k.MIDDLE
    if length < 0 or length > end - p - 3:
        return k.STOP_BODY_LENGTH
    cells[k.COL_SIZE * capacity + row] = size
    cells[k.COL_SYS_FLAG * capacity + row] = sys_flag
    cells[k.COL_BODY_CRC * capacity + row] = load_i32(data, at + k.AT_BODY_CRC)
    cells[k.COL_BODY_AT * capacity + row] = p
    cells[k.COL_BODY_SIZE * capacity + row] = length
    p += length
    if magic == k.MAGIC_V1:
        length = data[p]
        p += 1
        if length > k.TOPIC_V1_MAX:
            return k.STOP_TOPIC_LENGTH
    else:
        length = load_u16(data, p)
        p += 2
    if length > end - p - 2 or length > k.TOPIC_V2_MAX:
        return k.STOP_TOPIC_LENGTH
    cells[k.COL_TOPIC_AT * capacity + row] = p
    cells[k.COL_TOPIC_SIZE * capacity + row] = length
    p += length
    length = load_u16(data, p)
    p += 2
    if length != end - p or length > k.PROPERTIES_MAX:
        return k.STOP_PROPERTIES_LENGTH
    cells[k.COL_PROPERTIES_AT * capacity + row] = p
    cells[k.COL_PROPERTIES_SIZE * capacity + row] = length
    return _GOOD


def note_record(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base: cython.longlong,
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
) -> cython.int:
    """Check the record at ``at`` and write its fields to ``row``; return its Stop, or _GOOD.

    The caller guarantees that ``data[at : limit]`` has at least 8 bytes.
    """
    stop: cython.int = _locate(data, at, limit, base, cells, capacity, row)
    if stop != _GOOD:
        return stop
    cells[k.COL_PHYSICAL_OFFSET * capacity + row] = base + at
    cells[k.COL_QUEUE_ID * capacity + row] = load_i32(data, at + k.AT_QUEUE_ID)
    cells[k.COL_FLAG * capacity + row] = load_i32(data, at + k.AT_FLAG)
    cells[k.COL_QUEUE_OFFSET * capacity + row] = load_i64(data, at + k.AT_QUEUE_OFFSET)
    cells[k.COL_BORN_TIME * capacity + row] = load_i64(data, at + k.AT_BORN_TIME)
    is_v6: cython.bint = cells[k.COL_SYS_FLAG * capacity + row] & k.BORN_V6 != 0
    p: cython.Py_ssize_t = at + k.HEAD + (k.HOST_V6 if is_v6 else k.HOST_V4)
    cells[k.COL_STORE_TIME * capacity + row] = load_i64(data, p)
    p = cells[k.COL_BODY_AT * capacity + row] - k.MIDDLE
    cells[k.COL_RECONSUME_TIMES * capacity + row] = load_i32(data, p)
    cells[k.COL_PREPARED_OFFSET * capacity + row] = load_i64(data, p + k.AT_PREPARED_OFFSET)
    cells[k.COL_TOPIC_HASH * capacity + row] = hash_utf8(
        data, cells[k.COL_TOPIC_AT * capacity + row], cells[k.COL_TOPIC_SIZE * capacity + row], 0
    )
    p = cells[k.COL_PROPERTIES_AT * capacity + row]
    end: cython.Py_ssize_t = at + cells[k.COL_SIZE * capacity + row]
    _note_properties(data, p, end, cells, capacity, row)
    return _GOOD


def check_record(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    size: cython.longlong,
    base: cython.longlong,
    check: cython.int,
) -> cython.int:
    """Check the record of ``size`` bytes at ``at``; return why it is not good, or _GOOD.

    The caller guarantees that ``data`` has these bytes.
    """
    row: cython.longlong[26]
    cells: cython.p_longlong
    if cython.compiled:
        cells = cython.address(row[0])  # noqa: F821 (C's array)
    else:
        cells = [0] * k.COLUMNS
    if size < k.RECORD_MIN:
        return k.STOP_SIZE
    stop: cython.int = _locate(data, at, at + size, base, cells, 1, 0)
    if stop == _GOOD and cells[k.COL_SIZE] != size:
        return k.STOP_SIZE
    if stop == _GOOD and check != k.CHECK_NONE:
        return _check_sums(data, at, cells, 1, 0, check)
    return stop


def is_message(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    topic: cython.pointer(cython.const[cython.uchar]),
    topic_size: cython.Py_ssize_t,
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
) -> cython.bint:
    """Return whether the checked record at ``at`` has the topic, queue id and queue offset of this
    message."""
    if (
        load_i64(data, at + k.AT_QUEUE_OFFSET) != queue_offset
        or load_i32(data, at + k.AT_QUEUE_ID) != queue_id
    ):
        return False
    flags: cython.longlong = load_i32(data, at + k.AT_SYS_FLAG)
    p: cython.Py_ssize_t = at + k.HEAD + k.STORE_TIME + k.MIDDLE
    p += (k.HOST_V6 if flags & k.BORN_V6 else k.HOST_V4) + (
        k.HOST_V6 if flags & k.STORE_V6 else k.HOST_V4
    )
    p += load_i32(data, p - k.MIDDLE + k.AT_BODY_LENGTH)
    is_short: cython.bint = load_i32(data, at + k.AT_MAGIC) == k.MAGIC_V1
    size: cython.longlong = data[p] if is_short else load_u16(data, p)
    return size == topic_size and same_bytes(data, p + (1 if is_short else 2), topic, 0, size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _own_base(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
) -> cython.longlong:
    """Return the base with which the record at ``at`` has the physical offset that it contains.

    If it contains no valid offset, or is too short, the result is 0; the record is then rejected.
    """
    offset: cython.longlong
    if limit - at < k.RECORD_MIN:
        return 0
    offset = load_i64(data, at + k.AT_PHYSICAL_OFFSET)
    return offset - at if offset >= 0 else 0


def scan(
    data: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base: cython.longlong,
    table: cython.longlong[::1],
    check: cython.int,
) -> tuple[int, int, int]:
    """Write the records of ``data[at : limit]`` to ``table``; return (rows, position, Stop).

    ``base`` is the physical offset of ``data[0]``, or ANYWHERE. The position is that of the first
    byte that is not part of an accepted record. For a record with only a wrong checksum (the two
    CRC stops), row ``rows`` of the table is filled as well.
    """
    rows: cython.Py_ssize_t = 0
    capacity: cython.Py_ssize_t = len(table) // k.COLUMNS
    stop: cython.int = k.STOP_LIMIT
    anywhere: cython.bint = base == _ANYWHERE
    source: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    if at < 0 or limit > len(data):
        raise ValueError(f"range {at}:{limit} is outside of the buffer of {len(data)} bytes")
    if not anywhere and (base < 0 or base > _OFFSET_MAX - len(data)):
        raise ValueError(f"base {base} is not a physical offset of {len(data)} bytes")
    limit = max(at, limit)
    if cython.compiled:
        source = cython.address(data[0])
        cells = cython.address(table[0])
    else:
        source = data
        cells = table
    with cython.nogil:
        while limit - at >= k.BLANK:
            if rows == capacity:
                stop = k.STOP_FULL
                break
            if anywhere:
                base = _own_base(source, at, limit)
            stop = note_record(source, at, limit, base, cells, capacity, rows)
            if stop == _GOOD and check != k.CHECK_NONE:
                stop = _check_sums(source, at, cells, capacity, rows, check)
            if stop != _GOOD:
                break
            at += cells[k.COL_SIZE * capacity + rows]
            rows += 1
            stop = k.STOP_LIMIT
    return rows, at, stop


def scan_units(
    data: cython.const[cython.uchar][::1],
    limit: cython.Py_ssize_t,
    base: cython.longlong,
    units: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    table: cython.longlong[::1],
    check: cython.int,
) -> tuple[int, int]:
    """Write the records in ``data[:limit]`` that units ``first`` to ``count`` point to.

    Returns (rows, Stop).

    ``base`` is the physical offset of ``data[0]``. The scan ends with LIMIT at the first unit that
    points elsewhere, or after the last unit. If the record of a unit is damaged or has another size
    (SIZE), row ``rows`` may be filled as well.
    """
    rows: cython.Py_ssize_t = 0
    capacity: cython.Py_ssize_t = len(table) // k.COLUMNS
    stop: cython.int = k.STOP_LIMIT
    at: cython.longlong
    if limit < 0 or limit > len(data):
        raise ValueError(f"range 0:{limit} is outside of the buffer of {len(data)} bytes")
    if base < 0 or base > _OFFSET_MAX - len(data):
        raise ValueError(f"base {base} is not a physical offset of {len(data)} bytes")
    if first < 0 or first > count or count > len(units) // k.UNIT:
        raise ValueError(f"units {first}:{count} of {len(units)} bytes")
    source: cython.pointer(cython.const[cython.uchar])
    pointers: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    if cython.compiled:
        source = cython.address(data[0])
        pointers = cython.address(units[0])
        cells = cython.address(table[0])
    else:
        source = data
        pointers = units
        cells = table
    with cython.nogil:
        while first < count:
            at = load_i64(pointers, first * k.UNIT)
            if at < base or at - base > limit - k.BLANK:
                break
            if rows == capacity:
                stop = k.STOP_FULL
                break
            at -= base
            stop = note_record(source, at, limit, base, cells, capacity, rows)
            if stop == _GOOD and check != k.CHECK_NONE:
                stop = _check_sums(source, at, cells, capacity, rows, check)
            if (
                stop == _GOOD
                and load_i32(pointers, first * k.UNIT + k.UNIT_SIZE)
                != cells[k.COL_SIZE * capacity + rows]
            ):
                stop = k.STOP_SIZE
            if stop != _GOOD:
                break
            rows += 1
            first += 1
            stop = k.STOP_LIMIT
    return rows, stop
