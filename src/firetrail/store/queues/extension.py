"""The extension files of a consume queue, which RocketMQ calls ConsumeQueueExt.

They hold an extended unit (:mod:`firetrail.format.files.extended_unit`) per message, whose address
is in the tags code of the message's unit. Extended units are written and synced before the units
that point to them. They only help filters: a unit without its extended unit matches every
filter, so damaged or missing extension files are dropped, and never keep a store from opening.
"""

import logging
import struct
from collections.abc import Callable

from firetrail.errors import SegmentSizeError, StoreClosedError, StoreDamagedError
from firetrail.format import layout
from firetrail.format.files.extended_unit import (
    END_MARK,
    END_ROOM,
    HEAD,
    UNIT_MAX,
    ExtendedUnit,
    address_of,
    decode_extended,
    encode_extended,
    is_address,
    offset_of,
)
from firetrail.format.files.unit import UNIT_SIZE, ConsumeQueueUnit
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue

LOOK_BACK = 4096
"""Number of units at the end of a queue among which the last address is searched for."""
SKIPPED_FILES_MAX = 4
"""Number of files that stay unused after a crash so that lost units do not get other addresses."""

Describe = Callable[[int, int], tuple[int, bytes]]
"""A function that returns the store time and filter bitmap of a record of a queue, given its offset
and size."""
UnitAt = Callable[[int], ConsumeQueueUnit | None]
"""A function that returns the unit at a queue offset."""

_UNITS = layout.UNIT.struct
_ADDRESS = struct.Struct(">q")
_ADDRESS_AT = UNIT_SIZE - _ADDRESS.size
_log = logging.getLogger(__name__)


