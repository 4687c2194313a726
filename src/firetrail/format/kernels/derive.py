"""What follows from the log: consume-queue units and index entries.

*One dispatch, two runners*: the live dispatcher and the bulk jobs both call these functions on the
columns of a scan, so queues and index come out byte for byte the same.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.javahash import java_hash
from firetrail.format.names import SCHEDULE_TOPIC

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import (
        find_byte,
        same_bytes,
        store_i32,
        store_i64,
    )
    from cython.cimports.firetrail.format.kernels.text import hash_utf8
else:
    from firetrail.format.kernels._bigendian import find_byte, same_bytes, store_i32, store_i64
    from firetrail.format.kernels.text import hash_utf8

COMPILED = cython.compiled

_PHYSICAL_OFFSET = cython.declare(cython.Py_ssize_t, col.PHYSICAL_OFFSET)
_SIZE = cython.declare(cython.Py_ssize_t, col.SIZE)
_QUEUE_ID = cython.declare(cython.Py_ssize_t, col.QUEUE_ID)
_QUEUE_OFFSET = cython.declare(cython.Py_ssize_t, col.QUEUE_OFFSET)
_STORE_TIME = cython.declare(cython.Py_ssize_t, col.STORE_TIME)
_SYS_FLAG = cython.declare(cython.Py_ssize_t, col.SYS_FLAG)
_TOPIC_AT = cython.declare(cython.Py_ssize_t, col.TOPIC_AT)
_TOPIC_SIZE = cython.declare(cython.Py_ssize_t, col.TOPIC_SIZE)
_TOPIC_HASH = cython.declare(cython.Py_ssize_t, col.TOPIC_HASH)
_TAGS_AT = cython.declare(cython.Py_ssize_t, col.TAGS_AT)
_TAGS_SIZE = cython.declare(cython.Py_ssize_t, col.TAGS_SIZE)
_TAGS_HASH = cython.declare(cython.Py_ssize_t, col.TAGS_HASH)
_KEYS_AT = cython.declare(cython.Py_ssize_t, col.KEYS_AT)
_KEYS_SIZE = cython.declare(cython.Py_ssize_t, col.KEYS_SIZE)
_UNIQUE_KEY_AT = cython.declare(cython.Py_ssize_t, col.UNIQUE_KEY_AT)
_UNIQUE_KEY_SIZE = cython.declare(cython.Py_ssize_t, col.UNIQUE_KEY_SIZE)
_DELAY_LEVEL = cython.declare(cython.Py_ssize_t, col.DELAY_LEVEL)

_TRANSACTION = cython.declare(cython.longlong, layout.TRANSACTION_MASK)
_PREPARED = cython.declare(cython.longlong, layout.TRANSACTION_PREPARED)
_ROLLBACK = cython.declare(cython.longlong, layout.TRANSACTION_ROLLBACK)
_UNIT = cython.declare(cython.Py_ssize_t, layout.UNIT.size)
_AT_SIZE = cython.declare(cython.Py_ssize_t, layout.UNIT.offsets["size"])
_AT_TAGS_CODE = cython.declare(cython.Py_ssize_t, layout.UNIT.offsets["tags_code"])
_COLUMNS = cython.declare(cython.Py_ssize_t, len(col.COLUMN_NAMES))
_INT_MAX = cython.declare(cython.longlong, 2**31 - 1)
ENTRIES_PER_RECORD_MAX = 3 + layout.MAX_PROPERTIES // 2
"""Most keys that a record's properties can hold, and its tag."""
_SCHEDULE_HASH = cython.declare(cython.longlong, java_hash(SCHEDULE_TOPIC))
_SCHEDULE_SIZE = cython.declare(cython.longlong, len(SCHEDULE_TOPIC))
_SPACE = cython.declare(cython.int, ord(" "))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _tags_code(
    table: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    waits: cython.p_longlong,
    levels: cython.longlong,
) -> cython.longlong:
    """The hash of the tag, or the time of delivery while a delayed message waits."""
    level: cython.longlong = table[_DELAY_LEVEL * capacity + row]
    if (
        level > 0
        and levels > 0
        and table[_TOPIC_HASH * capacity + row] == _SCHEDULE_HASH
        and table[_TOPIC_SIZE * capacity + row] == _SCHEDULE_SIZE
    ):
        if level > levels:
            level = levels
        return table[_STORE_TIME * capacity + row] + waits[level - 1]
    return table[_TAGS_HASH * capacity + row]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _same_queue(
    data: cython.pointer(cython.const[cython.uchar]),
    table: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    other: cython.Py_ssize_t,
) -> cython.bint:
    """Whether two rows belong to one topic and queue."""
    size: cython.Py_ssize_t = table[_TOPIC_SIZE * capacity + row]
    return (
        table[_QUEUE_ID * capacity + row] == table[_QUEUE_ID * capacity + other]
        and table[_TOPIC_HASH * capacity + row] == table[_TOPIC_HASH * capacity + other]
        and size == table[_TOPIC_SIZE * capacity + other]
        and same_bytes(
            data,
            table[_TOPIC_AT * capacity + row],
            table[_TOPIC_AT * capacity + other],
            size,
        )
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _group_rows(
    data: cython.pointer(cython.const[cython.uchar]),
    table: cython.p_longlong,
    capacity: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    run_of: cython.p_longlong,
    runs: cython.p_longlong,
    slots: cython.p_longlong,
    mask: cython.longlong,
) -> cython.Py_ssize_t:
    """Sort the rows into runs: one topic and queue, consecutive queue offsets.

    ``runs`` gets (first row, rows) a run, ``run_of`` each row's run or -1 for rows without a unit
    (prepared and rolled back transactions), ``slots`` is a zeroed hash table of run numbers + 1.
    """
    row: cython.Py_ssize_t
    run: cython.Py_ssize_t
    slot: cython.longlong
    first: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    state: cython.longlong
    for row in range(rows):
        state = table[_SYS_FLAG * capacity + row] & _TRANSACTION
        if state in (_PREPARED, _ROLLBACK):
            run_of[row] = -1
            continue
        slot = (table[_TOPIC_HASH * capacity + row] * 31 + table[_QUEUE_ID * capacity + row]) & mask
        while True:
            run = slots[slot] - 1
            if run < 0 or _same_queue(data, table, capacity, row, runs[2 * run]):
                break
            slot = (slot + 1) & mask
        if run >= 0:
            first = runs[2 * run]
            if (
                table[_QUEUE_OFFSET * capacity + row]
                != table[_QUEUE_OFFSET * capacity + first] + runs[2 * run + 1]
            ):
                run = -1
        if run < 0:
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
    """Consume-queue units of the first ``rows`` records of a scan: (units, runs).

    A run is (first row, number of units, position of its first unit in bytes): units of one topic
    and queue with consecutive queue offsets, which stand together. ``waits`` holds the wait in ms
    of each delay level.
    """
    capacity: cython.Py_ssize_t = len(table) // _COLUMNS
    if rows <= 0 or rows > capacity:
        if rows == 0:
            return bytearray(), []
        raise ValueError(f"{rows} rows of a table of {capacity}")
    mask: cython.longlong = 1
    while mask < 2 * rows:
        mask *= 2
    mask -= 1
    scratch_array = array("q", bytes(8 * (3 * rows + mask + 1)))
    scratch: cython.longlong[::1] = scratch_array
    unit_bytes = bytearray(_UNIT * rows)
    units: cython.uchar[::1] = unit_bytes
    source: cython.pointer(cython.const[cython.uchar])
    cells: cython.p_longlong
    runs: cython.p_longlong
    run_of: cython.p_longlong
    slots: cython.p_longlong
    delays: cython.p_longlong
    out: cython.p_uchar
    levels: cython.longlong = len(waits)
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
    count: cython.Py_ssize_t
    row: cython.Py_ssize_t
    run: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    with cython.nogil:
        count = _group_rows(source, cells, capacity, rows, run_of, runs, slots, mask)
        # From here on slots[run] is where the run's next unit goes.
        for run in range(count):
            slots[run] = at
            at += runs[2 * run + 1] * _UNIT
        for row in range(rows):
            run = run_of[row]
            if run >= 0:
                at = slots[run]
                slots[run] = at + _UNIT
                store_i64(out, at, cells[_PHYSICAL_OFFSET * capacity + row])
                store_i32(out, at + _AT_SIZE, cells[_SIZE * capacity + row])
                store_i64(out, at + _AT_TAGS_CODE, _tags_code(cells, capacity, row, delays, levels))
    return unit_bytes, [
        (runs[2 * run], runs[2 * run + 1], slots[run] - runs[2 * run + 1] * _UNIT)
        for run in range(count)
    ]


@cython.cfunc
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
    if key_hash > _INT_MAX:  # abs(Integer.MIN_VALUE) is negative in Java, and 0 taken instead
        key_hash = 0
    out[3 * count] = key_hash
    out[3 * count + 1] = offset
    out[3 * count + 2] = store_time
    return count + 1


def derive_entries(
    data: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    entries: cython.longlong[::1],
    tags: cython.bint = False,
) -> tuple[int, int]:
    """Index entries of the records ``first`` to ``rows``: (entries, next row).

    Each entry is (key hash, physical offset, store time): the unique key first, then every key,
    then, with ``tags``, the tag as ``topic#T#tag``, which RocketMQ 5.5 enters. The next row is
    below ``rows`` if ``entries`` had no room for all keys of that record.
    """
    capacity: cython.Py_ssize_t = len(table) // _COLUMNS
    room: cython.Py_ssize_t = len(entries) // 3
    if first < 0 or rows > capacity or room < ENTRIES_PER_RECORD_MAX:
        raise ValueError(f"rows {first}:{rows} of {capacity}, room for {room} entries")
    if first >= rows:
        return 0, first
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
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    seed: cython.int
    separator: bytes = b"#T#"  # between topic and tag in what is hashed; its first byte for keys
    mark: cython.pointer(cython.const[cython.uchar]) = separator
    offset: cython.longlong
    store_time: cython.longlong
    with cython.nogil:
        while row < rows:
            if room - count < 3 + cells[_KEYS_SIZE * capacity + row] // 2:
                break
            if cells[_SYS_FLAG * capacity + row] & _TRANSACTION == _ROLLBACK:
                row += 1
                continue
            seed = hash_utf8(mark, 0, 1, cells[_TOPIC_HASH * capacity + row])
            offset = cells[_PHYSICAL_OFFSET * capacity + row]
            store_time = cells[_STORE_TIME * capacity + row]
            at = cells[_UNIQUE_KEY_AT * capacity + row]
            end = at + cells[_UNIQUE_KEY_SIZE * capacity + row]
            if at < end:
                count = _add_entry(
                    out, count, hash_utf8(source, at, end - at, seed), offset, store_time
                )
            at = cells[_KEYS_AT * capacity + row]
            end = at + cells[_KEYS_SIZE * capacity + row]
            while at < end:
                stop = find_byte(source, _SPACE, at, end)
                if stop > at:
                    count = _add_entry(
                        out, count, hash_utf8(source, at, stop - at, seed), offset, store_time
                    )
                at = stop + 1
            at = cells[_TAGS_AT * capacity + row]
            end = at + cells[_TAGS_SIZE * capacity + row]
            if tags and at < end:
                seed = hash_utf8(mark, 0, 3, cells[_TOPIC_HASH * capacity + row])
                count = _add_entry(
                    out, count, hash_utf8(source, at, end - at, seed), offset, store_time
                )
            row += 1
    return count, row
