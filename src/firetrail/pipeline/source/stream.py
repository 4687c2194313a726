"""The stream readers: what is new since the last micro-batch, within the limits of one.

Offsets are ``{"topic": {"0": 5}}``: the next message of each queue. Each look at the store opens it
anew, so that queues, topics and files that came or went meanwhile are seen. A store in use is read
as far as records are whole (:mod:`firetrail.store.view`).

A limited micro-batch is cut at one place of the log: the oldest messages of all queues come first,
and the log is read from front to back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from firetrail.errors import ConfigError, DataLostError
from firetrail.format.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.batches import read_split
from firetrail.pipeline.source.options import LATEST, Edge, Offsets, ReadOptions, parse_offsets
from firetrail.pipeline.source.places import is_remote, local_path
from firetrail.pipeline.source.plan import LOGGER, check_readable
from firetrail.pipeline.source.planning import plan_log, plan_queues, record_from, time_span
from firetrail.pipeline.source.ranges import (
    by_time,
    check_topics,
    open_queues,
    queue_ends,
    report_loss,
    resolve,
    sampled_bytes,
    span,
)
from firetrail.pipeline.source.splits import QueueRange, Wanted
from firetrail.pipeline.source.units import first_behind
from firetrail.store.view import StoreView

_LOG = "log"
_CLOSE_ENOUGH = 0.9
"""A cut that lets through this part of the limit is not improved."""


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both views have in common."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        if is_remote(options.path):
            raise ConfigError("path", options.path, "streams read local or mounted stores only")
        self._options = options
        self._columns = tuple(columns)
        self._target: dict[str, Any] | None = None  # where a run of AvailableNow ends

    def _open(self) -> StoreView:
        return StoreView.open(local_path(self._options.path))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options allow a micro-batch."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the end that the store has now."""
        self._target = self.reportLatestOffset()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a split."""
        options = self._options
        return read_split(
            partition.value,
            self._columns,
            permissive=options.permissive,
            decompress=options.decompress,
            allow_loss=not options.fail_on_data_loss,
        )


class QueueStreamReader(_StreamReader):
    """Follows queues."""

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: at the end, unless the options say otherwise."""
        options = self._options
        with self._open() as view:
            check_topics(view, options)
            found: Offsets = {}
            edge = options.starting_offsets or Edge(LATEST)
            for queue in open_queues(view, options):
                low, high = queue_ends(view, queue)
                begin = resolve(queue, edge, low, high, high, options)
                if options.starting_timestamp > TIME_MIN:
                    begin, _ = by_time(
                        view, queue, low, high, (options.starting_timestamp, TIME_MAX)
                    )
                found.setdefault(queue.topic, {})[queue.queue_id] = begin
        return _as_json(found)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; ``start`` itself if there is nothing new."""
        known = parse_offsets(start)
        with self._open() as view:
            check_readable(view, self._options)
            ends = self._ends(view)
            if self._target is not None:
                ends = _cut_to(ends, parse_offsets(self._target))
            ranges = self._ranges(view, known, ends)
            if not isinstance(limit, ReadAllAvailable):
                ranges = _limited(view, ranges, limit)
        reached = {topic: dict(by_queue) for topic, by_queue in known.items()}
        for part in ranges:
            reached.setdefault(part.topic, {})[part.queue_id] = part.end
        return _as_json(reached)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the queues end now: with what was read, the lag."""
        with self._open() as view:
            return _as_json(self._ends(view))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The splits of one micro-batch."""
        with self._open() as view:
            ranges = self._ranges(view, parse_offsets(start), parse_offsets(end))
            wanted = Wanted(tags=self._options.tags)
            splits, note = plan_queues(
                view,
                [part for part in ranges if part.count],
                wanted,
                at_least=self._options.min_partitions,
            )
        LOGGER.info("rocketmq %s: %s", self._options.path, note)
        return [InputPartition(split) for split in splits]

    def _ends(self, view: StoreView) -> Offsets:
        ends: Offsets = {}
        for queue in open_queues(view, self._options):
            ends.setdefault(queue.topic, {})[queue.queue_id] = queue_ends(view, queue)[1]
        return ends

    def _ranges(self, view: StoreView, start: Offsets, end: Offsets) -> list[QueueRange]:
        """What is between two offsets. A queue that the first does not know is new."""
        ranges = []
        for topic, by_queue in sorted(end.items()):
            for queue_id, stop in sorted(by_queue.items()):
                begin = start.get(topic, {}).get(queue_id, 0)
                queue = (
                    view.queues.find(topic, queue_id) if (topic, queue_id) in view.tails else None
                )
                if queue is None:
                    if begin < stop:
                        self._report_missing(f"{topic}/{queue_id}", begin)
                    continue
                low, high = queue_ends(view, queue)
                if begin > high or stop > high:
                    self._report_cut(f"{topic}/{queue_id}", max(begin, stop), high)
                    begin, stop = min(begin, high), min(stop, high)
                if begin < low and begin < stop:
                    report_loss(self._options, f"{topic}/{queue_id}", begin, low)
                    begin = min(low, stop)
                ranges.append(QueueRange(topic, queue_id, begin, max(begin, stop)))
        return ranges

    def _report_missing(self, queue: str, begin: int) -> None:
        if self._options.fail_on_data_loss:
            raise DataLostError(
                f"{self._options.path}: queue {queue} is gone, with its messages from {begin} on; "
                "read with failOnDataLoss=false to go on without it"
            )

    def _report_cut(self, queue: str, known: int, high: int) -> None:
        if self._options.fail_on_data_loss:
            raise DataLostError(
                f"{self._options.path}: queue {queue} ends at {high}, but was read up to {known}: "
                "the store lost messages or is another one; begin with a new checkpoint, or read "
                "with failOnDataLoss=false to go on from the queue's end"
            )


class LogStreamReader(_StreamReader):
    """Follows the log itself. Offsets are ``{"log": physical offset}``."""

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: at the end, or at a time."""
        since = self._options.starting_timestamp
        with self._open() as view:
            check_topics(view, self._options)
            start = view.end if since == TIME_MIN else time_span(view, since, TIME_MAX)[0]
        return {_LOG: start}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends."""
        with self._open() as view:
            check_readable(view, self._options)
            end = view.end if self._target is None else min(self._target[_LOG], view.end)
            if isinstance(limit, ReadMaxBytes) and end - start[_LOG] > limit.max_bytes:
                behind = record_from(view, start[_LOG] + 1)
                end = max(record_from(view, start[_LOG] + limit.max_bytes), behind)
        return {_LOG: max(end, start[_LOG])}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the log ends now."""
        with self._open() as view:
            return {_LOG: view.end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The splits of one micro-batch."""
        options = self._options
        begin, stop = start[_LOG], end[_LOG]
        with self._open() as view:
            low, high = view.log.min_offset, view.end
            if options.fail_on_data_loss and (begin < low or stop > high):
                raise DataLostError(
                    f"{options.path}: the log has {low} up to {high}, {begin} up to {stop} are to "
                    "be read; read with failOnDataLoss=false to take what there is"
                )
            topics = [topic for topic in view.queues.topics() if options.follows(topic)]
            chosen = options.subscribe is not None or options.subscribe_pattern is not None
            wanted = Wanted(tags=options.tags, topics=tuple(topics) if chosen else None)
            splits = plan_log(view, begin, stop, at_least=options.min_partitions, wanted=wanted)
        return [InputPartition(split) for split in splits]


def _as_json(offsets: Offsets) -> dict[str, Any]:
    """Sorted, so that equal offsets are equal as text."""
    return {
        topic: {str(queue_id): by_queue[queue_id] for queue_id in sorted(by_queue)}
        for topic, by_queue in sorted(offsets.items())
    }


def _cut_to(ends: Offsets, target: Offsets) -> Offsets:
    """Ends that go no further than a target; queues that it does not know are left out."""
    return {
        topic: {
            queue_id: min(end, target[topic][queue_id])
            for queue_id, end in by_queue.items()
            if queue_id in target[topic]
        }
        for topic, by_queue in ends.items()
        if topic in target
    }


# -- limits -----------------------------------------------------------------------------------


def _limited(view: StoreView, ranges: list[QueueRange], limit: ReadLimit) -> list[QueueRange]:
    """The ranges cut at the place of the log up to which a limit lets them go."""
    filled = [part for part in ranges if part.count]
    if isinstance(limit, ReadMaxRows):
        room, weights = limit.max_rows, [1] * len(filled)
    elif isinstance(limit, ReadMaxBytes):
        room = limit.max_bytes
        weights = [_mean_size(view, part) for part in filled]
    else:
        return ranges
    if sum(part.count * weight for part, weight in zip(filled, weights, strict=True)) <= room:
        return ranges

    def cut(place: int) -> list[QueueRange]:
        return [_before(view, part, place) for part in filled]

    def cost(parts: list[QueueRange]) -> int:
        return sum(part.count * weight for part, weight in zip(parts, weights, strict=True))

    start, end = span(view, filled)
    return _search(cut, cost, start, end, room)


def _search(
    cut: Callable[[int], list[QueueRange]],
    cost: Callable[[list[QueueRange]], int],
    start: int,
    end: int,
    room: int,
) -> list[QueueRange]:
    """What is before the last place at which the cost is within ``room``; one message at least."""
    best = cut(start + 1)
    low, high = start + 1, end
    while high - low > 1:
        middle = (low + high) // 2
        parts = cut(middle)
        spent = cost(parts)
        if spent > room:
            high = middle
        else:
            low, best = middle, parts
            if spent >= _CLOSE_ENOUGH * room:
                break
    return best


def _before(view: StoreView, part: QueueRange, place: int) -> QueueRange:
    queue = view.queues.find(part.topic, part.queue_id)
    assert queue is not None
    end = first_behind(queue, part.begin, part.end, place)
    return QueueRange(part.topic, part.queue_id, part.begin, end)


def _mean_size(view: StoreView, part: QueueRange) -> int:
    queue = view.queues.find(part.topic, part.queue_id)
    assert queue is not None
    return max(sampled_bytes(queue, part) // part.count, 1)
