"""The plan of a batch read: its splits, and notes on what they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from firetrail.pipeline.backend import backend_of
from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.source.plan.filters import intersection, parse_bounds
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS, Bounds
from firetrail.pipeline.source.plan.store_splits import RowSelection
from firetrail.pipeline.source.source_options import ReadOptions, parse_options
from firetrail.text import counted

if TYPE_CHECKING:
    from firetrail.pipeline.wire.broker_splits import Split


@dataclass(frozen=True, slots=True)
class Plan:
    """The splits of a read, and notes that explain them."""

    splits: list[Split]
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*self.notes, counted(len(self.splits), "partition")])


def plan_batch(
    options: ReadOptions, bounds: Bounds = NO_BOUNDS, columns: Sequence[str] | None = None
) -> Plan:
    """Plan a read of the queues or of the log, and log the notes.

    ``columns`` are the columns to be read, if they differ from those in the options.
    """
    if options.paths:
        return _plan_all(options, bounds, columns)
    bounds = _all_bounds(options, bounds)
    wanted = _wanted(options, bounds)
    splits, notes = backend_of(options).plan(options, bounds, wanted, columns)
    plan = Plan([*splits], [f"rocketmq {options.place}, view={options.view.value}", *notes])
    LOGGER.info("%s", plan)
    return plan


def _plan_all(options: ReadOptions, bounds: Bounds, columns: Sequence[str] | None) -> Plan:
    """Plan a read of several stores."""
    share = -(-options.min_partitions // len(options.paths))
    each = replace(options, paths=(), min_partitions=share)
    plans = [plan_batch(replace(each, path=path), bounds, columns) for path in options.paths]
    return Plan(
        [split for plan in plans for split in plan.splits],
        [note for plan in plans for note in plan.notes],
    )


def _all_bounds(options: ReadOptions, bounds: Bounds) -> Bounds:
    if options.bounds:
        bounds = intersection(bounds, parse_bounds(options.bounds))
    ids = None if options.queue_ids is None else frozenset(options.queue_ids)
    physical_offsets = options.starting_physical_offset, options.ending_physical_offset
    return intersection(bounds, Bounds(queue_ids=ids, physical_offsets=physical_offsets))


def _wanted(options: ReadOptions, bounds: Bounds) -> RowSelection:
    topics = frozenset(options.subscribe) if options.subscribe is not None else None
    if bounds.topics is not None:
        topics = bounds.topics if topics is None else bounds.topics & topics
    return RowSelection(
        dispatched=bool(options.key),
        since=max(options.starting_timestamp, bounds.times[0]),
        until=min(options.ending_timestamp, bounds.times[1]),
        tags=options.tags,
        key=options.key,
        topics=None if topics is None else tuple(sorted(topics)),
    )


def explain(**options: str) -> str:
    """Describe how a batch read would be done, without reading any messages.

    ::

        print(explain(path="STORE", subscribe="orders"))

    Args:
        **options: Options of the data source ``rocketmq``, by name.

    Returns:
        Text with the number of partitions, and the parts of the store that are read or skipped.

    Raises:
        ConfigError: An option is unknown or has an invalid value.
        NotAStoreError: There is no store at ``path``.
        StoreDamagedError: The end of the log, the queues or the index are damaged.
    """
    return str(plan_batch(parse_options(options)))
