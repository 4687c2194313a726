"""Splits of the log and of queues: few, large, of about the same size, aligned to records.

The position of a record near an offset is found in the consume queues by bisection, so the cost
grows with the number of segments and queues, not with the number of messages.
"""

import os
from collections.abc import Iterator, Sequence

from firetrail.format.columns import Check, Stop
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.plan.fingerprint import fingerprint_of, whole_fingerprint
from firetrail.pipeline.source.plan.ranges import QueuePart
from firetrail.pipeline.source.plan.store_splits import (
    EVERYTHING,
    LogSplit,
    QueueRange,
    QueueSet,
    RowSelection,
    UnitSplit,
)
from firetrail.pipeline.source.unit_reader import first_at_or_after
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.log_records import store_time_at
from firetrail.store.log.segment_scan import find_record
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.text import counted

SPLIT_BYTES = 256 << 20
"""Size of a split of a large log."""
SPLIT_BYTES_MIN = 32 << 20
"""Minimum size of a split while processors are idle."""
SCAN_RATIO = 4
"""The log is scanned unless it is more than this many times larger than the requested messages."""
_QUEUES_SEARCHED = 8


def split_count(size: int, split_bytes: int | None = None, at_least: int = 1) -> int:
    """Return the number of splits for ``size`` bytes: enough for all processors, none too small."""
    if split_bytes is not None:
        return max(-(-size // split_bytes), at_least, 1)
    usual = -(-size // SPLIT_BYTES)
    return max(usual, min(size // SPLIT_BYTES_MIN, os.cpu_count() or 1), at_least, 1)


# -- the log ----------------------------------------------------------------------------------


def plan_log(
    view: StoreView,
    start: int | None = None,
    end: int | None = None,
    *,
    split_bytes: int | None = None,
    at_least: int = 1,
    queues: QueueSet | None = None,
    wanted: RowSelection = EVERYTHING,
) -> list[LogSplit]:
    """Return splits of the log, or of its part from ``start`` to ``end``, where records begin.

    ``split_bytes`` is the intended size; without it, the size also depends on the number of
    processors.
    """
    begin = view.log.min_offset if start is None else max(start, view.log.min_offset)
    stop = view.end if end is None else min(end, view.end)
    if stop <= begin:
        return []
    ranges = cut_range(view, begin, stop, split_count(stop - begin, split_bytes, at_least))
    return [
        LogSplit(str(view.root), low, high, queues, wanted, fingerprint_of(view, low, high))
        for low, high in ranges
    ]


def cut_range(view: StoreView, start: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    """Cut a range of the log into at most ``count`` ranges of about the same size."""
    queues = _longest_queues(view)
    at = start
    for number in range(1, count):
        target = start + (end - start) * number // count
        if target <= at:
            continue
        cut = _record_near(view, queues, target)
        if at < cut < end:
            yield at, cut
            at = cut
    if at < end:
        yield at, end


def record_from(view: StoreView, offset: int) -> int:
    """Return the start of the first record at or after ``offset``, or the end of the log."""
    if offset <= view.log.min_offset:
        return view.log.min_offset
    if offset >= view.end:
        return view.end
    if view.log.scan_one(offset, Check.NONE)[0] is Stop.LIMIT:
        return offset
    return min(_search(view, offset), view.end)


def time_span(view: StoreView, since: int, until: int) -> tuple[int, int]:
    """Return a part of the log that has all records stored from ``since`` up to ``until`` (ms).

    The longest queues are searched. Store times do not decrease along the log, so everything up to
    a message that is too old, and everything from a message that is too new, can be left out.
    """
    start, end = view.log.min_offset, view.end
    for queue in _longest_queues(view):
        low, high = queue.min_offset(view.log.min_offset), queue.max_offset
        if since > TIME_MIN:
            first = view.reader.offset_at(queue.topic, queue.queue_id, since)
            before = queue.unit(first - 1) if first > low else None
            if before is not None and _is_older(view, before.physical_offset, since):
                start = max(start, before.physical_offset + before.size)
        if until < TIME_MAX:
            first = view.reader.offset_at(queue.topic, queue.queue_id, until)
            after = queue.unit(first) if first < high else None
            if after is not None and not _is_older(view, after.physical_offset, until, True):
                end = min(end, after.physical_offset)
    return start, max(start, end)


def _is_older(view: StoreView, physical_offset: int, time: int, damaged: bool = False) -> bool:
    """Whether a record was stored before a time; ``damaged`` if it cannot be read."""
    stored = store_time_at(view.log, physical_offset)
    return damaged if stored is None else stored < time


def _longest_queues(view: StoreView) -> list[ConsumeQueue]:
    """Return the queues with the most units, which have a unit close to every position."""
    pairs = sorted(view.tails, key=lambda pair: view.tails[pair].max_offset, reverse=True)
    found = (view.queues.find(*pair) for pair in pairs[:_QUEUES_SEARCHED])
    return [queue for queue in found if queue is not None]


def _record_near(view: StoreView, queues: list[ConsumeQueue], target: int) -> int:
    """Return the start of a record at or soon after ``target``, or the end of the log."""
    known = []
    for queue in queues:
        first = queue.files.min_offset // UNIT_SIZE
        unit = queue.unit(first_at_or_after(queue, first, queue.max_offset, target))
        if unit is None:
            continue
        if view.log.scan_one(unit.physical_offset, Check.NONE)[0] is Stop.LIMIT:
            known.append(unit.physical_offset)
    segment = view.log.find(target)
    if known and (segment is None or min(known) <= segment.end):
        return min(known)
    return _search(view, target)


def _search(view: StoreView, target: int) -> int:
    """Return the start of the next bytes that look like a record, where no queue has a unit."""
    segment = view.log.find(target)
    if segment is None or view.log.look(segment) is None:
        following = view.log.following(target)
        return view.end if following is None else following.base
    found = find_record(segment, target - segment.base)
    return segment.end if found is None else segment.base + found


# -- the queues -------------------------------------------------------------------------------


def plan_queues(
    view: StoreView,
    parts: list[QueuePart],
    wanted: RowSelection = EVERYTHING,
    *,
    split_bytes: int | None = None,
    at_least: int = 1,
) -> tuple[list[LogSplit] | list[UnitSplit], str]:
    """Return splits for parts of queues, and a note that explains them.

    The log is scanned, and other messages are skipped, as long as that is less work than looking up
    every message individually.
    """
    if not parts:
        return [], "the requested ranges contain no messages"
    start, end = min(part.start for part in parts), max(part.end for part in parts)
    size, messages = sum(part.size for part in parts), sum(part.range.count for part in parts)
    what = f"{counted(messages, 'message')} of {counted(len(parts), 'queue')}"
    facts = f"{what}, about {size} of {end - start} bytes"
    if (end - start) > SCAN_RATIO * max(size, 1):
        count = split_count(size, split_bytes, at_least)
        splits = _unit_splits(view, parts, count, wanted)
        return splits, f"{facts} of log: looked up through their units"
    queues = QueueSet(tuple(part.range for part in parts), view.queue_file_size)
    found = plan_log(
        view, start, end, split_bytes=split_bytes, at_least=at_least, queues=queues, wanted=wanted
    )
    return found, f"{facts} of log: scanned in the order of the log"


def _unit_splits(
    view: StoreView, parts: list[QueuePart], count: int, wanted: RowSelection
) -> list[UnitSplit]:
    shares = share_out([(part.range.begin, part.range.end, part.size) for part in parts], count)
    splits = []
    fingerprint = whole_fingerprint(view)
    for share in shares:
        ranges = [
            QueueRange(parts[number].range.topic, parts[number].range.queue_id, begin, end)
            for number, begin, end in share
        ]
        queues = QueueSet(tuple(ranges), view.queue_file_size)
        splits.append(UnitSplit(str(view.root), queues, wanted, fingerprint))
    return splits


def share_out(
    ranges: Sequence[tuple[int, int, int]], count: int
) -> Iterator[list[tuple[int, int, int]]]:
    """Distribute ranges (begin, end, bytes) over ``count`` shares of about the same size.

    A share is a list of (number of the range, begin, end). A large range is divided among several.
    """
    room = -(-sum(size for _, _, size in ranges) // count)
    taken: list[tuple[int, int, int]] = []
    left = room
    for number, (begin, end, size) in enumerate(ranges):
        mean = max(size // (end - begin), 1)
        while begin < end:
            some = min(end - begin, max(-(-left // mean), 1))
            taken.append((number, begin, begin + some))
            begin += some
            left -= some * mean
            if left <= 0:
                yield taken
                taken, left = [], room
    if taken:
        yield taken


def safe_end(view: StoreView) -> int:
    """Return the physical offset up to which the log can no longer change."""
    if view.state is StoreState.CLOSED or view.watermark is None:
        return view.end
    return min(view.watermark.durable_offset, view.end)
