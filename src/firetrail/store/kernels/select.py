"""The selection of messages that one read of a consume queue returns."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import load_i32, load_i64
    from cython.cimports.firetrail.format.kernels.scan import check_record, is_message
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import load_i32, load_i64
    from firetrail.format.kernels.scan import check_record, is_message

COMPILED = cython.compiled

EXHAUSTED = 0
"""The result after all units were examined."""
FULL = 1
"""The result at a limit: the unit at the position belongs to the next read."""
ELSEWHERE = 2
"""The result if the record of the unit at the position is not in the given segment."""
DAMAGED = 3
"""The result if the record of the unit at the position is damaged."""
UNCHECKED = -1
"""The value instead of a :class:`~firetrail.format.columns.Check` with which records are not
read."""

_EXHAUSTED = cython.declare(cython.int, EXHAUSTED)
_FULL = cython.declare(cython.int, FULL)
_ELSEWHERE = cython.declare(cython.int, ELSEWHERE)
_DAMAGED = cython.declare(cython.int, DAMAGED)
_UNCHECKED = cython.declare(cython.int, UNCHECKED)
_GOOD = cython.declare(cython.int, -1)
_INT_MIN = cython.declare(cython.longlong, -(2**31))
_LOW_32 = cython.declare(cython.longlong, 2**32 - 1)
_SIGN = cython.declare(cython.longlong, 2**31)


@cython.cclass
class Selection:
    """The messages found so far, and the remaining limits.

    Limits differ for messages in memory and for those below physical offset ``disk_below``, which
    are on disk. The first message is taken even if it is larger. ``check`` says how closely records
    are checked before they are taken. They must then name ``topic``, ``queue_id`` and the offset of
    their unit, unless the topic is empty.
    """

    found = cython.declare(list, visibility="readonly")
    size = cython.declare(cython.longlong, visibility="readonly")
    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    last_offset = cython.declare(cython.longlong, visibility="readonly")
    filtered = cython.declare(cython.bint, visibility="readonly")
    _count_max: cython.Py_ssize_t
    _memory_bytes: cython.longlong
    _memory_count: cython.Py_ssize_t
    _disk_bytes: cython.longlong
    _disk_count: cython.Py_ssize_t
    _disk_below: cython.longlong
    _check: cython.int
    _tags: frozenset[int] | None
    _topic: bytes
    _queue_id: cython.longlong

    def __init__(
        self,
        count_max: cython.Py_ssize_t,
        memory_bytes: cython.longlong,
        memory_count: cython.Py_ssize_t,
        disk_bytes: cython.longlong,
        disk_count: cython.Py_ssize_t,
        disk_below: cython.longlong,
        tags: frozenset[int] | None,
        check: cython.int = UNCHECKED,
        topic: bytes = b"",
        queue_id: cython.longlong = -1,
    ) -> None:
        self.found = []
        self.size = 0
        self.position = 0
        self.last_offset = -1
        self.filtered = False
        self._count_max = count_max
        self._memory_bytes = memory_bytes
        self._memory_count = memory_count
        self._disk_bytes = disk_bytes
        self._disk_count = disk_count
        self._disk_below = disk_below
        self._tags = tags
        self._check = check
        self._topic = topic
        self._queue_id = queue_id

    def take(
        self,
        units: cython.const[cython.uchar][::1],
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        log: memoryview,
        base: cython.longlong,
        readable: cython.longlong,
        number: cython.longlong = 0,
    ) -> int:
        """Examine the units in ``units[at : end]`` and slice their records out of ``log``.

        ``log`` starts at physical offset ``base`` and may be read up to ``readable``, if it extends
        that far. ``number`` is the queue offset of the first unit. Returns why it stopped;
        ``position`` is that of the first unit that was not processed.
        """
        source: cython.pointer(cython.const[cython.uchar])
        stored: cython.const[cython.uchar][::1] = log
        records: cython.pointer(cython.const[cython.uchar])
        offset: cython.longlong
        size: cython.longlong
        count: cython.Py_ssize_t = len(self.found)
        result: cython.int = _EXHAUSTED
        if at < 0 or end > len(units):
            raise ValueError(f"units {at}:{end} of {len(units)} bytes")
        if base < 0:
            raise ValueError(f"base {base} is not a physical offset")
        if readable > base and readable - base > len(log):
            readable = base + len(log)
        if at < end:
            if cython.compiled:
                source = cython.address(units[0])
                records = cython.address(stored[0])
            else:
                source = units
                records = stored
            while at + k.UNIT <= end:
                offset = load_i64(source, at)
                size = load_i32(source, at + k.UNIT_SIZE)
                self.last_offset = offset
                if count and self._is_full(count, offset, size):
                    result = _FULL
                    break
                if self._tags is not None and not self._matches(
                    load_i64(source, at + k.UNIT_TAGS_CODE)
                ):
                    self.filtered = True
                elif size <= 0 or offset < base or offset > readable or size > readable - offset:
                    result = _ELSEWHERE
                    break
                elif not self._is_good(records, offset, size, base, number):
                    result = _DAMAGED
                    break
                else:
                    self.found.append(log[offset - base : offset - base + size])
                    self.size += size
                    count += 1
                at += k.UNIT
                number += 1
        self.position = at
        return result

    @cython.cfunc
    @cython.inline
    def _is_full(
        self, count: cython.Py_ssize_t, offset: cython.longlong, size: cython.longlong
    ) -> cython.bint:
        if count >= self._count_max:
            return True
        if offset < self._disk_below:
            return self.size + size > self._disk_bytes or count >= self._disk_count
        return self.size + size > self._memory_bytes or count >= self._memory_count

    @cython.cfunc
    def _is_good(
        self,
        records: cython.pointer(cython.const[cython.uchar]),
        offset: cython.longlong,
        size: cython.longlong,
        base: cython.longlong,
        number: cython.longlong,
    ) -> cython.bint:
        """Check a record; the interpreter lock is released while it may have to come from disk."""
        stop: cython.int
        check: cython.int = self._check
        at: cython.Py_ssize_t = offset - base
        if check == _UNCHECKED:
            return True
        if offset >= self._disk_below:
            stop = check_record(records, at, size, base, check)
        else:
            with cython.nogil:
                stop = check_record(records, at, size, base, check)
        if stop != _GOOD:
            return False
        topic: bytes = self._topic
        return not topic or is_message(records, at, topic, len(topic), self._queue_id, number)

    @cython.cfunc
    def _matches(self, tags_code: cython.longlong) -> cython.bint:
        """Return whether the low 32 bits are a wanted hash; a code that is not a hash matches."""
        if tags_code < _INT_MIN:
            return True
        low: cython.longlong = tags_code & _LOW_32
        return (low - _LOW_32 - 1 if low >= _SIGN else low) in (self._tags or ())
