"""Headers of requests and their rules; blocks of headers of responses.

Responses use no table of headers. They have so few and short ones that constant bytes are cheaper
than compression, and no state can get out of step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from firetrail.proxy.http2.block_decoder import HeaderField

NO_TABLE = b"\x20"
"""Tells the client that the server's table has the size 0; precedes the first block."""
_OF_ONE_CONNECTION = frozenset(
    {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
)
_PSEUDO = frozenset({":method", ":scheme", ":path", ":authority"})


class MalformedError(Exception):
    """The headers of a request violate the rules of HTTP/2."""


@dataclass(slots=True)
class RequestHead:
    """The headers of a request."""

    method: str
    scheme: str
    path: str
    authority: str
    fields: dict[str, str]
    """The other headers; a repeated name has its last value."""
    content_length: int | None
    size: int = 0
    """Bytes of the compressed headers; what refers to the table of the connection takes few."""


def request_head(fields: Iterable[HeaderField]) -> RequestHead:
    """Check the headers of a request; raise MalformedError if they break a rule."""
    pseudo: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value, _ in fields:
        if name[:1] != ":":
            others[name] = value
        elif others or name in pseudo or name not in _PSEUDO:
            raise MalformedError
        else:
            pseudo[name] = value
    if "" in others:
        raise MalformedError
    _check_connection_fields(others)
    try:
        method, scheme, path = pseudo[":method"], pseudo[":scheme"], pseudo[":path"]
    except KeyError:
        raise MalformedError from None
    if not path:
        raise MalformedError
    authority = pseudo.get(":authority") or others.get("host", "")
    return RequestHead(method, scheme, path, authority, others, _content_length(others))


def check_trailers(fields: Iterable[HeaderField]) -> None:
    """Raise MalformedError if the fields after the data of a request break a rule."""
    for name, _, _ in fields:
        if not name or name[0] == ":":
            raise MalformedError


def _check_connection_fields(fields: dict[str, str]) -> None:
    if not _OF_ONE_CONNECTION.isdisjoint(fields) or fields.get("te", "trailers") != "trailers":
        raise MalformedError


def _content_length(fields: dict[str, str]) -> int | None:
    text = fields.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise MalformedError
    return int(text)


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
