"""Values of JSON as values of columns: the exact rules.

=================== =============================================================================
``boolean``         ``true``, ``false``
whole numbers       a number without a fraction, in range (``1.0`` and ``1e3`` are 1 and 1000)
float, double       a number; a whole one only if the type has it, else the nearest one
``decimal``         a number, or text that is one; never rounded
``string``          text
``binary``          text in base64
dates and times     text, see ``text_values``; a number is a time
                    only if the options name its unit
array, map, struct  arrays and objects; members that are missing are null
=================== =============================================================================

Keys of objects mean the column of the same name without regard to case. Two keys of one object that
mean the same column are refused, and so are repeated keys.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any

import pyarrow as pa

from firetrail.pipeline.decoding.schema.arrow_types import (
    INSTANT,
    LOCAL_TIME,
    WHOLE_LIMITS,
    ddl_name,
    folded_name,
    members_of,
)
from firetrail.pipeline.decoding.values.text_values import (
    BodyError,
    Converter,
    base64_bytes,
    day,
    exact_decimal,
    finite,
    in_calendar,
    in_range,
    integral,
    microseconds,
    number,
    quoted_value,
    type_error,
)


class Evolution(Enum):
    """Treatment of keys that have no column."""

    ADD = "add"
    """They become columns, and whole numbers widen to ``bigint``."""
    IGNORE = "ignore"
    """They are left out."""
    REJECT = "reject"
    """Their messages are rejected."""


class NumberUnit(Enum):
    """The unit of numbers in columns of times, since 1970 in UTC."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"


_MICROSECONDS = {
    NumberUnit.SECONDS: 10**6,
    NumberUnit.MILLISECONDS: 1000,
    NumberUnit.MICROSECONDS: 1,
}


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """The choices that users have.

    Args:
        evolution: The treatment of unknown keys. Default: ``add``, they become columns.
        zone: The zone of times that name none. Default: UTC.
        unit: The unit of times that are numbers. Default: None, which rejects them.
    """

    evolution: Evolution = Evolution.ADD
    zone: tzinfo = UTC
    unit: NumberUnit | None = None


def parse(body: bytes | str) -> Any:
    """Return the JSON value of a text, with exact numbers; raise BodyError if it is not JSON."""
    try:
        text = body if isinstance(body, str) else body.decode()
        return _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise BodyError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise BodyError("not JSON: nested too deeply") from None
    except InvalidOperation:
        raise BodyError("not JSON: a number has too large an exponent") from None
    except ValueError as error:
        raise BodyError(f"not JSON: {str(error)[:200]}") from None


def parse_object(body: bytes | str) -> dict[str, Any]:
    """Return the JSON object of a text; raise BodyError if it is not an object."""
    value = parse(body)
    if type(value) is not dict:
        raise BodyError(f"a JSON {_KINDS[type(value)]}, not an object")
    return value


_KINDS = {
    **{list: "array", str: "string", bool: "boolean", int: "number", Decimal: "number"},
    **{type(None): "null", dict: "object", float: "number"},
}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        again = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {quoted_value(again)} is repeated")
    return members


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(
    parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_unique
)


def json_text(value: Any) -> str:
    """Return a parsed value as JSON, with its numbers as they are."""
    if type(value) is dict:
        members = (f"{_quoted(name)}:{json_text(each)}" for name, each in value.items())
        return "{" + ",".join(members) + "}"
    if type(value) is list:
        return "[" + ",".join(map(json_text, value)) + "]"
    return str(value) if type(value) is Decimal else _quoted(value)


_quoted = json.JSONEncoder(ensure_ascii=False).encode


def is_empty(value: Any) -> bool:
    """Return whether a value has no type: null, or arrays and objects of nothing else."""
    if type(value) is dict:
        return all(map(is_empty, value.values()))
    return value is None or (type(value) is list and all(map(is_empty, value)))


