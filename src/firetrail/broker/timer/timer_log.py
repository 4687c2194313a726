"""The log of the timer: one unit of 52 bytes per record of the timer topic, in the same order.

The units of a slot form a chain, from the newest to the oldest. Files have a fixed size and are
named by their start, like those of the commit log.
"""

from collections.abc import Iterator
from pathlib import Path

from firetrail.broker.timer.wheel import REBUILT, WheelDamagedError
from firetrail.errors import StoreDamagedError
from firetrail.format.files.timer import (
    BLANK,
    UNIT,
    TimerUnit,
    decode_unit,
    encode_blank,
    encode_unit,
    log_fault,
    units_per_file,
)
from firetrail.storage.growth import Growth
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.system import System

GROWTH = Growth(64 << 10, 4 << 20)
GRACE_MS = 120_000
"""The time for which a removed file may still be read."""


class TimerLog:
    """The files in ``timerlog/``."""

    def __init__(self, system: System, folder: Path, file_size: int) -> None:
        self._files = SegmentQueue(system, folder, file_size, growth=GROWTH, remedy=REBUILT)

    def load(self, end: int) -> None:
        """Find the files; everything before ``end`` is written.

        Raises:
            StoreDamagedError: A file is missing, or the files end before ``end``.
            SegmentSizeError: A file has another size than the others.
        """
        self._files.load()
        fault = log_fault(end, [(file.base, file.size) for file in self._files.segments])
        if fault:
            raise StoreDamagedError(str(self._files.folder), 0, end, fault, self._files.remedy)

    @property
    def end(self) -> int:
        """The position after the last unit."""
        return self._files.wrote_offset

    @property
    def first(self) -> int:
        """The position of the first unit that is kept."""
        return self._files.min_offset

    def prepare(self) -> Segment:
        """Make sure that one more unit can be appended. Raises DiskFullError."""
        segment = self._files.last or self._files.roll()
        if segment.size - segment.wrote < UNIT.size + BLANK.size:
            if not segment.is_full:
                self._write(segment, encode_blank(segment.size - segment.wrote))
                segment.wrote_to(segment.size)
            segment = self._files.roll()
        segment.allocate(segment.wrote + UNIT.size)
        return segment

    def append(self, unit: TimerUnit) -> int:
        """Append a unit and return its position. Raises DiskFullError, and then appends nothing."""
        segment = self.prepare()
        at = segment.wrote
        self._write(segment, encode_unit(unit))
        return segment.base + at

    def _write(self, segment: Segment, content: bytes) -> None:
        at, end = segment.wrote, segment.wrote + len(content)
        segment.allocate(end)
        segment.view[at:end] = content
        segment.wrote_to(end)

    def unit(self, position: int) -> TimerUnit | None:
        """Return the unit at a position; None if there is none, or its file was removed."""
        segment = self._files.find(position)
        if segment is None or position < 0:
            return None
        at = position - segment.base
        if at + UNIT.size > segment.wrote:
            return None
        view = segment.look()
        return None if view is None else decode_unit(view, at)

    def damaged(self, position: int) -> WheelDamagedError:
        """Return the error for a unit that points to the record of another."""
        segment = self._files.find(position)
        assert segment is not None
        detail = "the unit points to the record of another"
        return WheelDamagedError(str(segment.path), position - segment.base, None, detail, REBUILT)

    def count_from(self, position: int) -> int:
        """Return the number of units from the one at ``position`` on."""
        return self._number(self.end) - self._number(position)

    def _number(self, position: int) -> int:
        """Return the number of units before a position, counted from the position 0."""
        size = self._files.segment_size
        most = units_per_file(size)
        return position // size * most + min(position % size // UNIT.size, most)

    def before(self, position: int) -> int:
        """Return the position of the unit that was appended before the one at ``position``."""
        size = self._files.segment_size
        if position % size == 0:  # the file before it ends with a blank
            return position - size + (units_per_file(size) - 1) * UNIT.size
        return position - UNIT.size

    def found_after(self, end: int) -> Iterator[int]:
        """Yield the positions of units that follow ``end`` in the files, as far as there are any.

        They were appended before a crash, after the position that was last saved.
        """
        size = self._files.segment_size
        for segment in self._files.from_offset(end):
            for at in range(
                max(end - segment.base, 0), units_per_file(size) * UNIT.size, UNIT.size
            ):
                unit = decode_unit(segment.read(at, UNIT.size))
                if not unit.is_valid or unit.previous >= segment.base + at:
                    return
                yield segment.base + at

    def truncate(self, end: int) -> None:
        """Remove everything from ``end`` on, durably."""
        self._files.truncate(end)

    def flush(self) -> None:
        """Sync all units; this may run in a thread."""
        for segment in self._files.segments:
            segment.flush()

    def remove(self) -> None:
        """Remove all files, durably."""
        self._files.keep_first(0)
        for base in reversed(self._files.starts()):
            self._files.system.files.remove(self._files.path_of(base))

    def delete_expired(self, log_min: int) -> None:
        """Remove files whose units all point before ``log_min``, except the last."""
        while len(self._files.segments) > 1:
            segment = self._files.segments[0]
            at = (units_per_file(segment.size) - 1) * UNIT.size
            if decode_unit(segment.read(at, UNIT.size)).physical_offset >= log_min:
                break
            self._files.retire_first(GRACE_MS)
        if self._files.has_retired:
            self._files.sweep(GRACE_MS)

    def close(self) -> None:
        """Close the files."""
        self._files.close()
