"""Blocks of compressed headers (HPACK, RFC 7541) as names and values.

The library ``hpack`` has the static table and the table of Huffman codes. The loop over the fields
is our own, because it runs for every call: it decodes and checks a field once when it enters the
table of the connection, and not again each time that a block refers to it.
"""

from __future__ import annotations

import re
from typing import Any

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from hpack.table import HeaderTable

from firetrail.proxy.http2.codes import Http2Error
from firetrail.proxy.http2.faults import ConnectionFault
from firetrail.proxy.http2.limits import Http2Limits

COMPILED = cython.compiled

HeaderField = tuple[str, str, int]
"""Name, value and size of a header. The name is empty if the name or the value is not allowed."""

_FIELD_BYTES = cython.declare(cython.Py_ssize_t, 32)
"""Bytes that HPACK adds to the length of name and value, for the memory that a field takes."""
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile("[\0\r\n]|^[ \t]|[ \t]$")
KNOWN_NAMES_MAX = 512
"""Maximum number of names that are remembered for all connections: those of all clients, and some
of strangers."""
KNOWN_NAME_BYTES = 64
"""Maximum length of a remembered name. Clients use shorter ones, and a stranger may send names as
long as a block of headers, which would stay in memory for ever."""
_INTEGER_BITS_MAX = cython.declare(cython.int, 28)  # of a number after its prefix

known_names: dict[bytes, str] = {}
"""Names that were checked: at most KNOWN_NAMES_MAX, of at most KNOWN_NAME_BYTES each."""
_known: dict[bytes, str] = cython.declare(dict, known_names)

_COMPLETE = cython.declare(cython.int, HUFFMAN_COMPLETE)
_EMIT = cython.declare(cython.int, HUFFMAN_EMIT_SYMBOL)
_FAIL = cython.declare(cython.int, HUFFMAN_FAIL)
_next_states = cython.declare(cython.uchar[4096])
_flags = cython.declare(cython.uchar[4096])
_symbols = cython.declare(cython.uchar[4096])
for _index in range(len(HUFFMAN_TABLE)):
    _next_states[_index], _flags[_index], _symbols[_index] = HUFFMAN_TABLE[_index]


@cython.cfunc
def _checked(raw_name: bytes, raw_value: bytes) -> tuple[str, str, int]:
    size: cython.Py_ssize_t = len(raw_name) + len(raw_value) + _FIELD_BYTES
    name: Any = _known.get(raw_name)
    if name is None:
        name = _checked_name(raw_name)
    value: str = raw_value.decode("utf-8", "replace")
    if not _is_plain(raw_value) and _BAD_VALUE.search(value):
        name = ""
    return name, value, size


@cython.cfunc
def _is_plain(value: bytes) -> cython.bint:
    """Whether a value is printable ASCII without spaces at its ends."""
    source: cython.pointer(cython.const[cython.uchar]) = value
    size: cython.Py_ssize_t = len(value)
    at: cython.Py_ssize_t
    if size == 0:
        return True
    for at in range(size):
        if not 0x20 <= source[at] < 0x7F:
            return False
    return source[0] != 0x20 and source[size - 1] != 0x20


@cython.cfunc
def _checked_name(raw_name: bytes) -> str:
    if not _NAME.fullmatch(raw_name):
        return ""
    name = raw_name.decode("ascii")
    if len(_known) < KNOWN_NAMES_MAX and len(raw_name) <= KNOWN_NAME_BYTES:
        _known[raw_name] = name
    return name


_STATIC: list[HeaderField] = cython.declare(
    list,
    [
        ("", "", 0),  # indexes start at 1
        *[_checked(name, value) for name, value in HeaderTable.STATIC_TABLE],
    ],
)
_STATIC_NAMES: list[bytes] = cython.declare(
    list, [b"", *[name for name, _ in HeaderTable.STATIC_TABLE]]
)
_STATIC_SIZE = cython.declare(cython.Py_ssize_t, len(HeaderTable.STATIC_TABLE))


