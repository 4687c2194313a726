"""Decompression of bodies: zlib, gzip, LZ4 and zstd.

The standard library has zlib and gzip, and from Python 3.14 on zstd. LZ4 and zstd otherwise need a
library: those of the extra ``compression``, or pyarrow, which comes with the extra ``spark``.

The size of the result is limited, because a few compressed bytes can expand to very many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
"""Maximum size of a decompressed body in bytes. RocketMQ's brokers accept bodies of up to 4 MiB
unless they are configured otherwise."""
PIECE = 1 << 10
"""Size of the input of a step of zstandard, which has no output limit: a step yields at most 32
MiB."""
ZLIB = "zlib"
LZ4 = "LZ4"
ZSTD = "zstd"
_NAMES = {0: ZLIB, COMPRESSION_ZLIB: ZLIB, COMPRESSION_LZ4: LZ4, COMPRESSION_ZSTD: ZSTD}


def method_of(sys_flag: int) -> str | None:
    """Return the name of the method in the flags of a message with a compressed body.

    Args:
        sys_flag: The flags of the message.

    Returns:
        None if the method is unknown. Bodies of the method ``ZLIB`` may also be gzip.
    """
    return _NAMES.get(sys_flag & COMPRESSION_MASK)


def inflated(raw: bytes, sys_flag: int, limit: int | None = None) -> bytes:
    """Decompress a body with the method in the flags of its message.

    Args:
        raw: The compressed body.
        sys_flag: The flags of the message.
        limit: The most bytes that the result may have. Default: INFLATED_MAX.

    Raises:
        FormatError: The method is unknown, as RocketMQ's clients report it; its library is not
            installed; or the body is not valid, cut off, or too long.
    """
    name = method_of(sys_flag)
    if name is None:
        method = (sys_flag & COMPRESSION_MASK) >> 8
        raise _format_error(f"compression method {method} is unknown")
    return _inflater(name)(raw, INFLATED_MAX if limit is None else limit)


Inflater = Callable[[bytes, int], bytes]
"""A function that decompresses bytes up to a maximum size, or raises FormatError."""


def _inflater(name: str) -> Inflater:
    """Return the decoder of a method that the first installed library has."""
    for module_name, make in _LIBRARIES[name]:
        try:
            module = import_module(module_name)
        except ImportError:
            continue
        return make(module)
    raise _format_error(f"{name} needs: pip install 'firetrail[compression]'")


def _zlib(module: Any) -> Inflater:
    return _streamed(ZLIB, lambda: module.decompressobj(ZLIB_OR_GZIP), module.error)


def _lz4(module: Any) -> Inflater:
    return _streamed(LZ4, module.LZ4FrameDecompressor, RuntimeError, EOFError)


def _standard_zstd(module: Any) -> Inflater:
    return _streamed(ZSTD, module.ZstdDecompressor, module.ZstdError)


def _zstandard(module: Any) -> Inflater:
    def stream() -> Any:
        return _ZstandardStream(module.ZstdDecompressor().decompressobj())

    return _streamed(ZSTD, stream, module.ZstdError)


def _arrow(name: str) -> Callable[[Any], Inflater]:
    def make(module: Any) -> Inflater:
        return _streamed(name, lambda: _ArrowStream(module, name.lower()), OSError)

    return make


_LIBRARIES: dict[str, Iterable[tuple[str, Callable[[Any], Inflater]]]] = {
    ZLIB: [("zlib", _zlib)],
    LZ4: [("lz4.frame", _lz4), ("pyarrow", _arrow(LZ4))],
    ZSTD: [
        ("compression.zstd", _standard_zstd),  # in Python 3.14 and later
        ("zstandard", _zstandard),
        ("pyarrow", _arrow(ZSTD)),
    ],
}


def _streamed(name: str, make: Callable[[], Any], *failures: type[Exception]) -> Inflater:
    """Return a decoder that uses objects with ``decompress(raw, limit)`` and ``eof``."""

    def decode(raw: bytes, limit: int) -> bytes:
        stream = make()
        try:
            body = stream.decompress(raw, limit)
        except failures as error:
            raise _format_error(f"it is not valid {name}: {error}") from None
        if not stream.eof:
            raise _format_error(f"it is cut off, or more than {limit} bytes long")
        return bytes(body)

    return decode


class _ZstandardStream:
    """A stream of zstandard with a limit."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.eof = False

    def decompress(self, raw: bytes, limit: int) -> bytes:
        """Decompress at most about ``limit`` bytes."""
        found: list[bytes] = []
        size = 0
        for at in range(0, len(raw), PIECE):
            found.append(self._stream.decompress(raw[at : at + PIECE]))
            size += len(found[-1])
            if size > limit:
                return b""
            if self._stream.eof:
                self.eof = True
                break
        return b"".join(found)


class _ArrowStream:
    """A decompressing stream of pyarrow."""

    def __init__(self, module: Any, codec: str) -> None:
        self._module = module
        self._codec = codec
        self.eof = False

    def decompress(self, raw: bytes, limit: int) -> bytes:
        """Decompress at most ``limit`` bytes; pyarrow itself refuses a stream that is cut off."""
        arrow = self._module
        with arrow.input_stream(arrow.py_buffer(raw), compression=self._codec) as stream:
            body: bytes = stream.read(limit + 1)
        self.eof = len(raw) > 0 and len(body) <= limit
        return body


def _format_error(detail: str) -> FormatError:
    return FormatError("compressed body", 0, detail)
