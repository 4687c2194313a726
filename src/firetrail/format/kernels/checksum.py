"""CRC-32 as RocketMQ stores it: the usual polynomial, with the sign bit cleared.

Compiled, it runs without the GIL: by carry-less multiplication if the processor can
(``_clmul.pxd``), else sixteen bytes per step through sixteen tables. Uncompiled, it uses zlib.
"""

from __future__ import annotations

import zlib

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

COMPILED = cython.compiled

_POLYNOMIAL = cython.declare(cython.uint, 0xEDB88320)
_ALL_ONES = cython.declare(cython.uint, 0xFFFFFFFF)
_LOW_31 = cython.declare(cython.uint, 0x7FFFFFFF)
_TABLES = cython.declare(cython.uint[4096])
_CAN_FOLD = cython.declare(cython.bint, False)


def _fill_tables() -> None:
    """Fill the tables: table ``k`` advances the checksum over one byte and ``k`` zero bytes."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    crc: cython.uint
    for i in range(256):
        crc = i
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        _TABLES[i] = crc
    for k in range(256, 4096, 256):
        for i in range(256):
            crc = _TABLES[k - 256 + i]
            _TABLES[k + i] = (crc >> 8) ^ _TABLES[crc & 0xFF]


if cython.compiled:
    from cython.cimports.firetrail.format.kernels._clmul import can_fold, fold

    _fill_tables()
    _CAN_FOLD = can_fold()


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _step_16(
    crc: cython.uint, data: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t
) -> cython.uint:
    """Advance ``crc`` over sixteen bytes, each through the table of its distance to the last."""
    crc ^= (
        cython.cast(cython.uint, data[at])
        | (cython.cast(cython.uint, data[at + 1]) << 8)
        | (cython.cast(cython.uint, data[at + 2]) << 16)
        | (cython.cast(cython.uint, data[at + 3]) << 24)
    )
    return (
        _TABLES[3840 + (crc & 0xFF)]
        ^ _TABLES[3584 + ((crc >> 8) & 0xFF)]
        ^ _TABLES[3328 + ((crc >> 16) & 0xFF)]
        ^ _TABLES[3072 + (crc >> 24)]
        ^ _TABLES[2816 + data[at + 4]]
        ^ _TABLES[2560 + data[at + 5]]
        ^ _TABLES[2304 + data[at + 6]]
        ^ _TABLES[2048 + data[at + 7]]
        ^ _TABLES[1792 + data[at + 8]]
        ^ _TABLES[1536 + data[at + 9]]
        ^ _TABLES[1280 + data[at + 10]]
        ^ _TABLES[1024 + data[at + 11]]
        ^ _TABLES[768 + data[at + 12]]
        ^ _TABLES[512 + data[at + 13]]
        ^ _TABLES[256 + data[at + 14]]
        ^ _TABLES[data[at + 15]]
    )


def crc31(
    data: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.uint:
    """Return ``crc32(data[at : at + count]) & 0x7FFFFFFF``."""
    crc: cython.uint = _ALL_ONES
    end: cython.Py_ssize_t = at + count
    if cython.compiled:
        if count >= 16 and _CAN_FOLD:
            crc = fold(crc, cython.address(data[at]), count & ~15)
            at += count & ~15
    else:
        return zlib.crc32(data[at : at + count]) & _LOW_31
    while at + 16 <= end:
        crc = _step_16(crc, data, at)
        at += 16
    while at < end:
        crc = (crc >> 8) ^ _TABLES[(crc ^ data[at]) & 0xFF]
        at += 1
    return (crc ^ _ALL_ONES) & _LOW_31
