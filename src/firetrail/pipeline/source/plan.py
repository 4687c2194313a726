"""What a batch read does: its splits, and what was left out before anything was read."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from firetrail.errors import FormatError, StoreDamagedError
from firetrail.format.columns import Check, Stop
from firetrail.format.ids import decode_message_id
from firetrail.format.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.format.kernels.single import KeyQuestion
from firetrail.pipeline.source.options import ReadOptions, View
from firetrail.pipeline.source.places import is_remote, local_path
from firetrail.pipeline.source.planning import plan_log, plan_queues, record_from, time_span
from firetrail.pipeline.source.ranges import (
    NO_BOUNDS,
    Bounds,
    batch_parts,
    check_topics,
)
from firetrail.pipeline.source.remote import plan_remote
from firetrail.pipeline.source.splits import PlaceSplit, QueueRange, QueueSet, Split, Wanted
from firetrail.store.tail import TailKind, read_tail
from firetrail.store.view import StoreView

LOGGER = logging.getLogger("firetrail.pipeline")
LOGGER.setLevel(logging.INFO)  # what Spark collects of its workers is below the usual level
_ALL_OF_THEM = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The splits of a read, and notes on how they came about."""

    splits: list[Split]
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*self.notes, f"{len(self.splits)} partitions"])


def plan_batch(options: ReadOptions, bounds: Bounds = NO_BOUNDS) -> Plan:
    """Plan a read of the queues or of the log. Notes go to the log as well."""
    wanted = _wanted(options, bounds)
    if is_remote(options.path):
        splits, notes = plan_remote(options, bounds, wanted)
    else:
        with StoreView.open(local_path(options.path)) as view:
            check_readable(view, options)
            splits, notes = _plan(view, options, bounds, wanted)
    plan = Plan(splits, [f"rocketmq {options.path}, view={options.view.value}", *notes])
    LOGGER.info("%s", plan)
    return plan


def explain(**options: str) -> str:
    """What a read with these options would do: ``explain(path="STORE", subscribe="T")``."""
    from firetrail.pipeline.source.options import parse_options

    return str(plan_batch(parse_options(options)))


def check_readable(view: StoreView, options: ReadOptions) -> None:
    """Raise StoreDamagedError if the end of the log is missing and damage is not passed over."""
    if options.permissive:
        return
    tail = read_tail(view)
    if tail.kind is TailKind.DAMAGED and tail.found is not None:
        raise StoreDamagedError(
            str(tail.found.path),
            tail.found.position,
            tail.found.physical_offset,
            tail.found.detail,
            "check the store with 'firetrail fsck', or read with mode=permissive what there is",
        )


def _wanted(options: ReadOptions, bounds: Bounds) -> Wanted:
    topics = frozenset(options.subscribe) if options.subscribe is not None else None
    if bounds.topics is not None:
        topics = bounds.topics if topics is None else bounds.topics & topics
    return Wanted(
        dispatched=bool(options.key),
        since=max(options.starting_timestamp, bounds.times[0]),
        until=min(options.ending_timestamp, bounds.times[1]),
        tags=options.tags,
        key=options.key,
        topics=None if topics is None else tuple(sorted(topics)),
    )


def _plan(
    view: StoreView, options: ReadOptions, bounds: Bounds, wanted: Wanted
) -> tuple[list[Split], list[str]]:
    whole = view.end - view.log.min_offset
    notes = [f"log: {len(view.log.segments)} segments, {whole} bytes, {view.state.value}"]
    if options.view is View.QUEUE:
        parts = batch_parts(view, options, bounds)
        queue_wanted = replace(wanted, since=TIME_MIN, until=TIME_MAX, topics=None)
        if _is_looked_up(options, bounds, wanted):
            ranges = [part.range for part in parts]
            found = _plan_lookup(view, options, bounds, ranges, queue_wanted, wanted.topics or ())
        else:
            splits, note = plan_queues(view, parts, queue_wanted, at_least=options.min_partitions)
            found = list(splits), note
        return found[0], [*notes, found[1]]
    check_topics(view, options)
    if options.subscribe_pattern is not None:
        topics = [topic for topic in view.queues.topics() if options.follows(topic)]
        wanted = replace(wanted, topics=tuple(topics))
    start, end = time_span(view, wanted.since, wanted.until)
    start = max(start, record_from(view, bounds.places[0]))
    end = min(end, record_from(view, bounds.places[1]))
    if _is_looked_up(options, bounds, wanted):
        found = _plan_lookup(view, options, bounds, None, wanted, wanted.topics or ())
        return found[0], [*notes, found[1]]
    logs = plan_log(view, start, end, at_least=options.min_partitions, wanted=wanted)
    note = f"{max(end - start, 0)} bytes of log are scanned, {whole - max(end - start, 0)} pruned"
    return list(logs), [*notes, note]


