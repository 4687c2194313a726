"""The consume queue of one topic and queue id: where its messages are in the log.

Theory of operation. Queue offset *n* is the 20-byte unit at byte ``20 * n``: physical offset, size,
tags code. The files have no header and no count; zeros follow the last unit. So everything is
arithmetic or bisection, and every position follows from three others::

    files.min_offset    min_offset(log)              max_offset             next_offset
    first unit on disk  first whose record the       after the last unit    number of the next
                        log still has                that is shown          message of the log

- *min_offset* moves when retention shortens the log, without a write to the queue: units whose
  records are gone are skipped, and their files deleted later. It is bisected, because physical
  offsets grow, and kept until the log's beginning moves.
- *max_offset* is moved by the dispatcher alone, one thread at a time. Readers look at it without a
  lock: a unit is written before the position that shows it.
- *next_offset* is moved by puts, under the lock of the log. It is ahead of *max_offset* by the
  messages that are not dispatched yet.

*Deriving twice is harmless.* ``append`` knows the number of its first unit, skips the units that
the queue has, and refuses a gap. Recovery, dispatch and rebuilding rely on this: they may begin
anywhere before the first missing unit.

*After a crash*, a file may contain units whose records were lost, and any bytes after the last
sync. ``load`` finds the last unit that was written. ``cut`` bisects for the first unit after the
trusted part of the log, then walks back until ``is_real`` recognizes a unit in the log. If the last
unit points before the log's beginning, nothing can recognize it; ``is_confirmed`` is False until
the next message, whose number decides whether it was garbage.

*Begin, end, begin again.* A queue whose first message is not number 0 (the log was shortened before
the queue was derived) fills the start of its first file with PRE_BLANK units, as Java does. A topic
that is deleted and created again counts from 0: ``begin_generation`` drops all units. ``withhold``
hides units that replicas have yet to confirm; they stay on disk and are appended over.

*Light queues* differ in one rule: Java gives numbers to messages that then do not get in, so that
units are consecutive although the numbers in records are not. ``append_light`` therefore compares
physical offsets instead of numbers.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from firetrail.errors import QueueGapError, SegmentSizeError, StoreClosedError
from firetrail.format import layout
from firetrail.format.files.extended_unit import is_address
from firetrail.format.files.unit import PRE_BLANK, UNIT_SIZE, ConsumeQueueUnit, encode_unit
from firetrail.format.names import queue_folder
from firetrail.storage.growth import QUEUE_GROWTH
from firetrail.storage.new_files import NewFiles
from firetrail.storage.open_files import OpenSegments
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.problems import CHECK_REMEDY, DERIVED_REMEDY
from firetrail.store.queues.extension import QueueExtension
from firetrail.store.queues.queue_end import WINDOW, units_written
from firetrail.system import System

_UNPACK = layout.UNIT.struct.unpack_from
_PRE_BLANK = encode_unit(PRE_BLANK)


def gap_detail(topic: str, queue_id: int, units: int, number: int) -> str:
    """Describe the error that a queue of ``units`` units is to append message ``number``."""
    return (
        f"queue {topic}/{queue_id} has {units} units, but its next message in the log has "
        f"number {number}"
    )


class ConsumeQueue:
    """The units of one queue. One thread appends; any thread reads."""

    def __init__(
        self,
        system: System,
        root: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        *,
        writable: bool = True,
        open_segments: OpenSegments | None = None,
        new_files: NewFiles | None = None,
        extension: QueueExtension | None = None,
    ) -> None:
        self.topic = topic
        self.encoded_topic = topic.encode()
        self.queue_id = queue_id
        self.files = SegmentQueue(
            system,
            root / queue_folder(topic, queue_id),
            file_size,
            writable=writable,
            growth=QUEUE_GROWTH,
            remedy=DERIVED_REMEDY,
            open_segments=open_segments,
            new_files=new_files,
        )
        self.extension = extension
        """The files that addresses in tags codes point to; None if the store has none."""
        self.next_offset = 0
        """Queue offset of the next message that is appended to the log."""
        self.is_confirmed = True
        """Whether the last unit is certain.

        After a crash, the log may no longer have its record; then the next message decides."""
        self._min: tuple[int, int] | None = None  # the log's beginning, and the queue's for it
        self.window: tuple[int, bytes] = 0, b""
        """In a queue that is only read: the last units that were read, and their position."""

    # -- positions ----------------------------------------------------------------------------

    @property
    def max_offset(self) -> int:
        """Queue offset after the last unit."""
        return self.files.wrote_offset // UNIT_SIZE

    def min_offset(self, log_min: int) -> int:
        """Return the queue offset of the first unit whose record is in a log from ``log_min`` on.

        It is found by bisection and kept until the log's beginning moves. The bisection ignores
        units that cannot belong to a record. A unit that points before the log's beginning hides
        no others: if the unit before it is in the log, the search continues there.
        """
        known = self._min
        if known is not None and known[0] == log_min:
            return known[1]
        first, end = self.files.min_offset // UNIT_SIZE, self.max_offset
        if log_min == 0 and self._is_in_log(first, 0):  # then every unit is in the log
            self._min = log_min, first
            return first
        offset = self._first_in_log(first, end, log_min)
        while offset - 1 > first and self._is_in_log(offset - 2, log_min):
            offset = self._first_in_log(first, offset - 1, log_min)
        if offset < end:  # otherwise the next message decides
            self._min = log_min, offset
        return offset

    def _first_in_log(self, low: int, high: int, log_min: int) -> int:
        while low < high:
            at = middle = (low + high) // 2
            while at < high and (unit := self.unit(at)) is not None and not unit.is_written:
                at += 1
            if at == high or self._is_in_log(at, log_min):
                high = middle
            else:
                low = at + 1
        return low

    def _is_in_log(self, offset: int, log_min: int) -> bool:
        unit = self.unit(offset)
        return (
            unit is not None
            and unit.is_written
            and unit.size != PRE_BLANK.size
            and unit.physical_offset >= log_min
        )

    @property
    def last_unit(self) -> ConsumeQueueUnit | None:
        """The newest unit, or None if the queue is empty."""
        return self.unit(self.max_offset - 1)

    # -- read ---------------------------------------------------------------------------------

    def unit(self, offset: int) -> ConsumeQueueUnit | None:
        """Return the unit at a queue offset, or None if there is none."""
        at = offset * UNIT_SIZE
        start, units = self.window
        if start <= at < start + len(units):
            return ConsumeQueueUnit._make(_UNPACK(units, at - start))
        if offset < 0 or at >= self.files.wrote_offset:
            return None
        segment = self.files.find(at)
        if segment is None:
            return None
        if self.files.writable:
            unit = segment.peek(at - segment.base, UNIT_SIZE)
            return None if unit is None else ConsumeQueueUnit._make(_UNPACK(unit))
        return self._read_around(segment, at)

    def _read_around(self, segment: Segment, at: int) -> ConsumeQueueUnit | None:
        """Return the unit at byte ``at`` of a queue that is only read, and keep its neighbours."""
        start = (at - segment.base) - (at - segment.base) % WINDOW
        units = segment.peek(start, min(WINDOW, segment.wrote - start))
        if units is None:
            return None
        self.window = segment.base + start, bytes(units)
        return ConsumeQueueUnit._make(_UNPACK(units, at - segment.base - start))

    def plain_unit(self, offset: int) -> ConsumeQueueUnit | None:
        """Return the unit at a queue offset, with the tags code that its address leads to."""
        unit = self.unit(offset)
        if unit is None or self.extension is None or not is_address(unit.tags_code):
            return unit
        extended = self.extension.get(unit.tags_code)
        return unit._replace(tags_code=extended.tags_code) if extended is not None else unit

    def record_bytes(self, first: int, end: int) -> int:
        """Return the total size of the records from queue offset ``first`` up to before ``end``."""
        total = 0
        at, end = first * UNIT_SIZE, min(end * UNIT_SIZE, self.files.wrote_offset)
        while at < end:
            segment = self.files.find(at)
            view = segment.look() if segment is not None else None
            if segment is None or view is None:
                break
            units = view[at - segment.base : min(end - segment.base, segment.size)]
            total += sum(unit[1] for unit in layout.UNIT.struct.iter_unpack(units))
            at += len(units)
        return total

    def first_where(self, low: int, high: int, holds: Callable[[ConsumeQueueUnit], bool]) -> int:
        """Return the first offset in ``low..high`` whose unit satisfies ``holds``, or ``high``.

        ``holds`` must be false up to some unit and true from there on. Units that only fill up
        the beginning of the first file never satisfy it.
        """
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and unit.size != PRE_BLANK.size and holds(unit):
                high = middle
            else:
                low = middle + 1
        return low

    # -- append -------------------------------------------------------------------------------

    def append(self, offset: int, units: memoryview) -> int:
        """Write consecutive units, the first of which has queue offset ``offset``.

        Units that the queue has are skipped, so that it is safe to derive a range of the log again.
        Returns how many were written. Raises DiskFullError.
        """
        expected = offset * UNIT_SIZE
        if not self.is_confirmed:
            self.is_confirmed = True
            if expected < self.files.wrote_offset:  # garbage in the place of this unit
                self.files.truncate(expected)
        segment = self.files.last or self.files.roll(expected)
        if segment.wrote == 0 and segment is self.files.first:
            self._begin(segment, expected)
        end = segment.base + segment.wrote
        if expected > end:
            raise QueueGapError(
                str(segment.path),
                segment.wrote,
                _UNPACK(units)[0],
                gap_detail(self.topic, self.queue_id, end // UNIT_SIZE, offset),
                CHECK_REMEDY,
            )
        units = units[end - expected :]
        if self.extension is not None and units:
            units = self.extension.extended(units)
        written = len(units) // UNIT_SIZE
        while units:
            if segment.is_full:
                segment = self.files.roll()
            size = min(len(units), segment.size - segment.wrote)
            self._write(segment, units[:size])
            units = units[size:]
        return written

    def append_light(self, offset: int, units: memoryview) -> int:
        """Append units as :meth:`append` does, to a light queue, if it lacks their records.

        Java may have counted messages that did not get into the queue. Its units are consecutive
        all the same, and not at the queue offsets that the records contain.
        """
        last, segment = self.last_unit, self.files.last
        if last is None:
            if segment is not None and offset * UNIT_SIZE >= segment.end:
                offset = segment.base // UNIT_SIZE
        elif last != PRE_BLANK:
            while units and _UNPACK(units)[0] <= last.physical_offset:
                units = units[UNIT_SIZE:]
                offset += 1
            offset = min(offset, self.max_offset)
        return self.append(offset, units) if units else 0

    def _begin(self, segment: Segment, at: int) -> None:
        """Fill the queue's first file with blank units up to byte ``at`` of the queue."""
        if segment.base < at < segment.end:
            self._write(segment, memoryview(_PRE_BLANK * ((at - segment.base) // UNIT_SIZE)))

    def _write(self, segment: Segment, units: memoryview) -> None:
        at = segment.wrote
        end = at + len(units)
        if end > segment.allocated:
            segment.allocate(end)
            segment.fill_in()  # faults pages in without the GIL; the write below would hold it
        segment.view[at:end] = units
        segment.wrote_to(end)

    # -- flush, recovery, retention -----------------------------------------------------------

    def flush(self, least_pages: int = 0) -> bool:
        """Sync the files that are due; return whether everything is on disk now."""
        clean = True
        if self.extension is not None:
            self.extension.flush()  # before the units that point to it
        for segment in self.files.segments:
            if segment.flushed < segment.committed:
                if segment.is_due(least_pages):
                    self._flush(segment)
                else:
                    clean = False
        return clean

    def _flush(self, segment: Segment) -> None:
        try:
            segment.flush()
        except StoreClosedError:
            if segment in self.files.segments:
                raise
            # Otherwise a new generation of the queue has begun meanwhile, without this file.

    def load(self, *, torn: bool = True) -> None:
        """Find the files and the end of the last one, the first unit that was never written.

        Files are bisected, not read, because units are written consecutively. Files without a unit
        at the end of the folder are ignored; they are created again when they are needed. Raises
        SegmentSizeError for files of another size than the queue has. An empty last file is
        accepted only if a crash may have left it (``torn``).
        """
        expected = self.files.segment_size
        self.files.torn = torn
        self.files.load()
        if self.files.segment_size != expected:
            raise SegmentSizeError(
                f"{self.files.path_of(self.files.min_offset)}: {self.files.segment_size} bytes "
                f"long, but other queues of this store have files of {expected}; {DERIVED_REMEDY}"
            )
        for number, segment in reversed(list(enumerate(self.files.segments))):
            count, start, units = units_written(segment.read, segment.data_end)
            segment.set_position(count * UNIT_SIZE)
            if not self.files.writable:
                self.window = segment.base + start * UNIT_SIZE, units
            if segment.wrote:
                self.files.keep_first(number + 1)
                break
        else:
            self.files.keep_first(1)
        if self.extension is not None:
            self.extension.load(self.unit, self.max_offset, torn=torn)
        self.next_offset = self.max_offset
        self.forget_positions()

    def adopt(self, bases: Iterable[int], max_offset: int, window: tuple[int, bytes]) -> None:
        """Use files and units that were found before, up to a queue offset in the last file."""
        self.files.adopt(bases)
        self.window = window
        last = self.files.last
        if last is not None:
            last.set_position(max_offset * UNIT_SIZE - last.base)
        self.next_offset = max_offset

    def cut(
        self,
        log_end: int,
        is_real: Callable[[int, ConsumeQueueUnit], bool],
        is_kept: Callable[[ConsumeQueueUnit], bool] | None = None,
    ) -> int:
        """Remove the units of records at or after ``log_end``. Returns how many there were.

        Units before it are whole; anything may follow them. The bisection ends at the last whole
        unit, or at bytes that only look like one, for which ``is_real`` returns False. Later units
        stay as long as ``is_kept`` returns True, for a queue that may not be derivable.
        """
        end = self.max_offset
        first = self.files.min_offset // UNIT_SIZE
        keep = self.first_where(
            first, end, lambda unit: unit.size <= 0 or unit.physical_offset >= log_end
        )
        while keep > first:
            unit = self.unit(keep - 1)
            if unit is not None and (unit == PRE_BLANK or is_real(keep - 1, unit)):
                break
            keep -= 1
        if is_kept is not None:
            while keep < end and (unit := self.unit(keep)) is not None and is_kept(unit):
                keep += 1
        self.files.truncate(keep * UNIT_SIZE)
        if self.extension is not None:
            self.extension.cut(self.unit, keep)
        self.next_offset = keep
        self.forget_positions()
        return end - keep

    def withhold(self, log_offset: int) -> None:
        """Hide the units of records at or after ``log_offset`` until they are appended again.

        They stay on disk, and the next message gets the same queue offset as before.
        """
        first, end = self.files.min_offset // UNIT_SIZE, self.max_offset
        shown = self.first_where(first, end, lambda unit: unit.physical_offset >= log_offset)
        if shown == end:
            return
        at = shown * UNIT_SIZE
        kept = max(sum(segment.base < at for segment in self.files.segments), 1)
        self.files.keep_first(kept)
        last = self.files.segments[-1]
        last.set_position(at - last.base)
        self.forget_positions()

    def begin_generation(self) -> None:
        """Remove every unit, because the numbers begin with 0 again later in the log."""
        while self.files.segments:
            self.files.retire_first(0)
        if self.extension is not None:
            self.extension.clear()
        self.window = 0, b""
        self.forget_positions()

    def forget_positions(self) -> None:
        """Look the beginning up again when it is next needed."""
        self._min = None

    def delete_expired(self, log_min: int, grace_ms: int) -> int:
        """Remove files whose units all point before ``log_min``, except the last."""
        removed = 0
        while len(self.files.segments) > 1:
            segment = self.files.segments[0]
            last_offset = _UNPACK(segment.read(segment.size - UNIT_SIZE, UNIT_SIZE))[0]
            if last_offset >= log_min:
                break
            self.files.retire_first(grace_ms)
            removed += 1
        self.forget_positions()
        if self.extension is not None:
            self.extension.delete_expired(self.unit(self.min_offset(log_min)), grace_ms)
        return removed

    def close(self) -> None:
        """Close the files."""
        self.files.close()
        if self.extension is not None:
            self.extension.close()
