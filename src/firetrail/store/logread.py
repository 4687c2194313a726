"""Reading single records and their fields straight from the log's mapping."""

from __future__ import annotations

from typing import NamedTuple

from firetrail.errors import FormatError
from firetrail.format import layout
from firetrail.format.columns import Check, Columns
from firetrail.format.kernels.scan import scan
from firetrail.format.record import decode_message
from firetrail.storage.queue import SegmentQueue
from firetrail.storage.segment import Segment

_HEAD = layout.RECORD_HEAD.struct.unpack_from
_INT64 = layout.STORE_TIME.struct.unpack_from
SEARCHED_MAX = 10_000
"""Records that are looked at, one by one, for one whose place is not known."""
_MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2)


class _Place(NamedTuple):
    """Where a record stands in a segment's mapping, and two fields of its head."""

    view: memoryview
    at: int
    limit: int  # up to where the mapping may be read
    size: int
    sys_flag: int


def _find(log: SegmentQueue, offset: int) -> _Place | None:
    """The place of the record at ``offset``, None if no record begins there."""
    segment = log.find(offset)
    if segment is None:
        return None
    at = offset - segment.base
    if at + layout.RECORD_SIZE_MIN > segment.committed:
        return None
    view = segment.look()
    if view is None:
        return None
    size, magic, _, _, _, _, stored_offset, sys_flag, _ = _HEAD(view, at)
    if magic not in _MAGICS or stored_offset != offset:
        return None
    return _Place(view, at, segment.committed, size, sys_flag)


def store_time_at(log: SegmentQueue, offset: int) -> int | None:
    """Store time (ms) of the record at ``offset``, None if there is none."""
    place = _find(log, offset)
    if place is None:
        return None
    v6 = place.sys_flag & layout.BORN_HOST_V6
    host = layout.HOST_V6_SIZE if v6 else layout.HOST_V4_SIZE
    time: int = _INT64(place.view, place.at + layout.RECORD_HEAD.size + host)[0]
    return time


def first_store_time(segment: Segment) -> int | None:
    """Store time of a segment's first record, None if it does not begin with a good one."""
    columns = Columns(1)
    rows, _, _ = scan(segment.view, 0, segment.size, segment.base, columns.table, Check.BODY)
    return columns.row(0)["store_time"] if rows else None


def record_at(log: SegmentQueue, offset: int) -> memoryview | None:
    """The bytes of the record at ``offset``, None if no whole record begins there."""
    place = _find(log, offset)
    if place is None:
        return None
    if not layout.RECORD_SIZE_MIN <= place.size <= place.limit - place.at:
        return None
    return place.view[place.at : place.at + place.size]


def search(
    log: SegmentQueue, start: int, end: int, topic: str, queue_id: int, queue_offset: int
) -> memoryview | None:
    """A message of a queue by its number, in the log from ``start``, a record, to before ``end``.

    None if it is not among the next records: this is for a place that should be near.
    """
    for _ in range(SEARCHED_MAX):
        buffer = record_at(log, start) if start < end else None
        if buffer is None:  # or the rest of the file is empty
            start += log.segment_size - start % log.segment_size
            buffer = record_at(log, start) if start < end else None
        if buffer is None:
            return None
        _, _, _, found_id, _, found_offset, *_ = _HEAD(buffer)
        if (found_id, found_offset) == (queue_id, queue_offset) and _topic(buffer) == topic:
            return buffer
        start += len(buffer)
    return None


def _topic(buffer: memoryview) -> str | None:
    """The topic of a record, None if that is damaged."""
    try:
        return decode_message(buffer).topic
    except FormatError:
        return None


def record_offset(buffer: memoryview) -> int:
    """The physical offset that a record says it has."""
    offset: int = _HEAD(buffer, 0)[6]
    return offset
