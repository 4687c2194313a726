"""Columns as DDL text, as Spark writes them: ``id bigint, price decimal(10,2)``.

::

    columns = column {"," column}       column = name [":"] type
    name    = letters, digits and "_", or any text in backticks (a backtick in it is doubled)
    type    = boolean | tinyint | … | decimal(p, s) | array<type> | map<string, type>
            | struct<columns>
"""

import re

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.schema.arrow_types import (
    DECIMAL_DIGITS,
    DEPTH_MAX,
    SCALARS,
    list_of,
    struct_of,
)
from firetrail.text import did_you_mean

_ALIASES = {
    **{"bool": "boolean", "byte": "tinyint", "short": "smallint", "integer": "int"},
    **{"long": "bigint", "real": "float", "text": "string", "timestamp_ltz": "timestamp"},
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|(\w+)|([<>(),:]))")
_DECIMAL = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")


def parse_columns(text: str) -> list[tuple[str, pa.DataType]]:
    """Return the columns of DDL text; raise ConfigError, with the place, for any other text."""
    parser = _DdlParser(text)
    columns = parser.columns()
    parser.end()
    return columns


def parse_type(text: str) -> pa.DataType:
    """Return the type that a text names; raise ConfigError for any other text."""
    parser = _DdlParser(text)
    kind = parser.type(1)
    parser.end()
    return kind


class _DdlParser:
    """A text and the place in it that was reached."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._start = text, 0, 0
        self._token = self._quoted = ""
        self._next()

    def _next(self) -> str:
        """Return the token, and move on to the next one; "" at the end of the text."""
        token, rest = self._token or self._quoted, self._text[self._at :]
        self._start = self._at + len(rest) - len(rest.lstrip())
        match = _TOKEN.match(self._text, self._at)
        self._quoted = self._token = ""
        if match is not None:
            self._at, self._quoted = match.end(), match[1] or ""
            self._token = match[2] or match[3] or ""
        elif rest.strip():
            raise self._error("expected a name or a type")
        return token

    def _error(self, expected: str) -> ConfigError:
        start = self._start
        return ConfigError("schema", self._text[start:] or self._text, f"{expected} at {start}")

    def _take(self, mark: str) -> bool:
        taken = self._token == mark
        if taken:
            self._next()
        return taken

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            raise self._error(f"expected {mark!r}")

    def end(self) -> None:
        if self._token or self._quoted:
            raise self._error("expected ',' or the end; columns are name and type, nothing else")

    def columns(self, depth: int = 1) -> list[tuple[str, pa.DataType]]:
        if not (self._token or self._quoted) or self._token == ">":
            return []
        columns = [self._column(depth)]
        while self._take(","):
            columns.append(self._column(depth))
        return columns

    def _column(self, depth: int) -> tuple[str, pa.DataType]:
        if self._quoted:
            name = self._next()[1:-1].replace("``", "`")
        elif self._token and self._token not in "<>(),:":
            name = self._next()
        else:
            raise self._error("expected the name of a column")
        self._take(":")
        return name, self.type(depth)

    def type(self, depth: int) -> pa.DataType:
        if depth > DEPTH_MAX:
            raise self._error(f"types may be nested at most {DEPTH_MAX} levels deep,")
        word = self._token.lower()
        name = _ALIASES.get(word, word)
        if name in SCALARS:
            self._next()
            return SCALARS[name]
        if name in _DECIMAL:
            self._next()
            return self._decimal()
        if name in ("varchar", "char"):
            self._next()
            self._number_list()
            return SCALARS["string"]
        if name not in _NESTED:
            known = [*SCALARS, "decimal", *_NESTED]
            hint = did_you_mean(name, known) if name else ""
            raise self._error(f"no such type{hint}; expected one of {', '.join(known)}")
        self._next()
        self._need("<")
        kind = self._nested(name, depth + 1)
        self._need(">")
        return kind

    def _nested(self, name: str, depth: int) -> pa.DataType:
        if name == "array":
            return list_of(self.type(depth))
        if name == "struct":
            return struct_of(self.columns(depth))
        if self.type(depth) != SCALARS["string"]:
            raise self._error("the keys of a map must be strings")
        self._need(",")
        return pa.map_(pa.string(), self.type(depth))

    def _decimal(self) -> pa.DataType:
        start, numbers = self._start, self._number_list()
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
        if len(numbers) > 2 or not 0 <= scale <= precision <= DECIMAL_DIGITS or precision == 0:
            reason = f"expected decimal(P,S) with 1 <= P <= {DECIMAL_DIGITS} and 0 <= S <= P"
            raise ConfigError("schema", self._text[start:], reason)
        return pa.decimal128(precision, scale)

    def _number_list(self) -> list[int]:
        numbers: list[int] = []
        if self._take("("):
            while True:
                if not re.fullmatch("[0-9]{1,9}", self._token):
                    raise self._error("expected a number")
                numbers.append(int(self._next()))
                if not self._take(","):
                    break
            self._need(")")
        return numbers
