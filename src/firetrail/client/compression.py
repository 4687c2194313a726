"""Decompression of bodies: zlib, and with the extra ``compression`` also LZ4 and zstd.

The size of the result is limited, because a few compressed bytes can expand to very many.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any

from firetrail.errors import FormatError

INFLATED_MAX = 64 << 20
"""The most bytes that a decompressed body may have."""
PIECE = 1 << 10
"""Input per step for zstd, which has no output limit: a step yields at most 32 MiB."""
_KIND = 0x700
_NAMES = {0x000: "zlib", 0x100: "LZ4", 0x200: "zstd", 0x300: "zlib"}
_MODULES = {"zlib": "zlib", "LZ4": "lz4.frame", "zstd": "zstandard"}


def inflated(raw: bytes, sys_flag: int) -> bytes:
    """Decompress a body with the method in the flags of its message, or raise FormatError."""
    name = _NAMES.get(sys_flag & _KIND)
    if name is None:
        raise _format_error(f"compression method {(sys_flag & _KIND) >> 8} is unknown")
    try:
        module = import_module(_MODULES[name])
    except ImportError:
        raise _format_error(f"{name} needs: pip install 'firetrail[compression]'") from None
    stream: Any
    failures: tuple[type[Exception], ...]
    if name == "zlib":
        stream, failures = zlib.decompressobj(), (zlib.error,)
    elif name == "LZ4":
        stream, failures = module.LZ4FrameDecompressor(), (RuntimeError, EOFError)
    else:
        stream, failures = module.ZstdDecompressor().decompressobj(), (module.ZstdError,)
    try:
        body = _in_pieces(stream, raw) if name == "zstd" else stream.decompress(raw, INFLATED_MAX)
    except failures as error:
        raise _format_error(str(error)) from None
    if not stream.eof:
        raise _format_error(f"it is cut off, or more than {INFLATED_MAX} bytes long")
    return bytes(body)


def _in_pieces(stream: Any, raw: bytes) -> bytes:
    found: list[bytes] = []
    size = 0
    for at in range(0, len(raw), PIECE):
        found.append(stream.decompress(raw[at : at + PIECE]))
        size += len(found[-1])
        if stream.eof:
            break
        if size > INFLATED_MAX:
            raise _format_error(f"it is more than {INFLATED_MAX} bytes long")
    return b"".join(found)


def _format_error(detail: str) -> FormatError:
    return FormatError("compressed body", 0, f"{detail}; record.body is the compressed body")
