"""The JSON of RocketMQ's ``config/`` files, as fastjson reads and writes it.

It is not quite JSON: keys of integer-keyed maps are bare numbers, and the pretty form gives them no
line of their own. Keys keep their type here: ``{0:5}`` loads as ``{0: 5}`` and ``{"0":5}`` (which
later versions write) as ``{"0": 5}``; a caller that expects a number calls ``int`` on the key.
Bodies on the wire have the same form, without spaces, and contain maps with objects as keys:
``{{"queueId":0,"topic":"T1"}:3}``.
Page: ``docs/format/config-json.md``.
"""

import re
from collections.abc import Callable
from math import isinf
from typing import Any, NamedTuple, NoReturn

from firetrail.errors import FormatError
from firetrail.format.values.integers import INT64_MAX, INT64_MIN

DEPTH_MAX = 64
"""Maximum depth of nesting: RocketMQ's files need 6, and a malicious text must not exhaust the
stack."""

_SPACE = re.compile(r"[ \t\r\n\f\b]*")
_COMMAS = re.compile(r"[ \t\r\n\f\b,]*")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"|' r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[^ux]|.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = {"true": True, "false": False, "null": None}
_READ_ESCAPES = {
    **dict(zip("btnvfr\"'/\\", "\b\t\n\v\f\r\"'/\\", strict=True)),
    **{str(code): chr(code) for code in range(8)},
}
_WRITTEN = re.compile('[\0-\x1f"\\\\\x7f-\x9f\u2028\u2029]')
_WRITE_ESCAPES = dict(zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True))


class ObjectKey(NamedTuple):
    """An object that is the key of a map: its members, in their order."""

    members: tuple[tuple[str, str | int | float | bool | None], ...]


