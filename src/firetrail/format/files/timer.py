"""The files of RocketMQ's timer, which delivers messages at any time: wheel, log and progress.

``timerwheel`` is a ring of slots. Each slot has the first and the last unit of a chain in the files
of ``timerlog/``, and each unit points to a record of the topic ``rmq_sys_wheel_timer``.
``config/timercheck`` contains the progress of the timer. All numbers are big-endian. Page:
``docs/format/timer.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from firetrail.errors import FormatError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

TIMER_TOPIC = "rmq_sys_wheel_timer"
"""The topic in which messages wait for their delivery time."""
TIMER_QUEUE = 0
"""Its only queue."""

WHEEL = "timerwheel"
LOG = "timerlog"
CHECK = "timercheck"
"""In the folder ``config``."""

SLOT = Struct(">qqqii")
"""Fields of a slot: time in slots, first and last position in the log, number of waiting messages,
magic."""
UNIT = Struct(">iqiqiqii8x")
"""Fields of a unit: size, previous position, magic, write time, slot time - write time, position
and size of the record, hash of its destination topic."""
BLANK = Struct(">iqI")
"""The end of a file of the log: remaining size, 0, magic."""
BLANK_MAGIC = 0xCBD43194
CHECK_FIELDS = Struct(">7q")
CHECK_SIZE = 4096
WHEEL_SLOTS = 2 * 7 * 86_400
"""The number of slots in a wheel, for all durations of a slot."""
WINDOW_MAX = 7 * 86_400 - 60
"""Maximum number of slots between the write of a message and its slot."""
WAIT_MAX_MS = (1 << 31) - 1
"""Maximum time between the write of a message and its slot: a unit has four bytes for it."""
NONE = -1
"""The position before the first unit of a slot."""
WAITS, ROLLS, DELETES = 1, 2, 4
"""Flags in the magic of a unit: it is one; the message is stored again when the slot is due,
because its time is too far away; it is a mark that cancels a waiting message."""
VOID = WAITS | DELETES
"""The magic of a unit that has no effect, for a record that is not to be delivered."""
_MAGIC_MAX = WAITS | ROLLS | DELETES


class TimerSlot(NamedTuple):
    """The messages of one slot. ``time`` is the time of the slot divided by its duration."""

    time: int
    first: int
    last: int
    waiting: int
    magic: int = 0


EMPTY = TimerSlot(0, 0, 0, 0)
"""A slot that is not in use."""


class TimerUnit(NamedTuple):
    """A record of the timer topic in the chain of a slot."""

    size: int
    previous: int
    magic: int
    written_ms: int
    delay_ms: int
    physical_offset: int
    record_size: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        """Return the time of the slot, in ms since 1970."""
        return self.written_ms + self.delay_ms

    @property
    def is_valid(self) -> bool:
        """Return whether these bytes can be a unit."""
        return self.size == UNIT.size and bool(self.magic & WAITS) and self.magic <= _MAGIC_MAX

    @property
    def weight(self) -> int:
        """Return the change that the unit makes to the number of waiting messages of its slot."""
        return -1 if self.magic & DELETES else 1


class TimerCheck(NamedTuple):
    """The progress of a timer.

    Attributes:
        read_ms: All slots before this time are delivered.
        log_position: The end of the timer log at that time.
        queue_offset: The queue offset of the first record of the topic that is not in the log yet.
        master_queue_offset: The same offset of the master.
        state_version: With the next two, the version of these numbers.
        timestamp: The time at which they last changed, in ms since 1970.
        counter: The number of times that they changed.
    """

    read_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


def encode_unit(unit: TimerUnit) -> bytes:
    """52 bytes."""
    return UNIT.pack(*unit)


def decode_unit(buffer: ReadableBuffer, at: int = 0) -> TimerUnit:
    """Decode the unit at byte ``at``; any 52 bytes decode."""
    return TimerUnit._make(UNIT.unpack_from(buffer, at))


def encode_slot(slot: TimerSlot) -> bytes:
    """32 bytes."""
    return SLOT.pack(*slot)


def decode_slot(buffer: ReadableBuffer, at: int = 0) -> TimerSlot:
    """Decode the slot at byte ``at``; any 32 bytes decode."""
    return TimerSlot._make(SLOT.unpack_from(buffer, at))


def slot_fault(index: int, slot: TimerSlot, slots: int) -> str | None:
    """Return why the slot at a place of a wheel cannot be right; None if nothing is wrong.

    Args:
        index: The place.
        slot: The slot that is in use there.
        slots: The number of slots of the wheel.
    """
    return f"the slot has the impossible time {slot.time}" if slot.time % slots != index else None


def log_fault(end: int, files: Sequence[tuple[int, int]]) -> str | None:
    """Return why the files of a timer's log are not all; None if nothing is missing.

    Args:
        end: The position up to which the log is written.
        files: Position and size of each file, in order.
    """
    if end > (sum(files[-1]) if files else 0) or end < (files[0][0] if files else 0):
        return f"its files do not reach the position {end}, up to which they were synced"
    for (start, size), (following, _) in pairwise(files):
        if start + size != following:
            return f"the file {start + size:020} is missing"
    return None


def encode_blank(remaining: int) -> bytes:
    """Return the 16 bytes that end a file of the log before its last ``remaining`` bytes."""
    return BLANK.pack(remaining, 0, BLANK_MAGIC)


def units_per_file(file_size: int) -> int:
    """Return the number of units in a file of the log; the blank after them needs some room."""
    return (file_size - BLANK.size) // UNIT.size


def encode_unsealed(check: TimerCheck) -> bytes:
    """4096 bytes as Java writes them."""
    return CHECK_FIELDS.pack(*check).ljust(CHECK_SIZE, b"\0")


def decode_check(raw: ReadableBuffer) -> TimerCheck:
    """Decode the fields that Java knows, in a file or in the answer to GET_TIMER_CHECK_POINT.

    Raises FormatError if bytes are missing, or if a number is impossible.
    """
    if len(memoryview(raw)) < CHECK_FIELDS.size:
        raise FormatError("timer checkpoint", 0, f"it has fewer than {CHECK_FIELDS.size} bytes")
    check = TimerCheck._make(CHECK_FIELDS.unpack_from(raw))
    for number, value in enumerate(check):
        if value < 0:
            raise FormatError(
                f"timer checkpoint {check._fields[number]}", 8 * number, f"is {value}"
            )
    return check
