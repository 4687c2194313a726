"""Single records and their fields, read directly from the log.

:func:`record_at` returns the bytes of a record after checking its fixed fields.
:func:`scan_record` checks a whole record and returns its fields, or why it is not good.
"""

from typing import NamedTuple

from firetrail.errors import FormatError
from firetrail.format import layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import ANYWHERE, scan
from firetrail.format.record import decode_message
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue

_HEAD = layout.RECORD_HEAD.struct.unpack_from
_INT64 = layout.STORE_TIME.struct.unpack_from
SEARCHED_MAX = 10_000
"""Maximum number of records that are read in the search for a record of unknown position."""
_TIME_END = layout.RECORD_HEAD.size + layout.HOST_V6_SIZE + layout.STORE_TIME.size
"""The end of a record's store time for any host; within the shortest record."""
_MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2)


class _RecordPlace(NamedTuple):
    """The expected position of a record, in a file that has room for its fixed fields there."""

    segment: Segment
    at: int


def _find(log: SegmentQueue, offset: int) -> _RecordPlace | None:
    """Return the position of the record at ``offset``, or None if the log ends before it."""
    segment = log.find(offset)
    if segment is None or offset - segment.base + layout.RECORD_SIZE_MIN > segment.committed:
        return None
    return _RecordPlace(segment, offset - segment.base)


def _head(buffer: bytes | memoryview, at: int, offset: int) -> tuple[int, int] | None:
    """Return size and flags of the record at ``offset``, or None if no record begins there."""
    size, magic, _, _, _, _, stored_offset, sys_flag, _ = _HEAD(buffer, at)
    if magic not in _MAGICS or stored_offset != offset:
        return None
    return size, sys_flag


def store_time_at(log: SegmentQueue, offset: int) -> int | None:
    """Return the store time (ms) of the record at ``offset``, or None if there is none.

    The file is not mapped for this: a search by time reads from many files.
    """
    place = _find(log, offset)
    start = place.segment.peek(place.at, _TIME_END) if place is not None else None
    head = _head(start, 0, offset) if start is not None else None
    if start is None or head is None:
        return None
    host = layout.HOST_V6_SIZE if head[1] & layout.BORN_HOST_V6 else layout.HOST_V4_SIZE
    time: int = _INT64(start, layout.RECORD_HEAD.size + host)[0]
    return time


def scan_record(
    segment: Segment, offset: int, check: Check, limit: int | None = None
) -> tuple[Stop, Columns]:
    """Check the record at physical offset ``offset``, which is in the segment.

    The record must end before position ``limit`` of the segment (default: its size). Returns
    ``Stop.LIMIT`` and the record's fields as row 0, or the reason why it is not a good record.
    """
    columns = Columns(1)
    at = offset - segment.base
    end = segment.size if limit is None else limit
    rows, _, stop = scan(segment.view, at, end, segment.base, columns.table, check)
    if rows:
        return Stop.LIMIT, columns
    return Stop(stop) if stop != Stop.LIMIT else Stop.CUT, columns


def is_good(record: memoryview, check: int) -> bool:
    """Return whether the bytes are one whole record that passes a :class:`Check`."""
    rows, end, _ = scan(record, 0, len(record), ANYWHERE, Columns(1).table, check)
    return rows == 1 and end == len(record)


def record_at(log: SegmentQueue, offset: int) -> memoryview | None:
    """Return the bytes of the record at ``offset``, or None if no whole record begins there."""
    place = _find(log, offset)
    view = place.segment.look() if place is not None else None
    head = _head(view, place.at, offset) if place is not None and view is not None else None
    if place is None or view is None or head is None:
        return None
    if not layout.RECORD_SIZE_MIN <= head[0] <= place.segment.committed - place.at:
        return None
    return view[place.at : place.at + head[0]]


def search(
    log: SegmentQueue, start: int, end: int, topic: str, queue_id: int, queue_offset: int
) -> memoryview | None:
    """Find a message by its queue offset in the log, from the record at ``start`` up to ``end``.

    Returns None if it is not among the next SEARCHED_MAX records: its position should be near.
    """
    for _ in range(SEARCHED_MAX):
        buffer = record_at(log, start) if start < end else None
        if buffer is None:  # perhaps the rest of the file is empty
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
    """Return the topic of a record, or None if the record is damaged."""
    try:
        return decode_message(buffer).topic
    except FormatError:
        return None


def record_offset(buffer: memoryview) -> int:
    """Return the physical offset that is stored in a record."""
    offset: int = _HEAD(buffer, 0)[6]
    return offset
