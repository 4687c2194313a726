"""The derivation of consume-queue units and index entries from the log.

*One dispatch, two runners*: the live dispatcher and the bulk jobs both call these functions on the
columns of a scan, so queues and index come out byte for byte the same.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format import layout
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.values.javahash import java_hash

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import (
        find_byte,
        lies_in,
        same_bytes,
        store_i32,
        store_i64,
    )
    from cython.cimports.firetrail.format.kernels.text import hash_utf8
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import (
        find_byte,
        lies_in,
        same_bytes,
        store_i32,
        store_i64,
    )
    from firetrail.format.kernels.text import hash_utf8

COMPILED = cython.compiled

ENTRIES_PER_RECORD_MAX = 3 + layout.MAX_PROPERTIES // 2
"""Maximum number of keys in the properties of a record, plus one for its tag."""

_INT_MAX = cython.declare(cython.longlong, 2**31 - 1)
_HASH_FACTOR = cython.declare(cython.longlong, 31)
_SCHEDULE = SCHEDULE_TOPIC.encode()
_tag_mark = cython.declare(cython.uchar[3])
_tag_mark[0] = _tag_mark[2] = 0x23  # "#T#"
_tag_mark[1] = 0x54
_SCHEDULE_HASH = cython.declare(cython.longlong, java_hash(SCHEDULE_TOPIC))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _tags_code(
    data: cython.pointer(cython.const[cython.uchar]),
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    schedule: cython.pointer(cython.const[cython.uchar]),
    waits: cython.p_longlong,
    levels: cython.longlong,
) -> cython.longlong:
    """Return the hash of the tag; for a waiting delayed message, the time of delivery."""
    level: cython.longlong = cells[k.COL_DELAY_LEVEL * capacity + row]
    size: cython.longlong = cells[k.COL_TOPIC_SIZE * capacity + row]
    if (
        level > 0
        and levels > 0
        and cells[k.COL_TOPIC_HASH * capacity + row] == _SCHEDULE_HASH
        and size == k.SCHEDULE_SIZE
        and same_bytes(data, cells[k.COL_TOPIC_AT * capacity + row], schedule, 0, size)
    ):
        if level > levels:
            level = levels
        return cells[k.COL_STORE_TIME * capacity + row] + waits[level - 1]
    return cells[k.COL_TAGS_HASH * capacity + row]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _same_queue(
    data: cython.pointer(cython.const[cython.uchar]),
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    other: cython.Py_ssize_t,
) -> cython.bint:
    """Return whether two rows belong to the same topic and queue."""
    size: cython.longlong = cells[k.COL_TOPIC_SIZE * capacity + row]
    return (
        cells[k.COL_QUEUE_ID * capacity + row] == cells[k.COL_QUEUE_ID * capacity + other]
        and cells[k.COL_TOPIC_HASH * capacity + row] == cells[k.COL_TOPIC_HASH * capacity + other]
        and size == cells[k.COL_TOPIC_SIZE * capacity + other]
        and same_bytes(
            data,
            cells[k.COL_TOPIC_AT * capacity + row],
            data,
            cells[k.COL_TOPIC_AT * capacity + other],
            size,
        )
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _group_rows(
    data: cython.pointer(cython.const[cython.uchar]),
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    run_of: cython.p_longlong,
    runs: cython.p_longlong,
    slots: cython.p_longlong,
    mask: cython.longlong,
) -> cython.Py_ssize_t:
    """Group the rows into runs of one topic and queue with consecutive queue offsets.

    ``runs`` receives (first row, rows) per run, ``run_of`` the run of each row, or -1 for rows
    without a unit (prepared and rolled back transactions). ``slots`` is a zeroed hash table of run
    numbers + 1.
    """
    row: cython.Py_ssize_t
    run: cython.Py_ssize_t
    slot: cython.longlong
    count: cython.Py_ssize_t = 0
    for row in range(rows):
        if cells[k.COL_SYS_FLAG * capacity + row] & k.NO_QUEUE_OFFSET:
            run_of[row] = -1
            continue
        slot = (
            cells[k.COL_TOPIC_HASH * capacity + row] * _HASH_FACTOR
            + cells[k.COL_QUEUE_ID * capacity + row]
        ) & mask
        while True:
            run = slots[slot] - 1
            if run < 0 or _same_queue(data, cells, capacity, row, runs[2 * run]):
                break
            slot = (slot + 1) & mask
        if run < 0 or (
            cells[k.COL_QUEUE_OFFSET * capacity + row]
            != cells[k.COL_QUEUE_OFFSET * capacity + runs[2 * run]] + runs[2 * run + 1]
        ):
            run = count
            count += 1
            slots[slot] = run + 1
            runs[2 * run] = row
            runs[2 * run + 1] = 0
        runs[2 * run + 1] += 1
        run_of[row] = run
    return count


def derive_units(
    data: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    rows: cython.Py_ssize_t,
    waits: cython.longlong[::1],
) -> tuple[bytearray, list[tuple[int, int, int]]]:
    """Return the consume-queue units of the first ``rows`` records of a scan: (units, runs).

    A run is (first row, number of units, position of its first unit in bytes): adjacent units of
    one topic and queue with consecutive queue offsets. ``waits`` has the delay of each level in ms.
    """
    capacity: cython.Py_ssize_t = len(table) // k.COLUMNS
    if rows < 0 or rows > capacity:
        raise ValueError(f"{rows} rows exceed a table of {capacity}")
    if rows == 0:
        return bytearray(), []
    mask: cython.longlong = 1
    while mask < 2 * rows:
        mask *= 2
    mask -= 1
    scratch_array = array("q", bytes(8 * (3 * rows + mask + 1)))
    scratch: cython.longlong[::1] = scratch_array
    unit_bytes = bytearray(k.UNIT * rows)
    units: cython.uchar[::1] = unit_bytes
    length: cython.Py_ssize_t = len(data)
    levels: cython.longlong = len(waits)
    source: cython.pointer(cython.const[cython.uchar])
    schedule_name: bytes = _SCHEDULE
    schedule: cython.pointer(cython.const[cython.uchar]) = schedule_name
    cells: cython.p_longlong
    runs: cython.p_longlong
    run_of: cython.p_longlong
    slots: cython.p_longlong
    delays: cython.p_longlong
    out: cython.p_uchar
    if cython.compiled:
        source = cython.address(data[0])
        cells = cython.address(table[0])
        runs = cython.address(scratch[0])
        run_of = cython.address(scratch[2 * rows])
        slots = cython.address(scratch[3 * rows])
        delays = cython.address(waits[0])
        out = cython.address(units[0])
    else:
        source = data
        cells = table
        runs = memoryview(scratch_array)
        run_of = runs[2 * rows :]
        slots = runs[3 * rows :]
        delays = waits
        out = memoryview(unit_bytes)
    count: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    run: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    foreign: cython.Py_ssize_t = -1
    with cython.nogil:
        for row in range(rows):
            if not lies_in(
                cells[k.COL_TOPIC_AT * capacity + row],
                cells[k.COL_TOPIC_SIZE * capacity + row],
                length,
            ):
                foreign = row
                break
        if foreign < 0:
            count = _group_rows(source, cells, capacity, rows, run_of, runs, slots, mask)
            # From here on slots[run] is the position of the next unit of the run.
            for run in range(count):
                slots[run] = at
                at += runs[2 * run + 1] * k.UNIT
            for row in range(rows):
                run = run_of[row]
                if run >= 0:
                    at = slots[run]
                    slots[run] = at + k.UNIT
                    store_i64(out, at, cells[k.COL_PHYSICAL_OFFSET * capacity + row])
                    store_i32(out, at + k.UNIT_SIZE, cells[k.COL_SIZE * capacity + row])
                    store_i64(
                        out,
                        at + k.UNIT_TAGS_CODE,
                        _tags_code(source, cells, capacity, row, schedule, delays, levels),
                    )
    if foreign >= 0:
        raise _not_of(foreign, length)
    return unit_bytes, [
        (runs[2 * run], runs[2 * run + 1], slots[run] - runs[2 * run + 1] * k.UNIT)
        for run in range(count)
    ]


def _not_of(row: int, length: int) -> ValueError:
    return ValueError(f"row {row} is not from a scan of these {length} bytes")


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _add_entry(
    out: cython.p_longlong,
    count: cython.Py_ssize_t,
    key_hash: cython.longlong,
    offset: cython.longlong,
    store_time: cython.longlong,
) -> cython.Py_ssize_t:
    if key_hash < 0:
        key_hash = -key_hash
    if key_hash > _INT_MAX:  # abs(Integer.MIN_VALUE) is negative in Java, which then uses 0
        key_hash = 0
    out[3 * count] = key_hash
    out[3 * count + 1] = offset
    out[3 * count + 2] = store_time
    return count + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_row(
    data: cython.pointer(cython.const[cython.uchar]),
    length: cython.Py_ssize_t,
    cells: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    tags: cython.bint,
    out: cython.p_longlong,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Add the entries of one row; return their number, or -1 if the row is not from ``data``.

    The hashed texts are ``topic#key`` and, for a tag, ``topic#T#tag``.
    """
    seed: cython.int = hash_utf8(_tag_mark, 0, 1, cells[k.COL_TOPIC_HASH * capacity + row])
    offset: cython.longlong = cells[k.COL_PHYSICAL_OFFSET * capacity + row]
    store_time: cython.longlong = cells[k.COL_STORE_TIME * capacity + row]
    at: cython.longlong = cells[k.COL_UNIQUE_KEY_AT * capacity + row]
    size: cython.longlong = cells[k.COL_UNIQUE_KEY_SIZE * capacity + row]
    end: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    if size > 0:
        if not lies_in(at, size, length):
            return -1
        count = _add_entry(out, count, hash_utf8(data, at, size, seed), offset, store_time)
    at = cells[k.COL_KEYS_AT * capacity + row]
    size = cells[k.COL_KEYS_SIZE * capacity + row]
    if size > 0:
        if not lies_in(at, size, length):
            return -1
        end = at + size
        while at < end:
            stop = find_byte(data, 32, at, end)
            if stop > at:
                count = _add_entry(
                    out, count, hash_utf8(data, at, stop - at, seed), offset, store_time
                )
            at = stop + 1
    at = cells[k.COL_TAGS_AT * capacity + row]
    size = cells[k.COL_TAGS_SIZE * capacity + row]
    if tags and size > 0:
        if not lies_in(at, size, length):
            return -1
        seed = hash_utf8(_tag_mark, 1, 2, seed)
        count = _add_entry(out, count, hash_utf8(data, at, size, seed), offset, store_time)
    return count


