"""The conversion of messages in Arrow arrays to the items of a client batch."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import (
        copy_bytes,
        store_i16,
        store_i32,
        store_i64,
    )
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import copy_bytes, store_i16, store_i32, store_i64

COMPILED = cython.compiled


def pack_items(
    body_ends: cython.const[cython.int][::1],
    bodies: cython.const[cython.uchar][::1],
    property_ends: cython.const[cython.int][::1],
    properties: cython.const[cython.uchar][::1],
    picks: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    out: cython.uchar[::1],
) -> tuple[int, int]:
    """Write the rows ``picks[first:]`` as items until ``out`` is full; return (next pick, bytes).

    Row *n* has the bytes from ``ends[n]`` to ``ends[n + 1]`` of bodies and of properties. Raise
    ValueError for a row that does not exist, or whose properties are too long for an item.
    """
    rows: cython.Py_ssize_t = min(len(body_ends), len(property_ends)) - 1
    room: cython.Py_ssize_t = len(out)
    count: cython.Py_ssize_t = len(picks)
    at: cython.Py_ssize_t = 0
    row: cython.longlong
    body_at: cython.Py_ssize_t
    body: cython.Py_ssize_t
    own_at: cython.Py_ssize_t
    own: cython.Py_ssize_t
    size: cython.Py_ssize_t
    target: cython.p_uchar
    body_data: cython.pointer(cython.const[cython.uchar])
    own_data: cython.pointer(cython.const[cython.uchar])
    if first < 0 or room == 0 or len(bodies) == 0 or len(properties) == 0:
        raise ValueError("no room, or no buffer")
    if cython.compiled:
        target = cython.address(out[0])
        body_data = cython.address(bodies[0])
        own_data = cython.address(properties[0])
    else:
        target = out
        body_data = bodies
        own_data = properties
    while first < count:
        row = picks[first]
        if row < 0 or row >= rows:
            raise ValueError(f"row {row} of {rows}")
        body_at = body_ends[row]
        body = body_ends[row + 1] - body_at
        own_at = property_ends[row]
        own = property_ends[row + 1] - own_at
        if body_at < 0 or body < 0 or body > len(bodies) - body_at:
            raise ValueError(f"the body of row {row} is not in its buffer")
        if own_at < 0 or own < 0 or own > len(properties) - own_at or own > k.PROPERTIES_MAX:
            raise ValueError(f"the properties of row {row} are not in their buffer, or too long")
        size = k.ITEM_HEAD + body + 2 + own
        if size > room - at:
            break
        store_i32(target, at, size)
        store_i64(target, at + 4, 0)
        store_i32(target, at + k.ITEM_FLAG, 0)
        store_i32(target, at + k.ITEM_BODY_LENGTH, body)
        copy_bytes(target, at + k.ITEM_HEAD, body_data, body_at, body)
        store_i16(target, at + k.ITEM_HEAD + body, own)
        copy_bytes(target, at + k.ITEM_HEAD + body + 2, own_data, own_at, own)
        at += size
        first += 1
    return first, at
