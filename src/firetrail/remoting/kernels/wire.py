"""The splitter of a connection's bytes into frames."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import load_i32, load_u32
else:
    from firetrail.format.kernels._bigendian import load_i32, load_u32

COMPILED = cython.compiled

_PREFIX = cython.declare(cython.Py_ssize_t, 8)
_LENGTH = cython.declare(cython.Py_ssize_t, 4)
_MARK = cython.declare(cython.Py_ssize_t, 4)


def cut_frames(
    data: bytes, frame_max: cython.longlong, header_max: cython.longlong
) -> tuple[list[tuple[int, bytes, bytes]], int]:
    """Return mark, header and body of all complete frames, and the position of the rest.

    The rest is the beginning of a frame, or a frame that is longer than allowed.
    """
    found: list[tuple[int, bytes, bytes]] = []
    b: cython.pointer(cython.const[cython.uchar]) = data
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(data)
    length: cython.longlong
    header: cython.longlong
    body_at: cython.Py_ssize_t
    while end - at >= _PREFIX:
        length = load_i32(b, at)
        header = load_u32(b, at + _LENGTH) & 0xFFFFFF
        if not _MARK <= length <= frame_max or length > end - at - _LENGTH:
            break
        if header > length - _MARK or header > header_max:
            break
        body_at = at + _PREFIX + header
        found.append(
            (b[at + _LENGTH], data[at + _PREFIX : body_at], data[body_at : at + _LENGTH + length])
        )
        at += _LENGTH + length
    return found, at