def derive_entries(
    data: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    entries: cython.longlong[::1],
    tags: cython.bint = False,
) -> tuple[int, int]:
    """Write the index entries of the records ``first`` to ``rows``; return (entries, next row).

    Each entry is (key hash, physical offset, store time): the unique key first, then every key,
    then, with ``tags``, the tag as ``topic#T#tag``, as RocketMQ 5.5 does. The next row is below
    ``rows`` if ``entries`` had no space for all keys of that record.
    """
    capacity: cython.Py_ssize_t = len(table) // k.COLUMNS
    room: cython.Py_ssize_t = len(entries) // 3
    if first < 0 or rows > capacity or room < ENTRIES_PER_RECORD_MAX:
        raise ValueError(f"rows {first}:{rows} of {capacity}, room for {room} entries")
    length: cython.Py_ssize_t = len(data)
    source: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    out: cython.p_longlong
    if cython.compiled:
        source = cython.address(data[0])
        cells = cython.address(table[0])
        out = cython.address(entries[0])
    else:
        source = data
        cells = table
        out = entries
    row: cython.Py_ssize_t = first
    count: cython.Py_ssize_t = 0
    added: cython.Py_ssize_t = 0
    size: cython.longlong
    with cython.nogil:
        while row < rows:
            if cells[k.COL_SYS_FLAG * capacity + row] & k.TRANSACTION != k.ROLLBACK:
                size = cells[k.COL_KEYS_SIZE * capacity + row]
                if size <= length and room - count < 3 + size // 2:
                    break
                added = _add_row(source, length, cells, capacity, row, tags, out, count)
                if added < 0:
                    break
                count = added
            row += 1
    if added < 0:
        raise _not_of(row, length)
    return count, row
