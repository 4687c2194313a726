"""The stream reader for brokers. Offsets are ``{"topic": {"broker-a/0": 5}}``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.source.partition import read_partition
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS, clipped, report_missing, resolve
from firetrail.pipeline.source.plan.store_splits import RowSelection
from firetrail.pipeline.source.source_options import (
    LATEST,
    QueueName,
    ReadBoundary,
    ReadOptions,
    parse_offsets_by,
)
from firetrail.pipeline.source.store_stream import StreamReader, as_json, cut_to
from firetrail.pipeline.wire.broker_plan import (
    BrokerPart,
    check_queues,
    followed,
    measured,
    split_parts,
    times_of,
)
from firetrail.pipeline.wire.broker_queues import Cluster, OffsetRange, name_of
from firetrail.pipeline.wire.broker_reader import read_wire
from firetrail.remoting.messages.bodies import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

BrokerOffsets = dict[str, dict[QueueName, int]]


class WireStreamReader(StreamReader):
    """Follows queues of brokers. Every call asks the name server for topics and queues again."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._committed: dict[MessageQueue, int] = {}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a split."""
        return read_partition(read_wire, partition, self._options, self._columns)

    def _cluster(self) -> Cluster:
        return Cluster(self._options)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query: the ends of the queues, unless options say otherwise."""
        options = self._options
        with self._cluster() as cluster:
            queues = cluster.queues(NO_BOUNDS)
            check_queues(queues, options)
            all_ends = cluster.ends(followed(queues, options))
            if options.starts_at_time:
                begins = [begin for begin, _ in cluster.cut(all_ends, partial(times_of, options))]
            else:
                boundary = options.starting_offsets or ReadBoundary(LATEST)
                begins = [self._resolved(ends, boundary) for ends in all_ends]
        found: BrokerOffsets = {}
        for ends, begin in zip(all_ends, begins, strict=True):
            found.setdefault(ends.queue.topic, {})[name_of(ends.queue)] = begin
        return as_json(found)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, which is ``start`` if nothing is new."""
        begun = _parse(start)
        with self._cluster() as cluster:
            all_ends = self._ends(cluster, set(begun).intersection(self._options.subscribe or ()))
            self._commit(cluster, all_ends, begun)
            ends = _highs(all_ends)
            if self._target is not None:
                ends = cut_to(ends, _parse(self._target))
            parts = self._between(all_ends, begun, ends)
            if self._must_wait(sum(part.end - part.begin for part in parts), limit):
                return start
            if isinstance(limit, ReadMaxBytes):
                parts = measured(cluster, parts)
        for part in _limited(parts, limit):
            by_queue = begun.setdefault(part.queue.topic, {})
            name = name_of(part.queue)
            if part.begin < part.end or name in by_queue:
                by_queue[name] = part.end
        return as_json(begun)

    def _commit(
        self, cluster: Cluster, all_ends: list[OffsetRange], reached: BrokerOffsets
    ) -> None:
        """Write what has changed in the progress as offsets of the group, if there is one.

        Spark asks for the next micro-batch after it has committed the last one, and often never
        calls ``commit`` for the last one of a run. Brokers that are away get them later.
        """
        if not self._options.commit_group:
            return
        changed = []
        for queue in (ends.queue for ends in all_ends):
            offset = reached.get(queue.topic, {}).get(name_of(queue))
            if offset is not None and self._committed.get(queue) != offset:
                changed.append((queue, offset))
        cluster.commit(changed, self._options.commit_group)
        self._committed.update(changed)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the current ends of the queues, from which Spark computes the lag."""
        with self._cluster() as cluster:
            return as_json(_highs(self._ends(cluster)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits of one micro-batch."""
        with self._cluster() as cluster:
            begun, stop = _parse(start), _parse(end)
            cluster.await_queues(_unread(begun, stop))
            queues = [q for q in cluster.queues(NO_BOUNDS) if name_of(q) in stop.get(q.topic, {})]
            parts = self._between(cluster.ends(queues), begun, stop)
            parts = measured(cluster, parts)
        parts = [part for part in parts if part.begin < part.end]
        splits = split_parts(parts, self._options, RowSelection(tags=self._options.tags))
        LOGGER.info("rocketmq %s: %d queues are pulled", self._options.place, len(parts))
        return [InputPartition(split) for split in splits]

    def _resolved(self, ends: OffsetRange, boundary: ReadBoundary) -> int:
        name = ends.queue.topic, ends.queue.queue_id, ends.queue.broker_name
        return resolve(name, boundary, ends.low, ends.high, ends.high, self._options)

    def _ends(self, cluster: Cluster, known: Iterable[str] = ()) -> list[OffsetRange]:
        return cluster.ends(followed(cluster.queues(NO_BOUNDS, known), self._options))

    def _between(
        self, all_ends: list[OffsetRange], start: BrokerOffsets, end: BrokerOffsets
    ) -> list[BrokerPart]:
        """Return the parts between two offsets, including empty ones.

        A queue that is not in ``start`` is new, and read from its first message.
        """
        known = {(ends.queue.topic, name_of(ends.queue)): ends for ends in all_ends}
        parts = []
        for topic, by_queue in sorted(end.items()):
            for name, stop in sorted(by_queue.items()):
                begin = start.get(topic, {}).get(name, 0)
                ends = known.get((topic, name))
                if ends is not None:
                    between = clipped(self._options, ends.name, ends[1:], begin, stop)
                    parts.append(BrokerPart(ends.queue, *between))
                elif begin < stop:
                    report_missing(self._options, f"{topic}/{name}", begin)
        return parts


def _parse(offsets: dict[str, Any]) -> BrokerOffsets:
    return parse_offsets_by(QueueName.parse, offsets)


def _unread(start: BrokerOffsets, end: BrokerOffsets) -> dict[str, list[QueueName]]:
    """Return the queues that have messages between two offsets, by topic."""
    found: dict[str, list[QueueName]] = {}
    for topic, by_queue in end.items():
        for name, stop in by_queue.items():
            if start.get(topic, {}).get(name, 0) < stop:
                found.setdefault(topic, []).append(name)
    return found


def _highs(all_ends: list[OffsetRange]) -> BrokerOffsets:
    found: BrokerOffsets = {}
    for ends in all_ends:
        found.setdefault(ends.queue.topic, {})[name_of(ends.queue)] = ends.high
    return found


def _limited(parts: list[BrokerPart], limit: ReadLimit) -> list[BrokerPart]:
    """Cut the parts to a limit, as Spark's Kafka source does.

    Each part is cut to the same fraction, but keeps at least one message.
    """
    if isinstance(limit, ReadMaxRows):
        total, room = sum(part.end - part.begin for part in parts), limit.max_rows
    elif isinstance(limit, ReadMaxBytes):
        total, room = sum(part.size for part in parts), limit.max_bytes
    else:
        return parts
    if total <= room:
        return parts
    cut = []
    for part in parts:
        count = part.end - part.begin
        some = min(count, max(count * room // total, 1))
        cut.append(part._replace(end=part.begin + some))
    return cut
