"""Blocks of headers of responses.

Responses use no table of headers. They have so few and short ones that constant bytes are cheaper
than compression, and no state can get out of step.
"""

from collections.abc import Iterable

NO_TABLE = b"\x20"
"""Tells the client that the server's table has the size 0; precedes the first block."""


def encode_block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a block of literal headers, which refers to no table."""
    parts: list[bytes] = []
    for name, value in fields:
        parts += (b"\0", _text(name), _text(value))
    return b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode("ascii")
    return _prefixed(len(data)) + data


def _prefixed(number: int) -> bytes:
    """Return a number with the 7-bit prefix of HPACK (RFC 7541, section 5.1)."""
    if number < 127:
        return bytes([number])
    out = bytearray([127])
    number -= 127
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
