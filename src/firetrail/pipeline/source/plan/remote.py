"""The plan for archived segments in a remote file system, which has the log and no other files.

Sizes come from the listing. The start of a record is searched for in a small piece of the file.
Queues are those of the records in the log: a record is in its queue if it is neither prepared nor
rolled back.
"""

from __future__ import annotations

from dataclasses import replace

from firetrail.errors import ConfigError
from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.places import open_log
from firetrail.pipeline.source.plan.log_splits import split_count
from firetrail.pipeline.source.plan.ranges import Bounds
from firetrail.pipeline.source.plan.store_splits import LogSplit, RowSelection, StoreSplit
from firetrail.pipeline.source.source_options import ReadOptions, View
from firetrail.store.log.log_records import store_time_at
from firetrail.store.log.segment_scan import find_record
from firetrail.text import counted

WINDOW = 8 << 20
"""Bytes that contain a whole record if records have at most 4 MiB."""
_HEAD = 4096
"""Bytes that contain the fixed fields of a record."""


def plan_remote(
    options: ReadOptions, bounds: Bounds, wanted: RowSelection
) -> tuple[list[StoreSplit], list[str]]:
    """Return splits of a remote log, and notes that explain them."""
    for name, value in (
        ("assign", options.assign),
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
        ("startingOffsetsByTimestamp", options.starting_times),
        ("endingOffsetsByTimestamp", options.ending_times),
        ("queueIds", options.queue_ids),
        ("subscribePattern", options.subscribe_pattern),
    ):
        if value is not None:
            raise ConfigError(
                name, "", "does not apply to remote stores, which have no queue files; leave it out"
            )
    store = options.path
    with open_log(store, 0, 0) as log:
        bases = [segment.base for segment in log.segments]
        ends = [segment.base + log.length_of(segment) for segment in log.segments]
    kept = _clipped(store, _prune(store, bases, ends, bounds, wanted), bounds.physical_offsets)
    total = sum(end - base for base, end in kept)
    splits: list[StoreSplit] = []
    count = split_count(total, at_least=options.min_partitions)
    size = -(-total // count)
    wanted = replace(wanted, dispatched=options.view is View.QUEUE)
    for base, end in kept:
        at = base
        while at < end:
            stop = _record_near(store, at + size, end) if at + size < end else end
            splits.append(LogSplit(store, at, stop, None, wanted))
            at = stop
    segments = counted(len(bases), "segment")
    return splits, [f"log: {segments}, {len(kept)} of them with {total} bytes are scanned"]


def _prune(
    store: str, bases: list[int], ends: list[int], bounds: Bounds, wanted: RowSelection
) -> list[tuple[int, int]]:
    """Return the segments that may hold selected records, by offset and by first store time."""
    kept = [
        (base, end)
        for base, end in zip(bases, ends, strict=True)
        if end > bounds.physical_offsets[0] and base < bounds.physical_offsets[1]
    ]
    if wanted.since == TIME_MIN and wanted.until == TIME_MAX:
        return kept
    times = [_first_time(store, base) for base, _ in kept]
    found = []
    for number, part in enumerate(kept):
        begins = times[number]
        ends_before = times[number + 1] if number + 1 < len(times) else None
        too_new = begins is not None and begins >= wanted.until
        too_old = ends_before is not None and ends_before < wanted.since
        if not too_new and not too_old:
            found.append(part)
    return found


def _clipped(
    store: str, parts: list[tuple[int, int]], offsets: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return parts of the log, cut to the records that begin within a range of offsets."""

    def cut(offset: int, base: int, end: int) -> int:
        return (
            _record_from(store, offset, end) if base < offset < end else min(max(offset, base), end)
        )

    found = [(cut(offsets[0], *part), cut(offsets[1], *part)) for part in parts]
    return [(base, end) for base, end in found if base < end]


def _first_time(store: str, base: int) -> int | None:
    """Return the store time of the first record of a segment; None if it cannot be read."""
    with open_log(store, base, base + _HEAD) as log:
        return store_time_at(log, base)


def _record_near(store: str, target: int, end: int) -> int:
    """Return the start of a record at or soon after ``target``, or ``end``."""
    found = _record_within(store, target, WINDOW)
    return end if found is None else min(found, end)


def _record_from(store: str, target: int, end: int) -> int:
    """Return the start of the first record at or after ``target``, or ``end``."""
    size = WINDOW
    while (found := _record_within(store, target, size)) is None and target + size < end:
        size *= 2
    return end if found is None else min(found, end)


def _record_within(store: str, target: int, size: int) -> int | None:
    """Return the start of the first complete record within ``size`` bytes, if any."""
    with open_log(store, target, target + size) as log:
        segment = log.find(target)
        assert segment is not None
        found = find_record(segment, target - segment.base)
    return None if found is None else segment.base + found
