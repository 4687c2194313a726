"""The ranges of queues that a read of a store needs.

The queue offset of a time, or of a physical offset, is found by bisection in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass

from firetrail.errors import ConfigError, DataLostError, StoreDamagedError
from firetrail.format.files.unit import ConsumeQueueUnit
from firetrail.format.names import CONSUME_QUEUE, OFFSET_MAX
from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.places import local_path
from firetrail.pipeline.source.plan.store_splits import QueueRange
from firetrail.pipeline.source.source_options import (
    EARLIEST,
    LATEST,
    QueueName,
    ReadBoundary,
    ReadOptions,
    View,
)
from firetrail.pipeline.source.unit_reader import first_at_or_after
from firetrail.store.evidence.catalog import KnownTopics, parse_topics, topics_content
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.log_records import store_time_at
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.queue_table import QueueTable
from firetrail.system import SYSTEM


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the rows that predicates select; the ends of ranges are excluded.

    There are no bounds for message ids. The index finds messages by id, but not those stored while
    ``messageIndexEnable`` was off, and nothing in the files shows whether there are any.
    """

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    queue_offsets: tuple[int, int] = (0, OFFSET_MAX)
    physical_offsets: tuple[int, int] = (0, OFFSET_MAX)
    times: tuple[int, int] = (TIME_MIN, TIME_MAX)


NO_BOUNDS = Bounds()
SAMPLES = 1 << 14
"""Units read in all queues together to estimate the sizes of messages."""
SAMPLES_MOST = 16
"""Maximum number of units read per queue."""
SAMPLES_LEAST = 2
"""Minimum number of units read per queue."""


def followed_topics(options: ReadOptions) -> frozenset[str] | None:
    """Return the topics that a read of a local store names; None if it names none.

    For a pattern, these are the matching topics that have a folder.
    """
    if options.subscribe is not None:
        return frozenset(options.subscribe)
    if options.subscribe_pattern is None:
        return None
    folders = SYSTEM.files.folders(local_path(options.path) / CONSUME_QUEUE)
    return frozenset(filter(options.follows, folders))


def asked_topics(options: ReadOptions, bounds: Bounds = NO_BOUNDS) -> frozenset[str] | None:
    """Return the topics whose queues a read of a local store needs; None for all topics.

    A read of the log needs all queues: the log has messages that are in no queue, and only all
    queues together determine where it ends.
    """
    if options.view is not View.QUEUE:
        return None
    topics = followed_topics(options)
    if topics is None or bounds.topics is None:
        return bounds.topics if topics is None else topics
    return topics & bounds.topics


def known_topics(view: StoreView) -> list[str]:
    """Return the topics that have a queue or are in the broker's configuration."""
    table = QueueTable(view.system, view.root, view.queue_file_size, writable=False)
    table.list_folders()
    return sorted({*table.topics(), *_configured_topics(view)})


def _configured_topics(view: StoreView) -> Collection[str]:
    return _configured(view).names


def _configured(view: StoreView) -> KnownTopics:
    return parse_topics(topics_content(view.system.files, view.root))


def check_topics(view: StoreView, options: ReadOptions) -> None:
    """Raise ConfigError for a topic that does not exist."""
    missing = set(options.subscribe or ()) - set(view.queues.topics())
    if missing and not missing <= set(_configured_topics(view)):
        check_topics_in(known_topics(view), options)


def check_topics_in(topics: Collection[str], options: ReadOptions) -> None:
    """Raise ConfigError for a topic that is not in ``topics``."""
    for topic in options.subscribe or ():
        if topic not in topics:
            existing = ", ".join(topics) or "none"
            remedy = f"{options.place} has no such topic; its topics are {existing}"
            name = "subscribe" if options.assign is None else "assign"
            raise ConfigError(name, topic, remedy)


def each_queue(
    view: StoreView, options: ReadOptions, bounds: Bounds = NO_BOUNDS
) -> Iterator[ConsumeQueue]:
    """Yield the queues to read from; only one at a time is open, because there may be very many.

    Raise StoreDamagedError for a queue that cannot be opened.
    """
    for topic, queue_id in view.queues.pairs():
        if not options.follows_queue(topic, queue_id) or not is_in(bounds, topic, queue_id):
            continue
        fault = view.queue_faults.get((topic, queue_id))
        if fault is None:
            with closing(view.open_queue(topic, queue_id)) as queue:
                yield queue
        elif not options.permissive:
            raise StoreDamagedError(
                f"{view.root}/{fault.file}",
                fault.offset,
                None,
                fault.detail,
                "rebuild the queues with 'firetrail rebuild', or read with mode=permissive to skip "
                "this one",
            )


