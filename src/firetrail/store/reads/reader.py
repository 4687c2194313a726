"""Reads by queue offset, by physical offset or id, by key and by time.

Results are slices of the mapped log. Statuses and next offsets of :meth:`Reader.get` follow the
Java store's table, condition by condition.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from firetrail.errors import StoreDamagedError, WrongTypeError
from firetrail.format.columns import Check
from firetrail.format.kernels.single import KeyQuestion
from firetrail.format.layout import UNIT
from firetrail.format.names import OFFSET_MAX
from firetrail.format.values.ids import decode_message_id
from firetrail.format.values.integers import INT64_MAX
from firetrail.format.values.javahash import java_hash
from firetrail.format.values.tags import ALL_TAGS, tags_in, trimmed
from firetrail.settings.settings_table import Live
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.index.index import Index
from firetrail.store.integrity.damaged_messages import damage_at
from firetrail.store.integrity.queue_place import compared_with, contradiction
from firetrail.store.kernels.select import DAMAGED, ELSEWHERE, UNCHECKED, Selection
from firetrail.store.log.log_records import is_good, record_at, search, store_time_at
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.filter_bits import UNITS_TRANSLATED, FilterBits, translated
from firetrail.store.queues.queue_table import QueueKey, QueueTable
from firetrail.store.results import GetResult, GetStatus, QueueCursor, decode_message
from firetrail.store.settings.store_config import BrokerRole, StoreConfig

_UNIT = UNIT.struct.unpack_from
TIME_MAX = INT64_MAX
CANDIDATES_MAX = 16_384
"""Maximum number of messages that a query compares with the key: about 40 ms. Their keys have the
same hash, and such keys are easy to create."""
NEIGHBOURS_MAX = 1024
"""Maximum number of units on each side of a damaged one that are searched for a good one."""
SLAVE_RATIO_LESS = 0.1
"""The part of the memory that a slave does not count on, as in RocketMQ."""


class Boundary(Enum):
    """The message that a time selects if no message was stored at exactly that time."""

    LOWER = "lower"  # the first message stored at or after the time (RocketMQ 5)
    UPPER = "upper"  # the last message stored at or before the time (RocketMQ 5)
    NEAREST = "nearest"  # the nearer message, the earlier one if both are as near (RocketMQ 4)


class QueryResult(NamedTuple):
    """Messages with a key, newest first, and the position that the index has reached."""

    buffers: list[memoryview]
    index_time: int
    index_offset: int


class _Get(NamedTuple):
    """A get whose offset is between those of its queue."""

    queue: ConsumeQueue
    offset: int
    low: int
    high: int
    max_count: int
    check: int
    tags: frozenset[int] | None = None
    bits: FilterBits | None = None


def _good_neighbour(queue: ConsumeQueue, numbers: range, start: int, end: int, default: int) -> int:
    """Return the offset of the first of some units' records in ``start..end``, or ``default``."""
    units = (queue.unit(number) for number in numbers)
    places = (unit.physical_offset for unit in units if unit is not None and unit.is_written)
    return next((place for place in places if start <= place < end), default)


