"""The result of a get, and the fast path to it.

A reader that goes through a queue asks for consecutive ranges of units, all in one file of the
queue and pointing into one file of the log. :class:`QueueCursor` remembers both files and answers
from them while that holds; it leaves everything else to the caller. The slices of a result are
created on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format import layout
from firetrail.format.record import Record, decode_message

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import load_i32, load_i64
    from cython.cimports.firetrail.format.kernels.scan import check_record, is_message
else:
    from firetrail.format.kernels._bigendian import load_i32, load_i64
    from firetrail.format.kernels.scan import check_record, is_message

COMPILED = cython.compiled

_UNIT = cython.declare(cython.Py_ssize_t, layout.UNIT.size)
_AT_SIZE = cython.declare(cython.Py_ssize_t, layout.UNIT.offsets["size"])
_OFFSET_MAX = cython.declare(cython.longlong, (2**63 - 1) // layout.UNIT.size)
"""The largest queue offset that has a position in bytes."""
_UNCHECKED = cython.declare(cython.int, -1)
_GOOD = cython.declare(cython.int, -1)


class GetStatus(Enum):
    """The outcome of a get; the names are those of the Java store."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@cython.cclass
class GetResult:
    """The records that a get has found, as slices of the log, and where to continue.

    Attributes:
        status: How the get ended.
        next_offset: The queue offset to continue from.
        min_offset: The queue offset of the oldest message in the queue.
        max_offset: One past the last readable queue offset.
        count: The number of records.
        size: Their bytes.
        buffers: Their stored bytes; :meth:`messages` decodes them.
        suggest_slave: Whether the records are so old that a slave should serve them.
    """

    status: GetStatus = cython.declare(object, visibility="readonly")
    next_offset: int = cython.declare(cython.longlong, visibility="readonly")
    min_offset: int = cython.declare(cython.longlong, visibility="readonly")
    max_offset: int = cython.declare(cython.longlong, visibility="readonly")
    size: int = cython.declare(cython.longlong, visibility="readonly")
    count: int = cython.declare(cython.Py_ssize_t, visibility="readonly")
    suggest_slave: bool = cython.declare(cython.bint, visibility="readonly")
    _buffers: list[memoryview] | None
    # Without a list, the buffers are units from _first on, which point into _log, a view of the
    # log from _base on.
    _units: memoryview | None
    _first: cython.Py_ssize_t
    _log: memoryview | None
    _base: cython.longlong

    def __init__(
        self,
        status: GetStatus,
        next_offset: cython.longlong,
        min_offset: cython.longlong,
        max_offset: cython.longlong,
        buffers: list[memoryview] | None = None,
        size: cython.longlong = 0,
        suggest_slave: cython.bint = False,
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.size = size
        self.suggest_slave = suggest_slave
        self.count = len(buffers) if buffers is not None else 0
        self._buffers = buffers
        self._units = self._log = None
        self._first = self._base = 0

    def __repr__(self) -> str:
        return (
            f"GetResult({self.status.value}, next_offset={self.next_offset}, "
            f"min_offset={self.min_offset}, max_offset={self.max_offset}, count={self.count}, "
            f"size={self.size})"
        )

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return True

    @property
    def buffers(self) -> list[memoryview]:
        """One slice of the log for each record."""
        if self._buffers is None:
            self._buffers = self._slices()
        return self._buffers

    @cython.cfunc
    def _slices(self) -> list[memoryview]:
        slices: list[memoryview] = []
        if self.count == 0:
            return slices
        view: cython.const[cython.uchar][::1] = self._units
        units: cython.pointer(cython.const[cython.uchar])
        if cython.compiled:
            units = cython.address(view[0])
        else:
            units = view
        log: Any = self._log
        at: cython.Py_ssize_t = self._first
        end: cython.Py_ssize_t = at + self.count * _UNIT
        start: cython.Py_ssize_t
        while at < end:
            start = load_i64(units, at) - self._base
            slices.append(log[start : start + load_i32(units, at + _AT_SIZE)])
            at += _UNIT
        return slices

    def messages(self) -> Iterator[Record]:
        """Yield the messages; each is decoded, and its body checked, when it is requested."""
        for buffer in self.buffers:
            yield decode_message(buffer)


@cython.cclass
class QueueCursor:
    """Answers gets of one queue from one file of the queue and one of the log.

    ``queue`` and ``log`` are segment queues: they have ``segments``, a tuple that is replaced
    whenever a file is added or removed, and the ``last`` of them. Each segment has its positions
    and its ``view``.
    """

    _found: GetStatus
    _queue: Any
    _queue_segments: Any
    _queue_last: Any
    _units_segment: Any
    _units: Any
    _units_view: cython.const[cython.uchar][::1]
    _units_base: cython.longlong
    _log: Any
    _log_segments: Any
    _log_last: Any
    _log_segment: Any
    _log_view: Any
    _log_bytes: cython.const[cython.uchar][::1]
    _log_base: cython.longlong
    _min_offset: cython.longlong
    _count_max: cython.Py_ssize_t
    _bytes_max: cython.longlong
    _memory: cython.longlong
    _topic: bytes
    _queue_id: cython.longlong

    def __init__(
        self,
        queue: Any,
        units: Any,
        log: Any,
        records: Any,
        min_offset: cython.longlong,
        count_max: cython.Py_ssize_t,
        bytes_max: cython.longlong,
        memory: cython.longlong,
        topic: bytes = b"",
        queue_id: cython.longlong = -1,
    ) -> None:
        """Remember the segment ``units`` of ``queue`` and the segment ``records`` of ``log``.

        ``min_offset`` is that of the queue while the log has the same files as now. Results have
        at most ``count_max`` messages and ``bytes_max`` bytes, all within ``memory`` bytes of the
        end of the log. Records that are checked must name ``topic``, ``queue_id`` and the offset of
        their unit, unless the topic is empty.
        """
        self._found = GetStatus.FOUND
        self._queue = queue
        self._queue_segments = queue.segments
        self._queue_last = queue.last
        self._units_segment = units
        self._units = units.view
        self._units_view = units.view
        self._units_base = units.base
        self._log = log
        self._log_segments = log.segments
        self._log_last = log.last
        self._log_segment = records
        self._log_view = records.view
        self._log_bytes = records.view
        self._log_base = records.base
        self._min_offset = min_offset
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._memory = memory
        self._topic = topic
        self._queue_id = queue_id

    def get(
        self, offset: cython.longlong, max_count: cython.Py_ssize_t, check: cython.int = -1
    ) -> GetResult | None:
        """Return messages from queue offset ``offset`` on, or None to leave it to the caller.

        ``check`` is that of a :class:`~firetrail.store.kernels.select.Selection`: the result ends
        before a damaged record, and a damaged first one is left to the caller.
        """
        if (
            self._queue.segments is not self._queue_segments
            or self._log.segments is not self._log_segments
            or offset < self._min_offset
            or offset > _OFFSET_MAX
        ):
            return None
        at: cython.Py_ssize_t = offset * _UNIT - self._units_base
        end: cython.Py_ssize_t = self._units_segment.wrote
        last: cython.longlong = self._queue_last.wrote
        queue_end: cython.longlong = self._queue_last.base
        if at < 0 or at >= end:
            return None
        log_end: cython.longlong = self._log_last.base
        written: cython.longlong = self._log_last.committed
        readable: cython.longlong = self._log_segment.committed
        log_end += written
        readable += self._log_base
        count: cython.Py_ssize_t = 0
        size: cython.longlong = 0
        limit: cython.Py_ssize_t = min(max_count, self._count_max, (end - at) // _UNIT)
        units: cython.pointer(cython.const[cython.uchar])
        records: cython.pointer(cython.const[cython.uchar])
        if cython.compiled:
            units = cython.address(self._units_view[0])
            records = cython.address(self._log_bytes[0])
        else:
            units = self._units_view
            records = self._log_bytes
        topic: bytes = self._topic
        topic_size: cython.Py_ssize_t = len(topic)
        record: cython.longlong
        record_size: cython.longlong
        while count < limit:
            record = load_i64(units, at + count * _UNIT)
            record_size = load_i32(units, at + count * _UNIT + _AT_SIZE)
            if record < self._log_base or record_size <= 0 or record > readable - record_size:
                return None
            if log_end - record > self._memory:
                return None
            if count and size + record_size > self._bytes_max:
                break
            if check != _UNCHECKED and (
                check_record(records, record - self._log_base, record_size, self._log_base, check)
                != _GOOD
                or (
                    topic_size
                    and not is_message(
                        records,
                        record - self._log_base,
                        topic,
                        topic_size,
                        self._queue_id,
                        offset + count,
                    )
                )
            ):
                break
            size += record_size
            count += 1
        if count == 0:
            return None
        result: GetResult = GetResult(
            self._found, offset + count, self._min_offset, (queue_end + last) // _UNIT, None, size
        )
        result.count = count
        result._units = self._units
        result._first = at
        result._log = self._log_view
        result._base = self._log_base
        return result