def is_in(bounds: Bounds, topic: str, queue_id: int) -> bool:
    """Whether a queue may have messages within the bounds."""
    topics: Collection[str] | None = bounds.topics
    return (topics is None or topic in topics) and (
        bounds.queue_ids is None or queue_id in bounds.queue_ids
    )


def queue_ends(view: StoreView, queue: ConsumeQueue) -> tuple[int, int]:
    """Return the first and the end offset of a queue's messages in the log, as the view has it."""
    low = queue.min_offset(view.log.min_offset)
    tail = view.tails[queue.topic, queue.queue_id]
    high = max(tail.max_offset, low)
    if tail.last is not None and tail.last.physical_offset + tail.last.size > view.end:
        high = first_at_or_after(queue, low, high, view.end)
    return low, high


@dataclass(frozen=True, slots=True)
class QueuePart:
    """A range of a queue that is not empty, and facts about its messages."""

    range: QueueRange
    start: int  # physical offset of the first message
    end: int  # physical offset after the last message
    size: int  # approximate size of all messages


def batch_parts(
    view: StoreView, options: ReadOptions, bounds: Bounds = NO_BOUNDS
) -> list[QueuePart]:
    """Return the parts of queues that a batch read requests."""
    check_edges(view, options, bounds)
    samples = min(max(SAMPLES // max(len(view.tails), 1), SAMPLES_LEAST), SAMPLES_MOST)
    parts = []
    for queue in each_queue(view, options, bounds):
        found = range_of(view, queue, options, bounds)
        if found.begin < found.end:
            parts.append(look_at(queue, found.begin, found.end, samples))
    return parts


def range_of(
    view: StoreView, queue: ConsumeQueue, options: ReadOptions, bounds: Bounds
) -> QueueRange:
    """Return the range of one queue that a batch read requests, which may be empty."""
    begin, end = _requested(view, queue, options)
    low, high = bounds.queue_offsets
    begin, end = max(begin, low), min(end, high)
    begin, end = by_physical_offset(queue, begin, end, bounds.physical_offsets)
    begin, end = by_time(view, queue, begin, end, bounds.times)
    return QueueRange(queue.topic, queue.queue_id, begin, end)


def look_at(queue: ConsumeQueue, begin: int, end: int, samples: int = SAMPLES_MOST) -> QueuePart:
    """Return the position of a range's messages in the log, and their estimated size."""
    found = QueueRange(queue.topic, queue.queue_id, begin, end)
    step = max(found.count // samples, 1)
    units = [queue.unit(offset) for offset in (*range(begin, end - 1, step), end - 1)]
    sizes = [unit.size for unit in units if unit is not None]
    first, last = units[0], units[-1]
    if first is None or last is None:
        raise DataLostError(
            f"queue {queue.topic}/{queue.queue_id}: retention deleted the units from {begin} to "
            f"{end} during planning; read again"
        )
    mean = sum(sizes) // len(sizes)
    return QueuePart(
        found, first.physical_offset, last.physical_offset + last.size, found.count * mean
    )


def by_physical_offset(
    queue: ConsumeQueue, begin: int, end: int, physical_offsets: tuple[int, int]
) -> tuple[int, int]:
    """Cut a range of a queue to the messages in a part of the log."""
    if begin < end and physical_offsets[0] > 0:
        begin = first_at_or_after(queue, begin, end, physical_offsets[0], damaged=True)
    if begin < end and physical_offsets[1] < OFFSET_MAX:
        end = first_at_or_after(queue, begin, end, physical_offsets[1])
    return begin, end


def by_time(
    view: StoreView, queue: ConsumeQueue, begin: int, end: int, times: tuple[int, int]
) -> tuple[int, int]:
    """Cut a range of a queue to the messages stored within a range of times.

    A damaged unit or record must not hide its neighbours, so it counts as stored in that range.
    """

    def first_at(time: int, low: int, damaged: bool) -> int:
        def is_later(unit: ConsumeQueueUnit) -> bool:
            stored = store_time_at(view.log, unit.physical_offset) if unit.is_written else None
            return damaged if stored is None else stored >= time

        return queue.first_where(low, end, is_later)

    if begin < end and times[0] > TIME_MIN:
        begin = first_at(times[0], begin, True)
    if begin < end and times[1] < TIME_MAX:
        end = first_at(times[1], begin, False)
    return begin, end


def _requested(view: StoreView, queue: ConsumeQueue, options: ReadOptions) -> tuple[int, int]:
    low, high = queue_ends(view, queue)
    name = queue.topic, queue.queue_id
    begin = resolve(name, options.starting_offsets, low, high, low, options)
    end = resolve(name, options.ending_offsets, low, high, high, options)
    return by_time(view, queue, begin, max(begin, end), options.times_of(*name))


def resolve(
    queue: tuple[str, int] | tuple[str, int, str],
    boundary: ReadBoundary | None,
    low: int,
    high: int,
    default: int,
    options: ReadOptions,
) -> int:
    """Return the offset that an option specifies for a queue with offsets ``low`` up to ``high``.

    A queue is named by its topic, its id and, if there are several, its broker.
    """
    if boundary is None:
        return default
    wanted = boundary.of(*queue)
    if wanted in (EARLIEST, LATEST):
        return low if wanted == EARLIEST else high
    name = "/".join(map(str, (queue[0], *queue[2:], queue[1])))
    if wanted > high:
        raise ConfigError(
            "offset", wanted, f"queue {name} ends at {high}; use an offset of at most {high}"
        )
    if wanted < low:
        report_loss(options, name, wanted, low)
        return low
    return wanted


def report_loss(options: ReadOptions, queue: str, wanted: int, low: int) -> None:
    """Raise DataLostError, unless loss is allowed."""
    if options.fail_on_data_loss:
        raise DataLostError(
            f"{options.place}: queue {queue} now begins at {low}, because retention deleted the "
            f"offsets from {wanted} on; begin later, or read with failOnDataLoss=false to skip them"
        )


def clipped(
    options: ReadOptions, queue: str, ends: tuple[int, int], begin: int, stop: int
) -> tuple[int, int]:
    """Cut a stream's range to the offsets of a queue; raise DataLostError if some are missing."""
    low, high = ends
    if begin > high or stop > high:
        report_cut(options, queue, max(begin, stop), high)
        begin, stop = min(begin, high), min(stop, high)
    if begin < low and begin < stop:
        report_loss(options, queue, begin, low)
        begin = min(low, stop)
    return begin, max(begin, stop)


def report_missing(options: ReadOptions, queue: str, begin: int) -> None:
    """Raise DataLostError for a queue that no longer exists, unless loss is allowed."""
    if options.fail_on_data_loss:
        raise DataLostError(
            f"{options.place}: queue {queue} no longer exists, so its messages from {begin} on are "
            "lost; read with failOnDataLoss=false to continue without it"
        )


def report_cut(options: ReadOptions, queue: str, known: int, high: int) -> None:
    """Raise DataLostError for a queue that has become shorter, unless loss is allowed."""
    if options.fail_on_data_loss:
        raise DataLostError(
            f"{options.place}: queue {queue} ends at {high}, but was read up to {known}: "
            "the store lost messages or is another one; begin with a new checkpoint, or read "
            "with failOnDataLoss=false to continue from the queue's end"
        )


def check_edges(view: StoreView, options: ReadOptions, bounds: Bounds = NO_BOUNDS) -> None:
    """Raise ConfigError for options that name queues which do not exist."""
    known = {(topic, QueueName("", queue_id)) for topic, queue_id in view.queues.pairs()}
    queues = _configured(view).queues if options.assign is not None else {}

    def is_empty(topic: str, queue: QueueName) -> bool:
        return not queue.broker and queue.queue_id < queues.get(topic, 0)

    check_edges_in(known, options, bounds, is_empty)


def check_edges_in(
    known: set[tuple[str, QueueName]],
    options: ReadOptions,
    bounds: Bounds = NO_BOUNDS,
    is_empty: Callable[[str, QueueName], bool] = lambda topic, queue: False,
) -> None:
    """Raise ConfigError for options that name queues which are not among ``known`` ones.

    Queues outside the bounds are not checked. ``is_empty`` says whether a queue exists without
    messages, and may be assigned.
    """
    for name, topic, queue in options.named_queues():
        if (topic, queue) in known or not is_in(bounds, topic, queue.queue_id):
            continue
        if name != "assign" or not is_empty(topic, queue):
            existing = ", ".join(f"{t}/{q}" for t, q in sorted(known)) or "none"
            raise ConfigError(name, f"{topic}/{queue}", f"no such queue; the queues are {existing}")
