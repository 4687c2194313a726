"""Conversion of predicates over the columns to bounds for what has to be read.

Bounds only prune: they contain every row for which the predicate is true, and possibly others, so
the caller applies the predicate again. A predicate that is not supported prunes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS, Bounds


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with a constant; ``operator`` is one of ``= < <= > >=``.

    Constants are text or integers; those compared with ``store_time`` are µs since 1970.
    """

    column: str
    operator: str
    value: str | int


@dataclass(frozen=True, slots=True)
class Membership:
    """The condition that a column has one of some values."""

    column: str
    values: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Conjunction:
    """The conjunction of two predicates."""

    left: Predicate
    right: Predicate


@dataclass(frozen=True, slots=True)
class Disjunction:
    """The disjunction of two predicates."""

    left: Predicate
    right: Predicate


Predicate = Comparison | Membership | Conjunction | Disjunction | None
"""None is a predicate that is not supported."""


def bounds_of(predicate: Predicate) -> Bounds:
    """Return bounds of the rows for which a predicate holds."""
    if isinstance(predicate, Conjunction):
        return intersection(bounds_of(predicate.left), bounds_of(predicate.right))
    if isinstance(predicate, Disjunction):
        return union(bounds_of(predicate.left), bounds_of(predicate.right))
    if isinstance(predicate, Membership):
        parts = (_compared(predicate.column, "=", value) for value in predicate.values)
        return reduce(union, parts, NOTHING)
    if isinstance(predicate, Comparison):
        return _compared(predicate.column, predicate.operator, predicate.value)
    return NO_BOUNDS


NOTHING = Bounds(
    topics=frozenset(), queue_ids=frozenset(), queue_offsets=(0, 0), physical_offsets=(0, 0)
)
"""The bounds of no row at all."""


def intersection(one: Bounds, other: Bounds) -> Bounds:
    """Return bounds of the rows that are within both."""
    return Bounds(
        topics=_both(one.topics, other.topics),
        queue_ids=_both(one.queue_ids, other.queue_ids),
        queue_offsets=_overlap(one.queue_offsets, other.queue_offsets),
        physical_offsets=_overlap(one.physical_offsets, other.physical_offsets),
        times=_overlap(one.times, other.times),
    )


def union(one: Bounds, other: Bounds) -> Bounds:
    """Return the closest bounds that contain all rows of both."""
    for this, that in ((one, other), (other, one)):
        if is_empty(this):
            return that
    return Bounds(
        topics=_either(one.topics, other.topics),
        queue_ids=_either(one.queue_ids, other.queue_ids),
        queue_offsets=_span(one.queue_offsets, other.queue_offsets),
        physical_offsets=_span(one.physical_offsets, other.physical_offsets),
        times=_span(one.times, other.times),
    )


def is_empty(bounds: Bounds) -> bool:
    """Whether no row can be within the bounds."""
    ranges = (bounds.queue_offsets, bounds.physical_offsets, bounds.times)
    nowhere = bounds.topics == frozenset() or bounds.queue_ids == frozenset()
    return nowhere or any(low >= high for low, high in ranges)


CLOCK_STEP_MS = 10 * 60_000
"""A predicate finds all messages if the broker's clock was never set back by more than this."""


def with_slack(bounds: Bounds) -> Bounds:
    """Return bounds with a wider range of times, for stores whose clock was set back.

    Times are found by bisection, which assumes that store times increase. As long as no message is
    older than an earlier one by more than CLOCK_STEP_MS, everything outside the wider range is out
    of bounds.
    """
    low, high = bounds.times
    if low < high:
        low, high = max(low - CLOCK_STEP_MS, TIME_MIN), min(high + CLOCK_STEP_MS, TIME_MAX)
    return replace(bounds, times=(low, high))


def bounds_text(bounds: Bounds) -> str:
    """Return bounds as the value of an option."""
    fields = asdict(bounds)
    for name in ("topics", "queue_ids"):
        fields[name] = None if fields[name] is None else sorted(fields[name])
    return json.dumps(fields)


def parse_bounds(text: str) -> Bounds:
    """Parse the result of :func:`bounds_text`."""
    fields: dict[str, Any] = json.loads(text)
    for name in ("topics", "queue_ids"):
        fields[name] = None if fields[name] is None else frozenset(fields[name])
    for name in ("queue_offsets", "physical_offsets", "times"):
        fields[name] = tuple(fields[name])
    return Bounds(**fields)


# -- single comparisons -----------------------------------------------------------------------


def _compared(column: str, operator: str, value: Any) -> Bounds:
    known = NO_BOUNDS
    if column == "queue_offset":
        return replace(known, queue_offsets=_cut(known.queue_offsets, operator, value, value))
    if column == "physical_offset":
        return replace(known, physical_offsets=_cut(known.physical_offsets, operator, value, value))
    if column == "store_time":  # constants are µs, stored times are ms
        floor, ceiling = value // 1000, -(-value // 1000)
        return replace(known, times=_cut(known.times, operator, floor, ceiling))
    if operator != "=":
        return known
    if column == "topic":
        return replace(known, topics=frozenset((value,)))
    return replace(known, queue_ids=frozenset((value,))) if column == "queue_id" else known


def _cut(known: tuple[int, int], operator: str, floor: int, ceiling: int) -> tuple[int, int]:
    """Return the part of a range for which a comparison with a constant can hold."""
    low, high = _overlap(known, _RANGES[operator](floor, ceiling))
    return min(low, known[1]), max(high, known[0])


# Ranges of integers, with the end excluded, from a constant rounded down and up.
_RANGES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "=": lambda floor, ceiling: (ceiling, floor + 1),
    "<": lambda floor, ceiling: (TIME_MIN, ceiling),
    "<=": lambda floor, ceiling: (TIME_MIN, floor + 1),
    ">": lambda floor, ceiling: (floor + 1, TIME_MAX),
    ">=": lambda floor, ceiling: (ceiling, TIME_MAX),
}


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _either(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    return None if one is None or other is None else one | other


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])


def _span(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return min(one[0], other[0]), max(one[1], other[1])
