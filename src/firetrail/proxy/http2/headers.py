"""Blocks of headers: decoding and checking those of requests, encoding those of responses.

Responses use no table of headers. Theirs are so few and so short that constant bytes are cheaper
than compression, and no state can get out of step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import hpack

from firetrail.proxy.http2.codes import Http2Error
from firetrail.proxy.http2.faults import ConnectionFault
from firetrail.proxy.http2.limits import Http2Limits

NO_TABLE = b"\x20"
"""Tells the client that the server's table has the size 0; precedes the first block."""
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile("[\0\r\n]|^[ \t]|[ \t]$")
_OF_ONE_CONNECTION = frozenset(
    {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
)
_PSEUDO = frozenset({":method", ":scheme", ":path", ":authority"})
_KNOWN_NAMES_MAX = 512

_known_names: dict[bytes, str] = {}  # names that were checked, at most _KNOWN_NAMES_MAX

Fields = list[tuple[bytes, bytes]]


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


class BlockDecoder:
    """Decodes the blocks of one connection, which depend on each other."""

    __slots__ = ("_decoder",)

    def __init__(self, limits: Http2Limits) -> None:
        self._decoder = hpack.Decoder(limits.header_list_bytes)
        self._decoder.max_allowed_table_size = limits.header_table_bytes
        self._decoder.header_table_size = limits.header_table_bytes

    def decode(self, block: bytes) -> Fields:
        """Return names and values; raise ConnectionFault if the state of the table is lost."""
        try:
            return list(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError:
            raise ConnectionFault(
                Http2Error.ENHANCE_YOUR_CALM, "the headers of a request are too long"
            ) from None
        except hpack.HPACKError:
            raise ConnectionFault(
                Http2Error.COMPRESSION_ERROR, "a block of headers cannot be decoded"
            ) from None


def request_head(fields: Fields) -> RequestHead:
    """Check the headers of a request; raise MalformedError if they break a rule."""
    pseudo: dict[str, str] = {}
    others: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name = _known_names.get(raw_name) or _checked_name(raw_name)
        value = raw_value.decode("utf-8", "replace")
        if (not value.isprintable() or value[:1] == " " or value[-1:] == " ") and (
            _BAD_VALUE.search(value)
        ):
            raise MalformedError
        if name[0] != ":":
            others[name] = value
        elif others or name in pseudo or name not in _PSEUDO:
            raise MalformedError
        else:
            pseudo[name] = value
    _check_connection_fields(others)
    try:
        method, scheme, path = pseudo[":method"], pseudo[":scheme"], pseudo[":path"]
    except KeyError:
        raise MalformedError from None
    if not path:
        raise MalformedError
    authority = pseudo.get(":authority") or others.get("host", "")
    return RequestHead(method, scheme, path, authority, others, _content_length(others))


def check_trailers(fields: Fields) -> None:
    """Raise MalformedError if the fields after the data of a request break a rule."""
    for raw_name, _ in fields:
        if (_known_names.get(raw_name) or _checked_name(raw_name))[0] == ":":
            raise MalformedError


def _checked_name(raw_name: bytes) -> str:
    if not _NAME.fullmatch(raw_name):
        raise MalformedError
    name = raw_name.decode("ascii")
    if len(_known_names) < _KNOWN_NAMES_MAX:
        _known_names[raw_name] = name
    return name


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
