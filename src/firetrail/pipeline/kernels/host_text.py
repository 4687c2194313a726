"""Hosts and ids as text, written directly from a record to a buffer.

The text forms are those of :mod:`~firetrail.format.values.hosts` and
:mod:`~firetrail.format.values.ids`.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import load_i32, load_u16, load_u64
else:
    from firetrail.format.kernels._bigendian import load_i32, load_u16, load_u64

COMPILED = cython.compiled

_GROUPS = cython.declare(cython.Py_ssize_t, 8)
_COLON = cython.declare(cython.uchar, 58)
_DOT = cython.declare(cython.uchar, 46)
_MINUS = cython.declare(cython.uchar, 45)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _digit(value: cython.longlong, ten: cython.int) -> cython.uchar:
    """Return a hex digit; ``ten`` is the letter for 10."""
    return value + 48 if value < 10 else value - 10 + ten


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number(
    out: cython.p_uchar, to: cython.Py_ssize_t, value: cython.longlong
) -> cython.Py_ssize_t:
    """Write a decimal number; return the position after it."""
    digits: cython.Py_ssize_t = 1
    rest: cython.longlong
    if value < 0:
        out[to] = _MINUS
        to += 1
        value = -value
    rest = value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    at: cython.Py_ssize_t = to + digits
    while at > to:
        at -= 1
        out[at] = 48 + value % 10
        value //= 10
    return to + digits


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _dotted(
    out: cython.p_uchar,
    to: cython.Py_ssize_t,
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    for i in range(4):
        if i > 0:
            out[to] = _DOT
            to += 1
        to = _number(out, to, data[at + i])
    return to


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _group(out: cython.p_uchar, to: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write 16 bits in hex, without leading zeros."""
    shift: cython.int = 12
    while shift > 0 and value >> shift == 0:
        shift -= 4
    while shift >= 0:
        out[to] = _digit((value >> shift) & 15, 97)
        to += 1
        shift -= 4
    return to


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _address_v6(
    out: cython.p_uchar,
    to: cython.Py_ssize_t,
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write an IPv6 address, with the first of the longest runs of zeros as ``::``."""
    i: cython.Py_ssize_t
    run: cython.Py_ssize_t = 0
    best: cython.Py_ssize_t = 1
    best_end: cython.Py_ssize_t = -1
    mapped: cython.bint = load_u64(data, at) == 0 and load_i32(data, at + 8) == 0xFFFF
    for i in range(_GROUPS):
        run = run + 1 if load_u16(data, at + 2 * i) == 0 else 0
        if run > best:
            best = run
            best_end = i + 1
    i = 0
    while i < _GROUPS:
        if i == best_end - best:
            out[to] = _COLON
            to += 1
            i = best_end
            if i == _GROUPS:
                out[to] = _COLON
                to += 1
            continue
        if i > 0:
            out[to] = _COLON
            to += 1
        if mapped and i == 6:
            return _dotted(out, to, data, at + 12)
        to = _group(out, to, load_u16(data, at + 2 * i))
        i += 1
    return to


def copy_host(
    out: cython.p_uchar,
    to: cython.Py_ssize_t,
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    v6: cython.bint,
) -> cython.Py_ssize_t:
    """Write the host at ``data[at]`` as ``ip:port`` or ``[ip]:port``; return the end position."""
    if v6:
        out[to] = 91
        to = _address_v6(out, to + 1, data, at)
        out[to] = 93
        to += 1
        at += 16
    else:
        to = _dotted(out, to, data, at)
        at += 4
    out[to] = _COLON
    return _number(out, to + 1, load_i32(data, at))


def copy_hex(
    out: cython.p_uchar,
    to: cython.Py_ssize_t,
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.void:
    """Write ``count`` bytes as twice as many upper-case hex digits."""
    i: cython.Py_ssize_t
    for i in range(count):
        out[to + 2 * i] = _digit(data[at + i] >> 4, 65)
        out[to + 2 * i + 1] = _digit(data[at + i] & 15, 65)
