"""Offset ids of consecutive records."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import load_i32
else:
    from firetrail.format.kernels._bigendian import load_i32

COMPILED = cython.compiled

_HEX = cython.declare(bytes, b"0123456789ABCDEF")
_DIGITS = cython.declare(cython.Py_ssize_t, 16)
_COMMA = cython.declare(cython.uchar, 0x2C)


def join_ids(
    records: cython.const[cython.uchar][::1],
    count: cython.Py_ssize_t,
    physical_offset: cython.longlong,
    host: bytes,
) -> str:
    """Return the ids of ``count`` records, the first of which has this offset, joined by commas.

    ``host`` is the beginning of all ids. The result ends early if ``records`` does.
    """
    start: cython.Py_ssize_t = len(host)
    found: bytearray = bytearray(count * (start + _DIGITS + 1))
    out: cython.p_uchar = found
    head: cython.pointer(cython.const[cython.uchar]) = host
    to: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t
    size: cython.longlong
    end: cython.Py_ssize_t = len(records)
    b: cython.pointer(cython.const[cython.uchar])
    if end < 4:
        return ""
    if cython.compiled:
        b = cython.address(records[0])
    else:
        b = records
    while count > 0 and end - at >= 4:
        size = load_i32(b, at)
        if size <= 0 or size > end - at:
            break
        for place in range(start):
            out[to + place] = head[place]
        for place in range(_DIGITS):
            out[to + start + place] = _HEX[
                (physical_offset + at) >> (4 * (_DIGITS - 1 - place)) & 15
            ]
        to += start + _DIGITS + 1
        out[to - 1] = _COMMA
        at += size
        count -= 1
    return out[: to - 1].decode("ascii") if to else ""