def converter(kind: pa.DataType, rules: DecodingRules) -> Converter:
    """Return the function that converts parsed values other than null to a type.

    The function raises BodyError; its text begins with the path of the member, if there is one.
    """
    if pa.types.is_struct(kind):
        return StructConverter(members_of(kind), rules)
    if pa.types.is_list(kind):
        return _array(converter(kind.value_type, rules), kind)
    if pa.types.is_map(kind):
        return _map(converter(kind.item_type, rules), kind)
    if kind == pa.string():
        return lambda value: _text(value, kind)
    if kind == pa.bool_():
        return lambda value: _typed(value, bool, kind)
    if kind in WHOLE_LIMITS:
        return lambda value: _whole(value, kind)
    if kind in (pa.float32(), pa.float64()):
        return lambda value: finite(_typed(value, int, kind, Decimal), kind)
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    if kind == pa.binary():
        return lambda value: base64_bytes(_typed(value, str, kind), kind)
    if kind == pa.date32():
        return lambda value: day(_typed(value, str, kind), kind)
    return lambda value: _time(value, kind, rules)


def _typed(value: Any, expected: type, kind: pa.DataType, other: type | None = None) -> Any:
    if type(value) is not expected and type(value) is not other:
        raise type_error(value, kind)
    return value


def _text(value: Any, kind: pa.DataType) -> str:
    text: str = _typed(value, str, kind)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise type_error(text, kind, "it has half of a surrogate pair")
    return text


def _whole(value: Any, kind: pa.DataType) -> int:
    if type(value) is int:
        return in_range(value, kind)
    return integral(_typed(value, Decimal, kind), kind)


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    if type(value) is str:
        return exact_decimal(number(value, kind), kind)
    return exact_decimal(_typed(value, int, kind, Decimal), kind)


def _time(value: Any, kind: pa.DataType, rules: DecodingRules) -> int:
    assert kind in (INSTANT, LOCAL_TIME)
    if type(value) is str:
        return microseconds(value, kind, rules.zone)
    if rules.unit is None:
        remedy = "a number is one only if the option numberUnit names its unit"
        raise type_error(value, kind, remedy if type(value) in (int, Decimal) else "")
    return in_calendar(_whole(value, pa.int64()) * _MICROSECONDS[rules.unit], kind)


def _array(item: Converter, kind: pa.DataType) -> Converter:
    def convert(value: Any) -> list[Any]:
        items = _typed(value, list, kind)
        try:
            return [None if each is None else item(each) for each in items]
        except BodyError as error:
            raise in_column("element", error) from None

    return convert


def _map(item: Converter, kind: pa.DataType) -> Converter:
    key = converter(pa.string(), DecodingRules())

    def convert(value: Any) -> list[tuple[str, Any]]:
        pairs = []
        for name, each in _typed(value, dict, kind).items():
            try:
                pairs.append((key(name), None if each is None else item(each)))
            except BodyError as error:
                raise in_column(name, error) from None
        return pairs

    return convert


def in_column(name: str, error: BodyError) -> BodyError:
    """Return an error with the name of the column or member that it is in."""
    text = str(error)
    if text.startswith("column "):
        return BodyError(f"column {ddl_name(name)}.{text[7:]}")
    return BodyError(f"column {ddl_name(name)}: {text}")


class StructConverter:
    """The conversion of objects to members, which are the columns of a table or of a struct.

    Args:
        members: Names and types.
        rules: The choices of the user.
    """

    def __init__(self, members: list[tuple[str, pa.DataType]], rules: DecodingRules) -> None:
        self._converters = [(name, converter(kind, rules)) for name, kind in members]
        self._names = [name for name, _ in members]
        self._own = {folded_name(name): name for name, _ in members}
        self._ignores = rules.evolution is Evolution.IGNORE

    def __call__(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise BodyError(f"{quoted_value(value)} is not an object")
        found = value if value.keys() == self._own.values() else self._matched(value)
        row: dict[str, Any] = {}
        for name, convert in self._converters:
            each = found.get(name)
            if each is None:
                row[name] = None
                continue
            try:
                row[name] = convert(each)
            except BodyError as error:
                raise in_column(name, error) from None
        return row

    def _matched(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members by the names of their columns."""
        found: dict[str, Any] = {}
        keys: dict[str, str] = {}
        for key, each in value.items():
            folded = folded_name(key)
            if (other := keys.setdefault(folded, key)) is not key:
                both = f"{quoted_value(other)} and {quoted_value(key)}"
                raise BodyError(
                    f"the keys {both} mean the same column, because case does not count"
                )
            own = self._own.get(folded)
            if own is not None:
                found[own] = each
            elif not self._ignores and not is_empty(each):
                raise BodyError(f"the key {quoted_value(key)} has no column")
        return found
