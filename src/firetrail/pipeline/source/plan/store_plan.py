"""The plan of a batch read of a store: its splits, and notes on what they leave out."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from firetrail.errors import StoreDamagedError
from firetrail.format.columns import Check, Stop
from firetrail.format.kernels.single import KeyQuestion
from firetrail.format.values.javahash import java_text
from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.places import is_remote, local_path
from firetrail.pipeline.source.plan.fingerprint import whole_fingerprint
from firetrail.pipeline.source.plan.log_splits import plan_log, plan_queues, record_from, time_span
from firetrail.pipeline.source.plan.ranges import (
    Bounds,
    asked_topics,
    batch_parts,
    check_edges,
    check_topics,
    is_in,
    range_of,
)
from firetrail.pipeline.source.plan.remote import plan_remote
from firetrail.pipeline.source.plan.store_splits import (
    LogSplit,
    OffsetSplit,
    QueueRange,
    QueueSet,
    RowSelection,
    StoreSplit,
)
from firetrail.pipeline.source.schema import NAMES
from firetrail.pipeline.source.source_options import ReadOptions, View
from firetrail.store.inspect.log_tail import TailKind, read_tail
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.inspect.zeroed_pages import key_gaps
from firetrail.store.queues.queue_table import QueueKey
from firetrail.text import counted

_RECORDS_SAMPLED = 16
_NO_LIMIT = 2**31 - 1


def plan_store(
    options: ReadOptions, bounds: Bounds, wanted: RowSelection, columns: Sequence[str] | None
) -> tuple[Sequence[StoreSplit], list[str]]:
    """Return the splits of a batch read of a store, and notes that explain them."""
    if is_remote(options.path):
        return plan_remote(options, bounds, wanted)
    topics = asked_topics(options, bounds)
    with StoreView.open(local_path(options.path), topics=topics) as view:
        check_readable(view, options)
        splits, notes = _plan(view, options, bounds, wanted)
        if set(NAMES) <= set(columns or options.columns or NAMES):
            notes += _width(view, splits)
    return splits, notes


def _width(view: StoreView, splits: Sequence[StoreSplit]) -> list[str]:
    """Return a note on the share of bodies and properties, from the first records of splits."""
    wide = size = 0
    for split in splits[:_RECORDS_SAMPLED]:
        if isinstance(split, LogSplit):
            stop, columns = view.log.scan_one(split.start, Check.NONE)
            if stop is Stop.LIMIT:
                row = columns.row(0)
                wide += row["body_size"] + row["properties_size"]
                size += row["size"]
    if not size:  # little is read
        return []
    share = 100 * wide // size
    return [
        f"bodies and properties, about {share} % of it, are read: the option columns can leave "
        "them out"
    ]


def check_readable(view: StoreView, options: ReadOptions) -> None:
    """Raise StoreDamagedError if the end of the log is missing, unless damage is to be skipped."""
    if options.permissive:
        return
    tail = read_tail(view)
    if tail.kind is TailKind.DAMAGED and tail.found is not None:
        raise StoreDamagedError(
            str(tail.found.path),
            tail.found.position,
            tail.found.physical_offset,
            tail.found.detail,
            "check the store with 'firetrail fsck', or read the rest with mode=permissive",
        )


def _plan(
    view: StoreView, options: ReadOptions, bounds: Bounds, wanted: RowSelection
) -> tuple[list[StoreSplit], list[str]]:
    whole = view.end - view.log.min_offset
    segments = counted(len(view.log.segments), "segment")
    notes = [f"log: {segments}, {whole} bytes, {view.state.value}"]
    check_topics(view, options)
    if options.key:
        found, note = _plan_lookup(view, options, bounds, wanted)
        return found, [*notes, note]
    if options.view is View.QUEUE:
        parts = batch_parts(view, options, bounds)
        splits, note = plan_queues(view, parts, _in_queues(wanted), at_least=options.min_partitions)
        return list(splits), [*notes, note]
    if options.subscribe_pattern is not None:
        topics = [topic for topic in view.queues.topics() if options.follows(topic)]
        wanted = replace(wanted, topics=tuple(topics))
    start, end = time_span(view, wanted.since, wanted.until)
    start = max(start, record_from(view, bounds.physical_offsets[0]))
    end = min(end, record_from(view, bounds.physical_offsets[1]))
    logs = plan_log(view, start, end, at_least=options.min_partitions, wanted=wanted)
    note = f"{max(end - start, 0)} bytes of log are scanned, {whole - max(end - start, 0)} pruned"
    return list(logs), [*notes, note]


def _in_queues(wanted: RowSelection) -> RowSelection:
    """Return a selection without topics and times, which ranges of queues already ensure."""
    return replace(wanted, since=TIME_MIN, until=TIME_MAX, topics=None)


# -- by key -----------------------------------------------------------------------------------


def _plan_lookup(
    view: StoreView, options: ReadOptions, bounds: Bounds, wanted: RowSelection
) -> tuple[list[StoreSplit], str]:
    """Look up messages in the index, and scan the part of the log that it does not cover."""
    gaps = (key_gaps(view, topic, options.key) for topic in wanted.topics or ())
    fault = next(chain(view.index_faults, *gaps), None)
    if fault is not None and not options.permissive:
        raise StoreDamagedError(
            f"{view.root}/{fault.file}",
            fault.offset,
            None,
            fault.detail,
            "rebuild the index with 'firetrail rebuild', or read without a key",
        )
    begin, end = _indexed(view)
    offsets = [offset for offset in _candidates(view, options, wanted) if begin <= offset < end]
    if options.view is View.QUEUE:
        offsets = _in_asked_ranges(view, options, bounds, offsets)
    messages, files = counted(len(offsets), "message"), counted(len(view.index.files), "index file")
    note = f"{messages} found through {files}"
    splits: list[StoreSplit] = []
    if offsets:
        splits.append(OffsetSplit(str(view.root), tuple(offsets), wanted, whole_fingerprint(view)))
    if begin > view.log.min_offset or end < view.end:
        queues, rest_wanted = None, wanted
        if options.view is View.QUEUE:
            parts = batch_parts(view, options, bounds)
            queues = QueueSet(tuple(part.range for part in parts), view.queue_file_size)
            rest_wanted = _in_queues(wanted)
        rest = [
            *plan_log(view, None, begin, queues=queues, wanted=rest_wanted),
            *plan_log(view, end, queues=queues, wanted=rest_wanted),
        ]
        splits += rest
        size = sum(split.size for split in rest)
        note += f", and {size} bytes of log that they do not cover are scanned"
    return splits, note


def _candidates(view: StoreView, options: ReadOptions, wanted: RowSelection) -> list[int]:
    """Return the physical offsets at which a record with the key may be."""
    offsets: set[int] = set()
    for topic in wanted.topics or ():
        question = KeyQuestion(topic, options.key, 0, TIME_MAX)
        offsets.update(view.index.query(question, _NO_LIMIT))
    return sorted(offset for offset in offsets if view.log.min_offset <= offset < view.end)


def _in_asked_ranges(
    view: StoreView, options: ReadOptions, bounds: Bounds, offsets: list[int]
) -> list[int]:
    """Return the offsets whose record is in a queue, within the requested range.

    A record that cannot be read is among them: the task that reads it reports the damage.
    """
    check_edges(view, options, bounds)
    ranges: dict[QueueKey, QueueRange] = {}
    found = []
    for offset in offsets:
        stop, columns = view.log.scan_one(offset, Check.RECORD)
        segment = view.log.find(offset)
        if stop is not Stop.LIMIT or segment is None:
            found.append(offset)
            continue
        row = columns.row(0)
        at = row["topic_at"]
        topic = java_text(bytes(segment.view[at : at + row["topic_size"]]))
        key = topic, row["queue_id"]
        requested = key in view.tails and options.follows_queue(*key) and is_in(bounds, *key)
        queue = view.queues.find(*key) if requested else None
        unit = queue.unit(row["queue_offset"]) if queue is not None else None
        if queue is None or unit is None or unit.physical_offset != offset:
            continue
        if key not in ranges:
            ranges[key] = range_of(view, queue, options, bounds)
        if ranges[key].begin <= row["queue_offset"] < ranges[key].end:
            found.append(offset)
    return found


def _indexed(view: StoreView) -> tuple[int, int]:
    """Return the part of the log that the index covers, from its first entry to its last."""
    low, high = view.log.min_offset, view.end
    if not view.index.files:
        return low, low
    begin = min(max(view.index.files[0].header.begin_offset, low), high)
    last = view.index.end_offset
    if view.state is StoreState.CLOSED:
        stop, columns = view.log.scan_one(last, Check.NONE)
        if stop is Stop.LIMIT:
            last += columns.row(0)["size"]  # all keys of that record are in the index
    return begin, max(min(last, high), begin)
