"""The stream readers: they read what is new since the last micro-batch, within its limits.

Offsets are ``{"topic": {"0": 5}}``: the next message of each queue. Every call opens the store
again, so that new and deleted queues, topics and files are seen. A store in use is read up to its
last complete record (:mod:`firetrail.store.inspect.view`).

A limited micro-batch is cut at one position of the log: the oldest messages of all queues are
delivered first, and the log is read sequentially.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from firetrail.errors import ConfigError, DataLostError
from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.source.partition import read_partition
from firetrail.pipeline.source.places import is_remote, local_path
from firetrail.pipeline.source.plan.log_splits import plan_log, plan_queues, record_from, time_span
from firetrail.pipeline.source.plan.ranges import (
    QueuePart,
    asked_topics,
    by_time,
    check_edges,
    check_topics,
    clipped,
    each_queue,
    followed_topics,
    look_at,
    queue_ends,
    report_missing,
    resolve,
)
from firetrail.pipeline.source.plan.store_plan import check_readable
from firetrail.pipeline.source.plan.store_splits import QueueRange, RowSelection
from firetrail.pipeline.source.source_options import (
    LATEST,
    Q,
    ReadBoundary,
    ReadOptions,
    TopicOffsets,
    parse_offsets,
)
from firetrail.pipeline.source.split_reader import read_split
from firetrail.pipeline.source.trigger_delay import TriggerDelay
from firetrail.pipeline.source.unit_reader import first_at_or_after
from firetrail.store.inspect.view import StoreView

_LOG = "log"
_CLOSE_ENOUGH = 0.9
"""The search for a cut ends once a micro-batch has at least this part of the limit."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Base class of the stream readers."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        if is_remote(options.path):
            raise ConfigError("path", options.path, "streams read local or mounted stores only")
        self._options = options
        self._columns = tuple(columns)
        self._delay = TriggerDelay(options)
        self._target: dict[str, Any] | None = None  # the end of a run with AvailableNow

    def _open(self, topics: Iterable[str] | None) -> StoreView:
        """Open the store with the queues of some topics only, which saves time."""
        return StoreView.open(local_path(self._options.path), topics=topics)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch that the options set."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def _must_wait(self, count: int, limit: ReadLimit) -> bool:
        """Return whether a micro-batch waits until there are more than ``count`` new messages."""
        return self._target is None and self._delay.applies(count, limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the current end of the store."""
        self._target = self.reportLatestOffset()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a split."""
        return read_partition(read_split, partition, self._options, self._columns)


class QueueStreamReader(StreamReader):
    """Follows queues."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query: the end of the store, unless options say otherwise."""
        options = self._options
        with self._open(asked_topics(options)) as view:
            check_topics(view, options)
            check_edges(view, options)
            found: TopicOffsets = {}
            boundary = options.starting_offsets or ReadBoundary(LATEST)
            for queue in each_queue(view, options):
                low, high = queue_ends(view, queue)
                name = queue.topic, queue.queue_id
                begin = resolve(name, boundary, low, high, high, options)
                if options.starts_at_time:
                    begin, _ = by_time(view, queue, low, high, options.times_of(*name))
                found.setdefault(queue.topic, {})[queue.queue_id] = begin
        return as_json(found)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, which is ``start`` if nothing is new."""
        reached = parse_offsets(start)
        with self._open(asked_topics(self._options)) as view:
            check_readable(view, self._options)
            ends = self._ends(view)
            if self._target is not None:
                ends = cut_to(ends, parse_offsets(self._target))
            empty, parts = self._between(view, reached, ends)
            if self._must_wait(sum(part.range.count for part in parts), limit):
                return start
            for part in (*empty, *_limited(view, parts, limit)):
                if part.count or part.queue_id in reached.get(part.topic, {}):
                    reached.setdefault(part.topic, {})[part.queue_id] = part.end
        return as_json(reached)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the current ends of the queues, from which Spark computes the lag."""
        with self._open(asked_topics(self._options)) as view:
            return as_json(self._ends(view))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits of one micro-batch."""
        with self._open(end) as view:  # a previous run may have followed other topics
            _, parts = self._between(view, parse_offsets(start), parse_offsets(end))
            wanted = RowSelection(tags=self._options.tags)
            splits, note = plan_queues(view, parts, wanted, at_least=self._options.min_partitions)
        LOGGER.info("rocketmq %s: %s", self._options.path, note)
        return [InputPartition(split) for split in splits]

    def _ends(self, view: StoreView) -> TopicOffsets:
        ends: TopicOffsets = {}
        for queue in each_queue(view, self._options):
            ends.setdefault(queue.topic, {})[queue.queue_id] = queue_ends(view, queue)[1]
        return ends

    def _between(
        self, view: StoreView, start: TopicOffsets, end: TopicOffsets
    ) -> tuple[list[QueueRange], list[QueuePart]]:
        """Return the parts between two offsets: ranges without messages, and parts with some.

        A queue that is not in ``start`` is new, and read from its first message.
        """
        empty: list[QueueRange] = []
        parts: list[QueuePart] = []
        for topic, by_queue in sorted(end.items()):
            for queue_id, stop in sorted(by_queue.items()):
                begin = start.get(topic, {}).get(queue_id, 0)
                if (topic, queue_id) not in view.tails:
                    if begin < stop:
                        report_missing(self._options, f"{topic}/{queue_id}", begin)
                    continue
                with closing(view.open_queue(topic, queue_id)) as queue:
                    ends = queue_ends(view, queue)
                    name = f"{topic}/{queue_id}"
                    begin, stop = clipped(self._options, name, ends, begin, stop)
                    if begin < stop:
                        parts.append(look_at(queue, begin, stop))
                    else:
                        empty.append(QueueRange(topic, queue_id, stop, stop))
        return empty, parts


class LogStreamReader(StreamReader):
    """Follows the log itself. Offsets are ``{"log": physical offset}``."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query: the end of the log, or a time."""
        since = self._options.starting_timestamp
        with self._open(() if since == TIME_MIN else None) as view:
            check_topics(view, self._options)
            start = view.end if since == TIME_MIN else time_span(view, since, TIME_MAX)[0]
        return {_LOG: start}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch."""
        with self._open(()) as view:
            check_readable(view, self._options)
            end = view.end if self._target is None else min(self._target[_LOG], view.end)
            if isinstance(limit, ReadMaxBytes) and end - start[_LOG] > limit.max_bytes:
                second = record_from(view, start[_LOG] + 1)
                end = max(record_from(view, start[_LOG] + limit.max_bytes), second)
        return {_LOG: max(end, start[_LOG])}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the current end of the log."""
        with self._open(()) as view:
            return {_LOG: view.end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits of one micro-batch."""
        options = self._options
        begin, stop = start[_LOG], end[_LOG]
        topics = followed_topics(options)
        wanted = RowSelection(
            tags=options.tags, topics=None if topics is None else tuple(sorted(topics))
        )
        with self._open(()) as view:
            low, high = view.log.min_offset, view.end
            if options.fail_on_data_loss and (begin < low or stop > high):
                raise DataLostError(
                    f"{options.path}: {begin} up to {stop} are to be read, but the log has {low} "
                    f"up to {high}; read with failOnDataLoss=false to skip what is missing"
                )
            splits = plan_log(view, begin, stop, at_least=options.min_partitions, wanted=wanted)
        return [InputPartition(split) for split in splits]


def as_json(offsets: Mapping[str, Mapping[Any, int]]) -> dict[str, Any]:
    """Return offsets as JSON, sorted, so that equal offsets have equal text."""
    return {
        topic: {str(queue): by_queue[queue] for queue in sorted(by_queue)}
        for topic, by_queue in sorted(offsets.items())
    }


def cut_to(
    ends: Mapping[str, Mapping[Q, int]], target: Mapping[str, Mapping[Q, int]]
) -> dict[str, dict[Q, int]]:
    """Limit ends to those of a target, and leave out queues that it does not have."""
    return {
        topic: {
            queue: min(end, target[topic][queue])
            for queue, end in by_queue.items()
            if queue in target[topic]
        }
        for topic, by_queue in ends.items()
        if topic in target
    }


# -- limits -----------------------------------------------------------------------------------


def _limited(view: StoreView, parts: list[QueuePart], limit: ReadLimit) -> list[QueueRange]:
    """Cut the ranges at the position of the log that the limit allows."""
    ranges = [part.range for part in parts]
    if isinstance(limit, ReadMaxRows):
        room, weights = limit.max_rows, [1] * len(parts)
    elif isinstance(limit, ReadMaxBytes):
        room = limit.max_bytes
        weights = [max(part.size // part.range.count, 1) for part in parts]
    else:
        return ranges

    def cost(cut: list[QueueRange]) -> int:
        return sum(part.count * weight for part, weight in zip(cut, weights, strict=True))

    if cost(ranges) <= room:
        return ranges
    # The cut is between low, before which the limit holds, and high, before which it does not. The
    # next guess assumes that messages are spread evenly, but is never too close to either end.
    low, high = min(part.start for part in parts) + 1, max(part.end for part in parts)
    best, spent, excess = _before(view, ranges, low), 0, cost(ranges)
    while high - low > 1 and spent < _CLOSE_ENOUGH * room:
        even = (room - spent) / max(excess - spent, 1)
        guess = low + max(1, int((high - low) * min(max(even, 0.1), 0.9)))
        cut = _before(view, ranges, min(guess, high - 1))
        if cost(cut) > room:
            high, excess = min(guess, high - 1), cost(cut)
        else:
            low, spent, best = min(guess, high - 1), cost(cut), cut
    return best


def _before(view: StoreView, ranges: list[QueueRange], place: int) -> list[QueueRange]:
    """Cut ranges to the messages before a position of the log."""
    cut = []
    for part in ranges:
        with closing(view.open_queue(part.topic, part.queue_id)) as queue:
            end = first_at_or_after(queue, part.begin, part.end, place)
        cut.append(QueueRange(part.topic, part.queue_id, part.begin, end))
    return cut
