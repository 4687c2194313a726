"""The wheel: one slot per step of time, in the sparse file ``timerwheel``.

Changes stay in memory until :meth:`TimerWheel.write`. The timer writes them once a second, after it
has synced the units that they refer to. After a crash, a slot in the file therefore never refers to
a unit that was lost. Slots are read and written with calls, not through a mapping: the file is
sparse, and a write to a mapped page fails with a signal if the disk is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from firetrail.format.timer import EMPTY, SLOT, WHEEL_SLOTS, TimerSlot, decode_slot, encode_slot
from firetrail.system import Files

CHUNK = 8192
"""Slots that are read at a time when the wheel is searched."""


class TimerWheel:
    """The slots of a timer. Times are multiples of ``precision_ms``."""

    def __init__(
        self, files: Files, path: Path, precision_ms: int, slots: int = WHEEL_SLOTS
    ) -> None:
        self._files = files
        self._path = path
        self._precision_ms = precision_ms
        self._slots = slots
        self._descriptor: int | None = None
        self._changed: dict[int, TimerSlot] = {}
        self._writing: dict[int, TimerSlot] = {}
        self._sync_failure: OSError | None = None
        self.waiting = 0
        """The sum of all slots."""

    @property
    def has_file(self) -> bool:
        """Whether the file exists and has the right length."""
        try:
            return self._files.size(self._path) == self._slots * SLOT.size
        except FileNotFoundError:
            return False

    def create(self) -> None:
        """Create an empty wheel in place of the file, if there is one, durably."""
        self.close()
        descriptor = self._files.open_new(self._path)
        try:
            self._files.set_size(descriptor, self._slots * SLOT.size)
            self._files.sync(descriptor)
            self._files.give_name(descriptor, self._path)
            self._files.sync_folder(self._path.parent)
        except BaseException:
            self._files.close(descriptor)
            raise
        self._descriptor = descriptor
        self._changed, self._writing, self.waiting = {}, {}, 0

    def open(self) -> None:
        """Open the file, and count the waiting messages."""
        self._descriptor = self._files.open(self._path, writable=True)
        self.waiting = sum(slot.waiting for slot in self._used())

    def remove(self) -> None:
        """Remove the file, durably."""
        self.close()
        if self._path.exists():
            self._files.remove(self._path)

    def close(self) -> None:
        """Close the file; changes that were not written are lost."""
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None

    # -- slots --------------------------------------------------------------------------------

    def get(self, time_ms: int) -> TimerSlot | None:
        """Return the slot of a time, None if it is not in use."""
        time = time_ms // self._precision_ms
        slot = self._slot(time % self._slots)
        return slot if slot.time == time else None

    def put(self, time_ms: int, first: int, last: int, waiting: int) -> None:
        """Set the slot of a time."""
        self._set(TimerSlot(time_ms // self._precision_ms, first, last, waiting))

    def clear(self, time_ms: int) -> None:
        """Empty the slot of a time, if it is in use for that time."""
        slot = self.get(time_ms)
        if slot is not None:
            self._change(slot.time % self._slots, slot, EMPTY)

    def _set(self, slot: TimerSlot) -> None:
        index = slot.time % self._slots
        self._change(index, self._slot(index), slot)

    def _change(self, index: int, old: TimerSlot, new: TimerSlot) -> None:
        self.waiting += new.waiting - (old.waiting if old.time else 0)
        self._changed[index] = new

    def _slot(self, index: int) -> TimerSlot:
        slot = self._changed.get(index) or self._writing.get(index)
        return slot if slot is not None else decode_slot(self._read(index, 1))

    def next_used(self, start_ms: int, end_ms: int) -> int:
        """Return the time of the first slot in use from ``start_ms`` up to before ``end_ms``.

        At most CHUNK slots are searched. If none of them is in use, the time after them is
        returned, which is at most ``end_ms``.
        """
        time, end = start_ms // self._precision_ms, end_ms // self._precision_ms
        end = min(end, time + CHUNK)
        while time < end:
            index = time % self._slots
            count = min(end - time, self._slots - index)
            for found, slot_time in self._times(index, count):
                if slot_time == time + found - index:
                    return slot_time * self._precision_ms
            time += count
        return end * self._precision_ms

    def _times(self, index: int, count: int) -> list[tuple[int, int]]:
        """Return the indexes and times of some slots, in order; unused ones may be missing."""
        content = self._read(index, count)
        times: dict[int, int] = {}
        if content.count(0) != len(content):
            times = {n: fields[0] for n, fields in enumerate(SLOT.iter_unpack(content), index)}
        for changes in (self._writing, self._changed):
            for n, slot in changes.items():
                if index <= n < index + count:
                    times[n] = slot.time
        return sorted(times.items())

    def _read(self, index: int, count: int) -> bytes:
        assert self._descriptor is not None
        return self._files.read_at(self._descriptor, index * SLOT.size, count * SLOT.size)

    def _used(self) -> Iterator[TimerSlot]:
        """Yield the slots in the file that are in use; holes are skipped."""
        assert self._descriptor is not None
        end = self._slots * SLOT.size
        for start, stop in self._files.data_ranges(self._descriptor, 0, end):
            for index in range(start // SLOT.size, -(-stop // SLOT.size), CHUNK):
                content = self._read(index, min(CHUNK, -(-stop // SLOT.size) - index))
                if content.count(0) == len(content):
                    continue
                for number, fields in enumerate(SLOT.iter_unpack(content), index):
                    if fields[0] and fields[0] % self._slots == number:  # else a crash garbled it
                        yield TimerSlot._make(fields)

    # -- writing ------------------------------------------------------------------------------

    def begin_writing(self) -> None:
        """Note the changes so far as those that :meth:`write` writes."""
        self._writing = self._writing | self._changed
        self._changed = {}

    def write(self) -> None:
        """Write and sync the changes up to :meth:`begin_writing`; this may run in a thread."""
        if not self._writing:
            return
        assert self._descriptor is not None
        if self._sync_failure is not None:
            raise self._sync_failure  # the kernel reports a failure only once
        for index, slot in sorted(self._writing.items()):
            self._files.write(self._descriptor, [encode_slot(slot)], index * SLOT.size)
        try:
            self._files.sync(self._descriptor)
        except OSError as error:
            self._sync_failure = error
            raise

    def end_writing(self) -> None:
        """Forget the changes that were written."""
        self._writing = {}
