"""The selection of scanned records by queue, topic, store time, tag and key.

A record is in a queue if the queue's unit at its queue offset points to it. Records of prepared and
rolled back transactions have no unit.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format import layout
from firetrail.format.values.integers import INT64_MAX, INT64_MIN

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import (
        find_byte,
        load_i32,
        load_i64,
        same_bytes,
    )
    from cython.cimports.firetrail.format.kernels.text import copy_text, hash_utf8, text_size
    from cython.cimports.firetrail.pipeline.kernels.arrow import row_is_of
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import find_byte, load_i32, load_i64, same_bytes
    from firetrail.format.kernels.text import copy_text, hash_utf8, text_size
    from firetrail.pipeline.kernels.arrow import row_is_of

COMPILED = cython.compiled

ANY_QUEUE = -1
"""Queue id that selects all records of a topic, whether in a queue or not."""
NO_UNITS = -1
"""Position if the units of a queue are not available: every record that should have one counts."""
TIME_MIN = INT64_MIN
TIME_MAX = INT64_MAX

_SPACE = cython.declare(cython.int, 32)
_HASH_FACTOR = cython.declare(cython.longlong, 31)
_TEXT_MAX = 3 * layout.MAX_TOPIC_V2

# Fields of an entry of _queues.
_HASH = cython.declare(cython.Py_ssize_t, 0)
_NAME_AT = cython.declare(cython.Py_ssize_t, 1)
_NAME_SIZE = cython.declare(cython.Py_ssize_t, 2)
_QUEUE_ID = cython.declare(cython.Py_ssize_t, 3)
_BEGIN = cython.declare(cython.Py_ssize_t, 4)
_END = cython.declare(cython.Py_ssize_t, 5)
_UNITS_AT = cython.declare(cython.Py_ssize_t, 6)
_SEEN = cython.declare(cython.Py_ssize_t, 7)
_WIDTH = cython.declare(cython.Py_ssize_t, 8)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _has_unit(
    cells: cython.p_longlong, capacity: cython.Py_ssize_t, row: cython.Py_ssize_t
) -> cython.bint:
    """Whether the record gets a unit when it is dispatched."""
    return not cells[k.COL_SYS_FLAG * capacity + row] & k.NO_QUEUE_OFFSET


@cython.cclass
class Picker:
    """The conditions for records to be picked; by default all records are.

    ``queues`` are (topic, queue id, begin, end, position of the unit of ``begin`` in ``units``):
    only records in these ranges are picked. A record must have one of ``tags``, and ``key`` as one
    of its keys or its unique key. Store times (ms) are from ``since`` up to ``until``.
    ``dispatched`` excludes records that have no unit, even if their queues are not available.
    """

    _names: cython.const[cython.uchar][::1]
    _units: cython.const[cython.uchar][::1]
    _queues: cython.longlong[::1]
    _slots: cython.longlong[::1]
    _mask: cython.longlong
    _count: cython.Py_ssize_t
    _by_queue: cython.bint
    _tags: cython.longlong[::1]
    _tag_count: cython.Py_ssize_t
    _key_at: cython.Py_ssize_t
    _key_size: cython.Py_ssize_t
    _since: cython.longlong
    _until: cython.longlong
    _dispatched: cython.bint
    _scratch: cython.uchar[::1]

    def __init__(
        self,
        queues: Sequence[tuple[str, int, int, int, int]] | None = None,
        units: Any = b"\0",
        tags: Sequence[str] = (),
        key: str = "",
        since: cython.longlong = TIME_MIN,
        until: cython.longlong = TIME_MAX,
        dispatched: cython.bint = False,
    ) -> None:
        names = bytearray(1)  # never empty; position 0 is unused
        self._count = -1 if queues is None else len(queues)
        self._by_queue = False
        entries = array("q", bytes(8 * _WIDTH * max(self._count, 1)))
        self._mask = 1
        while self._mask < 2 * max(self._count, 1):
            self._mask *= 2
        self._slots = array("q", bytes(8 * self._mask))
        self._mask -= 1
        for number, (topic, queue_id, begin, end, units_at) in enumerate(queues or ()):
            name = topic.encode()
            if units_at != NO_UNITS and (
                units_at < 0 or len(units) - units_at < (end - begin) * k.UNIT
            ):
                raise ValueError(f"{len(units)} bytes of units, those of {topic} are outside")
            entry = (_hash_of(name), len(names), len(name), queue_id, begin, end, units_at, 0)
            entries[_WIDTH * number : _WIDTH * (number + 1)] = array("q", entry)
            names += name
            self._by_queue = self._by_queue or queue_id != ANY_QUEUE
        self._queues = entries
        self._units = units
        self._tag_count = len(tags)
        tag_entries = array("q", bytes(24 * max(len(tags), 1)))
        for number, tag in enumerate(tags):
            name = tag.encode()
            tag_entries[3 * number : 3 * number + 3] = array(
                "q", (_hash_of(name), len(names), len(name))
            )
            names += name
        self._tags = tag_entries
        self._key_at = len(names)
        names += key.encode()
        self._key_size = len(names) - self._key_at
        self._names = names
        self._since = since
        self._until = until
        self._dispatched = dispatched
        self._scratch = bytearray(_TEXT_MAX)
        for number in range(max(self._count, 0)):
            self._enter(number)

    def _enter(self, number: cython.Py_ssize_t) -> None:
        """Put a queue into the hash table."""
        slot: cython.longlong = self._queues[_WIDTH * number + _HASH]
        if self._by_queue:
            slot = slot * _HASH_FACTOR + self._queues[_WIDTH * number + _QUEUE_ID]
        slot &= self._mask
        while self._slots[slot] != 0:
            slot = (slot + 1) & self._mask
        self._slots[slot] = number + 1

    def seen(self, number: cython.Py_ssize_t) -> int:
        """Return the number of records in the range of queue ``number``, picked or not."""
        if not 0 <= number < self._count:
            raise IndexError(f"queue {number} of {self._count}")
        return self._queues[_WIDTH * number + _SEEN]

    def pick(
        self,
        data: cython.const[cython.uchar][::1],
        table: cython.longlong[::1],
        first: cython.Py_ssize_t,
        rows: cython.Py_ssize_t,
        picks: cython.longlong[::1],
    ) -> int:
        """Write the numbers of the selected rows from ``first`` to ``rows`` to ``picks``.

        The rows are those of a scan of ``data``. Return the number of selected rows.
        """
        capacity: cython.Py_ssize_t = len(table) // k.COLUMNS
        if first < 0 or first > rows or rows > capacity or rows - first > len(picks):
            raise ValueError(f"rows {first}:{rows} of {capacity}, room for {len(picks)}")
        source: cython.pointer(cython.const[cython.uchar])
        cells: cython.p_longlong
        if cython.compiled:
            source = cython.address(data[0])
            cells = cython.address(table[0])
        else:
            source = data
            cells = table
        row: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t = len(data)
        foreign: cython.Py_ssize_t = -1
        time: cython.longlong
        with cython.nogil:
            for row in range(first, rows):
                if not row_is_of(cells, capacity, row, length):
                    foreign = row
                    break
                if self._dispatched and not _has_unit(cells, capacity, row):
                    continue
                if self._count >= 0 and not self._is_in_queue(source, cells, capacity, row):
                    continue
                time = cells[k.COL_STORE_TIME * capacity + row]
                if time < self._since or time >= self._until:
                    continue
                if self._tag_count > 0 and not self._has_tag(source, cells, capacity, row):
                    continue
                if self._key_size > 0 and not self._has_key(source, cells, capacity, row):
                    continue
                picks[count] = row
                count += 1
        if foreign >= 0:
            raise ValueError(f"row {foreign} is not of a scan of these {length} bytes")
        return count

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_text(
        self,
        data: cython.pointer(cython.const[cython.uchar]),
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        name_at: cython.Py_ssize_t,
        name_size: cython.Py_ssize_t,
    ) -> cython.bint:
        """Whether bytes with the right hash decode to a name, even if they are malformed UTF-8."""
        names: cython.pointer(cython.const[cython.uchar])
        scratch: cython.p_uchar
        if cython.compiled:
            names = cython.address(self._names[0])
            scratch = cython.address(self._scratch[0])
        else:
            names = self._names
            scratch = self._scratch
        if size == name_size and same_bytes(data, at, names, name_at, size):
            return True
        if size > k.TOPIC_V2_MAX or text_size(data, at, size) != name_size:
            return False
        copy_text(scratch, 0, data, at, size)
        return same_bytes(scratch, 0, names, name_at, name_size)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_in_queue(
        self,
        data: cython.pointer(cython.const[cython.uchar]),
        cells: cython.p_longlong,
        capacity: cython.Py_ssize_t,
        row: cython.Py_ssize_t,
    ) -> cython.bint:
        """Whether the record has a selected topic, or is in a selected range of a queue."""
        topic_hash: cython.longlong = cells[k.COL_TOPIC_HASH * capacity + row]
        queue_id: cython.longlong = cells[k.COL_QUEUE_ID * capacity + row]
        slot: cython.longlong = topic_hash
        if self._by_queue:
            slot = slot * _HASH_FACTOR + queue_id
        slot &= self._mask
        entry: cython.Py_ssize_t
        while self._slots[slot] != 0:
            entry = _WIDTH * (self._slots[slot] - 1)
            slot = (slot + 1) & self._mask
            if (
                self._queues[entry + _HASH] == topic_hash
                and (not self._by_queue or self._queues[entry + _QUEUE_ID] == queue_id)
                and self._is_text(
                    data,
                    cells[k.COL_TOPIC_AT * capacity + row],
                    cells[k.COL_TOPIC_SIZE * capacity + row],
                    self._queues[entry + _NAME_AT],
                    self._queues[entry + _NAME_SIZE],
                )
            ):
                return not self._by_queue or self._is_in_range(cells, capacity, row, entry)
        return False

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_in_range(
        self,
        cells: cython.p_longlong,
        capacity: cython.Py_ssize_t,
        row: cython.Py_ssize_t,
        entry: cython.Py_ssize_t,
    ) -> cython.bint:
        """Whether the queue has the record at its queue offset, in the selected range."""
        offset: cython.longlong = cells[k.COL_QUEUE_OFFSET * capacity + row]
        begin: cython.longlong = self._queues[entry + _BEGIN]
        at: cython.longlong = self._queues[entry + _UNITS_AT]
        units: cython.pointer(cython.const[cython.uchar])
        if cython.compiled:
            units = cython.address(self._units[0])
        else:
            units = self._units
        if offset < begin or offset >= self._queues[entry + _END]:
            return False
        if not _has_unit(cells, capacity, row):
            return False
        if at >= 0:
            at += (offset - begin) * k.UNIT
            if (
                load_i64(units, at) != cells[k.COL_PHYSICAL_OFFSET * capacity + row]
                or load_i32(units, at + k.UNIT_SIZE) != cells[k.COL_SIZE * capacity + row]
            ):
                return False
        self._queues[entry + _SEEN] += 1
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _has_tag(
        self,
        data: cython.pointer(cython.const[cython.uchar]),
        cells: cython.p_longlong,
        capacity: cython.Py_ssize_t,
        row: cython.Py_ssize_t,
    ) -> cython.bint:
        size: cython.Py_ssize_t = cells[k.COL_TAGS_SIZE * capacity + row]
        tags_hash: cython.longlong = cells[k.COL_TAGS_HASH * capacity + row]
        tag: cython.Py_ssize_t
        for tag in range(self._tag_count):
            if (
                size > 0
                and self._tags[3 * tag] == tags_hash
                and self._is_text(
                    data,
                    cells[k.COL_TAGS_AT * capacity + row],
                    size,
                    self._tags[3 * tag + 1],
                    self._tags[3 * tag + 2],
                )
            ):
                return True
        return False

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _has_key(
        self,
        data: cython.pointer(cython.const[cython.uchar]),
        cells: cython.p_longlong,
        capacity: cython.Py_ssize_t,
        row: cython.Py_ssize_t,
    ) -> cython.bint:
        """Whether the key is the record's unique key or one of its keys."""
        at: cython.Py_ssize_t = cells[k.COL_UNIQUE_KEY_AT * capacity + row]
        size: cython.Py_ssize_t = cells[k.COL_UNIQUE_KEY_SIZE * capacity + row]
        stop: cython.Py_ssize_t
        if size > 0 and self._is_text(data, at, size, self._key_at, self._key_size):
            return True
        at = cells[k.COL_KEYS_AT * capacity + row]
        size = at + cells[k.COL_KEYS_SIZE * capacity + row]
        while at < size:
            stop = find_byte(data, _SPACE, at, size)
            if self._is_text(data, at, stop - at, self._key_at, self._key_size):
                return True
            at = stop + 1
        return False


@cython.cfunc
def _hash_of(name: bytes) -> cython.longlong:
    source: cython.pointer(cython.const[cython.uchar]) = name
    return hash_utf8(source, 0, len(name), 0)
