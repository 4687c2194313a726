"""Types of columns: those that tables have, how they are written, and which widen which.

They are Arrow's, limited to what Spark, Delta and Iceberg share. Times are in µs; a ``timestamp``
is an instant in UTC, a ``timestamp_ntz`` a date and time without a zone. Names of columns and of
the members of structs differ in more than case, because Spark compares them without regard to it.
"""

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.format.values.integers import INT64_MAX, INT64_MIN

INSTANT = pa.timestamp("us", tz="UTC")
LOCAL_TIME = pa.timestamp("us")
DECIMAL_DIGITS = 38
"""Maximum number of digits of a decimal, in Spark, Delta and Iceberg alike."""
DEPTH_MAX = 100
"""Maximum nesting depth of a type. Parquet readers recurse; Spark gives up at this depth."""

SCALARS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": INSTANT,
    "timestamp_ntz": LOCAL_TIME,
}
WHOLE_LIMITS: dict[pa.DataType, int] = {
    kind: 1 << (bits - 1)
    for kind, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))
}
EXACT_WHOLE = {pa.float32(): 1 << 24, pa.float64(): 1 << 53}
"""The types with fractions, and up to where they have all whole numbers."""
_NAMES = {kind: name for name, kind in SCALARS.items()}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_EXACT_IN = {
    pa.float32(): (pa.int8(), pa.int16()),
    pa.float64(): (pa.int8(), pa.int16(), pa.int32(), pa.float32()),
    LOCAL_TIME: (pa.date32(),),
    INSTANT: (pa.date32(),),
}


def folded_name(name: str) -> str:
    """Return the form in which names are compared."""
    return name.lower()


def whole_type(least: int, most: int) -> pa.DataType:
    """Return the type of whole numbers in a range: ``bigint``, or a decimal if it is too small."""
    if least >= INT64_MIN and most <= INT64_MAX:
        return pa.int64()
    return pa.decimal128(20 if least >= 0 and most < 1 << 64 else DECIMAL_DIGITS, 0)


def list_of(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item))


def struct_of(members: Iterable[tuple[str, pa.DataType]]) -> pa.DataType:
    return pa.struct([pa.field(name, kind) for name, kind in members])


def members_of(struct: pa.DataType) -> list[tuple[str, pa.DataType]]:
    return [(struct.field(at).name, struct.field(at).type) for at in range(struct.num_fields)]


def normalized_type(kind: pa.DataType, place: str, depth: int = 1) -> pa.DataType:
    """Return the type with nullable members and the element names that Spark uses.

    Raises:
        ConfigError: Tables have no such type, or a struct has two members of the same name.
    """
    if depth > DEPTH_MAX:
        raise ConfigError("schema", place, f"has types in more than {DEPTH_MAX} levels")
    if pa.types.is_list(kind):
        return list_of(normalized_type(kind.value_type, f"{place}.element", depth + 1))
    if pa.types.is_map(kind):
        if kind.key_type != pa.string():
            raise ConfigError("schema", place, "the keys of a map must be strings")
        return pa.map_(pa.string(), normalized_type(kind.item_type, f"{place}.value", depth + 1))
    if pa.types.is_struct(kind):
        members = members_of(kind)
        check_names([name for name, _ in members], place)
        inner = [
            (name, normalized_type(each, f"{place}.{name}", depth + 1)) for name, each in members
        ]
        return struct_of(inner)
    if kind in _NAMES or (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision):
        return kind
    raise ConfigError("schema", place, f"tables have no type {kind}")


def check_names(names: Iterable[str], place: str) -> None:
    """Raise ConfigError for an empty name, or for two names that differ at most in case."""
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise ConfigError("schema", place, "has a name that is empty")
        other = seen.setdefault(folded_name(name), name)
        if other is not name:
            reason = f"{other!r} and {name!r} are the same name; case does not count"
            raise ConfigError("schema", place, reason)


def ddl_name(name: str) -> str:
    """Return a name as DDL text has it, in backticks where it needs them."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def ddl_type(kind: pa.DataType) -> str:
    """Return the text of a type in Spark's notation."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<string, {ddl_type(kind.item_type)}>"
    inner = ", ".join(f"{ddl_name(name)}: {ddl_type(each)}" for name, each in members_of(kind))
    return f"struct<{inner}>"


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that has all values of both types exactly; None if there is none.

    Names and the order of members are those of ``one``.
    """
    if one == other:
        return one
    for outer, inner in ((one, other), (other, one)):
        if inner in _EXACT_IN.get(outer, ()):
            return outer
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _wider_struct(one, other)
    if pa.types.is_list(one) and pa.types.is_list(other):
        item = wider(one.value_type, other.value_type)
        return None if item is None else list_of(item)
    if pa.types.is_map(one) and pa.types.is_map(other):
        item = wider(one.item_type, other.item_type)
        return None if item is None else pa.map_(pa.string(), item)
    return _wider_number(one, other)


def _wider_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one in _DIGITS and other in _DIGITS:
        return max(one, other, key=lambda kind: _DIGITS[kind])
    digits = [_decimal_digits(kind) for kind in (one, other)]
    if digits[0] is None or digits[1] is None:
        return None
    whole, scale = (max(pair) for pair in zip(*digits, strict=True))
    return None if whole + scale > DECIMAL_DIGITS else pa.decimal128(whole + scale, scale)


def _decimal_digits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the digits before and after the point of a decimal or a whole number."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return (_DIGITS[kind], 0) if kind in _DIGITS else None


def _wider_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    merged = dict(members_of(one))
    names = {folded_name(name): name for name in merged}
    for name, kind in members_of(other):
        own = names.get(folded_name(name))
        both: Any = kind if own is None else wider(merged[own], kind)
        if both is None:
            return None
        merged[own or name] = both
    return struct_of(merged.items())
