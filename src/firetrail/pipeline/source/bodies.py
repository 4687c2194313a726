"""Bodies that the producing client has compressed.

The sys flag says whether and how: zlib (also of clients that say nothing else), LZ4 frames, zstd.
Inflated bodies are bounded, because a few bytes can stand for very many.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from firetrail.errors import FormatError
from firetrail.format.layout import COMPRESSED

INFLATED_MAX = 64 << 20
"""Larger bodies are not inflated; RocketMQ's own limit is 4 MiB unless it is raised."""
BATCH_INFLATED_MAX = (1 << 31) - 1
_KIND = 0x700
_LZ4 = 0x100
_ZSTD = 0x200
_CODECS = {_LZ4: "lz4", _ZSTD: "zstd"}


def inflate(bodies: pa.Array, flags: memoryview, places: memoryview, *, lenient: bool) -> pa.Array:
    """The bodies with the compressed ones inflated; ``flags`` and ``places`` are of the same rows.

    Raises FormatError with the record's physical offset for one that does not inflate; ``lenient``
    makes it null.
    """
    compressed = [row for row in range(len(bodies)) if flags[row] & COMPRESSED]
    if not compressed:
        return bodies
    values: list[bytes | None] = bodies.to_pylist()
    for row in compressed:
        raw = values[row]
        assert raw is not None
        try:
            values[row] = inflate_one(raw, flags[row])
        except (ValueError, OSError, zlib.error) as error:
            if not lenient:
                raise FormatError(
                    "compressed body",
                    places[row],
                    f"{error}; read with decompress=false, or with mode=permissive to get null",
                ) from error
            values[row] = None
    if sum(len(value) for value in values if value) > BATCH_INFLATED_MAX:
        raise FormatError(
            "compressed bodies",
            places[0],
            f"together more than {BATCH_INFLATED_MAX} bytes; read with decompress=false",
        )
    return pa.array(values, pa.binary())


def inflate_one(raw: bytes, sys_flag: int) -> bytes:
    """One compressed body inflated. Raises ValueError, OSError or zlib.error if it is none."""
    codec = _CODECS.get(sys_flag & _KIND)
    if codec is None:
        inflater = zlib.decompressobj()
        body = inflater.decompress(raw, INFLATED_MAX)
        whole = inflater.eof
    else:
        with pa.input_stream(pa.py_buffer(raw), compression=codec) as stream:
            body = stream.read(INFLATED_MAX + 1)
        whole = len(raw) > 0 and len(body) <= INFLATED_MAX
    if not whole:
        raise ValueError(f"it is cut off, or more than {INFLATED_MAX} bytes long")
    return body
