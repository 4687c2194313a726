"""Types of MySQL as types of columns, and MySQL's values as Canal writes them.

================================== =================================================================
tinyint, smallint, int, bigint     the same; mediumint is ``int``
unsigned                           the next larger type; ``bigint unsigned`` is ``decimal(20,0)``
decimal(p,s)                       the same; text if it has more than 38 digits
float, double                      the same
bit(1); bit(n)                     ``boolean``; ``bigint``, or ``decimal(20,0)`` for 64 bits
date                               ``date``
datetime                           ``timestamp_ntz``
timestamp                          ``timestamp``; the text is in the zone of the options
year                               ``int``
time                               text, because it may be negative or longer than a day
binary, varbinary, blobs, geometry ``binary``; Canal writes each byte as a letter of ISO-8859-1
enum, set                          text; Canal may write the number of a value, or bits
all others, json too               text
================================== =================================================================
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from typing import Any

import pyarrow as pa

from firetrail.format.values.truths import truth_in
from firetrail.pipeline.decoding.schema.arrow_types import DECIMAL_DIGITS, INSTANT, LOCAL_TIME
from firetrail.pipeline.decoding.values.text_values import (
    BodyError,
    Converter,
    from_text,
    integral,
    number,
    type_error,
)

_TYPE = re.compile(r"\s*([a-zA-Z]\w*)\s*(?:\(((?:'(?:[^']|'')*'|[^')])*)\))?([^']*)", re.DOTALL)
_VALUES = re.compile(r"'((?:[^']|'')*)'")
_ZERO = re.compile(r"[0-9]{4}-(?:00-[0-9]{2}|[0-9]{2}-00)(?:[ T][0-9:.]*)?")
_UNSIGNED = {
    **{"tinyint": pa.int16(), "smallint": pa.int32(), "mediumint": pa.int32()},
    **{"int": pa.int64(), "bigint": pa.decimal128(20, 0)},
}
_KINDS = {
    **{"tinyint": pa.int8(), "smallint": pa.int16(), "mediumint": pa.int32(), "int": pa.int32()},
    **{"bigint": pa.int64(), "year": pa.int32(), "float": pa.float32(), "double": pa.float64()},
    **{"date": pa.date32(), "datetime": LOCAL_TIME, "timestamp": INSTANT},
}
_ALIASES = {
    **{"integer": "int", "bool": "tinyint", "boolean": "tinyint", "int1": "tinyint"},
    **{"int2": "smallint", "int3": "mediumint", "int4": "int", "int8": "bigint"},
    **{"real": "double", "numeric": "decimal", "dec": "decimal", "fixed": "decimal"},
}
_GEOMETRY = {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"}
_GEOMETRY |= {"multipolygon", "geometrycollection", "geomcollection"}
_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"} | _GEOMETRY


@dataclass(frozen=True, slots=True)
class MysqlType:
    """A type of a column in MySQL.

    Args:
        name: Its name in lower case, without aliases.
        arguments: The text in its parentheses; empty if there is none.
        unsigned: Whether it is.
    """

    name: str
    arguments: str
    unsigned: bool

    @property
    def kind(self) -> pa.DataType:
        """The type of the column."""
        if self.unsigned and self.name in _UNSIGNED:
            return _UNSIGNED[self.name]
        if self.name == "decimal":
            return self._decimal()
        if self.name == "float" and self.arguments.isdecimal() and int(self.arguments) > 24:
            return pa.float64()
        if self.name == "bit":
            bits = int(self.arguments) if self.arguments.isdecimal() else 1
            wide = pa.decimal128(20, 0) if bits == 64 else pa.int64()
            return pa.bool_() if bits == 1 else wide
        return pa.binary() if self.name in _BINARY else _KINDS.get(self.name, pa.string())

    def _decimal(self) -> pa.DataType:
        digits = [int(part) for part in self.arguments.split(",") if part.strip().isdecimal()]
        precision, scale = (*digits, *(10, 0)[len(digits) :])[:2]
        if not 0 <= scale <= precision <= DECIMAL_DIGITS or precision == 0:
            return pa.string()
        return pa.decimal128(precision, scale)

    @property
    def values(self) -> list[str]:
        """The values of an enum or a set."""
        return [value.replace("''", "'") for value in _VALUES.findall(self.arguments)]


@lru_cache(maxsize=4096)
def mysql_type(text: str) -> MysqlType:
    """Return the type that a text names, such as ``decimal(10,2) unsigned``; text if unknown."""
    match = _TYPE.match(text)
    if match is None:
        return MysqlType("", "", False)
    name = match[1].lower()
    words = match[3].lower().split()
    unsigned = "unsigned" in words or "zerofill" in words
    if name == "serial":
        name, unsigned = "bigint", True
    return MysqlType(_ALIASES.get(name, name), (match[2] or "").strip(), unsigned)


def without_zero_dates(read: Converter, nulls: bool) -> Converter:
    """Return the reading of a date or time that may have zeros for the month or the day.

    Args:
        read: The reading of other values.
        nulls: Whether such a value is null; otherwise it does not fit.
    """

    def reading(value: Any) -> Any:
        if isinstance(value, str) and _ZERO.fullmatch(value):
            if nulls:
                return None
            raise BodyError(f"{value!r} is not a date; set zeroDates=null to store null")
        return read(value)

    return reading


def canal_reader(kind: MysqlType, zone: tzinfo, *, zero_nulls: bool) -> Converter:
    """Return the function that reads Canal's text for a value.

    Args:
        kind: The type in MySQL.
        zone: The time zone of Canal, in which it writes a ``timestamp``.
        zero_nulls: Whether dates with zeros are null.
    """
    arrow = kind.kind
    if arrow == pa.binary():
        return _latin_bytes
    if kind.name == "bit":
        return _bits(arrow)
    if kind.name == "enum":
        return _label(kind.values)
    if kind.name == "set":
        return _labels(kind.values)
    read = from_text(arrow, zone)
    assert read is not None
    if kind.name == "tinyint":
        return _tinyint(read)
    if arrow in (pa.date32(), LOCAL_TIME, INSTANT):
        return without_zero_dates(read, zero_nulls)
    return read


def _latin_bytes(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise type_error(text, pa.binary(), "expected letters of ISO-8859-1") from None


def _bits(kind: pa.DataType) -> Callable[[str], Any]:
    def reading(text: str) -> Any:
        if len(text) == 1 and not text.isdecimal():
            text = str(ord(text))
        value = number(text, kind)
        if kind != pa.bool_():
            return integral(value, kind) if kind == pa.int64() else value
        if value not in (0, 1):
            raise type_error(text, kind)
        return value == 1

    return reading


def _tinyint(read: Converter) -> Converter:
    """Some tools write ``tinyint(1)`` as a boolean."""

    def reading(text: str) -> Any:
        value = truth_in(text)
        return read(text if value is None else str(int(value)))

    return reading


def _label(values: list[str]) -> Callable[[str], str]:
    labels = {"0": "", **{str(at): value for at, value in enumerate(values, 1)}}
    labels |= {value: value for value in values}  # a value that looks like a number is itself
    return lambda text: labels.get(text, text)


def _labels(values: list[str]) -> Callable[[str], str]:
    def reading(text: str) -> str:
        if not text.isdecimal() or text in values or int(text) >> len(values):
            return text
        bits = int(text)
        return ",".join(value for at, value in enumerate(values) if bits >> at & 1)

    return reading
