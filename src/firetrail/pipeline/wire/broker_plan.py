"""The plan of a read from brokers: ranges of queues, distributed over tasks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.plan.log_splits import share_out, split_count
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS, Bounds, check_edges_in, resolve
from firetrail.pipeline.source.plan.store_splits import QueueRange, RowSelection
from firetrail.pipeline.source.source_options import QueueName, ReadOptions
from firetrail.pipeline.wire.broker_access_file import access_in
from firetrail.pipeline.wire.broker_queues import Cluster, OffsetRange, name_of
from firetrail.pipeline.wire.broker_splits import BrokerRange, WireSplit
from firetrail.pipeline.wire.loop import Loop
from firetrail.pipeline.wire.request_retry import RequestRetry
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.text import counted

REACHED_MS = 20_000
"""The time that a query waits for a name server: longer than a restart of one takes."""


class BrokerPart(NamedTuple):
    """A range of a queue, and its approximate size in bytes."""

    queue: MessageQueue
    begin: int
    end: int
    size: int = 0


def check_name_server(namesrv: str) -> None:
    """Wait for a name server for at most REACHED_MS, and say so; raise PipelineError after that.

    A query that is typed at a terminal waits in this process, where the user sees the reason, and
    not in the planner of Spark.
    """
    limit = f"limit of a query: {REACHED_MS // 1000} s"
    retry = RequestRetry(namesrv, REACHED_MS, access=access_in(""), limited_by=limit)
    with Loop() as loop:
        loop.run(retry.reach())


def plan_wire(
    options: ReadOptions, bounds: Bounds, wanted: RowSelection
) -> tuple[list[WireSplit], list[str]]:
    """Return the splits of a batch read, and notes that explain them."""
    with Cluster(options) as cluster:
        queues = cluster.queues(bounds)
        check_queues(queues, options, bounds)
        all_ends = cluster.ends(followed(queues, options))
        requested = [_requested(ends, options, bounds) for ends in all_ends]
        cuts = cluster.cut(
            [part[:3] for part in requested],
            lambda queue: times_of(options, queue, bounds),
            bounds.physical_offsets,
        )
        parts = [
            BrokerPart(part.queue, begin, end)
            for part, (begin, end) in zip(requested, cuts, strict=True)
            if begin < end
        ]
        parts = measured(cluster, parts)
    messages, size = sum(p.end - p.begin for p in parts), sum(p.size for p in parts)
    splits = split_parts(parts, options, replace(wanted, since=TIME_MIN, until=TIME_MAX))
    what = f"{counted(messages, 'message')} of {counted(len(parts), 'queue')}"
    return splits, [f"{what}, about {size} bytes, to pull"]


def followed(queues: Iterable[MessageQueue], options: ReadOptions) -> list[MessageQueue]:
    """Return the queues that the options select."""
    return [q for q in queues if options.follows_queue(q.topic, q.queue_id, q.broker_name)]


def times_of(
    options: ReadOptions, queue: MessageQueue, bounds: Bounds = NO_BOUNDS
) -> tuple[int, int]:
    """Return the store times of a queue's messages to read."""
    since, until = options.times_of(queue.topic, queue.queue_id, queue.broker_name)
    return max(since, bounds.times[0]), min(until, bounds.times[1])


def check_queues(
    queues: Sequence[MessageQueue], options: ReadOptions, bounds: Bounds = NO_BOUNDS
) -> None:
    """Raise ConfigError for options that name queues which do not exist, or are ambiguous."""
    known = {(queue.topic, name_of(queue)) for queue in queues}
    homes = Counter((queue.topic, queue.queue_id) for queue in queues)
    known |= {(topic, QueueName("", q)) for (topic, q), count in homes.items() if count == 1}
    check_edges_in(known, options, bounds)


def resolved(ends: OffsetRange, options: ReadOptions) -> int:
    """Return the offset at which the options let a queue begin."""
    name = ends.queue.topic, ends.queue.queue_id, ends.queue.broker_name
    return resolve(name, options.starting_offsets, ends.low, ends.high, ends.low, options)


def _requested(ends: OffsetRange, options: ReadOptions, bounds: Bounds) -> BrokerPart:
    queue, low, high = ends
    name = queue.topic, queue.queue_id, queue.broker_name
    end = resolve(name, options.ending_offsets, low, high, high, options)
    lowest, stop = bounds.queue_offsets
    begin = max(resolved(ends, options), lowest)
    return BrokerPart(queue, begin, max(min(end, stop), begin))


def measured(cluster: Cluster, parts: Sequence[BrokerPart]) -> list[BrokerPart]:
    """Return the parts with their sizes."""
    some = [part[:3] for part in parts if part.begin < part.end]
    sizes = dict(zip((queue for queue, _, _ in some), cluster.sizes(some), strict=True))
    return [part._replace(size=sizes.get(part.queue, 0)) for part in parts]


def split_parts(
    parts: Sequence[BrokerPart],
    options: ReadOptions,
    wanted: RowSelection,
    split_bytes: int | None = None,
) -> list[WireSplit]:
    """Distribute parts over tasks, with about ``split_bytes`` each if that is given."""
    size = sum(part.size for part in parts)
    count = split_count(size, split_bytes, options.min_partitions)
    splits = []
    for share in share_out([(part.begin, part.end, part.size) for part in parts], count):
        ranges = []
        for number, begin, end in share:
            queue = parts[number].queue
            taken = QueueRange(queue.topic, queue.queue_id, begin, end)
            ranges.append(BrokerRange(queue.broker_name, taken))
        splits.append(
            WireSplit(
                options.namesrv,
                options.group,
                tuple(ranges),
                wanted,
                options.retry_ms,
                options.access_file,
            )
        )
    return splits
