"""Looking through a file of the log: where its good records end, where the next one begins."""

from __future__ import annotations

import re
from typing import NamedTuple

from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import scan
from firetrail.storage.segment import Segment
from firetrail.store.dispatch.deriver import ROWS_PER_STEP
from firetrail.store.log.records import scan_record

_MAGIC = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (layout.MAGIC_V1, layout.MAGIC_V2))
)


class Scanned(NamedTuple):
    """What a scan of one segment found."""

    records: int
    last_record: int
    last_store_time: int
    end: int  # physical offset behind the last good record
    segment_end: int
    stop: Stop


def scan_segment(segment: Segment, start: int, check: Check) -> Scanned:
    """Look at every record of a segment from physical offset ``start`` on, if that is in it."""
    columns = Columns(ROWS_PER_STEP)
    at = max(start - segment.base, 0)
    limit = max(segment.data_end, at)
    stop = Stop.FULL
    records = 0
    last_store_time, last_record = 0, -1
    while stop is Stop.FULL:
        rows, behind, code = scan(segment.view, at, limit, segment.base, columns.table, check)
        stop = Stop(code)
        if stop is Stop.CUT and not rows and limit < segment.size:
            rows, behind, stop = _into_the_hole(segment, at, columns, check)
        elif rows and _lost_its_topic(segment.view, columns, rows - 1):
            rows, stop = rows - 1, Stop.TOPIC_LENGTH
            behind = columns.column(col.PHYSICAL_OFFSET)[rows] - segment.base
        at = behind
        if rows:
            records += rows
            last_store_time = columns.column(col.STORE_TIME)[rows - 1]
            last_record = columns.column(col.PHYSICAL_OFFSET)[rows - 1]
            stop = Stop.FULL if stop is Stop.CUT else stop
    return Scanned(records, last_record, last_store_time, segment.base + at, segment.end, stop)


def _into_the_hole(
    segment: Segment, at: int, columns: Columns, check: Check
) -> tuple[int, int, Stop]:
    """As scan, for one record whose last bytes are zeros for which the file has a hole."""
    size = int.from_bytes(segment.view[at : at + 4], "big", signed=True)
    if size < layout.RECORD_SIZE_MIN:
        return 0, at, Stop.CUT
    content = segment.system.files.read_at(segment.descriptor, at, size)
    rows, position, stop = scan(content, 0, len(content), segment.base + at, columns.table, check)
    if rows and _lost_its_topic(content, columns, 0):
        return 0, at, Stop.TOPIC_LENGTH
    return rows, at + position, Stop(stop)


def _lost_its_topic(view: bytes | memoryview, columns: Columns, row: int) -> bool:
    """Whether zeros stand in a topic: a block that was never written took it, and there was
    nothing else behind it in the record that would show."""
    at = columns.column(col.TOPIC_AT)[row]
    return 0 in bytes(view[at : at + columns.column(col.TOPIC_SIZE)[row]])


def find_record(segment: Segment, at: int) -> int | None:
    """Position of the first good record at or behind ``at`` of a segment."""
    for start, end in segment.system.files.data_ranges(segment.descriptor, at, segment.size):
        for magic in _MAGIC.finditer(segment.mapping, max(start, at + 4), end):
            position = magic.start() - 4
            stop, _ = scan_record(segment, segment.base + position, Check.BODY)
            if stop is Stop.LIMIT:
                return position
    return None
