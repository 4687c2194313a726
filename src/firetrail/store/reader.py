"""Reads: by queue offset, by physical offset or id, by key and by time.

Answers are slices of the log's mapping; nothing is copied or decoded here. Statuses and next
offsets of :meth:`Reader.get` follow the Java store's table, condition by condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from firetrail.errors import StoreDamagedError, WrongTypeError
from firetrail.format.ids import decode_message_id
from firetrail.format.javahash import java_hash
from firetrail.format.kernels.single import KeyQuestion
from firetrail.format.layout import UNIT
from firetrail.storage.queue import SegmentQueue
from firetrail.storage.segment import Segment
from firetrail.store.config import BrokerRole, StoreConfig
from firetrail.store.index.index import Index
from firetrail.store.inspect.damage import damage_at
from firetrail.store.kernels.select import ELSEWHERE, Selection
from firetrail.store.log.records import record_at, search, store_time_at
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.table import QueueKey, QueueTable
from firetrail.store.results import GetResult, GetStatus, QueueCursor, decode_message

_UNIT = UNIT.struct.unpack_from
TIME_MAX = (1 << 63) - 1
NEIGHBOURS = 1024
"""Units on each side that are looked at for a good one where some are damaged."""


class Boundary(Enum):
    """Which message a time stands for where none was stored at exactly that time."""

    LOWER = "lower"  # the first one stored at the time or later (RocketMQ 5)
    UPPER = "upper"  # the last one stored at the time or before (RocketMQ 5)
    NEAREST = "nearest"  # the nearer one, the earlier of two (RocketMQ 4)


class QueryResult(NamedTuple):
    """Messages with a key, newest first, and up to where the index reaches."""

    buffers: list[memoryview]
    index_time: int
    index_offset: int


def _near(queue: ConsumeQueue, numbers: range, start: int, end: int, default: int) -> int:
    """Where the record of the first good one of some units stands, in ``start`` to ``end``."""
    units = (queue.unit(number) for number in numbers)
    places = (unit.physical_offset for unit in units if unit is not None and unit.is_written)
    return next((place for place in places if start <= place < end), default)


class Reader:
    """Reads from a log, its queues and its index; any number of threads may use it."""

    def __init__(
        self, log: SegmentQueue, queues: QueueTable, index: Index | None, config: StoreConfig
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._config = config
        self._cursors: dict[QueueKey, QueueCursor] = {}
        log.before_removal.append(self._cursors.clear)
        self._memory = int(log.system.memory_bytes * config.in_memory_ratio)

    def forget_cursors(self) -> None:
        """Look every queue up again."""
        self._cursors.clear()

    # -- by queue offset ----------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        tags: frozenset[int] | None = None,
    ) -> GetResult:
        """Messages of a queue from ``offset`` on, within the configured caps.

        ``tags`` are hashes of the tags wanted (:func:`tag_hashes`), None for all. A hash may
        stand for another tag as well: who needs exactness compares the tag of each message.
        """
        if tags is None:
            cursor = self._cursors.get((topic, queue_id))
            result = cursor.get(offset, max_count) if cursor is not None else None
            if result is not None:
                return result
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return self._nothing(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0, 0)
        low, high = queue.min_offset(self._log.min_offset), queue.max_offset
        if high == 0:
            return self._nothing(GetStatus.NO_MESSAGE_IN_QUEUE, offset, 0, low, high)
        if offset < low:
            return self._nothing(GetStatus.OFFSET_TOO_SMALL, offset, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return self._nothing(GetStatus.OFFSET_OVERFLOW_BADLY, offset, high, low, high)
        segment = queue.files.find(offset * UNIT.size)
        if segment is None:
            per_file = queue.files.segment_size // UNIT.size
            next_file = offset - offset % per_file + per_file
            return self._nothing(GetStatus.OFFSET_FOUND_NULL, offset, next_file, low, high)
        if tags is None:
            self._remember(queue, segment, offset, low)
        return self._select(queue, segment, offset, low, high, max_count, tags)

    def _remember(self, queue: ConsumeQueue, units: Segment, offset: int, low: int) -> None:
        """Let the next get of the queue go the short way, if it goes on from here."""
        unit = queue.unit(offset)
        records = self._log.find(unit.physical_offset) if unit is not None else None
        if records is not None and records.look() is not None and units.look() is not None:
            config = self._config
            if len(self._cursors) > self._queues.residents.most // 2:
                self._cursors.clear()  # what they read stays open as long as they are there
            self._cursors[queue.topic, queue.queue_id] = QueueCursor(
                queue.files,
                units,
                self._log,
                records,
                low,
                config.max_transfer_count_in_memory,
                config.max_transfer_bytes_in_memory,
                self._memory,
            )

    def _nothing(
        self, status: GetStatus, asked: int, next_offset: int, low: int, high: int
    ) -> GetResult:
        """An empty answer that moves the reader; a slave leaves it where it is."""
        config = self._config
        if config.role is BrokerRole.SLAVE and not config.offset_check_in_slave:
            next_offset = asked
        return GetResult(status, next_offset, low, high)

    def _select(
        self,
        queue: ConsumeQueue,
        units: Segment,
        offset: int,
        low: int,
        high: int,
        max_count: int,
        tags: frozenset[int] | None,
    ) -> GetResult:
        config = self._config
        log_end = self._log.readable_offset
        selection = Selection(
            max_count,
            config.max_transfer_bytes_in_memory,
            config.max_transfer_count_in_memory,
            config.max_transfer_bytes_on_disk,
            config.max_transfer_count_on_disk,
            log_end - self._memory,
            tags,
        )
        view = units.look()
        if view is None:
            return self._nothing(
                GetStatus.OFFSET_TOO_SMALL, offset, units.end // UNIT.size, low, high
            )
        at = first = offset * UNIT.size - units.base
        end = min(units.wrote, at + max(config.max_filter_bytes, max_count * UNIT.size))
        status = GetStatus.NO_MATCHED_MESSAGE
        gone_before = 0  # records before it are gone with their file
        while at + UNIT.size <= end:
            record = _UNIT(view, at)[0]
            segment = self._log.find(record) if record >= gone_before else None
            records = segment.look() if segment is not None else None
            if segment is not None and records is not None:
                readable = segment.base + segment.committed
                reason = selection.take(view, at, end, records, segment.base, readable)
                if selection.filtered and not selection.found:
                    status = GetStatus.NO_MATCHED_MESSAGE
                if reason != ELSEWHERE:
                    at = selection.position
                    break
                if selection.position > at:
                    at = selection.position
                    continue
            if (units.base + at) // UNIT.size >= queue.min_offset(self._log.min_offset):
                if selection.found or at > first:
                    break  # the next get begins here
                return self._without_unit(queue, offset, low, high, tags)
            if record >= gone_before:
                gone_before = record - record % self._log.segment_size + self._log.segment_size
                status = GetStatus.MESSAGE_WAS_REMOVING
            at += UNIT.size
        if selection.found:
            status = GetStatus.FOUND
        return GetResult(
            status,
            (units.base + at) // UNIT.size,
            low,
            high,
            selection.found,
            selection.size,
            log_end - selection.last_offset > self._memory,
        )

    def _without_unit(
        self,
        queue: ConsumeQueue,
        offset: int,
        low: int,
        high: int,
        tags: frozenset[int] | None,
    ) -> GetResult:
        """The message at ``offset`` although its unit is damaged: found between its neighbours.

        Raises StoreDamagedError if it is not there, or they are far from each other.
        """
        start, end = self._log.min_offset, self._log.readable_offset
        start = _near(queue, range(offset - 1, offset - NEIGHBOURS, -1), start, end, start)
        end = _near(queue, range(offset + 1, offset + NEIGHBOURS), start, end, end)
        found = search(self._log, start, end, queue.topic, queue.queue_id, offset)
        if found is None:
            raise damage_at(self._log, queue, offset)
        wanted = tags is None or java_hash(decode_message(found).tags or "") in tags
        status = GetStatus.FOUND if wanted else GetStatus.NO_MATCHED_MESSAGE
        buffers = [found] if wanted else []
        return GetResult(status, offset + 1, low, high, buffers, len(found) * wanted)

    def damage(
        self, topic: str, queue_id: int, offset: int, number: int, tags: frozenset[int] | None
    ) -> StoreDamagedError:
        """What is wrong with a message: number ``number``, from 0, of a get from ``offset`` on."""
        queue = self._queues.open(topic, queue_id)
        return damage_at(self._log, queue, self.offset_of(topic, queue_id, offset, number, tags))

    def offset_of(
        self, topic: str, queue_id: int, offset: int, number: int, tags: frozenset[int] | None
    ) -> int:
        """Queue offset of message ``number``, from 0, that a get from ``offset`` on finds."""
        behind: int = self.get(topic, queue_id, offset, number + 1, tags).next_offset
        return behind - 1

    # -- by place -----------------------------------------------------------------------------

    def at_offset(self, physical_offset: int) -> memoryview | None:
        """The record that begins at ``physical_offset``."""
        return record_at(self._log, physical_offset)

    def by_id(self, message_id: str) -> memoryview | None:
        """The record with this offset message id, None if it is not (or no longer) here."""
        wanted = decode_message_id(message_id)
        buffer = record_at(self._log, wanted.physical_offset)
        if buffer is None or decode_message(buffer).store_host != wanted.host:
            return None
        return buffer

    # -- by key -------------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        begin: int = 0,
        end: int = TIME_MAX,
        max_count: int | None = None,
    ) -> QueryResult:
        """Messages of ``topic`` with this key or unique key, stored in ``begin..end`` (ms).

        The index knows hashes only; every message is compared with the key before it counts.
        """
        index = self._index
        if index is None:
            return QueryResult([], 0, 0)
        wanted = min(max_count or self._config.default_query_count, self._config.max_query_count)
        limit = wanted
        question = KeyQuestion(topic, key, begin, end)
        while True:
            offsets = index.query(question, limit)
            found = self._answers(question, offsets)
            if len(found) >= wanted or len(offsets) < limit:
                return QueryResult(found[:wanted], *index.end)
            limit *= 4

    def _answers(self, question: KeyQuestion, offsets: list[int]) -> list[memoryview]:
        """The records at some offsets that are really asked for."""
        found = []
        # An entry may be there twice: 4.9 indexes some messages again after a crash.
        for offset in offsets if len(offsets) == 1 else dict.fromkeys(offsets):
            segment = self._log.find(offset)
            view = segment.look() if segment is not None else None
            if segment is not None and view is not None:
                at = offset - segment.base
                size = question.fits(view, at, segment.committed, segment.base)
                if size:
                    found.append(view[at : at + size])
        return found

    # -- by time ------------------------------------------------------------------------------

    def offset_at(
        self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Queue offset of the message that a store time stands for; 0 for a missing queue."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset(self._log.min_offset), queue.max_offset
        later = queue.first_where(
            low, high, lambda unit: self._time(unit.physical_offset) > time_ms
        )
        if boundary is Boundary.UPPER:
            return max(later - 1, low)
        first = queue.first_where(
            low, later, lambda unit: self._time(unit.physical_offset) >= time_ms
        )
        if boundary is Boundary.LOWER or first < later or low == high:
            return first
        return self._nearest(queue, low, high, first, time_ms)

    def _nearest(self, queue: ConsumeQueue, low: int, high: int, later: int, time_ms: int) -> int:
        """The nearer of the neighbours ``later - 1`` and ``later`` of a time between them."""
        if later >= high:
            return high - 1
        if later <= low:
            return low
        after, before = queue.unit(later), queue.unit(later - 1)
        assert after is not None and before is not None
        to_later = self._time(after.physical_offset) - time_ms
        to_earlier = time_ms - self._time(before.physical_offset)
        return later if to_later < to_earlier else later - 1

    def is_recent(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message at a queue offset is likely in memory; so is one to come."""
        queue = self._queues.find(topic, queue_id)
        unit = queue.unit(offset) if queue is not None else None
        return unit is None or self._log.readable_offset - unit.physical_offset <= self._memory

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Store time (ms) of the message at a queue offset."""
        queue = self._queues.find(topic, queue_id)
        unit = queue.unit(offset) if queue is not None else None
        return store_time_at(self._log, unit.physical_offset) if unit is not None else None

    def _time(self, physical_offset: int) -> int:
        """Store time of a record; what is gone counts as the distant past."""
        time = store_time_at(self._log, physical_offset)
        return -1 if time is None else time


def tag_hashes(tags: str | Iterable[str] | None) -> frozenset[int] | None:
    """Hashes for :meth:`Reader.get` of ``"A || B"`` or several tags; None for all (``"*"``)."""
    if tags is None:
        return None
    names = tag_names(tags)
    if "*" in names:
        return None
    return frozenset(java_hash(name) for name in names if name)


def tag_names(tags: str | Iterable[str]) -> list[str]:
    """The tags in ``"A || B"``, or several tags; WrongTypeError for anything else."""
    try:
        names = tags.split("||") if isinstance(tags, str) else [name + "" for name in tags]
    except TypeError:
        allowed = 'expected tags, such as "A || B" or ["A", "B"]'
        raise WrongTypeError("tags", tags, allowed) from None
    return [name.strip() for name in names]
