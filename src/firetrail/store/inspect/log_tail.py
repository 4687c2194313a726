"""The bytes after the end of the log, and whether they matter.

Torn
    After an unclean stop: bytes of appends that were never known to be on disk. Recovery cuts
    them off; no acknowledged message is lost.
Stale
    After a clean stop: old bytes that no longer count. The Java store truncates its log without
    clearing what it cuts off, so they stay until they are overwritten.
Damaged
    A consume queue, the watermark or the checkpoint shows that messages should be there.

In a torn tail, good records may follow the position where recovery ends the log. Recovery copies
them before it clears the tail.
"""

from enum import Enum
from typing import NamedTuple

from firetrail.errors import StoreDamagedError
from firetrail.format import layout
from firetrail.format.columns import Check, Stop
from firetrail.storage.segment import Segment
from firetrail.store.evidence.inventory import read_inventory
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.segment_scan import find_record
from firetrail.store.log.walk import Damage, describe_stop
from firetrail.store.problems import KIND_OF_STOP, LOG_REMEDY, PUT_LOG_BACK, ProblemKind


class TailKind(Enum):
    """The kind of bytes that follow the end of the log."""

    NOTHING = "nothing"
    TORN = "torn"
    STALE = "stale"
    DAMAGED = "damaged"


class Tail(NamedTuple):
    """The verdict, and the damage after the last record (None for zeros, or if no file follows)."""

    kind: TailKind
    found: Damage | None


def read_tail(view: StoreView) -> Tail:
    """Classify the bytes after the end of the log; none in a live store, which may write there."""
    if not view.log.segments:
        lost = _lost_log(view)
        return Tail(TailKind.NOTHING if lost is None else TailKind.DAMAGED, lost)
    if view.state is StoreState.OPEN:
        return Tail(TailKind.NOTHING, None)
    found = _look_at_end(view)
    if _is_missed(view, found):
        return Tail(TailKind.DAMAGED, found or _too_short(view))
    if view.state is StoreState.CRASHED and view.watermark is not None:
        found = _with_next_record(view, found)
    if found is None:
        return Tail(TailKind.NOTHING, None)
    return Tail(TailKind.TORN if view.state is StoreState.CRASHED else TailKind.STALE, found)


def check_end(view: StoreView) -> None:
    """Raise StoreDamagedError if the log ends before messages that were known to be in it."""
    tail = read_tail(view)
    if tail.kind is not TailKind.DAMAGED or tail.found is None:
        return
    remedy = LOG_REMEDY if view.log.segments else PUT_LOG_BACK
    raise StoreDamagedError(
        str(tail.found.path),
        tail.found.position,
        tail.found.physical_offset,
        tail.found.detail,
        f"nothing was changed; {remedy}",
    )


def is_torn(view: StoreView, damage: Damage) -> bool:
    """Return whether damage in a crashed store is where its recovery ends the log.

    Without a watermark that is so only if nothing good follows: it may have been on disk.
    """
    if view.state is not StoreState.CRASHED:
        return False
    if view.watermark is not None:
        return damage.physical_offset >= view.watermark.durable_offset
    return damage.resume is None


def _look_at_end(view: StoreView) -> Damage | None:
    """Return the damage at the end of the log; None for zeros or the end of the file."""
    stop, _ = view.log.scan_one(view.end, Check.RECORD)
    segment = view.log.find(view.end)
    data = view.log.look(segment) if segment is not None else None
    if segment is None or data is None or not stop.is_damage:
        return None
    at, limit = view.end - segment.base, view.log.length_of(segment)
    detail = describe_stop(data, at, limit, stop)
    if limit - at < layout.BLANK.size and not any(data[at:limit]):
        return None
    return Damage(segment.path, at, view.end, KIND_OF_STOP[stop], detail, None)


def _is_missed(view: StoreView, found: Damage | None) -> bool:
    """Return whether anything points to messages at or after the end of the log."""
    if view.watermark is not None and view.end < view.watermark.durable_offset:
        return True
    if view.state is StoreState.CLOSED:
        pointers = view.record_pointers()
        nothing_left = view.log.find(view.end) is None
        return (found is not None or nothing_left) and bool(
            pointers and pointers[0].physical_offset >= view.end
        )
    if view.watermark is not None:
        return False
    later = _next_record(view)
    return later is not None and _was_on_disk(view, later)


def _with_next_record(view: StoreView, found: Damage | None) -> Damage | None:
    """Return the damage at the end of the log, together with the next good record, if any."""
    later = _next_record(view)
    segment = view.log.find(view.end)
    if later is None or segment is None:
        return found
    if found is None:
        data, at = segment.view, view.end - segment.base
        detail = describe_stop(data, at, view.log.length_of(segment), Stop.EMPTY)
        found = Damage(segment.path, at, view.end, ProblemKind.LOG_HOLE, detail, None)
    return found._replace(resume=later)


def _next_record(view: StoreView) -> int | None:
    """Return the physical offset of the first good record after the end of the log."""
    segment: Segment | None = view.log.find(view.end)
    at = view.end - segment.base if segment else 0
    while segment is not None:
        found = find_record(segment, at) if view.log.look(segment) is not None else None
        if found is not None:
            return segment.base + found
        at = 0
        segment = view.log.following(segment.base)
    return None


def _was_on_disk(view: StoreView, offset: int) -> bool:
    """Return whether a record is one of those that the checkpoint says are on disk."""
    stop, columns = view.log.scan_one(offset, Check.NONE)
    return stop is Stop.LIMIT and (columns.row(0)["store_time"] <= view.checkpoint.physic_timestamp)


def _lost_log(view: StoreView) -> Damage | None:
    """Return the damage if the log has no file although it had messages."""
    known = _known_end(view)
    if view.watermark is None:  # otherwise it is newer than the inventory
        known = max(known, read_inventory(view.system, view.root).durable_offset)
    if known > 0:
        knowledge = f"it had messages up to {known}"
    elif view.checkpoint.physic_timestamp > 0:
        knowledge = f"the checkpoint has a message stored at {view.checkpoint.physic_timestamp}"
    else:
        return None
    detail = f"the log has no file, although {knowledge}"
    return Damage(view.log.folder, 0, 0, ProblemKind.LOG_END, detail, None)


def _known_end(view: StoreView) -> int:
    """Return the end of the log according to queues, index and watermark."""
    pointers = view.record_pointers()
    known = max((pointer.physical_offset + (pointer.size or 0) for pointer in pointers), default=0)
    return max(known, view.watermark.durable_offset if view.watermark is not None else 0)


def _too_short(view: StoreView) -> Damage:
    segment = view.log.find(view.end) or view.log.segments[-1]
    detail = f"the log ends here, although it had messages up to {max(_known_end(view), view.end)}"
    return Damage(
        segment.path, view.end - segment.base, view.end, ProblemKind.LOG_END, detail, None
    )
