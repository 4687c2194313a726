"""Append to an index file and walk its chains, in the mapped bytes themselves."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format import layout

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import (
        load_i32,
        load_i64,
        store_i32,
        store_i64,
    )
else:
    from firetrail.format.kernels._bigendian import load_i32, load_i64, store_i32, store_i64

COMPILED = cython.compiled

_BEGIN_TIME = cython.declare(cython.Py_ssize_t, layout.INDEX_HEADER.offsets["begin_timestamp"])
_END_TIME = cython.declare(cython.Py_ssize_t, layout.INDEX_HEADER.offsets["end_timestamp"])
_BEGIN_OFFSET = cython.declare(cython.Py_ssize_t, layout.INDEX_HEADER.offsets["begin_offset"])
_END_OFFSET = cython.declare(cython.Py_ssize_t, layout.INDEX_HEADER.offsets["end_offset"])
_SLOT_COUNT = cython.declare(cython.Py_ssize_t, layout.INDEX_HEADER.offsets["slot_count"])
_ENTRY_COUNT = cython.declare(cython.Py_ssize_t, layout.INDEX_HEADER.offsets["entry_count"])
_HEADER = cython.declare(cython.Py_ssize_t, layout.INDEX_HEADER.size)
_SLOT = cython.declare(cython.Py_ssize_t, layout.INDEX_SLOT.size)
_ENTRY = cython.declare(cython.Py_ssize_t, layout.INDEX_ENTRY.size)
_AT_OFFSET = cython.declare(cython.Py_ssize_t, layout.INDEX_ENTRY.offsets["physical_offset"])
_AT_SECONDS = cython.declare(cython.Py_ssize_t, layout.INDEX_ENTRY.offsets["seconds"])
_AT_PREVIOUS = cython.declare(cython.Py_ssize_t, layout.INDEX_ENTRY.offsets["previous"])
_INT_MAX = cython.declare(cython.longlong, 2**31 - 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _link(
    out: cython.p_uchar,
    slots: cython.longlong,
    number: cython.longlong,
    key_hash: cython.longlong,
) -> cython.bint:
    """Make entry ``number`` the newest of its slot; whether the slot was empty before."""
    slot: cython.Py_ssize_t = _HEADER + _SLOT * (key_hash % slots)
    previous: cython.longlong = load_i32(out, slot)
    if previous < 0 or previous > number:
        previous = 0
    store_i32(out, _HEADER + _SLOT * slots + _ENTRY * number + _AT_PREVIOUS, previous)
    store_i32(out, slot, number)
    return previous == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _append(
    out: cython.p_uchar,
    slots: cython.longlong,
    key_hash: cython.longlong,
    offset: cython.longlong,
    store_time: cython.longlong,
) -> cython.void:
    """One key more, as ``IndexFile.putKey`` does it, the header written through."""
    number: cython.longlong = max(load_i32(out, _ENTRY_COUNT), 1)
    at: cython.Py_ssize_t = _HEADER + _SLOT * slots + _ENTRY * number
    begin: cython.longlong = load_i64(out, _BEGIN_TIME)
    seconds: cython.longlong = 0
    if begin > 0 and store_time > begin:
        seconds = min((store_time - begin) // 1000, _INT_MAX)
    store_i32(out, at, key_hash)
    store_i64(out, at + _AT_OFFSET, offset)
    store_i32(out, at + _AT_SECONDS, seconds)
    if _link(out, slots, number, key_hash):
        store_i32(out, _SLOT_COUNT, load_i32(out, _SLOT_COUNT) + 1)
    if number == 1:
        store_i64(out, _BEGIN_OFFSET, offset)
        store_i64(out, _BEGIN_TIME, store_time)
    store_i32(out, _ENTRY_COUNT, number + 1)
    store_i64(out, _END_OFFSET, offset)
    store_i64(out, _END_TIME, store_time)


def append_entries(
    data: cython.uchar[::1],
    slots: cython.longlong,
    limit: cython.longlong,
    entries: cython.longlong[::1],
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> int:
    """Append ``entries`` (as derive_entries gives them) ``first`` to ``count``.

    ``limit`` is the number of entries there is room for: the file's, or less where less of it is
    backed by disk. Returns the first entry that did not fit, ``count`` if all did.
    """
    if slots <= 0 or len(data) < _HEADER + _SLOT * slots + _ENTRY * limit:
        raise ValueError(f"{len(data)} bytes are no index file of {slots} slots, {limit} entries")
    if first < 0 or count * 3 > len(entries):
        raise ValueError(f"entries {first}:{count} of {len(entries) // 3}")
    if first >= count:
        return count
    out: cython.p_uchar
    source: cython.p_longlong
    if cython.compiled:
        out = cython.address(data[0])
        source = cython.address(entries[0])
    else:
        out = data
        source = entries
    with cython.nogil:
        while first < count and max(load_i32(out, _ENTRY_COUNT), 1) < limit:
            _append(out, slots, source[3 * first], source[3 * first + 1], source[3 * first + 2])
            first += 1
    return first


def walk(
    data: cython.const[cython.uchar][::1],
    slots: cython.longlong,
    key_hash: cython.longlong,
    begin: cython.longlong,
    end: cython.longlong,
    limit: cython.Py_ssize_t,
) -> list[int]:
    """Physical offsets of at most ``limit`` entries with ``key_hash`` stored in ``begin..end`` ms.

    Newest first. The file keeps times in seconds, so both bounds are widened to a whole second.
    Stops at anything that cannot be a link of a chain.
    """
    found: list[int] = []
    if slots <= 0 or len(data) < _HEADER + _SLOT * slots:
        raise ValueError(f"{len(data)} bytes are no index file of {slots} slots")
    source: cython.pointer(cython.const[cython.uchar])
    if cython.compiled:
        source = cython.address(data[0])
    else:
        source = data
    base: cython.Py_ssize_t = _HEADER + _SLOT * slots
    first_time: cython.longlong = load_i64(source, _BEGIN_TIME)
    number: cython.longlong = load_i32(source, _HEADER + _SLOT * (key_hash % slots))
    newest: cython.longlong = load_i32(source, _ENTRY_COUNT)
    at: cython.Py_ssize_t
    seconds: cython.longlong
    time: cython.longlong
    if newest > (len(data) - base) // _ENTRY:
        newest = (len(data) - base) // _ENTRY
    while 0 < number < newest and len(found) < limit:
        newest = number
        at = base + _ENTRY * number
        seconds = load_i32(source, at + _AT_SECONDS)
        # The first entry counts from the end of the file before this one.
        time = first_time if number == 1 else first_time + seconds * 1000
        if seconds < 0 or time < begin - 999:
            break
        if load_i32(source, at) == key_hash and time <= end:
            found.append(load_i64(source, at + _AT_OFFSET))
        number = load_i32(source, at + _AT_PREVIOUS)
    return found


def count_entries(
    data: cython.const[cython.uchar][::1],
    slots: cython.longlong,
    limit: cython.longlong,
    log_end: cython.longlong,
) -> int:
    """How many entries, from the first on, were written and point before ``log_end``.

    Entries stand in the order of the log: the first one of zeros, or that points back, ends them.
    """
    base: cython.Py_ssize_t = _HEADER + _SLOT * slots
    if slots <= 0 or limit < 1 or len(data) < base + _ENTRY * limit:
        raise ValueError(f"{len(data)} bytes are no index file of {slots} slots, {limit} entries")
    source: cython.pointer(cython.const[cython.uchar])
    if cython.compiled:
        source = cython.address(data[0])
    else:
        source = data
    number: cython.longlong = 1
    at: cython.Py_ssize_t
    offset: cython.longlong
    newest: cython.longlong = 0
    with cython.nogil:
        while number < limit:
            at = base + _ENTRY * number
            offset = load_i64(source, at + _AT_OFFSET)
            if offset < newest or offset >= log_end or load_i32(source, at) < 0:
                break
            if offset == 0 and load_i32(source, at) == 0:
                break
            newest = offset
            number += 1
    return number - 1


def cut_entries(
    data: cython.uchar[::1], slots: cython.longlong, keep: cython.longlong, used: cython.longlong
) -> int:
    """Forget all but the entries below number ``keep``; the slots in use after that.

    Every chain is linked anew from the key hashes alone, which heals slots and links that an
    unclean stop left behind. ``used`` is how far entries may have been written; those are zeroed.
    """
    base: cython.Py_ssize_t = _HEADER + _SLOT * slots
    if slots <= 0 or keep < 1 or len(data) < base + _ENTRY * max(keep, used):
        raise ValueError(f"{len(data)} bytes are no index file of {slots} slots, {used} entries")
    out: cython.p_uchar
    if cython.compiled:
        out = cython.address(data[0])
    else:
        out = data
    number: cython.longlong
    at: cython.Py_ssize_t
    in_use: cython.longlong = 0
    with cython.nogil:
        for at in range(_HEADER, base):
            out[at] = 0
        for at in range(base + _ENTRY * keep, base + _ENTRY * max(keep, used)):
            out[at] = 0
        for number in range(1, keep):
            if _link(out, slots, number, load_i32(out, base + _ENTRY * number)):
                in_use += 1
        store_i32(out, _SLOT_COUNT, in_use)
        store_i32(out, _ENTRY_COUNT, keep if keep > 1 else 0)
    return in_use