# -- by key -----------------------------------------------------------------------------------


def _is_looked_up(options: ReadOptions, bounds: Bounds, wanted: Wanted) -> bool:
    """Whether the index leads to the messages: a key or an id, of known topics.

    It does not know rolled back messages, which the log has, and which may have an id.
    """
    by_id = bounds.message_id is not None and options.view is View.QUEUE
    return bool(wanted.topics) and (bool(options.key) or by_id)


def _plan_lookup(
    view: StoreView,
    options: ReadOptions,
    bounds: Bounds,
    ranges: list[QueueRange] | None,
    wanted: Wanted,
    topics: tuple[str, ...],
) -> tuple[list[Split], str]:
    """Look messages up in the index; what it does not cover is scanned.

    ``ranges`` are those of the queues in which a message has to be, None for the log.
    """
    if view.index_faults and not options.permissive:
        fault = view.index_faults[0]
        raise StoreDamagedError(
            f"{view.root}/{fault.file}",
            fault.offset,
            None,
            fault.detail,
            "rebuild the index with 'firetrail rebuild', or read without a key",
        )
    places: set[int] = set()
    for topic in topics:
        for key in {options.key, bounds.message_id} - {"", None}:
            assert key is not None
            question = KeyQuestion(topic, key, 0, TIME_MAX)
            places.update(view.index.query(question, _ALL_OF_THEM))
    if bounds.message_id is not None:
        places.update(_place_in_id(bounds.message_id))
    begin, end = _indexed(view)
    kept = sorted(
        place for place in places if begin <= place < end and _is_there(view, place, ranges)
    )
    splits: list[Split] = [PlaceSplit(str(view.root), tuple(kept), wanted)] if kept else []
    queues = None if ranges is None else QueueSet(tuple(ranges), view.queue_file_size)
    rest = [
        *plan_log(view, None, begin, queues=queues, wanted=wanted),
        *plan_log(view, end, queues=queues, wanted=wanted),
    ]
    note = f"{len(kept)} messages found through {len(view.index.files)} index files"
    if rest:
        size = sum(split.size for split in rest)
        note += f", {size} bytes of log that they do not cover are scanned"
    return [*splits, *rest], note


def _place_in_id(message_id: str) -> list[int]:
    """The physical offset in an offset id; a client's own id looks the same, and is no place."""
    try:
        return [decode_message_id(message_id).physical_offset]
    except FormatError:
        return []


def _indexed(view: StoreView) -> tuple[int, int]:
    """The part of the log that the index knows: from its first message with a key to its last."""
    low, high = view.log.min_offset, view.end
    if not view.index.files:
        return low, low
    begin = min(max(view.index.files[0].header.begin_offset, low), high)
    return begin, max(min(view.index.end_offset, high), begin)


def _is_there(view: StoreView, place: int, ranges: list[QueueRange] | None) -> bool:
    """Whether a record stands at a place, and is in one of the ranges of queues."""
    if place < view.log.min_offset or place >= view.end:
        return False
    stop, columns = view.log.scan_one(place, Check.NONE)
    if stop is not Stop.LIMIT or ranges is None:
        return stop is Stop.LIMIT
    row = columns.row(0)
    for part in ranges:
        if part.queue_id == row["queue_id"] and part.begin <= row["queue_offset"] < part.end:
            queue = view.queues.find(part.topic, part.queue_id)
            unit = queue.unit(row["queue_offset"]) if queue is not None else None
            if unit is not None and unit.physical_offset == place:
                return True
    return False
