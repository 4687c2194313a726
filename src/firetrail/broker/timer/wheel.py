"""The wheel: one slot per step of time, in the sparse file ``timerwheel``.

Changes stay in memory until :meth:`TimerWheel.write`. The timer writes them once a second, after it
has synced the units that they refer to. After a crash, a slot in the file therefore never refers to
a unit that was lost. Slots are read and written with calls, not through a mapping: the file is
sparse, and a write to a mapped page fails with a signal if the disk is full.

The checksums of all slots are in memory, so that a slot that was damaged in the file is noticed
when it is read, and their sum is part of ``timercheck``.
"""

from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from firetrail.errors import StoreDamagedError
from firetrail.format.files.timer import (
    EMPTY,
    SLOT,
    WHEEL_SLOTS,
    TimerSlot,
    decode_slot,
    encode_slot,
    slot_fault,
)
from firetrail.format.files.timer_seal import NEXT_SLOTS, WheelSeal, added, slot_sum
from firetrail.system import Files

CHUNK = 8192
"""Number of slots that are read at a time in a search of the wheel."""
REBUILT = "nothing has to be done: the timer is rebuilt"
"""The remedy for damaged files of the timer."""


class WheelDamagedError(StoreDamagedError):
    """A slot or unit differs from what was written; the timer catches the error and is rebuilt."""


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
        self._sums = array("I")  # the checksums of the slots; 0: not in use
        self._total = 0
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
        self._changed, self._writing = {}, {}
        self._forget_sums()

    def open(self) -> None:
        """Open the file, note the checksums of its slots, and count the waiting messages.

        Raises:
            WheelDamagedError: A slot has a time that does not belong there.
        """
        self._descriptor = self._files.open(self._path, writable=True)
        self._forget_sums()
        for index, slot in used_slots(self._files, self._descriptor, self._slots):
            if fault := slot_fault(index, slot, self._slots):
                raise self._damaged(index, fault)
            self._sums[index] = slot_sum(encode_slot(slot))
            self._total = added(self._total, self._sums[index])
            self.waiting += slot.waiting

    def _forget_sums(self) -> None:
        self._sums = array("I", bytes(4 * self._slots))
        self._total = self.waiting = 0

    def seal(self, read_ms: int) -> WheelSeal:
        """Return the current content of the wheel, whose slots before ``read_ms`` are empty."""
        found = []
        start = read_ms // self._precision_ms
        for time in range(start, start + NEXT_SLOTS):
            with suppress(WheelDamagedError):  # the timer is rebuilt when it is due
                slot = self.get(time * self._precision_ms)
                if slot is not None:
                    found.append(slot)
        return WheelSeal(self._total, tuple(found))

    def verify(self, seal: WheelSeal) -> None:
        """Compare the content with that of a seal, after later changes were undone.

        The seal's own slots that are empty were delivered before a crash; they are due once more.

        Raises:
            WheelDamagedError: The content differs in another way.
        """
        for slot in seal.following:
            if self.get(slot.time * self._precision_ms) is None:
                self._set(slot)
        if fault := seal.fault(self._total):
            raise self._damaged(0, fault)

    def _damaged(self, index: int, detail: str) -> WheelDamagedError:
        return WheelDamagedError(str(self._path), index * SLOT.size, None, detail, REBUILT)

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
        """Return the slot of a time, None if it is not in use. Raises WheelDamagedError."""
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
        before, after = self._sums[index], slot_sum(encode_slot(new)) if new.time else 0
        self._sums[index] = after
        self._total = added(self._total, after - before)
        self._changed[index] = new

    def _slot(self, index: int) -> TimerSlot:
        slot = self._changed.get(index) or self._writing.get(index)
        if slot is not None:
            return slot
        raw = self._read(index, 1)
        slot = decode_slot(raw)
        if (slot_sum(raw) if slot.time else 0) != self._sums[index]:
            raise self._damaged(index, "the slot is not what was written")
        return slot

    def next_used(self, start_ms: int, end_ms: int) -> int:
        """Return the time of the first slot in use from ``start_ms`` up to before ``end_ms``.

        At most CHUNK slots are searched. If none of them is in use, the time after them is
        returned, which is at most ``end_ms``. Raises WheelDamagedError.
        """
        time, end = start_ms // self._precision_ms, end_ms // self._precision_ms
        end = min(end, time + CHUNK)
        while time < end:
            index = time % self._slots
            count = min(end - time, self._slots - index)
            for number, checksum in enumerate(self._sums[index : index + count]):
                if checksum and self._slot(index + number).time == time + number:
                    return (time + number) * self._precision_ms
            time += count
        return end * self._precision_ms

    def _read(self, index: int, count: int) -> bytes:
        assert self._descriptor is not None
        return self._files.read_at(self._descriptor, index * SLOT.size, count * SLOT.size)

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


def used_slots(files: Files, descriptor: int, slots: int) -> Iterator[tuple[int, TimerSlot]]:
    """Yield the slots in a file that are in use, with their index; holes are skipped."""
    for start, stop in files.data_ranges(descriptor, 0, slots * SLOT.size):
        first, end = start // SLOT.size, min(-(-stop // SLOT.size), slots)
        for index in range(first, end, CHUNK):
            count = min(CHUNK, end - index)
            content = files.read_at(descriptor, index * SLOT.size, count * SLOT.size)
            if content.count(0) == len(content):
                continue
            for number, fields in enumerate(SLOT.iter_unpack(content), index):
                if fields[0]:
                    yield number, TimerSlot._make(fields)
