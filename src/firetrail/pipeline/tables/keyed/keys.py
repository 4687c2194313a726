"""The keys of rows, the bucket of each, and the order of the versions of one key.

The newest version of a key is the one with the greatest position. Within a broker that is the
physical offset. Between brokers, whose logs have no common order, the store time decides, and then
the name of the broker. This is an order as long as the store times of each broker never fall. If a
clock is set back, three versions of two brokers can form a cycle, each newer than the next, and for
keys of several brokers the order in which messages are read can decide.

Where all versions of a key are known, there is no such cycle: a version whose store time is
earlier than that of one before it in the same log counts as stored at the same time as that one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.schema.table_schema import TableSchema

BUCKETS = 16
"""Default of the number of buckets. A run writes the buckets again that its messages touch."""
BUCKETS_MAX = 4096


class KeyPosition(NamedTuple):
    """The position of a version of a key."""

    broker: str
    physical_offset: int
    store_us: int

    def is_newer(self, other: KeyPosition) -> bool:
        """Whether this version replaces another one, which may be the same."""
        if self.broker == other.broker:
            return self.physical_offset >= other.physical_offset
        return (self.store_us, self.broker) > (other.store_us, other.broker)


class TimedVersion(NamedTuple):
    """A version of a key in the order of all its versions."""

    begin_us: int
    """Its store time; after a step back of the clock, the latest one before it in its log."""
    position: KeyPosition


def in_order(positions: Iterable[KeyPosition]) -> list[TimedVersion]:
    """Return all versions of a key, from the oldest to the newest. Their times never fall."""
    latest: dict[str, int] = {}
    found: list[TimedVersion] = []
    for position in sorted(positions):
        begin = max(position.store_us, latest.get(position.broker, position.store_us))
        latest[position.broker] = begin
        found.append(TimedVersion(begin, position))
    return sorted(found)


def key_columns(names: Sequence[str], schema: TableSchema) -> list[str]:
    """Return the columns of a key as the schema names them.

    Raises:
        ConfigError: There is no such column, or its type can be no key.
    """
    found = []
    for name in names:
        own = schema.own_name(name)
        if own is None:
            existing = ", ".join(schema.names) or "none"
            reason = f"the messages have no such column; they have {existing}"
            raise ConfigError("upsert", name, reason)
        kind = schema.type_of(own)
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise ConfigError("upsert", name, f"a column of type {kind} cannot be a key")
        found.append(own)
    return found


def keeps_keys(before: pa.DataType, after: pa.DataType) -> bool:
    """Whether the keys of rows have equal texts if the type of their column becomes wider."""
    scale = _scale(before)
    return before == after or (scale is not None and scale == _scale(after))


def _scale(kind: pa.DataType) -> int | None:
    """Return the digits after the point of a number in a key; None for other types."""
    if pa.types.is_decimal(kind):
        return int(kind.scale)
    return 0 if pa.types.is_integer(kind) else None


def key_texts(columns: Sequence[pa.Array]) -> list[str | None]:
    """Return the keys of rows as texts, which differ for different keys; None if a part is null."""
    if len(columns) == 1:
        return [None if value is None else _text(value) for value in columns[0].to_pylist()]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [None if None in row else _joined(row) for row in rows]


def _joined(row: Sequence[Any]) -> str:
    texts = map(_text, row)
    return "".join(f"{len(text)}:{text}" for text in texts)


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def bucket_of(key: str, buckets: int) -> int:
    """Return the bucket of a key."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % buckets


def check_buckets(number: int) -> int:
    """Return a number of buckets; raise ConfigError if it is out of range."""
    if not 1 <= number <= BUCKETS_MAX:
        raise ConfigError("buckets", number, f"must be between 1 and {BUCKETS_MAX}")
    return number
