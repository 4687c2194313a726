"""Append to an index file and walk its chains, in the mapped bytes themselves."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.errors import FormatError

if cython.compiled:
    from cython.cimports.firetrail.format.kernels import _constants as k
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
"""Slots are all over the file: each is asked for this many keys before it is needed."""
_TIME_MAX = cython.declare(cython.longlong, 2**62)
"""Times beyond it are taken for it, so that adding to them does not overflow."""


@cython.cfunc
@cython.exceptval(-1, check=False)
def _entries_at(
    length: cython.Py_ssize_t, slots: cython.longlong, entries: cython.longlong
) -> cython.Py_ssize_t:
    """Where the entries start in a file that has room for ``slots`` and ``entries``; else raise."""
    if (
        slots <= 0
        or slots > _INT_MAX
        or slots > (length - k.INDEX_HEADER) // k.SLOT
        or entries > (length - k.INDEX_HEADER - k.SLOT * slots) // k.ENTRY
    ):
        raise ValueError(f"{length} bytes are no index file of {slots} slots, {entries} entries")
    return k.INDEX_HEADER + k.SLOT * slots


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _slot_at(key_hash: cython.longlong, slots: cython.longlong) -> cython.Py_ssize_t:
    """Where the slot of a key stands. Both numbers fit in 32 bits, where dividing is quicker."""
    return k.INDEX_HEADER + k.SLOT * cython.cast(
        cython.Py_ssize_t, cython.cast(cython.uint, key_hash) % cython.cast(cython.uint, slots)
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _link(
    out: cython.p_uchar,
    slot: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    number: cython.longlong,
) -> cython.bint:
    """Make entry ``number``, which stands at ``at``, the newest of the slot that stands at
    ``slot``; whether that was empty before."""
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
    """What :func:`append_entries` does, as ``IndexFile.putKey`` does it key by key.

    The header is written through with every key, so that at any moment the file is that of a
    Java store that stopped there.
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
    """Append ``entries`` (as derive_entries gives them) ``first`` to ``count``.

    ``limit`` is the number of entries there is room for: the file's, or less where less of it is
    backed by disk. Returns the first entry that did not fit, ``count`` if all did.
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
            raise ValueError(f"entry {i} has no key hash but {source[3 * i]}")
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
    """Physical offsets of at most ``limit`` entries with ``key_hash`` stored in ``begin..end`` ms.

    Newest first. The file keeps times in seconds, so both bounds are widened to a whole second.
    Stops at anything that cannot be a link of a chain. Raises FormatError for times that are none.
    """
    found: list[int] = []
    base: cython.Py_ssize_t = _entries_at(len(data), slots, 0)
    if key_hash < 0 or key_hash > _INT_MAX:
        raise ValueError(f"{key_hash} is no key hash")
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
    # The slot is set just before the entry is counted: the one behind the last may be there.
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
        # The first entry counts from the end of the file before this one.
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
    """How many entries, from the first on, were written and point before ``log_end``.

    Entries stand in the order of the log: the first one of zeros, or that points back, ends them.
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
    """Forget all but the entries below number ``keep``; the slots in use after that.

    Every chain is linked anew from the key hashes alone, which heals slots and links that an
    unclean stop left behind. ``used`` is how far entries may have been written; those are zeroed.
    Raises FormatError, and changes nothing, if an entry to keep has no key hash.
    """
    base: cython.Py_ssize_t = _entries_at(len(data), slots, max(keep, used))
    if keep < 1:
        raise ValueError(f"keep {keep}: entries count from 1")
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
