"""The good records of a log with damage between them."""

from collections.abc import Iterator
from typing import NamedTuple

from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.columns import Check
from firetrail.format.values.javahash import java_text
from firetrail.store.log.view_log import ViewLog
from firetrail.store.log.walk import LogWalk, RecordBatch

_COLUMNS = (
    col.PHYSICAL_OFFSET,
    col.SIZE,
    col.QUEUE_ID,
    col.QUEUE_OFFSET,
    col.STORE_TIME,
    col.SYS_FLAG,
    col.TOPIC_AT,
    col.TOPIC_SIZE,
)


class GoodRecord(NamedTuple):
    """A record of the log with correct checksums."""

    topic: str
    queue_id: int
    queue_offset: int
    store_time: int
    in_queue: bool
    """False for prepared and rolled-back messages, which consumers do not see."""
    content: memoryview
    """Its bytes, valid until the next record is read."""
    physical_offset: int


def good_records(
    log: ViewLog, begin: int, end: int, check: Check = Check.RECORD
) -> Iterator[GoodRecord]:
    """Yield the good records between two physical offsets, skipping damage."""
    names: dict[bytes, str] = {}
    for part in LogWalk(log, begin, end, check):
        if not isinstance(part, RecordBatch):
            continue
        rows = part.rows if part.failed is None else part.rows - 1
        content, base = part.segment.view, part.segment.base
        table = zip(*(part.columns.column(c)[:rows].tolist() for c in _COLUMNS), strict=True)
        for offset, size, queue_id, queue_offset, time, flag, topic_at, topic_size in table:
            raw = bytes(content[topic_at : topic_at + topic_size])
            topic = names.get(raw)
            if topic is None:
                topic = names[raw] = java_text(raw)
            in_queue = layout.takes_queue_offset(flag)
            record = content[offset - base : offset - base + size]
            yield GoodRecord(
                topic=topic,
                queue_id=queue_id,
                queue_offset=queue_offset,
                store_time=time,
                in_queue=in_queue,
                content=record,
                physical_offset=offset,
            )
