"""UTF-8 text in a buffer, read as Java reads it: its hash, and a copy of it.

Java reads bytes that are not UTF-8 as U+FFFD; so do the hash and the copy here.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import copy_bytes, load_u64
else:
    from firetrail.format.kernels._bigendian import copy_bytes, load_u64

COMPILED = cython.compiled

_ALL_ONES = cython.declare(cython.uint, 0xFFFFFFFF)
_REPLACEMENT = cython.declare(cython.uint, 0xFFFD)
_TOP_BITS = cython.declare(cython.ulonglong, 0x8080808080808080)
_BYTES = cython.declare(cython.ulonglong, 0x00FF00FF00FF00FF)
_PAIRS = cython.declare(cython.ulonglong, 0x0000FFFF0000FFFF)
_POWER_4 = cython.declare(cython.uint, 31**4)
_POWER_8 = cython.declare(cython.uint, 31**8 & 0xFFFFFFFF)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _character(
    text: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.uint:
    """Return the code point at ``at``, shifted left by 3 bits, with its number of bytes below.

    Malformed bytes are U+FFFD. As many are replaced by one as in Java's decoder: a lead byte and
    the bytes that continue it, including those of a surrogate (see ``java_text``).
    """
    c: cython.uint = text[at]
    low: cython.uint = 0x80  # the range of the byte after the lead byte
    high: cython.uint = 0xBF
    more: cython.uint
    start: cython.Py_ssize_t = at
    at += 1
    if c < 0x80:
        return (c << 3) | 1
    if c < 0xC2 or c > 0xF4:
        return (_REPLACEMENT << 3) | 1
    if c < 0xE0:
        more = 1
        c &= 0x1F
    elif c < 0xF0:
        more = 2
        if c == 0xE0:
            low = 0xA0
        c &= 0x0F
    else:
        more = 3
        if c == 0xF0:
            low = 0x90
        elif c == 0xF4:
            high = 0x8F
        c &= 0x07
    while more > 0 and at < end and low <= text[at] <= high:
        c = (c << 6) | (text[at] & 0x3F)
        low = 0x80
        high = 0xBF
        at += 1
        more -= 1
    if more > 0 or 0xD800 <= c < 0xE000:
        c = _REPLACEMENT
    return (c << 3) | cython.cast(cython.uint, at - start)


def hash_utf8(
    text: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    start: cython.int,
) -> cython.int:
    """Continue the hash ``start`` over the UTF-16 code units of ``text[at : at + count]``.

    ``h = 31 * h + unit`` in 32 bits; bytes that are not UTF-8 count as U+FFFD. ASCII is processed
    eight bytes per step: neighbours are added up in lanes of 16, then of 32 bits.
    """
    h: cython.uint = cython.cast(cython.uint, start) & _ALL_ONES
    end: cython.Py_ssize_t = at + count
    c: cython.uint
    word: cython.ulonglong
    while at < end:
        if end - at >= 8:
            word = load_u64(text, at)
            if not word & _TOP_BITS:
                word = ((word >> 8) & _BYTES) * 31 + (word & _BYTES)
                word = ((word >> 16) & _PAIRS) * 961 + (word & _PAIRS)
                c = cython.cast(cython.uint, word >> 32) * _POWER_4 + cython.cast(
                    cython.uint, word & _ALL_ONES
                )
                h = (h * _POWER_8 + c) & _ALL_ONES
                at += 8
                continue
        c = text[at]
        if c < 0x80:
            at += 1
        else:
            c = _character(text, at, end)
            at += c & 7
            c >>= 3
            if c >= 0x10000:
                h = (31 * h + (0xD7C0 + (c >> 10))) & _ALL_ONES
                c = 0xDC00 | (c & 0x3FF)
        h = (31 * h + c) & _ALL_ONES
    if not cython.compiled:
        return h - 0x100000000 if h >= 0x80000000 else h
    return cython.cast(cython.int, h)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _ascii_until(
    text: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the position of the first byte in ``text[at : end]`` that is not ASCII, or ``end``."""
    while end - at >= 8 and not load_u64(text, at) & _TOP_BITS:
        at += 8
    while at < end and text[at] < 0x80:
        at += 1
    return at


def text_size(
    text: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the size of the result of :func:`copy_text`: at most three bytes per byte of text."""
    end: cython.Py_ssize_t = at + count
    c: cython.uint
    at = _ascii_until(text, at, end)
    while at < end:
        c = _character(text, at, end)
        at += c & 7
        if c >> 3 == _REPLACEMENT:
            count += 3 - cython.cast(cython.Py_ssize_t, c & 7)
        at = _ascii_until(text, at, end)
    return count


def copy_text(
    out: cython.p_uchar,
    to: cython.Py_ssize_t,
    text: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy ``text[at : at + count]`` to ``out`` at ``to`` as valid UTF-8; return its end."""
    end: cython.Py_ssize_t = at + count
    c: cython.uint
    size: cython.Py_ssize_t
    while at < end:
        while end - at >= 8 and not load_u64(text, at) & _TOP_BITS:
            copy_bytes(out, to, text, at, 8)
            at += 8
            to += 8
        while at < end and text[at] < 0x80:
            out[to] = text[at]
            at += 1
            to += 1
        if at < end and text[at] >= 0x80:
            c = _character(text, at, end)
            size = c & 7
            if c >> 3 == _REPLACEMENT:
                out[to] = 0xEF
                out[to + 1] = 0xBF
                out[to + 2] = 0xBD
                to += 3
            else:
                copy_bytes(out, to, text, at, size)
                to += size
            at += size
    return to
