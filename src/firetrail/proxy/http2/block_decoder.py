"""Blocks of compressed headers (HPACK, RFC 7541) as names and values.

The library ``hpack`` has the static table and decodes Huffman codes. The loop over the fields is
our own, because it runs for every call: it decodes and checks a field once when it enters the table
of the connection, and not again each time that a block refers to it.
"""

from __future__ import annotations

import re

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from firetrail.proxy.http2.codes import Http2Error
from firetrail.proxy.http2.faults import ConnectionFault
from firetrail.proxy.http2.limits import Http2Limits

HeaderField = tuple[str, str, int]
"""Name, value and size of a header. The name is empty if the name or the value is not allowed."""

_FIELD_BYTES = 32
"""Bytes that HPACK adds to the length of name and value, for the memory that a field takes."""
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile("[\0\r\n]|^[ \t]|[ \t]$")
_KNOWN_NAMES_MAX = 512
_INTEGER_BYTES_MAX = 4

_known_names: dict[bytes, str] = {}  # names that were checked, at most _KNOWN_NAMES_MAX


def _checked(raw_name: bytes, raw_value: bytes) -> HeaderField:
    """Return a field as text."""
    size = len(raw_name) + len(raw_value) + _FIELD_BYTES
    name = _known_names.get(raw_name) or _checked_name(raw_name)
    value = raw_value.decode("utf-8", "replace")
    if not value.isprintable() or value[:1] == " " or value[-1:] == " ":
        name = "" if _BAD_VALUE.search(value) else name
    return name, value, size


def _checked_name(raw_name: bytes) -> str:
    if not _NAME.fullmatch(raw_name):
        return ""
    name = raw_name.decode("ascii")
    if len(_known_names) < _KNOWN_NAMES_MAX:
        _known_names[raw_name] = name
    return name


_STATIC: tuple[HeaderField, ...] = (
    ("", "", 0),  # indexes start at 1
    *(_checked(name, value) for name, value in HeaderTable.STATIC_TABLE),
)
_STATIC_NAMES = (b"", *(name for name, _ in HeaderTable.STATIC_TABLE))
_STATIC_SIZE = len(HeaderTable.STATIC_TABLE)
_LAST_STATIC = 0x80 + _STATIC_SIZE
"""The byte that stands for the last field of the static table."""


class BlockDecoder:
    """Decodes the blocks of one connection, which share a table."""

    __slots__ = ("_allowed", "_at", "_list_max", "_names", "_table", "_table_bytes", "_table_max")

    def __init__(self, limits: Http2Limits) -> None:
        self._list_max = limits.header_list_bytes
        self._allowed = self._table_max = limits.header_table_bytes
        self._table: list[HeaderField] = []  # the newest field is the last
        self._names: list[bytes] = []  # their names as they were sent
        self._table_bytes = 0
        self._at = 0  # the position in the block

    def decode(self, block: bytes) -> list[HeaderField]:
        """Return the fields of a block; raise ConnectionFault if the table is lost by it."""
        try:
            return self._decode(block)
        except (IndexError, HPACKError):
            raise _undecodable() from None

    def _decode(self, block: bytes) -> list[HeaderField]:
        fields: list[HeaderField] = []
        table = self._table
        left = self._list_max
        at, end = 0, len(block)
        while at < end:
            first = block[at]
            at += 1
            if 0x80 < first <= _LAST_STATIC:  # most fields are of this kind or the next one
                field = _STATIC[first & 0x7F]
            elif _LAST_STATIC < first < min(0xFF, _LAST_STATIC + 1 + len(table)):
                field = table[_LAST_STATIC - first]
            elif first & 0xE0 == 0x20:
                if fields:
                    raise _undecodable()
                self._at = at
                self._resize(self._integer(block, 0x1F) if first & 0x1F == 0x1F else first & 0x1F)
                at = self._at
                continue
            else:
                self._at = at
                field = self._indexed(block, first) if first & 0x80 else self._literal(block, first)
                at = self._at
            left -= field[2]
            if left < 0:
                raise ConnectionFault(
                    Http2Error.ENHANCE_YOUR_CALM, "the headers of a request are too long"
                )
            fields.append(field)
        return fields

    def _indexed(self, block: bytes, first: int) -> HeaderField:
        index = first & 0x7F
        return self._field(index if index < 0x7F else self._integer(block, 0x7F))

    def _field(self, index: int) -> HeaderField:
        if index <= _STATIC_SIZE:
            if not index:
                raise _undecodable()
            return _STATIC[index]
        index -= _STATIC_SIZE
        if index > len(self._table):
            raise _undecodable()
        return self._table[-index]

    def _name(self, index: int) -> bytes:
        self._field(index)  # checks the index
        return _STATIC_NAMES[index] if index <= _STATIC_SIZE else self._names[_STATIC_SIZE - index]

    def _literal(self, block: bytes, first: int) -> HeaderField:
        mask = 0x3F if first & 0x40 else 0x0F
        index = first & mask
        if index == mask:
            index = self._integer(block, mask)
        raw_name = self._name(index) if index else self._string(block)
        field = _checked(raw_name, self._string(block))
        if first & 0x40:
            self._add(field, raw_name)
        return field

    def _string(self, block: bytes) -> bytes:
        first = block[self._at]
        self._at = start = self._at + 1
        size = first & 0x7F
        if size == 0x7F:
            size = self._integer(block, 0x7F)
            start = self._at
        self._at = start + size
        if self._at > len(block):
            raise _undecodable()
        text = block[start : self._at]
        return decode_huffman(text) if first & 0x80 else text

    def _integer(self, block: bytes, number: int) -> int:
        """Return a number whose prefix has all bits set, from the bytes that follow."""
        for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
            byte = block[self._at]
            self._at += 1
            number += (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise _undecodable()

    # -- the table ----------------------------------------------------------------------------

    def _add(self, field: HeaderField, raw_name: bytes) -> None:
        self._table.append(field)
        self._names.append(raw_name)
        self._table_bytes += field[2]
        if self._table_bytes > self._table_max:
            self._evict()

    def _resize(self, size: int) -> None:
        if size > self._allowed:
            raise _undecodable()
        self._table_max = size
        self._evict()

    def _evict(self) -> None:
        count = 0
        while self._table_bytes > self._table_max:
            self._table_bytes -= self._table[count][2]
            count += 1
        del self._table[:count]
        del self._names[:count]


def _undecodable() -> ConnectionFault:
    return ConnectionFault(Http2Error.COMPRESSION_ERROR, "a block of headers cannot be decoded")
