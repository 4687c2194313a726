"""Predicates that Spark pushes down, as bounds of what has to be read.

Most of them only prune, and Spark applies them again to the rows that come back. Those that ranges
of queues express exactly are done with: Spark leaves them out, and ``explain`` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from firetrail.format.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.ranges import NO_BOUNDS, Bounds

_PLACE = ("topic", "queue_id", "queue_offset", "physical_offset")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """What is known of the rows for which all filters hold."""
    bounds = NO_BOUNDS
    for each in filters:
        bounds = _narrow(bounds, each)
    return bounds


def is_exact(each: Filter) -> bool:
    """Whether ranges of queues hold all rows for which the filter holds, and no others."""
    column = getattr(each, "attribute", ("",))[0]
    if isinstance(each, In):
        return column in ("topic", "queue_id")
    if isinstance(each, IsNotNull):
        return column in _PLACE
    if getattr(each, "value", None) is None:
        return False
    if isinstance(each, EqualTo | EqualNullSafe):
        return column in _PLACE
    ordered = isinstance(each, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual)
    return ordered and column in ("queue_offset", "physical_offset")


def _narrow(bounds: Bounds, each: Filter) -> Bounds:
    values = _values(each)
    column = getattr(each, "attribute", ("",))[0]
    if values is not None and column == "topic":
        topics = frozenset(values)
        return replace(bounds, topics=topics if bounds.topics is None else topics & bounds.topics)
    if values is not None and column == "queue_id":
        ids = frozenset(values)
        known = bounds.queue_ids
        return replace(bounds, queue_ids=ids if known is None else ids & known)
    if values is not None and column == "msg_id" and len(values) == 1:
        return replace(bounds, message_id=values[0])
    if column == "queue_offset":
        return replace(bounds, queue_offsets=_cut(bounds.queue_offsets, each))
    if column == "physical_offset":
        return replace(bounds, places=_cut(bounds.places, each))
    if column == "store_time":
        return replace(bounds, times=_cut(bounds.times, each))
    return bounds


def _cut(known: tuple[int, int], each: Filter) -> tuple[int, int]:
    low, high = _range(each)
    return max(known[0], low), min(known[1], high)


def _values(each: Filter) -> list[Any] | None:
    """The values of which the column has to have one; None if the filter is of another kind."""
    if isinstance(each, EqualTo | EqualNullSafe):
        return [each.value] if each.value is not None else None
    if isinstance(each, In):
        return [value for value in each.value if value is not None]
    return None


def _range(each: Filter) -> tuple[int, int]:
    """From where up to where (excluded) a number has to be; as wide as can be if it is unclear."""
    low, high = TIME_MIN, TIME_MAX
    if isinstance(each, EqualTo | EqualNullSafe | In):
        numbers = [_number(value) for value in _values(each) or ()]
        return (min(numbers)[0], max(numbers)[1] + 1) if numbers else (low, high)
    if not isinstance(each, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return low, high
    if each.value is None:
        return low, high
    floor, ceiling = _number(each.value)
    if isinstance(each, GreaterThan):
        return floor + 1, high
    if isinstance(each, GreaterThanOrEqual):
        return ceiling, high
    if isinstance(each, LessThan):
        return low, ceiling
    return low, floor + 1


def _number(value: Any) -> tuple[int, int]:
    """A number rounded down and up; times are ms, of which Spark knows the thousandth part."""
    if isinstance(value, datetime):
        since = value.replace(tzinfo=value.tzinfo or UTC) - _EPOCH
        micros = since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds
        return micros // 1000, -(-micros // 1000)
    return int(value), int(value)
