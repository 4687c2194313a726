"""Damaged messages of a queue: which file is damaged and where, and how far the damage goes."""

import logging

from firetrail.errors import StoreDamagedError
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.files.unit import PRE_BLANK, ConsumeQueueUnit
from firetrail.format.kernels.scan import scan
from firetrail.format.layout import UNIT
from firetrail.format.light import is_light
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.integrity.queue_place import contradiction
from firetrail.store.log.log_records import is_good, record_at
from firetrail.store.log.walk import describe_stop
from firetrail.store.problems import DERIVED_REMEDY
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.queue_table import QueueKey

RANGE_MAX = 10_000
"""Maximum number of messages that are read to find the end of a damaged range."""
REPORTED_MAX = 1000
"""Maximum number of ranges that are remembered as reported; beyond it, some are reported again."""
READ_REMEDY = "list all damage with 'firetrail fsck STORE'; other messages can be read"

_log = logging.getLogger(__name__)


def damage_at(log: SegmentQueue, queue: ConsumeQueue, offset: int) -> StoreDamagedError:
    """Return the damage of the message at a queue offset: of its record, or its unit.

    A unit that fits between its neighbours is considered good.
    """
    name = f"message {offset} of {queue.topic}/{queue.queue_id}"
    unit = queue.unit(offset)
    segment = log.find(unit.physical_offset) if unit is not None and unit.is_written else None
    if unit is not None and segment is not None and _fits(queue, offset, unit):
        fault = _fault(segment, unit.physical_offset) or _contradiction(log, queue, offset)
        if fault:
            return record_damage(segment, unit.physical_offset, f"{name}: {fault}")
    units = queue.files.find(offset * UNIT.size)
    file = units.path if units is not None else queue.files.folder
    at = offset * UNIT.size - (units.base if units is not None else 0)
    points = f"points to {unit.size} bytes at {unit.physical_offset}" if unit else "is missing"
    detail = f"{name}: its unit {points}, which is not a message of this queue"
    return StoreDamagedError(str(file), at, None, detail, DERIVED_REMEDY)


def record_damage(
    segment: Segment, physical_offset: int, detail: str | None = None
) -> StoreDamagedError:
    """Return the error for a position in the log where a good record should be."""
    found = detail or _fault(segment, physical_offset) or "no record begins here"
    at = physical_offset - segment.base
    return StoreDamagedError(str(segment.path), at, physical_offset, found, READ_REMEDY)


def _contradiction(log: SegmentQueue, queue: ConsumeQueue, offset: int) -> str:
    """Return the contradiction between a unit and its record; empty if they agree.

    A record that contradicts a unit of a light queue is a good one of its own queue.
    """
    unit = queue.unit(offset) if not is_light(queue.topic) else None
    record = record_at(log, unit.physical_offset) if unit is not None else None
    return contradiction(log, queue, offset, record) if record is not None else ""


def _fits(queue: ConsumeQueue, offset: int, unit: ConsumeQueueUnit) -> bool:
    """Return whether the record of a unit would be between those of its neighbours."""
    before, after = queue.unit(offset - 1), queue.unit(offset + 1)
    begin = 0
    if before is not None and before.is_written and before != PRE_BLANK:
        begin = before.end_offset
    end = after.physical_offset if after is not None and after.is_written else unit.end_offset
    return begin <= unit.physical_offset and unit.end_offset <= end


def _fault(segment: Segment, physical_offset: int) -> str | None:
    """Describe the damage of the record at a position in the log; None if it is good."""
    columns = Columns(1)
    at, limit = physical_offset - segment.base, segment.committed
    rows, _, stop = scan(segment.view, at, limit, segment.base, columns.table, Check.RECORD)
    return None if rows else describe_stop(segment.view, at, limit, Stop(stop))


def damaged_until(log: SegmentQueue, queue: ConsumeQueue, offset: int) -> int:
    """Return the queue offset after the damaged messages that begin at ``offset``."""
    end = offset + 1
    while end < min(queue.max_offset, offset + RANGE_MAX):
        unit = queue.unit(end)
        if unit is None or not unit.is_written:
            break
        record = record_at(log, unit.physical_offset)
        if (
            record is not None
            and len(record) == unit.size
            and is_good(record, Check.RECORD)
            and not contradiction(log, queue, end, record)
        ):
            break
        end += 1
    return end


class DamageReports:
    """Logs each damaged range of a queue once, however many consumers come across it."""

    def __init__(self, log: SegmentQueue) -> None:
        self._log = log
        self._reported: dict[QueueKey, list[range]] = {}
        self._count = 0

    def note(self, queue: ConsumeQueue, offset: int) -> None:
        """Report that the message at a queue offset is damaged and not delivered to consumers."""
        key = (queue.topic, queue.queue_id)
        if any(offset in known for known in self._reported.get(key, ())):
            return
        if self._count >= REPORTED_MAX:
            self._reported.clear()
            self._count = 0
        damaged = range(offset, damaged_until(self._log, queue, offset))
        self._reported.setdefault(key, []).append(damaged)
        self._count += 1
        which = f"message {offset} is"
        if len(damaged) > 1:
            which = f"messages {offset} to {damaged[-1]} are"
        error = damage_at(self._log, queue, offset)
        _log.error("%s queue %d: %s damaged and left out: %s", *key, which, error)