def loads(text: str | bytes) -> Any:
    """Return the value in ``text``: dict, list, str, int, float, bool or None.

    Accepts what fastjson accepts by default: bare integers, bare names and flat objects as keys,
    strings in single quotes, redundant commas. Rejects text after the value, such as the rest of a
    longer file that was overwritten.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise FormatError("config JSON", error.start, "is not UTF-8") from None
    return _ConfigJsonReader(text).read()


def dumps(value: Any) -> str:
    """Return the pretty form of fastjson 1.2: tabs, ``"key":value``, bare integer keys on one line.

    Accepts dict (str or int keys), list, str, int, bool and None. Entries of a dict that are None
    are left out, as Java leaves out null fields.
    """
    parts: list[str] = []
    _write(value, "\n", parts)
    return "".join(parts)


def compact(value: Any) -> str:
    """Return the form of fastjson 1.2 on the wire: without spaces, bare integer keys.

    Accepts what :func:`dumps` accepts, and also floats, and :class:`ObjectKey` as keys.
    """
    if isinstance(value, dict):
        pairs = (
            f"{_compact_key(key)}:{compact(item)}"
            for key, item in value.items()
            if item is not None
        )
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(compact, value))}]"
    if isinstance(value, float):
        return repr(value)
    parts: list[str] = []
    _write(value, "", parts)
    return "".join(parts)


def _compact_key(key: str | int | ObjectKey) -> str:
    return compact(dict(key.members) if isinstance(key, ObjectKey) else key)


class _ConfigJsonReader:
    """Recursive descent over one text, at most ``DEPTH_MAX`` deep."""

    __slots__ = ("at", "depth", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def read(self) -> Any:
        value = self._value()
        if self._next():
            self._fail("unexpected text after the end of the value")
        return value

    def _next(self) -> str:
        """Return the next character that is not a space; an empty text at the end."""
        self.at = _match_end(_SPACE, self.text, self.at)
        return self.text[self.at : self.at + 1]

    def _value(self) -> Any:
        start = self._next()
        if start == "{":
            return self._nested(self._object)
        if start == "[":
            return self._nested(self._array)
        if start in ('"', "'"):
            return self._string()
        if start == "-" or start.isdigit():
            return self._number()
        word = _WORD.match(self.text, self.at)
        if word and word[0] in _WORDS:
            self.at = word.end()
            return _WORDS[word[0]]
        self._fail("expected a value")

    def _nested(self, read: Callable[[], Any]) -> Any:
        if self.depth == DEPTH_MAX:
            self._fail(f"nested deeper than {DEPTH_MAX} levels")
        self.depth += 1
        self.at += 1
        value = read()
        self.depth -= 1
        return value

    def _object(self) -> dict[str | int | ObjectKey, Any]:
        pairs: dict[str | int | ObjectKey, Any] = {}
        while self._more("}", first=not pairs):
            key = self._key()
            if self._next() != ":":
                self._fail(f"expected ':' after the key {key!r}")
            self.at += 1
            pairs[key] = self._value()
        return pairs

    def _array(self) -> list[Any]:
        items: list[Any] = []
        while self._more("]", first=not items):
            items.append(self._value())
        return items

    def _more(self, end: str, *, first: bool) -> bool:
        """Return whether another item follows. Redundant commas are accepted, missing ones not."""
        before = self.at
        self.at = _match_end(_COMMAS, self.text, before)
        following = self.text[self.at : self.at + 1]
        if following == end:
            self.at += 1
            return False
        if not following:
            self._fail(f"ends before '{end}'")
        if not first and "," not in self.text[before : self.at]:
            self._fail(f"expected ',' or '{end}'")
        return True

    def _key(self) -> str | int | ObjectKey:
        start = self.text[self.at]
        if start == "{":
            return self._object_key()
        if start in ('"', "'"):
            return self._string()
        if start == "-" or start.isdigit():
            number = self._number()
            if isinstance(number, int):
                return number
            self._fail("a bare key must be an integer")
        word = _WORD.match(self.text, self.at)
        if not word:
            self._fail("expected a key")
        self.at = word.end()
        return word[0]

    def _object_key(self) -> ObjectKey:
        began = self.at
        members = tuple(self._nested(self._object).items())
        if any(not isinstance(k, str) or isinstance(v, dict | list) for k, v in members):
            self.at = began
            self._fail("an object that is a key must hold names and plain values")
        return ObjectKey(members)

    def _string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if not match:
            self._fail("the string has no end")
        raw: str = match[1] if match[1] is not None else match[2]
        if "\\" in raw:
            raw = _ESCAPE.sub(self._unescape, raw)
            if _SURROGATE.search(raw):  # two halves written as two escapes are one character
                raw = raw.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
        self.at = match.end()
        return raw

    def _unescape(self, match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code not in _READ_ESCAPES:
            self._fail(f"the string has an unknown escape \\{code}")
        return _READ_ESCAPES[code]

    def _number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if not match:
            self._fail("expected a number")
        if match[1] or match[2]:
            if isinf(real := float(match[0])):
                self._fail("the number is too large")
            self.at = match.end()
            return real
        # Length first: Python itself refuses to convert thousands of digits.
        if len(match[0]) > 20 or not INT64_MIN <= (number := int(match[0])) <= INT64_MAX:
            self._fail("the number does not fit in 64 bits")
        self.at = match.end()
        return number

    def _fail(self, detail: str) -> NoReturn:
        raise FormatError("config JSON", self.at, detail)


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _write(value: Any, newline: str, parts: list[str]) -> None:
    """Append the text of ``value``; ``newline`` is a line feed and the tabs around the value."""
    if isinstance(value, str):
        parts.append(_quoted(value))
    elif value is None or isinstance(value, bool):
        parts.append("null" if value is None else str(value).lower())
    elif isinstance(value, int):
        parts.append(str(value))
    elif isinstance(value, dict):
        _write_object(value, newline, parts)
    elif isinstance(value, list):
        _write_array(value, newline, parts)
    else:
        raise TypeError(f"config JSON holds no {type(value).__name__}: {value!r}")


def _write_object(value: dict[Any, Any], newline: str, parts: list[str]) -> None:
    inner = newline + "\t"
    comma = "{"
    for key, item in value.items():
        if item is None:
            continue
        if isinstance(key, str):
            parts += (comma, inner, _quoted(key), ":")
        elif isinstance(key, int) and not isinstance(key, bool):
            parts += (comma, str(key), ":")
        elif isinstance(key, ObjectKey):
            parts.append(comma)
            _write_object(dict(key.members), inner, parts)
            parts.append(":")
        else:
            raise TypeError(f"config JSON has no keys of type {type(key).__name__}: {key!r}")
        _write(item, inner, parts)
        comma = ","
    if comma == "{":
        parts.append("{")
    parts.append(newline + "}" if value else "}")


def _write_array(value: list[Any], newline: str, parts: list[str]) -> None:
    inner = newline + "\t"
    comma = "["
    for item in value:
        parts += (comma, inner)
        _write(item, inner, parts)
        comma = ","
    parts.append(newline + "]" if value else "[]")


def _quoted(text: str) -> str:
    return f'"{_WRITTEN.sub(_escaped, text)}"'


def _escaped(match: re.Match[str]) -> str:
    short = _WRITE_ESCAPES.get(match[0])
    return f"\\{short}" if short else f"\\u{ord(match[0]):04X}"
