"""The check of the timer's files, for ``firetrail fsck``, and what waits in them.

Every record of the timer topic has one unit in the log of the timer, in the same order. One pass
over the units finds the chain of each slot, which must be the chain that the wheel refers to. So
every record that waits is in the wheel, and nothing else is.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from firetrail.broker.timer.wheel import used_slots
from firetrail.errors import FormatError
from firetrail.format.files.timer import (
    CHECK,
    LOG,
    NONE,
    SLOT,
    TIMER_QUEUE,
    TIMER_TOPIC,
    UNIT,
    VOID,
    WHEEL,
    WHEEL_SLOTS,
    TimerCheck,
    TimerSlot,
    TimerUnit,
    decode_check,
    decode_unit,
    encode_slot,
    log_fault,
    slot_fault,
    units_per_file,
)
from firetrail.format.files.timer_seal import (
    WheelSeal,
    added,
    decode_seal,
    flipped_bit,
    sealed_precision_ms,
    slot_sum,
)
from firetrail.format.names import CONFIG, parse_segment_name
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.problems import Problem, ProblemKind

READ_UNITS = 8192
"""Number of units that are read at a time."""
PROBLEMS_MAX = 1000
"""Maximum number of problems of the timer that are listed."""


class TimerWaiting(NamedTuple):
    """The messages that wait in a timer.

    Attributes:
        messages: The number of messages.
        first_ms: The slot of the first one, None if there is none.
        last_ms: The slot of the last one.
    """

    messages: int
    first_ms: int | None
    last_ms: int | None


def timer_waiting(view: StoreView) -> TimerWaiting | None:
    """Return the waiting messages as of the last save; None if the store has no timer messages."""
    raw = _read_check(view)
    if raw is None or not (view.root / WHEEL).exists():
        return None
    try:
        check = decode_check(raw)
    except FormatError:
        return None
    precision = 1000 if decode_seal(raw) is None else sealed_precision_ms(raw)
    slots = [slot for _, slot in _slots(view, WHEEL_SLOTS) if slot.waiting > 0]
    late = max((view.queue_end(TIMER_TOPIC, TIMER_QUEUE) or 0) - check.queue_offset, 0)
    times = [slot.time * precision for slot in slots]
    messages = sum(slot.waiting for slot in slots) + late
    return TimerWaiting(messages, min(times, default=None), max(times, default=None))


def timer_problems(view: StoreView, wheel_slots: int = WHEEL_SLOTS) -> list[Problem]:
    """Return the problems of the timer's files in a store that is not open.

    Files that a Java broker wrote last have no seal and are not checked: a Firetrail broker
    rebuilds them when it starts.
    """
    raw = _read_check(view)
    if view.state is StoreState.OPEN or raw is None:
        return []
    flipped = flipped_bit(raw)
    if flipped is not None:
        detail = f"a bit of {flipped.field} is flipped"
        file = f"{CONFIG}/{CHECK}"
        return [Problem(file, flipped.offset, None, ProblemKind.TIMER_FILE, detail)]
    seal = decode_seal(raw)
    if seal is None:
        return []
    return TimerInspection(view, decode_check(raw), seal, sealed_precision_ms(raw)).run(wheel_slots)


def _read_check(view: StoreView) -> bytes | None:
    try:
        return view.system.files.read(view.root / CONFIG / CHECK)
    except FileNotFoundError:
        return None


def _slots(view: StoreView, wheel_slots: int) -> Iterator[tuple[int, TimerSlot]]:
    files = view.system.files
    descriptor = files.open(view.root / WHEEL, writable=False)
    try:
        yield from used_slots(files, descriptor, wheel_slots)
    finally:
        files.close(descriptor)


class _Chain:
    """The units of one slot, in the order of the log."""

    def __init__(self, last: int, waiting: int, *, is_whole: bool, is_optional: bool) -> None:
        self.last = last
        self.waiting = waiting
        self.is_whole = is_whole  # else the files of its first units were removed
        self.is_optional = is_optional  # the slot may lack it
        self.before: list[tuple[int, int]] = []  # its ends since the last save, oldest first

    def fits(self, slot: TimerSlot) -> bool:
        """Return whether a slot refers to this chain, or to an end of it since the last save."""
        ends = [*self.before, (self.last, self.waiting)]
        if self.is_whole:
            return (slot.last, slot.waiting) in ends
        return slot.last in [last for last, _ in ends]


class TimerInspection:
    """The check of one timer."""

    def __init__(
        self, view: StoreView, check: TimerCheck, seal: WheelSeal, precision_ms: int
    ) -> None:
        self._view = view
        self._check = check
        self._seal = seal
        self._precision_ms = precision_ms
        self._problems: list[Problem] = []
        self._chains: dict[int, _Chain] = {}

    def run(self, wheel_slots: int) -> list[Problem]:
        """Check everything and return the problems."""
        files = self._view.system.files
        path = self._view.root / WHEEL
        expected = wheel_slots * SLOT.size
        if not path.exists():
            self._note(WHEEL, 0, ProblemKind.TIMER_FILE, "the file is missing")
        elif files.size(path) != expected:
            found = f"it has {files.size(path)} bytes instead of {expected}"
            self._note(WHEEL, 0, ProblemKind.TIMER_FILE, found)
        if not self._problems:
            self._read_log()
        if not self._problems:
            self._compare(wheel_slots)
        return self._problems

    def _note(self, file: str, offset: int, kind: ProblemKind, detail: str) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(Problem(file, offset, None, kind, detail))

    # -- the log ------------------------------------------------------------------------------

    def _read_log(self) -> None:
        """Find the chain of each slot that is not delivered, and compare units with records."""
        sizes = self._view.system.files.sizes(self._view.root / LOG)
        starts = {parse_segment_name(name): size for name, size in sizes.items()}
        files = sorted((start, size) for start, size in starts.items() if start is not None)
        end = self._check.log_position
        if fault := log_fault(end, files):
            self._note(LOG, 0, ProblemKind.TIMER_FILE, fault)
            return
        numbers = sum(_units_before(end, start, size) for start, size in files)
        number = self._check.queue_offset - numbers
        with closing(self._view.open_queue(TIMER_TOPIC, TIMER_QUEUE)) as queue:
            for position, unit in self._units(files):
                is_synced = position < end
                if not is_synced and (not unit.is_valid or unit.previous >= position):
                    return  # nothing was appended here before the crash
                record = queue.unit(number) if is_synced else None
                if not unit.is_valid or (
                    record is not None and record.physical_offset != unit.physical_offset
                ):
                    detail = f"this is not the unit of message {number} of {TIMER_TOPIC}"
                    self._note_unit(files, position, detail)
                    return
                self._add(files, position, unit, is_synced=is_synced)
                number += 1

    def _units(self, files: list[tuple[int, int]]) -> Iterator[tuple[int, TimerUnit]]:
        """Yield all places for units in the log, with their positions."""
        system = self._view.system.files
        for start, size in files:
            descriptor = system.open(self._view.root / LOG / f"{start:020}", writable=False)
            try:
                for at in range(0, units_per_file(size), READ_UNITS):
                    count = min(READ_UNITS, units_per_file(size) - at)
                    content = system.read_at(descriptor, at * UNIT.size, count * UNIT.size)
                    for number in range(count):
                        place = number * UNIT.size
                        yield start + at * UNIT.size + place, decode_unit(content, place)
            finally:
                system.close(descriptor)

    def _add(
        self, files: list[tuple[int, int]], position: int, unit: TimerUnit, *, is_synced: bool
    ) -> None:
        if unit.slot_ms < self._check.read_ms:
            return
        chain = self._chains.get(unit.slot_ms)
        if chain is not None and unit.previous == chain.last:
            if not is_synced:
                chain.before.append((chain.last, chain.waiting))
            chain.last, chain.waiting = position, chain.waiting + unit.weight
            chain.is_optional &= not is_synced
        elif unit.previous == NONE or unit.previous < files[0][0]:
            is_void = unit.previous == NONE and unit.magic == VOID  # or a mark in an empty slot
            if is_void and chain is not None and not chain.is_optional:
                return
            self._chains[unit.slot_ms] = _Chain(
                position,
                unit.weight,
                is_whole=unit.previous == NONE,
                is_optional=is_void or not is_synced,
            )
        elif is_synced:
            detail = f"its slot has no unit at {unit.previous} before it"
            self._note_unit(files, position, detail)

    def _note_unit(self, files: list[tuple[int, int]], position: int, detail: str) -> None:
        start = max(start for start, _ in files if start <= position)
        self._note(f"{LOG}/{start:020}", position - start, ProblemKind.TIMER_UNIT, detail)

    # -- the wheel ----------------------------------------------------------------------------

    def _compare(self, wheel_slots: int) -> None:
        """Compare the slots of the wheel with the chains of the log."""
        found: dict[int, TimerSlot] = {}
        total = 0
        for index, slot in _slots(self._view, wheel_slots):
            total = added(total, slot_sum(encode_slot(slot)))
            if fault := slot_fault(index, slot, wheel_slots):
                self._note(WHEEL, index * SLOT.size, ProblemKind.TIMER_SLOT, fault)
            else:
                found[slot.time * self._precision_ms] = slot
        for slot in self._seal.following:  # a crash may have emptied them, which is undone
            found.setdefault(slot.time * self._precision_ms, slot)
        for time_ms, chain in self._chains.items():
            slot_found = found.pop(time_ms, None)
            if slot_found is None and chain.is_optional:
                continue
            if slot_found is None or not chain.fits(slot_found):
                detail = f"{chain.waiting} messages are due at {time_ms}, and the slot lacks them"
                self._note_slot(time_ms, wheel_slots, detail)
        for time_ms in found:
            self._note_slot(time_ms, wheel_slots, "the slot refers to messages that do not wait")
        is_closed = self._view.state is StoreState.CLOSED
        fault = self._seal.fault(total)
        if is_closed and fault and not self._problems:
            self._note(WHEEL, 0, ProblemKind.TIMER_SLOT, fault)

    def _note_slot(self, time_ms: int, wheel_slots: int, detail: str) -> None:
        index = time_ms // self._precision_ms % wheel_slots
        self._note(WHEEL, index * SLOT.size, ProblemKind.TIMER_SLOT, detail)


def _units_before(end: int, start: int, size: int) -> int:
    """Return the number of units of a file before the position ``end``."""
    return min(max(end - start, 0) // UNIT.size, units_per_file(size))