class QueueExtension:
    """The extended units of one queue. One thread appends; any thread reads."""

    def __init__(self, files: SegmentQueue, describe: Describe | None = None) -> None:
        """Prepare the extension of a queue.

        Args:
            files: Its files, not loaded yet.
            describe: Returns the content of new units; None if none are written.
        """
        self.files = files
        self._describe = describe
        self._begin = 0  # where the first file starts if there is none
        self._is_damaged = False  # whether files are missing or have another size

    # -- read ---------------------------------------------------------------------------------

    def get(self, address: int) -> ExtendedUnit | None:
        """Return the unit at an address, or None if it is missing."""
        offset = offset_of(address)
        segment = self.files.find(offset)
        if segment is None:
            return None
        at = offset - segment.base
        room = min(segment.wrote - at, UNIT_MAX)
        try:
            head = segment.peek(at, HEAD.size) if room >= HEAD.size else None
            size = HEAD.unpack(head)[0] if head is not None else 0
            if not HEAD.size <= size <= room:
                return None
            content = segment.peek(at, size)
        except (OSError, SegmentSizeError):
            return None
        return decode_extended(content) if content is not None else None

    def translated(
        self, units: memoryview, code_of: Callable[[int, ExtendedUnit | None], int]
    ) -> memoryview:
        """Return a copy of units with other tags codes.

        ``code_of`` is called with the tags code of each unit and its extended unit, if it has one.
        """
        copy = bytearray(units)
        for at in range(_ADDRESS_AT, len(copy), UNIT_SIZE):
            (code,) = _ADDRESS.unpack_from(copy, at)
            found = self.get(code) if is_address(code) else None
            _ADDRESS.pack_into(copy, at, code_of(code, found))
        return memoryview(copy)

    # -- append -------------------------------------------------------------------------------

    def extended(self, units: memoryview) -> memoryview:
        """Write an extended unit for each of the units; return the units with their addresses."""
        if self._describe is None:
            return units
        copy = bytearray(units)
        for at in range(0, len(copy), UNIT_SIZE):
            offset, size, code = _UNITS.unpack_from(copy, at)
            store_time, bitmap = self._describe(offset, size)
            address = self._append(ExtendedUnit(code, store_time, bitmap))
            _ADDRESS.pack_into(copy, at + _ADDRESS_AT, address)
        return memoryview(copy)

    def _append(self, unit: ExtendedUnit) -> int:
        """Write a unit; return its address, or the tags code if no file can hold the unit."""
        if unit.size > min(self.files.segment_size - END_ROOM, UNIT_MAX):
            return unit.tags_code
        segment = self.files.last or self.files.roll(self._begin)
        if unit.size > segment.size - segment.wrote - END_ROOM:
            if not segment.is_full:
                self._write(segment, END_MARK)
                segment.wrote_to(segment.size)
            segment = self.files.roll()
        at = segment.base + segment.wrote
        self._write(segment, encode_extended(unit))
        return address_of(at)

    def _write(self, segment: Segment, content: bytes) -> None:
        at, end = segment.wrote, segment.wrote + len(content)
        if end > segment.allocated:
            segment.allocate(end)
        segment.view[at:end] = content
        segment.wrote_to(end)

    # -- flush, recovery, retention -----------------------------------------------------------

    def flush(self) -> None:
        """Sync written units; must happen before the units that point to it are synced."""
        for segment in self.files.segments:
            if segment.flushed < segment.committed:
                try:
                    segment.flush()
                except StoreClosedError:
                    if segment in self.files.segments:
                        raise

    def load(self, unit_at: UnitAt, end: int, *, torn: bool) -> None:
        """Find the files, and their end: after the last unit that the queue points to.

        Args:
            unit_at: Returns the units of the queue.
            end: The queue offset after its last unit.
            torn: Whether a crash may have left something unfinished; :meth:`cut` must follow then.
        """
        self.files.torn = torn
        expected = self.files.segment_size
        try:
            self.files.load()
            self._is_damaged = self.files.segment_size != expected
        except (SegmentSizeError, StoreDamagedError):
            self._is_damaged = True
        self.files.segment_size = expected
        if not torn or not self.files.writable:
            self.cut(unit_at, end, clear=False)

    def cut(self, unit_at: UnitAt, end: int, *, clear: bool = True) -> None:
        """Remove everything after the last unit that the queue points to.

        Args:
            unit_at: Returns the units of the queue.
            end: The queue offset after its last unit.
            clear: Whether to remove it durably, which is not needed after a clean stop.
        """
        newest, valid = self._last_addresses(unit_at, end)
        after = offset_of(newest) if newest is not None else 0
        if self._is_damaged or (newest is not None and valid is None):
            self._start_over(after, end)
        elif not self.files.segments:
            self._begin = self._fresh(0, end)
        elif self.files.writable:
            self._end_at(self._end_of(valid, end), clear=clear or valid != newest)
            if valid != newest:
                self._skip(after, end)

    def _last_addresses(self, unit_at: UnitAt, end: int) -> tuple[int | None, int | None]:
        """Return the last address in the queue, and the last one at which there is a unit.

        RocketMQ does not sync extended units before their units. After a crash, some may be lost.
        """
        newest = None
        for offset in range(end - 1, max(end - LOOK_BACK, 0) - 1, -1):
            unit = unit_at(offset)
            if unit is None:
                break
            if is_address(unit.tags_code):
                newest = unit.tags_code if newest is None else newest
                if self.get(unit.tags_code) is not None:
                    return newest, unit.tags_code
        return newest, None

    def _end_of(self, address: int | None, end: int) -> int:
        """Return the offset after the unit at an address, or the end of what can be a unit."""
        unit = self.get(address) if address is not None else None
        if address is not None and unit is not None:
            return offset_of(address) + unit.size
        return self._walked_end() if end else self.files.min_offset

    def _end_at(self, position: int, *, clear: bool) -> None:
        if clear:
            self.files.truncate(position)
            return
        kept = sum(segment.base < position for segment in self.files.segments)
        self.files.keep_first(max(kept, 1))
        segment = self.files.segments[-1]
        segment.set_position(min(max(position - segment.base, 0), segment.size))

    def _skip(self, dangling: int, end: int) -> None:
        """Continue after an address without a unit: no other message may get that address."""
        size = self.files.segment_size
        last = self.files.segments[-1]
        if dangling >= last.end + SKIPPED_FILES_MAX * size:
            self._start_over(dangling, end)
            return
        last.wrote_to(size)
        while last.end <= dangling:
            last = self.files.roll()
            last.wrote_to(size)

    def _fresh(self, after: int, end: int) -> int:
        """Return a beginning of a first file into which no unit of the queue points.

        Addresses grow with the queue, and by less than 32 KiB per message, so those that the first
        units of a queue of ``end`` units may still have are smaller.
        """
        size = self.files.segment_size
        begin = max(after + 1 if after else 0, end * (UNIT_MAX + 1))
        return -(-begin // size) * size

    def _walked_end(self) -> int:
        """Return the end of the written units of the last file, by their sizes."""
        segment = self.files.segments[-1]
        at = 0
        while at + HEAD.size <= segment.size:
            (size,) = struct.unpack(">h", segment.read(at, 2))
            if not HEAD.size <= size <= segment.size - at:
                break
            at += size
        return segment.base + at

    def _start_over(self, after: int, end: int) -> None:
        """Drop all files, and begin where no unit of the queue points to."""
        if not self.files.writable:
            self.files.keep_first(0)
            return
        _log.warning(
            "%s: extended units are missing or damaged, and are dropped; filters examine the "
            "messages themselves",
            self.files.folder,
        )
        self.clear()
        self._is_damaged = False
        self._begin = self._fresh(after, end)

    def clear(self) -> None:
        """Remove all files; readers then find no units."""
        while self.files.segments:
            self.files.retire_first(0)
        self.files.truncate_all()
        self._begin = 0

    def delete_expired(self, first: ConsumeQueueUnit | None, grace_ms: int) -> None:
        """Remove files before the extended unit of the queue's ``first`` unit, except the last."""
        if first is None or not is_address(first.tags_code):
            return
        needed = offset_of(first.tags_code)
        while len(self.files.segments) > 1 and self.files.segments[0].end <= needed:
            self.files.retire_first(grace_ms)

    def close(self) -> None:
        """Close the files."""
        self.files.close()
