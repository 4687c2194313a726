"""Appends to an index file, and searches of its chains, directly in the mapped bytes."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.errors import FormatError

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import (
        load_i32,
        load_i64,
        store_i32,
        store_i64,
        will_change,
    )
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import (
        load_i32,
        load_i64,
        store_i32,
        store_i64,
        will_change,
    )

COMPILED = cython.compiled

_INT_MAX = cython.declare(cython.longlong, 2**31 - 1)
_AHEAD = cython.declare(cython.Py_ssize_t, 16)
"""The number of keys by which slots are prefetched, because they are scattered over the file."""
_TIME_MAX = cython.declare(cython.longlong, 2**62)
"""The latest time; later ones are clamped to it, so that adding to them does not overflow."""


@cython.cfunc
@cython.exceptval(-1, check=False)
def _entries_at(
    length: cython.Py_ssize_t, slots: cython.longlong, entries: cython.longlong
) -> cython.Py_ssize_t:
    """Return the position of the entries of a file; raise ValueError if it is too short."""
    if (
        slots <= 0
        or slots > _INT_MAX
        or slots > (length - k.INDEX_HEADER) // k.SLOT
        or entries > (length - k.INDEX_HEADER - k.SLOT * slots) // k.ENTRY
    ):
        raise ValueError(f"{length} bytes: no index file of {slots} slots and {entries} entries")
    return k.INDEX_HEADER + k.SLOT * slots


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _slot_at(key_hash: cython.longlong, slots: cython.longlong) -> cython.Py_ssize_t:
    """Return the position of a key's slot. Both numbers fit in 32 bits, so division is fast."""
    return k.INDEX_HEADER + k.SLOT * cython.cast(
        cython.Py_ssize_t, cython.cast(cython.uint, key_hash) % cython.cast(cython.uint, slots)
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _link(
    out: cython.p_uchar, slot: cython.Py_ssize_t, at: cython.Py_ssize_t, number: cython.longlong
) -> cython.bint:
    """Make entry ``number`` at ``at`` the newest of the slot at ``slot``.

    Returns whether the slot was empty before.
    """
    previous: cython.longlong = load_i32(out, slot)
    if previous < 0 or previous >= number:
        previous = 0
    store_i32(out, at + k.ENTRY_PREVIOUS, previous)
    store_i32(out, slot, number)
    return previous == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _append(
    out: cython.p_uchar,
    slots: cython.longlong,
    base: cython.Py_ssize_t,
    limit: cython.longlong,
    source: cython.p_longlong,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Append entries key by key, as Java's ``IndexFile.putKey`` does.

    The header is updated with every key, so that at any moment the file looks like that of a Java
    store that stopped there.
    """
    number: cython.longlong = max(load_i32(out, k.INDEX_ENTRY_COUNT), 1)
    used: cython.longlong = load_i32(out, k.INDEX_SLOT_COUNT)
    begin: cython.longlong = load_i64(out, k.INDEX_BEGIN_TIME)
    store_time: cython.longlong
    seconds: cython.longlong
    at: cython.Py_ssize_t = base + k.ENTRY * number
    while first < count and number < limit:
        if first + _AHEAD < count:
            will_change(out, _slot_at(source[3 * (first + _AHEAD)], slots))
        store_time = source[3 * first + 2]
        seconds = 0
        if begin > 0 and store_time > begin:
            seconds = min((store_time - begin) // 1000, _INT_MAX)
        store_i32(out, at, source[3 * first])
        store_i64(out, at + k.ENTRY_OFFSET, source[3 * first + 1])
        store_i32(out, at + k.ENTRY_SECONDS, seconds)
        if _link(out, _slot_at(source[3 * first], slots), at, number):
            used += 1
            store_i32(out, k.INDEX_SLOT_COUNT, used)
        if number == 1:
            begin = store_time
            store_i64(out, k.INDEX_BEGIN_OFFSET, source[3 * first + 1])
            store_i64(out, k.INDEX_BEGIN_TIME, store_time)
        number += 1
        at += k.ENTRY
        first += 1
        store_i32(out, k.INDEX_ENTRY_COUNT, number)
        store_i64(out, k.INDEX_END_OFFSET, source[3 * first - 2])
        store_i64(out, k.INDEX_END_TIME, store_time)
    return first


def append_entries(
    data: cython.uchar[::1],
    slots: cython.longlong,
    limit: cython.longlong,
    entries: cython.longlong[::1],
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> int:
    """Append the entries ``first`` to ``count`` of ``entries``, a result of derive_entries.

    ``limit`` is the number of entries for which there is space: that of the file, or less if less
    disk space is allocated. Returns the first entry that did not fit; ``count`` if all did.
    """
    base: cython.Py_ssize_t = _entries_at(len(data), slots, limit)
    if first < 0 or count > len(entries) // 3:
        raise ValueError(f"entries {first}:{count} of {len(entries) // 3}")
    out: cython.p_uchar
    source: cython.p_longlong
    if cython.compiled:
        out = cython.address(data[0])
        source = cython.address(entries[0])
    else:
        out = data
        source = entries
    i: cython.Py_ssize_t
    for i in range(first, count):
        if source[3 * i] < 0 or source[3 * i] > _INT_MAX:
            raise ValueError(f"entry {i} has {source[3 * i]} instead of a key hash")
    with cython.nogil:
        first = _append(out, slots, base, limit, source, first, count)
    return first


def walk(
    data: cython.const[cython.uchar][::1],
    slots: cython.longlong,
    key_hash: cython.longlong,
    begin: cython.longlong,
    end: cython.longlong,
    limit: cython.Py_ssize_t,
) -> list[int]:
    """Return the physical offsets of entries with ``key_hash`` stored in ``begin..end`` (ms).

    At most ``limit`` are returned, newest first. The file has times in seconds, so both bounds are
    widened to a whole second. The walk stops at a link that cannot belong to a chain. Raises
    FormatError if the times in the header are negative.
    """
    found: list[int] = []
    base: cython.Py_ssize_t = _entries_at(len(data), slots, 0)
    if key_hash < 0 or key_hash > _INT_MAX:
        raise ValueError(f"{key_hash} is not a key hash")
    source: cython.pointer(cython.const[cython.uchar])
    if cython.compiled:
        source = cython.address(data[0])
    else:
        source = data
    first_time: cython.longlong = min(load_i64(source, k.INDEX_BEGIN_TIME), _TIME_MAX)
    last_time: cython.longlong = load_i64(source, k.INDEX_END_TIME)
    if first_time < 0 or last_time < 0:
        raise FormatError("index header time", 0, f"{min(first_time, last_time)} is negative")
    if first_time > end or last_time < begin:
        return found
    number: cython.longlong = load_i32(source, _slot_at(key_hash, slots))
    # The slot is set just before the entry is counted: one entry after the last may exist already.
    newest: cython.longlong = load_i32(source, k.INDEX_ENTRY_COUNT) + 1
    at: cython.Py_ssize_t
    seconds: cython.longlong
    time: cython.longlong
    if newest > (len(data) - base) // k.ENTRY:
        newest = (len(data) - base) // k.ENTRY
    begin = max(begin, 0) - 999
    while 0 < number < newest and len(found) < limit:
        newest = number
        at = base + k.ENTRY * number
        seconds = load_i32(source, at + k.ENTRY_SECONDS)
        # The seconds of the first entry are relative to the end of the previous file.
        time = first_time if number == 1 else first_time + seconds * 1000
        if seconds < 0 or time < begin:
            break
        if load_i32(source, at) == key_hash and time <= end:
            found.append(load_i64(source, at + k.ENTRY_OFFSET))
        number = load_i32(source, at + k.ENTRY_PREVIOUS)
    return found


def count_entries(
    data: cython.const[cython.uchar][::1],
    slots: cython.longlong,
    limit: cython.longlong,
    log_end: cython.longlong,
) -> int:
    """Count the entries, from the first on, that are written and point before ``log_end``.

    Entries are in the order of the log, so the count ends at an entry of zeros or with a lower
    offset than the one before it.
    """
    base: cython.Py_ssize_t = _entries_at(len(data), slots, limit)
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
            at = base + k.ENTRY * number
            offset = load_i64(source, at + k.ENTRY_OFFSET)
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
    """Remove all entries from number ``keep`` on, and return the number of slots in use.

    Every chain is linked again from the key hashes alone, which repairs slots and links after an
    unclean stop. Entries up to ``used``, which may have been written, are zeroed. Raises
    FormatError, and changes nothing, if an entry to keep has no key hash.
    """
    base: cython.Py_ssize_t = _entries_at(len(data), slots, max(keep, used))
    if keep < 1:
        raise ValueError(f"keep is {keep}, but entries are counted from 1")
    out: cython.p_uchar
    if cython.compiled:
        out = cython.address(data[0])
    else:
        out = data
    number: cython.longlong
    at: cython.Py_ssize_t
    in_use: cython.longlong = 0
    for number in range(1, keep):
        at = base + k.ENTRY * number
        if load_i32(out, at) < 0:
            raise FormatError("index entry key hash", at, f"{load_i32(out, at)} is negative")
    with cython.nogil:
        for at in range(k.INDEX_HEADER, base):
            out[at] = 0
        for at in range(base + k.ENTRY * keep, base + k.ENTRY * max(keep, used)):
            out[at] = 0
        for number in range(1, keep):
            at = base + k.ENTRY * number
            if number + _AHEAD < keep:
                will_change(out, _slot_at(load_i32(out, at + k.ENTRY * _AHEAD), slots))
            if _link(out, _slot_at(load_i32(out, at), slots), at, number):
                in_use += 1
        store_i32(out, k.INDEX_SLOT_COUNT, in_use)
        store_i32(out, k.INDEX_ENTRY_COUNT, keep if keep > 1 else 0)
    return in_use
