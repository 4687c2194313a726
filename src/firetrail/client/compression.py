"""Decompression of bodies: zlib, gzip, and with the extra ``compression`` also LZ4 and zstd.

From Python 3.14 on, zstd is part of the standard library and needs no extra.

The size of the result is limited, because a few compressed bytes can expand to very many.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from firetrail.errors import FormatError
from firetrail.format.layout import (
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    ZLIB_OR_GZIP,
)

INFLATED_MAX = 64 << 20
"""The most bytes that a decompressed body may have."""
PIECE = 1 << 10
"""Input per step for zstandard, which has no output limit: a step yields at most 32 MiB."""
ZLIB = "zlib"
_NAMES = {0: ZLIB, COMPRESSION_ZLIB: ZLIB, COMPRESSION_LZ4: "LZ4", COMPRESSION_ZSTD: "zstd"}
_MODULES = {
    ZLIB: ("zlib",),
    "LZ4": ("lz4.frame",),
    "zstd": ("compression.zstd", "zstandard"),  # the first is in Python 3.14 and later
}


def method_of(sys_flag: int) -> str | None:
    """Return the name of the method in the flags of a message with a compressed body.

    Args:
        sys_flag: the flags of the message.

    Returns:
        None if the method is unknown. Bodies of the method ``ZLIB`` may also be gzip.
    """
    return _NAMES.get(sys_flag & COMPRESSION_MASK)


def inflated(raw: bytes, sys_flag: int, limit: int | None = None) -> bytes:
    """Decompress a body with the method in the flags of its message, or raise FormatError.

    Args:
        raw: the compressed body.
        sys_flag: the flags of the message.
        limit: the most bytes that the result may have. Default: INFLATED_MAX.
    """
    limit = INFLATED_MAX if limit is None else limit
    name = method_of(sys_flag)
    if name is None:
        method = (sys_flag & COMPRESSION_MASK) >> 8
        raise _format_error(f"compression method {method} is unknown")
    module = _import_first(_MODULES[name])
    if module is None:
        raise _format_error(f"{name} needs: pip install 'firetrail[compression]'")
    in_pieces = module.__name__ == "zstandard"
    stream: Any
    failures: tuple[type[Exception], ...]
    if name == ZLIB:
        stream, failures = zlib.decompressobj(ZLIB_OR_GZIP), (zlib.error,)
    elif name == "LZ4":
        stream, failures = module.LZ4FrameDecompressor(), (RuntimeError, EOFError)
    else:
        stream, failures = module.ZstdDecompressor(), (module.ZstdError,)
        if in_pieces:
            stream = stream.decompressobj()
    try:
        body = _in_pieces(stream, raw, limit) if in_pieces else stream.decompress(raw, limit)
    except failures as error:
        raise _format_error(f"it is not valid {name}: {error}") from None
    if not stream.eof:
        raise _format_error(f"it is cut off, or more than {limit} bytes long")
    return bytes(body)


def _import_first(names: Iterable[str]) -> Any:
    """Import the first module that is installed; return ``None`` if there is none."""
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def _in_pieces(stream: Any, raw: bytes, limit: int) -> bytes:
    found: list[bytes] = []
    size = 0
    for at in range(0, len(raw), PIECE):
        found.append(stream.decompress(raw[at : at + PIECE]))
        size += len(found[-1])
        if stream.eof:
            break
        if size > limit:
            raise _format_error(f"it is more than {limit} bytes long")
    return b"".join(found)


def _format_error(detail: str) -> FormatError:
    return FormatError("compressed body", 0, detail)
