"""Java's ``String.hashCode`` over text that stands in a buffer as UTF-8."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

COMPILED = cython.compiled

_ALL_ONES = cython.declare(cython.uint, 0xFFFFFFFF)
_REPLACEMENT = cython.declare(cython.uint, 0xFFFD)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _continues(
    text: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    return at < end and (text[at] & 0xC0) == 0x80


def hash_utf8(
    text: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    start: cython.int,
) -> cython.int:
    """Continue the hash ``start`` over the UTF-16 code units of ``text[at : at + count]``.

    ``h = 31 * h + unit`` in 32 bits; bytes that are not UTF-8 count as U+FFFD.
    """
    h: cython.uint = cython.cast(cython.uint, start) & _ALL_ONES
    end: cython.Py_ssize_t = at + count
    c: cython.uint
    while at < end:
        c = text[at]
        at += 1
        if c >= 0x80:
            if 0xC2 <= c < 0xE0 and _continues(text, at, end):
                c = ((c & 0x1F) << 6) | (text[at] & 0x3F)
                at += 1
            elif 0xE0 <= c < 0xF0 and _continues(text, at, end) and _continues(text, at + 1, end):
                c = ((c & 0x0F) << 12) | ((text[at] & 0x3F) << 6) | (text[at + 1] & 0x3F)
                at += 2
                if c < 0x800 or 0xD800 <= c < 0xE000:
                    c = _REPLACEMENT
            elif (
                0xF0 <= c < 0xF5
                and _continues(text, at, end)
                and _continues(text, at + 1, end)
                and _continues(text, at + 2, end)
            ):
                c = (
                    ((c & 0x07) << 18)
                    | ((text[at] & 0x3F) << 12)
                    | ((text[at + 1] & 0x3F) << 6)
                    | (text[at + 2] & 0x3F)
                )
                at += 3
                c -= 0x10000
                h = (31 * h + (0xD800 | (c >> 10))) & _ALL_ONES
                c = 0xDC00 | (c & 0x3FF)
            else:
                c = _REPLACEMENT
        h = (31 * h + c) & _ALL_ONES
    if not cython.compiled:
        return h - 0x100000000 if h >= 0x80000000 else h
    return cython.cast(cython.int, h)
