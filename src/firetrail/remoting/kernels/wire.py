"""Frames and their JSON headers, in the form that nearly all clients send.

Such a header is an object of a few numbers, names and a flat object of texts, in any order. For any
other JSON, valid or not, these functions return None and leave the decision to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import load_i32, load_u32, store_i32
else:
    from firetrail.format.kernels._bigendian import load_i32, load_u32, store_i32

COMPILED = cython.compiled

_PREFIX = cython.declare(cython.Py_ssize_t, 8)
_LENGTH = cython.declare(cython.Py_ssize_t, 4)
_MARK = cython.declare(cython.Py_ssize_t, 4)
_ROOM = cython.declare(cython.Py_ssize_t, 2048)
_DIGITS_MAX = cython.declare(cython.Py_ssize_t, 10)
_INT32_MAX = cython.declare(cython.longlong, 2**31 - 1)
_INT32_MIN = cython.declare(cython.longlong, -(2**31))
_QUOTE = cython.declare(cython.uchar, 0x22)
_COMMA = cython.declare(cython.uchar, 0x2C)
_MINUS = cython.declare(cython.uchar, 0x2D)
_ZERO = cython.declare(cython.uchar, 0x30)
_NINE = cython.declare(cython.uchar, 0x39)
_COLON = cython.declare(cython.uchar, 0x3A)
_BACKSLASH = cython.declare(cython.uchar, 0x5C)
_OPEN = cython.declare(cython.uchar, 0x7B)
_CLOSE = cython.declare(cython.uchar, 0x7D)

_HEX = b"0123456789abcdef"
_SHORT = b"btnvfr"
"""The escape letters of the control characters, starting at 8; \\v is not in JSON and not used."""


class Unusual(ValueError):
    """The header contains something that these functions do not handle."""


class JsonReader:
    """Parses one header."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._b = text
        self._at = 0
        self._end = len(text)

    def members(self, body: bytes, languages: Mapping[str, int], kind: object) -> tuple[Any, ...]:
        """Return code, fields, ``body``, remark, opaque, flag, language, version and ``kind``."""
        code: cython.longlong = 0
        opaque: cython.longlong = 0
        flag: cython.longlong = 0
        version: cython.longlong = 0
        language: object = None
        remark: object = None
        fields: dict[str, str] = {}
        self._expect(_OPEN)
        while True:
            name: str = self._string()
            self._expect(_COLON)
            if name == "code":
                code = self._number()
            elif name == "extFields":
                fields = self._fields()
            elif name == "flag":
                flag = self._number()
            elif name == "language":
                language = languages.get(self._string())
            elif name == "opaque":
                opaque = self._number()
            elif name == "serializeTypeCurrentRPC":
                self._string()
            elif name == "version":
                version = self._number()
            elif name == "remark":
                remark = self._string()
            else:
                raise Unusual
            if self._next() != _COMMA:
                break
        if self._b[self._at - 1] != _CLOSE or language is None:
            raise Unusual
        self._skip()
        if self._at < self._end:
            raise Unusual
        return (code, fields, body, remark, opaque, flag, language, version, kind)

    def _fields(self) -> dict[str, str]:
        found: dict[str, str] = {}
        self._expect(_OPEN)
        self._skip()
        if self._at < self._end and self._b[self._at] == _CLOSE:
            self._at += 1
            return found
        while True:
            name: str = self._string()
            self._expect(_COLON)
            self._skip()
            if self._at < self._end and self._b[self._at] != _QUOTE:
                found[name] = str(self._number())
            else:
                found[name] = self._string()
            if self._next() != _COMMA:
                break
        if self._b[self._at - 1] != _CLOSE:
            raise Unusual
        return found

    def _skip(self) -> None:
        """Skip white space."""
        while self._at < self._end and self._b[self._at] in (0x20, 0x0A, 0x0D, 0x09):
            self._at += 1

    def _next(self) -> int:
        """Skip white space, consume the next byte and return it."""
        self._skip()
        if self._at >= self._end:
            raise Unusual
        self._at += 1
        return self._b[self._at - 1]

    def _expect(self, byte: cython.uchar) -> None:
        if self._next() != byte:
            raise Unusual

    def _number(self) -> int:
        """Parse a 32-bit number in canonical decimal form."""
        number: cython.longlong = 0
        self._skip()
        negative: cython.bint = self._at < self._end and self._b[self._at] == _MINUS
        if negative:
            self._at += 1
        start: cython.Py_ssize_t = self._at
        while self._at < self._end and _ZERO <= self._b[self._at] <= _NINE:
            if self._at - start >= _DIGITS_MAX:
                raise Unusual
            number = number * 10 + (self._b[self._at] - _ZERO)
            self._at += 1
        if self._at == start or (self._b[start] == _ZERO and (negative or self._at > start + 1)):
            raise Unusual
        if negative:
            number = -number
        if not _INT32_MIN <= number <= _INT32_MAX:
            raise Unusual
        return number

    def _string(self) -> str:
        c: cython.uchar
        self._expect(_QUOTE)
        start: cython.Py_ssize_t = self._at
        at: cython.Py_ssize_t = start
        plain: cython.bint = True
        while at < self._end:
            c = self._b[at]
            if c == _QUOTE:
                break
            if c < 0x20:
                raise Unusual
            if c == _BACKSLASH:
                plain = False
                at += 1
            at += 1
        if at >= self._end:
            raise Unusual
        self._at = at + 1
        if plain:
            return self._b[start:at].decode("utf-8")
        return self._unescaped(start, at)

    def _unescaped(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> str:
        found: bytearray = bytearray(end - at)
        out: cython.p_uchar = found
        count: cython.Py_ssize_t = 0
        c: cython.uchar
        while at < end:
            c = self._b[at]
            at += 1
            if c == _BACKSLASH:
                c = self._escape(at, end)
                at += 5 if self._b[at] == 0x75 else 1
            out[count] = c
            count += 1
        return out[:count].decode("utf-8")

    def _escape(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> int:
        """Return the ASCII character of an escape sequence whose letter is at ``at``."""
        letter: cython.uchar = self._b[at]
        value: cython.int = 0
        place: cython.Py_ssize_t
        digit: cython.int
        if letter == 0x75:  # u
            if end - at < 5:
                raise Unusual
            for place in range(at + 1, at + 5):
                digit = self._b[place] | 0x20  # to lower case; digits do not change
                if 0x61 <= digit <= 0x66:
                    digit -= 0x57
                elif 0x30 <= digit <= 0x39 and self._b[place] >= 0x30:
                    digit -= 0x30
                else:
                    raise Unusual
                value = value * 16 + digit
            if value >= 0x80:
                raise Unusual
            return value
        if letter in (_QUOTE, _BACKSLASH, 0x2F):
            return letter
        if letter == 0x6E:
            return 0x0A
        if letter == 0x74:
            return 0x09
        if letter == 0x72:
            return 0x0D
        raise Unusual


def read_json_header(
    header: bytes, body: bytes, languages: Mapping[str, int], kind: object
) -> tuple[Any, ...] | None:
    """Parse a header with :meth:`JsonReader.members`; return None if it is unusual."""
    reader: JsonReader = JsonReader(header)
    try:
        return reader.members(body, languages, kind)
    except ValueError:
        return None


def cut_frames(
    data: bytes, frame_max: cython.longlong, header_max: cython.longlong
) -> tuple[list[tuple[int, bytes, bytes]], int]:
    """Return mark, header and body of all complete frames, and the position of the rest.

    The rest is the beginning of a frame, or a frame that is longer than allowed.
    """
    found: list[tuple[int, bytes, bytes]] = []
    b: cython.pointer(cython.const[cython.uchar]) = data
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(data)
    length: cython.longlong
    header: cython.longlong
    body_at: cython.Py_ssize_t
    while end - at >= _PREFIX:
        length = load_i32(b, at)
        header = load_u32(b, at + _LENGTH) & 0xFFFFFF
        if not _MARK <= length <= frame_max or length > end - at - _LENGTH:
            break
        if header > length - _MARK or header > header_max:
            break
        body_at = at + _PREFIX + header
        found.append(
            (b[at + _LENGTH], data[at + _PREFIX : body_at], data[body_at : at + _LENGTH + length])
        )
        at += _LENGTH + length
    return found, at


class JsonWriter:
    """Writes a header into a buffer of fixed length; longer headers are unusual."""

    def __init__(self) -> None:
        self._buffer = bytearray(_ROOM)
        self._out = self._buffer
        self._at = 0

    def frame(
        self,
        code: cython.longlong,
        fields: Mapping[str, str],
        flag: cython.longlong,
        language: str,
        opaque: cython.longlong,
        remark: str | None,
        version: cython.longlong,
        body_size: cython.longlong,
    ) -> bytes | None:
        """Return length, mark and header of a frame; None if the header is unusual."""
        self._at = _PREFIX
        try:
            self._raw(b'{"code":')
            self._number(code)
            if fields:
                self._raw(b',"extFields":{')
                self._fields(fields)
                self._raw(b"}")
            self._raw(b',"flag":')
            self._number(flag)
            self._raw(b',"language":')
            self._string(language)
            self._raw(b',"opaque":')
            self._number(opaque)
            if remark is not None:
                self._raw(b',"remark":')
                self._string(remark)
            self._raw(b',"serializeTypeCurrentRPC":"JSON","version":')
            self._number(version)
            self._raw(b"}")
        except (AttributeError, TypeError, ValueError):
            return None
        size: cython.Py_ssize_t = self._at
        if body_size + size - _LENGTH > _INT32_MAX:
            return None
        store_i32(self._out, 0, body_size + size - _LENGTH)
        store_i32(self._out, _LENGTH, size - _PREFIX)
        return bytes(self._out[:size])

    def _fields(self, fields: Mapping[str, str]) -> None:
        first: cython.bint = True
        for name, value in fields.items():
            if not first:
                self._raw(b",")
            first = False
            self._string(name)
            self._raw(b":")
            self._string(value)

    def _number(self, number: cython.longlong) -> None:
        self._raw(b"%d" % number)

    def _raw(self, raw: bytes) -> None:
        b: cython.pointer(cython.const[cython.uchar]) = raw
        size: cython.Py_ssize_t = len(raw)
        place: cython.Py_ssize_t
        if size > _ROOM - self._at:
            raise Unusual
        for place in range(size):
            self._out[self._at + place] = b[place]
        self._at += size

    def _string(self, text: str) -> None:
        """Write a quoted string, with short escapes where JSON has them, as other writers do."""
        raw: bytes = text.encode()
        b: cython.pointer(cython.const[cython.uchar]) = raw
        size: cython.Py_ssize_t = len(raw)
        at: cython.Py_ssize_t = self._at
        place: cython.Py_ssize_t
        c: cython.uchar
        if 6 * size + 2 > _ROOM - at:
            raise Unusual
        self._out[at] = _QUOTE
        at += 1
        for place in range(size):
            c = b[place]
            if c >= 0x20 and c != _QUOTE and c != _BACKSLASH:
                self._out[at] = c
                at += 1
                continue
            self._out[at] = _BACKSLASH
            if c >= 0x20:
                self._out[at + 1] = c
                at += 2
            elif 8 <= c <= 13 and c != 11:
                self._out[at + 1] = _SHORT[c - 8]
                at += 2
            else:
                self._out[at + 1] = 0x75
                self._out[at + 2] = self._out[at + 3] = _ZERO
                self._out[at + 4] = _HEX[c >> 4]
                self._out[at + 5] = _HEX[c & 15]
                at += 6
        self._out[at] = _QUOTE
        self._at = at + 1
