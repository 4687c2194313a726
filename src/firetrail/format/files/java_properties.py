"""The syntax of Java ``.properties`` files, as ``java.util.Properties`` reads it.

A line ends with ``\\n``, ``\\r`` or ``\\r\\n``. A line that starts with ``#`` or ``!`` is a
comment; one that ends in an odd number of backslashes is continued in the next line, whose leading
blanks are dropped. The key ends at the first ``=``, ``:`` or blank without a backslash before it.
The escapes are ``\\t \\n \\r \\f`` and ``\\uXXXX``; before any other character a backslash is
dropped. If a key is given twice, the last value counts.

A byte order mark before the first line, which some editors write, is not part of a key. It stays
in a file that is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from firetrail.errors import ConfigError

_BLANKS = " \t\f"
_ORDER_MARK = "\ufeff"
_LINE_END = re.compile(r"\r\n|\r|\n")
_KEY_VALUE = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Entry(NamedTuple):
    """The text of a value, and its place in the file."""

    text: str
    place: str = ""
    """The place of the value, such as ``"broker.conf line 3: "``; empty if it is not from a
    file."""


def parse_properties(text: str, source: str = "") -> dict[str, Entry]:
    """Return the keys and values; ``source`` is the name of the file, for errors."""
    entries = {}
    for number, _, line in _logical_lines(text):
        place = f"{source} line {number}: ".lstrip()
        pair = _KEY_VALUE.fullmatch(line)
        assert pair is not None  # the pattern takes any line but one with a lone last backslash
        key, value = (_unescape(part, place) for part in pair.groups())
        entries[key] = Entry(value, place)
    return entries


def update_properties(text: str, values: Mapping[str, str], obsolete: Iterable[str] = ()) -> str:
    """Return the file with new values for some keys; everything else is kept, including comments.

    A key stays where its last line is, new keys are added at the end, and ``obsolete`` keys are
    removed.
    """
    plain = text.removeprefix(_ORDER_MARK)
    mark = text[: len(text) - len(plain)]
    lines = _LINE_END.split(plain)
    ends = _LINE_END.findall(text)
    places = {}
    gone: set[int] = set()
    for first, last, line in _logical_lines(text):
        pair = _KEY_VALUE.fullmatch(line)
        key = _unescape(pair[1], "") if pair is not None else ""
        if key in values or key in obsolete:
            gone.update(range(first - 1, last))
            places[key] = first - 1
    end = ends[0] if ends else "\n"
    kept = []
    for number, line in enumerate(lines):
        here = [key for key, place in places.items() if place == number and key in values]
        if here:
            kept.append(_line(here[0], values[here[0]]))
        elif number not in gone:
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    new = [_line(key, value) for key, value in values.items() if key not in places]
    if new and kept and kept[-1].endswith("\\"):
        kept.append("")  # otherwise the first new key would continue that line
    kept += new
    return mark + "".join(line + end for line in kept)


def _line(key: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{key}={escaped}"


def _logical_lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield lines with a key, continued ones joined, with the numbers of first and last line."""
    lines = enumerate(_LINE_END.split(text.removeprefix(_ORDER_MARK)), start=1)
    for number, line in lines:
        line = line.lstrip(_BLANKS)
        if line in ("", "\\") or line[0] in "#!":
            continue
        last = number
        while (len(line) - len(line.rstrip("\\"))) % 2:
            last, following = next(lines, (last, ""))
            line = line[:-1] + following.lstrip(_BLANKS)
        yield number, last, line


def _unescape(text: str, place: str) -> str:
    def plain(escape: re.Match[str]) -> str:
        code = escape[1]
        if code == "u":
            raise ConfigError(
                "escape", text, "\\u needs four hexadecimal digits; write \\\\ for one \\", place
            )
        return chr(int(code[1:], 16)) if len(code) > 1 else _CONTROL.get(code, code)

    # Java's strings are UTF-16: two escapes may be the halves of one character.
    halves = _ESCAPE.sub(plain, text).encode("utf-16-le", "surrogatepass")
    return halves.decode("utf-16-le", "replace")
