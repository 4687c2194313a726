"""Scans of a log file: where its good records end, and where the next one begins."""

from __future__ import annotations

import re
from array import array
from typing import NamedTuple

from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import scan
from firetrail.storage.segment import Segment
from firetrail.store.log.log_records import scan_record

ROWS_PER_STEP = 4096
"""Number of records that one call of the scanner decodes."""

_MAGIC = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (layout.MAGIC_V1, layout.MAGIC_V2))
)


class ScanResult(NamedTuple):
    """The result of scanning one segment."""

    records: int
    last_record: int
    last_store_time: int
    end: int  # physical offset of the end of the last good record
    segment_end: int
    stop: Stop


def scan_segment(segment: Segment, start: int, check: Check) -> ScanResult:
    """Scan every record of a segment from physical offset ``start``, if that is in it."""
    columns = Columns(ROWS_PER_STEP)
    at = max(start - segment.base, 0)
    limit = max(segment.data_end, at)
    stop = Stop.FULL
    records = 0
    last_store_time, last_record = 0, -1
    while stop is Stop.FULL:
        rows, after, code = scan(segment.view, at, limit, segment.base, columns.table, check)
        stop = Stop(code)
        if stop is Stop.CUT and not rows and limit < segment.size:
            rows, after, stop = _scan_into_hole(segment, at, columns, check)
        elif rows and _has_zeros_in_topic(segment.view, columns, rows - 1):
            rows, stop = rows - 1, Stop.TOPIC_LENGTH
            after = columns.column(col.PHYSICAL_OFFSET)[rows] - segment.base
        at = after
        if rows:
            records += rows
            last_store_time = columns.column(col.STORE_TIME)[rows - 1]
            last_record = columns.column(col.PHYSICAL_OFFSET)[rows - 1]
            stop = Stop.FULL if stop is Stop.CUT else stop
    return ScanResult(records, last_record, last_store_time, segment.base + at, segment.end, stop)


def record_offsets(segment: Segment, start: int, limit: int) -> array[int]:
    """Return the physical offsets of the records of a segment.

    Args:
        segment: The segment.
        start: The physical offset of the first one.
        limit: The position in the segment at which the written part ends.
    """
    columns = Columns(ROWS_PER_STEP)
    at = start - segment.base
    found = array("q")
    rows = ROWS_PER_STEP
    while rows and at < limit:
        rows, at, _ = scan(segment.view, at, limit, segment.base, columns.table, Check.NONE)
        found.extend(columns.column(col.PHYSICAL_OFFSET)[:rows])
    return found


def _scan_into_hole(
    segment: Segment, at: int, columns: Columns, check: Check
) -> tuple[int, int, Stop]:
    """Scan one record whose last bytes are zeros that the file stores as a hole."""
    size = int.from_bytes(segment.view[at : at + 4], "big", signed=True)
    if size < layout.RECORD_SIZE_MIN:
        return 0, at, Stop.CUT
    content = segment.system.files.read_at(segment.descriptor, at, size)
    rows, position, stop = scan(content, 0, len(content), segment.base + at, columns.table, check)
    if rows and _has_zeros_in_topic(content, columns, 0):
        return 0, at, Stop.TOPIC_LENGTH
    return rows, at + position, Stop(stop)


def _has_zeros_in_topic(view: bytes | memoryview, columns: Columns, row: int) -> bool:
    """Return whether a topic contains zeros.

    Then a block of the file was never written, which no later field of the record shows.
    """
    at = columns.column(col.TOPIC_AT)[row]
    return 0 in bytes(view[at : at + columns.column(col.TOPIC_SIZE)[row]])


def find_record(segment: Segment, at: int) -> int | None:
    """Return the position of the first good record at or after ``at`` in a segment."""
    for start, end in segment.system.files.data_ranges(segment.descriptor, at, segment.size):
        for magic in _MAGIC.finditer(segment.mapping, max(start, at + 4), end):
            position = magic.start() - 4
            stop, _ = scan_record(segment, segment.base + position, Check.BODY)
            if stop is Stop.LIMIT:
                return position
    return None
