"""Schema inference: column types from the values of JSON, and new columns.

A column gets the most frequent type, so that one odd message does not decide; the others are
rejected. Numbers are ``bigint``, or ``double`` if one of them has a point or an exponent, or a
decimal if one does not fit into 64 bits, or if a ``double`` would round a whole number. Text is
``string``, also if it looks like a date. What has no type yet, because all its values are null or
empty, is not a column yet.
"""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from firetrail.format.values.integers import INT64_MAX, INT64_MIN
from firetrail.pipeline.decoding.schema.arrow_types import (
    DEPTH_MAX,
    EXACT_WHOLE,
    WHOLE_LIMITS,
    folded_name,
    list_of,
    members_of,
    struct_of,
    whole_type,
)
from firetrail.pipeline.decoding.schema.table_schema import TableSchema

COLUMNS_MAX = 20_000
"""Maximum number of columns, or members of a struct, that decoders add by themselves. Senders that
use ids as keys would add one per message; the log of a Delta table repeats its schema at each
change."""

_FRACTIONS = pa.decimal128(38, 18)
"""The decimal of a column with fractions, and with whole numbers that a ``double`` would round."""
_WHOLE_LIMIT = 10 ** (_FRACTIONS.precision - _FRACTIONS.scale)


class TypeCounts:
    """The values that were seen in one place."""

    __slots__ = (
        *("depth", "items", "least", "members", "most"),
        *("booleans", "fractions", "lists", "long", "numbers", "objects", "texts"),
    )

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.booleans = self.numbers = self.texts = self.lists = self.objects = 0
        self.least = self.most = 0
        self.fractions = False
        self.long = False
        """Whether a fraction does not fit into the decimal of numbers with a fraction."""
        self.items: TypeCounts | None = None
        self.members: dict[str, tuple[str, TypeCounts]] = {}

    def add(self, value: Any) -> None:
        """Take a parsed value into account."""
        kind = type(value)
        if kind is str:
            self.texts += 1
        elif kind is bool:
            self.booleans += 1
        elif kind is int:
            self.numbers += 1
            self.least, self.most = min(self.least, value), max(self.most, value)
        elif kind is Decimal or kind is float:
            self.numbers, self.fractions = self.numbers + 1, True
            self.long = self.long or not _fits_decimal(value)
        elif self.depth >= DEPTH_MAX:
            return
        elif kind is dict:
            self.objects += 1
            self._see_members(value)
        elif kind is list:
            self.lists += 1
            self.items = self.items or TypeCounts(self.depth + 1)
            for item in value:
                self.items.add(item)

    def _see_members(self, value: dict[str, Any]) -> None:
        members = self.members
        for name, inner in value.items():
            if inner is None:
                continue
            known = members.get(folded_name(name))
            if known is None:
                known = members[folded_name(name)] = name, TypeCounts(self.depth + 1)
            known[1].add(inner)

    def type(self) -> pa.DataType | None:
        """Return the most frequent type; None if no value has one."""
        counts = (self.texts, self.numbers, self.booleans, self.objects, self.lists)
        most = max(counts)
        if not most:
            return None
        if most == self.texts:
            return pa.string()
        if most == self.numbers:
            return self._number_type()
        if most == self.booleans:
            return pa.bool_()
        if most == self.objects:
            members = self.columns()
            return struct_of(members) if members else None
        item = None if self.items is None else self.items.type()
        return None if item is None else list_of(item)

    def _number_type(self) -> pa.DataType:
        if self.fractions:
            most = max(-self.least, self.most)
            rounded = EXACT_WHOLE[pa.float64()] < most < _WHOLE_LIMIT
            return _FRACTIONS if rounded and not self.long else pa.float64()
        return whole_type(self.least, self.most)

    def columns(self) -> list[tuple[str, pa.DataType]]:
        """Return the members that have a type."""
        found = ((name, counts.type()) for name, counts in self.members.values() if name)
        return [(name, kind) for name, kind in found if kind is not None]

    def extended(self, kind: pa.DataType) -> pa.DataType:
        """Return a type with the members that were seen, and whole numbers up to ``bigint``."""
        if kind in WHOLE_LIMITS:
            limit = WHOLE_LIMITS[kind]
            fits = -limit <= self.least and self.most < limit
            beyond = self.least < INT64_MIN or self.most > INT64_MAX
            return kind if fits or beyond else _fitting(self.least, self.most)
        if pa.types.is_struct(kind) and self.members:
            return struct_of(self._extended_members(members_of(kind)))
        if pa.types.is_list(kind) and self.items is not None:
            return list_of(self.items.extended(kind.value_type))
        if pa.types.is_map(kind) and self.members:
            inner = kind.item_type
            for _, counts in self.members.values():
                inner = counts.extended(inner)
            return pa.map_(pa.string(), inner)
        return kind

    def _extended_members(
        self, known: list[tuple[str, pa.DataType]]
    ) -> list[tuple[str, pa.DataType]]:
        names = {folded_name(name) for name, _ in known}
        extended = []
        for name, kind in known:
            seen = self.members.get(folded_name(name))
            extended.append((name, kind if seen is None else seen[1].extended(kind)))
        extended += [new for new in self.columns() if folded_name(new[0]) not in names]
        return extended[: max(COLUMNS_MAX, len(known))]

    def widened(self, schema: TableSchema) -> TableSchema:
        """Return a schema with the columns and members that were seen; itself if none is new."""
        known = [(field.name, field.type) for field in schema.arrow]
        extended = self._extended_members(known)
        return schema if extended == known else TableSchema.of(extended)


def _fits_decimal(value: Any) -> bool:
    number = Decimal(value)
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -_FRACTIONS.scale:
        return False
    return bool(abs(number) < _WHOLE_LIMIT)


def _fitting(least: int, most: int) -> pa.DataType:
    limits = sorted(WHOLE_LIMITS.items(), key=lambda each: each[1])
    return next(kind for kind, limit in limits if -limit <= least and most < limit)


def type_counts(values: Iterable[Any]) -> TypeCounts:
    """Count the types of parsed values."""
    counts = TypeCounts()
    for value in values:
        counts.add(value)
    return counts
