"""Big-endian loads and stores, and searches of bytes, for kernels that run uncompiled.

Compiled kernels take the same names from ``_bigendian.pxd``, where C can inline them.
"""

from __future__ import annotations

from struct import Struct

_U32 = Struct(">I").unpack_from
_I32 = Struct(">i").unpack_from
_I64 = Struct(">q").unpack_from
_U64 = Struct(">Q").unpack_from
_LITTLE_U64 = Struct("<Q").unpack_from
_U16 = Struct(">H").unpack_from


def load_u32(b: memoryview, at: int) -> int:
    """Return the unsigned 32-bit integer at ``at``."""
    return int(_U32(b, at)[0])


def load_i32(b: memoryview, at: int) -> int:
    """Return the signed 32-bit integer at ``at``."""
    return int(_I32(b, at)[0])


def load_i64(b: memoryview, at: int) -> int:
    """Return the signed 64-bit integer at ``at``."""
    return int(_I64(b, at)[0])


def load_u64(b: memoryview, at: int) -> int:
    """Return the unsigned 64-bit integer at ``at``."""
    return int(_U64(b, at)[0])


def load_little_u64(b: memoryview, at: int) -> int:
    """Return the little-endian unsigned 64-bit integer at ``at``: its lowest byte is the first."""
    return int(_LITTLE_U64(b, at)[0])


def zeros_below(value: int) -> int:
    """Count the zeros below the lowest bit that is set; ``value`` must not be 0."""
    return (value & -value).bit_length() - 1


def load_u16(b: memoryview, at: int) -> int:
    """Return the unsigned 16-bit integer at ``at``."""
    return int(_U16(b, at)[0])


def will_change(b: memoryview, at: int) -> None:
    """Hint that ``b[at]`` will be read and written soon."""


def store_i16(b: memoryview, at: int, value: int) -> None:
    """Write the low 16 bits of ``value`` at ``at``."""
    b[at : at + 2] = (value & 0xFFFF).to_bytes(2, "big")


def store_i32(b: memoryview, at: int, value: int) -> None:
    """Write the low 32 bits of ``value`` at ``at``."""
    b[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")


def store_i64(b: memoryview, at: int, value: int) -> None:
    """Write the low 64 bits of ``value`` at ``at``."""
    b[at : at + 8] = (value & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big")


def copy_bytes(out: memoryview, at: int, source: memoryview, start: int, count: int) -> None:
    """Copy ``count`` bytes of ``source`` from ``start`` to ``out`` at ``at``."""
    out[at : at + count] = source[start : start + count]


def copy_from(out: memoryview, at: int, source: bytes, count: int) -> None:
    """Copy the first ``count`` bytes of ``source`` to ``out`` at ``at``.

    Takes no view of ``source``, which would cost more than a short copy.
    """
    out[at : at + count] = source[:count]


def find_byte(b: memoryview, byte: int, at: int, end: int) -> int:
    """Return the position of the first ``byte`` in ``b[at : end]``; ``end`` if there is none."""
    found = bytes(b[at:end]).find(byte)
    return end if found < 0 else at + found


def same_bytes(a: memoryview, at: int, b: memoryview, other: int, count: int) -> bool:
    """Return whether ``a`` at ``at`` and ``b`` at ``other`` have the same ``count`` bytes."""
    return bool(a[at : at + count] == b[other : other + count])


def lies_in(at: int, size: int, length: int) -> bool:
    """Return whether ``size`` bytes at ``at`` are inside a buffer of ``length`` bytes."""
    return 0 <= at <= length and 0 <= size <= length - at
