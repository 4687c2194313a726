"""Decompression of bodies that the producing client compressed.

The sys flag gives the method: zlib or gzip (also if no method is set), LZ4 frames or zstd. The
size of decompressed bodies is limited, because a few bytes can expand to very many.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from firetrail.errors import FormatError
from firetrail.format.layout import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZSTD,
    ZLIB_OR_GZIP,
)

INFLATED_MAX = 64 << 20
"""Larger bodies are not decompressed; RocketMQ's own limit is 4 MiB unless configured higher."""
BATCH_INFLATED_MAX = (1 << 31) - 1
_CODECS = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}


def inflate(bodies: pa.Array, flags: memoryview, places: memoryview, *, lenient: bool) -> pa.Array:
    """Decompress the compressed ones of ``bodies``.

    ``flags`` and ``places`` are the sys flags and physical offsets of the same rows. A body that
    cannot be decompressed raises FormatError with the physical offset, or is null if ``lenient``.
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
            f"have more than {BATCH_INFLATED_MAX} bytes together; read with decompress=false",
        )
    return pa.array(values, pa.binary())


def inflate_one(raw: bytes, sys_flag: int) -> bytes:
    """Decompress one body; raise ValueError, OSError or zlib.error if it is not valid."""
    codec = _CODECS.get(sys_flag & COMPRESSION_MASK)
    if codec is None:
        inflater = zlib.decompressobj(ZLIB_OR_GZIP)
        body = inflater.decompress(raw, INFLATED_MAX)
        whole = inflater.eof
    else:
        with pa.input_stream(pa.py_buffer(raw), compression=codec) as stream:
            body = stream.read(INFLATED_MAX + 1)
        whole = len(raw) > 0 and len(body) <= INFLATED_MAX
    if not whole:
        raise ValueError(f"it is truncated, or longer than {INFLATED_MAX} bytes")
    return body