class Reader:
    """Reads from a log, its queues and its index; any number of threads may use it."""

    def __init__(
        self,
        log: SegmentQueue,
        queues: QueueTable,
        index: Index | None,
        config: Live[StoreConfig],
        shown: Callable[[], int] = lambda: OFFSET_MAX,
    ) -> None:
        """Prepare to read.

        Args:
            log: The segments of the log.
            queues: The consume queues.
            index: The index, None if there is none.
            config: The settings in force.
            shown: Returns the physical offset before which queries find records. The default finds
                all records of the index.
        """
        self._log = log
        self._shown = shown
        self._queues = queues
        self._index = index
        self._live = config
        self._cursors: dict[QueueKey, QueueCursor] = {}
        log.before_removal.append(self._cursors.clear)
        ratio = config.current.in_memory_ratio
        if config.current.role is BrokerRole.SLAVE:
            ratio = max(ratio - SLAVE_RATIO_LESS, 0.0)
        self._memory = int(log.system.memory_bytes * ratio)

    def forget_cursors(self) -> None:
        """Look every queue up again at its next get."""
        self._cursors.clear()

    # -- by queue offset ----------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        tags: frozenset[int] | None = None,
        bits: FilterBits | None = None,
        check: int = UNCHECKED,
    ) -> GetResult:
        """Return messages of a queue from ``offset`` on, within the configured limits.

        ``tags`` are hashes of the requested tags (:func:`tag_hashes`), or None for all messages.
        Different tags may have the same hash: a caller that needs exactness compares the tags.
        ``bits`` leaves out messages whose extended units rule them out; ``tags`` must be None.
        ``check`` is how closely records are checked (a :class:`Check`). The result ends before a
        damaged one; if it is the first, StoreDamagedError is raised. Default: UNCHECKED.
        """
        is_plain = tags is None and bits is None
        if is_plain:
            cursor = self._cursors.get((topic, queue_id))
            result = cursor.get(offset, max_count, check) if cursor is not None else None
            if result is not None:
                return result
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return self._nothing(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0, 0)
        low, high = queue.min_offset(self._log.min_offset), queue.max_offset
        if high < offset <= queue.next_offset:  # in the log, but not shown yet
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
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
        if is_plain:
            self._remember(queue, segment, offset, low)
        get = _Get(queue, offset, low, high, max_count, check, tags=tags, bits=bits)
        return self._select(get, segment)

    def _remember(self, queue: ConsumeQueue, units: Segment, offset: int, low: int) -> None:
        """Keep a cursor for the next get of the queue, which is faster if it continues here."""
        unit = queue.unit(offset)
        records = self._log.find(unit.physical_offset) if unit is not None else None
        if records is not None and records.look() is not None and units.look() is not None:
            config = self._live.current
            if len(self._cursors) > self._queues.open_segments.most // 2:
                self._cursors.clear()  # each cursor keeps the files that it reads open
            self._cursors[queue.topic, queue.queue_id] = QueueCursor(
                queue.files,
                units,
                self._log,
                records,
                low,
                config.max_transfer_count_in_memory,
                config.max_transfer_bytes_in_memory,
                self._memory,
                *compared_with(queue),
            )
            if config is not self._live.current:  # changed meanwhile, and other cursors forgotten
                self._cursors.clear()

    def _nothing(
        self, status: GetStatus, asked: int, next_offset: int, low: int, high: int
    ) -> GetResult:
        """Return an empty result that moves the reader; on a slave the reader stays in place."""
        if not self._live.current.corrects_offsets:
            next_offset = asked
        return GetResult(status, next_offset, low, high)

    def _selection(
        self,
        queue: ConsumeQueue,
        max_count: int,
        log_end: int,
        tags: frozenset[int] | None,
        check: int,
    ) -> Selection:
        config = self._live.current
        return Selection(
            max_count,
            config.max_transfer_bytes_in_memory,
            config.max_transfer_count_in_memory,
            config.max_transfer_bytes_on_disk,
            config.max_transfer_count_on_disk,
            log_end - self._memory,
            tags,
            check,
            *compared_with(queue),
        )

    def _select(self, get: _Get, units: Segment) -> GetResult:
        """Return the messages of a file of units, from an offset in it on."""
        queue, offset, low, high, max_count, check, tags, bits = get
        log_end = self._log.readable_offset
        view, base = units.look(), units.base
        if view is None:
            return self._nothing(
                GetStatus.OFFSET_TOO_SMALL, offset, units.end // UNIT.size, low, high
            )
        at = first = offset * UNIT.size - base
        looked_at = max(self._live.current.max_filter_bytes, max_count * UNIT.size)
        end = min(units.wrote, at + looked_at)
        if queue.extension is not None and (tags is not None or bits is not None):
            part = view[at : min(end, at + UNITS_TRANSLATED * UNIT.size)]
            base += at
            view, tags = translated(queue.extension, part, tags, bits)
            get = get._replace(tags=tags)
            at, first, end = 0, 0, len(view)
        selection = self._selection(queue, max_count, log_end, tags, check)
        status = GetStatus.NO_MATCHED_MESSAGE
        gone_before = 0  # the files with records before this offset are deleted
        while at + UNIT.size <= end:
            record = _UNIT(view, at)[0]
            segment = self._log.find(record) if record >= gone_before else None
            records = segment.look() if segment is not None else None
            if segment is not None and records is not None:
                readable = segment.base + segment.committed
                number = (base + at) // UNIT.size
                reason = selection.take(view, at, end, records, segment.base, readable, number)
                if selection.filtered and not selection.found:
                    status = GetStatus.NO_MATCHED_MESSAGE
                moved, at = selection.position > at, selection.position
                if reason == DAMAGED and at == first:
                    return self._instead_of(get)
                if reason != ELSEWHERE:
                    break
                if moved:
                    continue
            if (base + at) // UNIT.size >= queue.min_offset(self._log.min_offset):
                if selection.found or at > first:
                    break  # the next get begins at this unit
                return self._without_unit(get)
            if record >= gone_before:
                gone_before = record - record % self._log.segment_size + self._log.segment_size
                status = GetStatus.MESSAGE_WAS_REMOVING
            at += UNIT.size
        if selection.found:
            status = GetStatus.FOUND
        return GetResult(
            status,
            (base + at) // UNIT.size,
            low,
            high,
            selection.found,
            selection.size,
            log_end - selection.last_offset > self._memory,
        )

    def _instead_of(self, get: _Get) -> GetResult:
        """Return the first message, whose unit points to no good record of this message.

        Raises StoreDamagedError if the record is damaged and not the unit.
        """
        unit = get.queue.unit(get.offset)
        record = record_at(self._log, unit.physical_offset) if unit is not None else None
        is_whole = unit is not None and record is not None and len(record) == unit.size
        if not is_whole or record is None or not is_good(record, get.check):
            error = damage_at(self._log, get.queue, get.offset)
            if error.physical_offset is not None:
                raise error
        elif not contradiction(self._log, get.queue, get.offset, record):
            found = [record]
            return GetResult(GetStatus.FOUND, get.offset + 1, get.low, get.high, found, len(record))
        return self._without_unit(get)

    def _without_unit(self, get: _Get) -> GetResult:
        """Return the first message although its unit is damaged, by searching the log.

        Its record should be between those of the neighbouring units. Raises StoreDamagedError if
        it is not, or if they are too far apart.
        """
        queue, offset, low, high, _, check, tags, _ = get
        start, end = self._log.min_offset, self._log.readable_offset
        before = range(offset - 1, offset - NEIGHBOURS_MAX, -1)
        after = range(offset + 1, offset + NEIGHBOURS_MAX)
        start = _good_neighbour(queue, before, start, end, start)
        end = _good_neighbour(queue, after, start, end, end)

        found = search(self._log, start, end, queue.topic, queue.queue_id, offset)
        if found is None or (check != UNCHECKED and not is_good(found, check)):
            raise damage_at(self._log, queue, offset)
        wanted = tags is None or java_hash(decode_message(found).tags or "") in tags
        status = GetStatus.FOUND if wanted else GetStatus.NO_MATCHED_MESSAGE
        buffers = [found] if wanted else []
        return GetResult(status, offset + 1, low, high, buffers, len(found) * wanted)

    def message(self, topic: str, queue_id: int, offset: int) -> memoryview | None:
        """Return the good message at a queue offset, also if consumers do not see it yet.

        None if the queue does not have it, or no longer has it. A damaged unit is passed over, as
        by :meth:`get`. Raises StoreDamagedError if the record is damaged.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return None
        # A replica derives units from the log that it copies, and counts no offsets of its own.
        low, high = queue.min_offset(self._log.min_offset), max(queue.next_offset, queue.max_offset)
        if not low <= offset < high:
            return None
        get = _Get(queue, offset, low, high, max_count=1, check=Check.RECORD)
        found: list[memoryview] = self._instead_of(get).buffers
        return found[0]

    def damage(
        self, topic: str, queue_id: int, offset: int, number: int, tags: frozenset[int] | None
    ) -> StoreDamagedError:
        """Return the error for message ``number`` (from 0) of a get at ``offset``."""
        queue = self._queues.open(topic, queue_id)
        return damage_at(self._log, queue, self.offset_of(topic, queue_id, offset, number, tags))

    def offset_of(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        number: int,
        tags: frozenset[int] | None,
        bits: FilterBits | None = None,
    ) -> int:
        """Return the queue offset of message ``number`` (from 0) that a get at ``offset`` finds."""
        next_offset: int = self.get(topic, queue_id, offset, number + 1, tags, bits).next_offset
        return next_offset - 1

    # -- by position --------------------------------------------------------------------------

    def at_offset(self, physical_offset: int) -> memoryview | None:
        """Return the record that begins at ``physical_offset``, or None."""
        return record_at(self._log, physical_offset)

    def by_id(self, message_id: str) -> memoryview | None:
        """Return the record with this offset message id, or None if the store does not have it."""
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
        *,
        hidden: bool = False,
    ) -> QueryResult:
        """Return messages of ``topic`` with this key or unique key, stored in ``begin..end`` (ms).

        The index contains only hashes, so every message is compared with the key. Among more than
        ``CANDIDATES_MAX`` messages with the same hash and other keys, older ones are not found.
        Messages that consumers do not see yet are found only with ``hidden``.
        """
        index = self._index
        if index is None:
            return QueryResult([], 0, 0)
        wanted = min(
            max_count or self._live.current.default_query_count, self._live.current.max_query_count
        )
        limit = wanted
        question = KeyQuestion(topic, key, begin, end)
        while True:
            offsets = index.query(question, limit)
            found = self._answers(question, offsets, OFFSET_MAX if hidden else self._shown())
            if len(found) >= wanted or len(offsets) < limit or limit >= CANDIDATES_MAX:
                return QueryResult(found[:wanted], *index.end)
            limit = min(limit * 4, CANDIDATES_MAX)

    def _answers(self, question: KeyQuestion, offsets: list[int], shown: int) -> list[memoryview]:
        """Return the records at these offsets, and before ``shown``, that match the question."""
        found = []
        # The index may contain an entry twice: 4.9 indexes some messages again after a crash.
        for offset in offsets if len(offsets) == 1 else dict.fromkeys(offsets):
            segment = self._log.find(offset)
            view = segment.look() if segment is not None else None
            if segment is not None and view is not None and offset < shown:
                at = offset - segment.base
                size = question.fits(view, at, segment.committed, segment.base)
                if size:
                    found.append(view[at : at + size])
        return found

    # -- by time ------------------------------------------------------------------------------

    def offset_at(
        self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset that a store time selects; 0 if the queue does not exist."""
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
        """Return the nearer of ``later - 1`` and ``later`` to a time between them."""
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
        """Return whether a message is likely in memory; messages yet to come count as such."""
        queue = self._queues.find(topic, queue_id)
        unit = queue.unit(offset) if queue is not None else None
        return unit is None or self._log.readable_offset - unit.physical_offset <= self._memory

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time (ms) of the message at a queue offset, or None."""
        queue = self._queues.find(topic, queue_id)
        unit = queue.unit(offset) if queue is not None else None
        return store_time_at(self._log, unit.physical_offset) if unit is not None else None

    def _time(self, physical_offset: int) -> int:
        """Return the store time of a record; a deleted record counts as infinitely old."""
        time = store_time_at(self._log, physical_offset)
        return -1 if time is None else time


def tag_hashes(tags: str | Iterable[str] | None) -> frozenset[int] | None:
    """Return the hashes of ``"A || B"`` or of several tags; None for all messages (``"*"``)."""
    if tags is None:
        return None
    names = tag_names(tags)
    return None if names is None else frozenset(map(java_hash, names))


def tag_names(tags: str | Iterable[str]) -> tuple[str, ...] | None:
    """Return the tags in ``"A || B"``, or several tags; None for all messages.

    Raises:
        WrongTypeError: These are no tags.
        ConfigError: The text has no tag.
    """
    if isinstance(tags, str):
        return tags_in(tags)
    try:
        names = tuple(trimmed(name + "") for name in tags)
    except TypeError:
        allowed = 'expected tags, such as "A || B" or ["A", "B"]'
        raise WrongTypeError("tags", tags, allowed) from None
    return None if ALL_TAGS in names else tuple(filter(None, names))