@cython.cclass
class BlockDecoder:
    """Decodes the blocks of one connection, which share a table."""

    _allowed: cython.longlong
    _at: cython.Py_ssize_t
    _list_max: cython.longlong
    _names: list[bytes]
    _table: list[HeaderField]
    _table_bytes: cython.longlong
    _table_max: cython.longlong

    def __init__(self, limits: Http2Limits) -> None:
        self._list_max = limits.header_list_bytes
        self._allowed = self._table_max = limits.header_table_bytes
        self._table = []  # the newest field is the last
        self._names = []  # their names as they were sent
        self._table_bytes = 0
        self._at = 0  # the position in the block

    def decode(self, block: bytes) -> list[HeaderField]:
        """Return the fields of a block; raise ConnectionFault if the table is lost by it."""
        fields: list[HeaderField] = []
        field: tuple[str, str, int]
        source: cython.pointer(cython.const[cython.uchar]) = block
        end: cython.Py_ssize_t = len(block)
        left: cython.longlong = self._list_max
        first: cython.int
        size: cython.longlong
        self._at = 0
        while self._at < end:
            first = source[self._at]
            self._at += 1
            if first & 0x80:
                field = self._field(self._number(block, first, 0x7F))
            elif first & 0xE0 == 0x20:
                if fields:
                    raise _undecodable()
                self._resize(self._number(block, first, 0x1F))
                continue
            else:
                field = self._literal(block, first)
            size = field[2]
            left -= size
            if left < 0:
                raise ConnectionFault(
                    Http2Error.ENHANCE_YOUR_CALM, "the headers of a request are too long"
                )
            fields.append(field)
        return fields

    @cython.cfunc
    def _field(self, index: cython.Py_ssize_t) -> tuple[str, str, int]:
        count: cython.Py_ssize_t
        if index <= _STATIC_SIZE:
            if index == 0:
                raise _undecodable()
            return _STATIC[index]
        index -= _STATIC_SIZE
        count = len(self._table)
        if index > count:
            raise _undecodable()
        return self._table[count - index]

    @cython.cfunc
    def _name(self, index: cython.Py_ssize_t) -> bytes:
        count: cython.Py_ssize_t
        if index <= _STATIC_SIZE:
            return _STATIC_NAMES[index]
        index -= _STATIC_SIZE
        count = len(self._names)
        if index > count:
            raise _undecodable()
        return self._names[count - index]

    @cython.cfunc
    def _literal(self, block: bytes, first: cython.int) -> tuple[str, str, int]:
        index: cython.Py_ssize_t = self._number(block, first, 0x3F if first & 0x40 else 0x0F)
        raw_name: bytes = self._name(index) if index else self._string(block)
        field: tuple[str, str, int] = _checked(raw_name, self._string(block))
        if first & 0x40:
            self._add(field, raw_name)
        return field

    @cython.cfunc
    def _string(self, block: bytes) -> bytes:
        source: cython.pointer(cython.const[cython.uchar]) = block
        end: cython.Py_ssize_t = len(block)
        first: cython.int
        start: cython.Py_ssize_t
        if self._at >= end:
            raise _undecodable()
        first = source[self._at]
        self._at += 1
        size: cython.Py_ssize_t = self._number(block, first, 0x7F)
        start = self._at
        if size > end - start:
            raise _undecodable()
        self._at = start + size
        if first & 0x80:
            return _from_huffman(block, start, self._at)
        return block[start : self._at]

    @cython.cfunc
    def _number(self, block: bytes, first: cython.int, mask: cython.int) -> cython.Py_ssize_t:
        """Return a number that begins in a byte, and continues after it if all bits are set."""
        source: cython.pointer(cython.const[cython.uchar]) = block
        end: cython.Py_ssize_t = len(block)
        number: cython.Py_ssize_t = first & mask
        shift: cython.int = 0
        byte: cython.int
        if number < mask:
            return number
        while shift < _INTEGER_BITS_MAX and self._at < end:
            byte = source[self._at]
            self._at += 1
            number += (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise _undecodable()

    # -- the table ----------------------------------------------------------------------------

    @cython.cfunc
    def _add(self, field: tuple[str, str, int], raw_name: bytes) -> cython.void:
        size: cython.longlong = field[2]
        self._table.append(field)
        self._names.append(raw_name)
        self._table_bytes += size
        if self._table_bytes > self._table_max:
            self._evict()

    @cython.cfunc
    def _resize(self, size: cython.longlong) -> cython.void:
        if size > self._allowed:
            raise _undecodable()
        self._table_max = size
        self._evict()

    @cython.cfunc
    def _evict(self) -> cython.void:
        count: cython.Py_ssize_t = 0
        size: cython.longlong
        while self._table_bytes > self._table_max:
            size = self._table[count][2]
            self._table_bytes -= size
            count += 1
        del self._table[:count]
        del self._names[:count]


@cython.cfunc
def _from_huffman(block: bytes, start: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> bytes:
    """Return the text that a part of a block is the Huffman code of."""
    source: cython.pointer(cython.const[cython.uchar]) = block
    text = bytearray()
    state: cython.int = 0
    flags: cython.int = _COMPLETE
    at: cython.Py_ssize_t
    shift: cython.int
    index: cython.int
    for at in range(start, stop):
        for shift in (4, 0):
            index = state << 4 | (source[at] >> shift & 0x0F)
            state = _next_states[index]
            flags = _flags[index]
            if flags & _FAIL:
                raise _undecodable()
            if flags & _EMIT:
                text.append(_symbols[index])
    if not flags & _COMPLETE:
        raise _undecodable()
    return bytes(text)


def _undecodable() -> ConnectionFault:
    return ConnectionFault(Http2Error.COMPRESSION_ERROR, "a block of headers cannot be decoded")
