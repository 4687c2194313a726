"""Cut what is to be read into splits: few, large, of about the same bytes, aligned to records.

Where a record begins inside of a log file is asked from the consume queues by bisection, so that
the cost grows with the number of segments and queues, not with that of the messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from firetrail.format.columns import Check, Stop
from firetrail.pipeline.source.splits import LogSplit
from firetrail.store.consumequeue import ConsumeQueue
from firetrail.store.recovery import find_record
from firetrail.store.view import StoreView

SPLIT_BYTES = 256 << 20
"""Size of a split of a large log."""
SPLIT_BYTES_MIN = 32 << 20
"""What is worth a task of its own while processors idle."""
_QUEUES_ASKED = 8


def split_count(size: int, split_bytes: int | None = None, at_least: int = 1) -> int:
    """How many splits for ``size`` bytes: enough for all processors, none too small or large."""
    if split_bytes is not None:
        return max(-(-size // split_bytes), at_least, 1)
    usual = -(-size // SPLIT_BYTES)
    return max(usual, min(size // SPLIT_BYTES_MIN, os.cpu_count() or 1), at_least, 1)


def plan_log(
    view: StoreView,
    start: int | None = None,
    end: int | None = None,
    *,
    split_bytes: int | None = None,
    at_least: int = 1,
) -> list[LogSplit]:
    """Splits of the log from ``start`` to ``end``, or of all of it; both are where records begin.

    ``split_bytes`` is the size aimed at; without it the machine's processors count too.
    """
    begin = view.log.min_offset if start is None else max(start, view.log.min_offset)
    stop = view.end if end is None else min(end, view.end)
    if stop <= begin:
        return []
    ranges = cut_range(view, begin, stop, split_count(stop - begin, split_bytes, at_least))
    return [LogSplit(str(view.root), low, high) for low, high in ranges]


def cut_range(view: StoreView, start: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    """Cut a range of the log into at most ``count`` of about the same size."""
    queues = _longest_queues(view)
    at = start
    for number in range(1, count):
        target = start + (end - start) * number // count
        if target <= at:
            continue
        cut = _record_at_or_behind(view, queues, target)
        if at < cut < end:
            yield at, cut
            at = cut
    if at < end:
        yield at, end


def _longest_queues(view: StoreView) -> list[ConsumeQueue]:
    """The queues with the most units: they have one close to every place."""
    pairs = sorted(view.tails, key=lambda pair: view.tails[pair].max_offset, reverse=True)
    found = (view.queues.find(*pair) for pair in pairs[:_QUEUES_ASKED])
    return [queue for queue in found if queue is not None]


def _record_at_or_behind(view: StoreView, queues: list[ConsumeQueue], target: int) -> int:
    """Where a record begins at ``target`` or not far behind it; the end of the log if none does."""
    known = []
    for queue in queues:
        first = queue.files.min_offset // 20
        offset = queue.first_where(
            first, queue.max_offset, lambda unit: unit.physical_offset >= target
        )
        unit = queue.unit(offset)
        if (
            unit is not None
            and view.log.scan_one(unit.physical_offset, Check.NONE)[0] is Stop.LIMIT
        ):
            known.append(unit.physical_offset)
    segment = view.log.find(target)
    if known and (segment is None or min(known) <= segment.end):
        return min(known)
    return _search(view, target)


def _search(view: StoreView, target: int) -> int:
    """The next record by its looks, for what no queue knows."""
    segment = view.log.find(target)
    if segment is None or view.log.look(segment) is None:
        following = view.log.following(target)
        return view.end if following is None else following.base
    found = find_record(segment, target - segment.base)
    return segment.end if found is None else segment.base + found
