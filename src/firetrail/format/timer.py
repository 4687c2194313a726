"""The files of RocketMQ's timer, which delivers messages at any time: wheel, log and progress.

``timerwheel`` is a ring of slots, one per second, each with the first and last unit of a chain in
the files of ``timerlog/``; a unit points to a record of the topic ``rmq_sys_wheel_timer``. All
numbers are big-endian.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

WHEEL = "timerwheel"
LOG = "timerlog"
CHECK = "timercheck"
"""In the folder ``config``."""
SLOT = Struct(">qqqii")
"""Time in slots, first and last position in the log, number of waiting messages, magic."""
UNIT = Struct(">iqiqiqii8x")
"""Size, previous position, magic, write time, slot time - write time, place and size of the record,
hash of the topic that it is for."""
SLOT_MS = 1000
NONE = -1
"""The position before the first unit of a slot."""
DELETES = 4
"""In the magic of a unit: it cancels a waiting message."""


class TimerSlot(NamedTuple):
    """The messages that are to be delivered in one second."""

    time: int
    first: int
    last: int
    waiting: int
    magic: int

    @property
    def due_ms(self) -> int:
        """Return the time of delivery, in ms since 1970."""
        return self.time * SLOT_MS


class Unit(NamedTuple):
    """A waiting message."""

    size: int
    previous: int
    magic: int
    written_ms: int
    delay_ms: int
    physical_offset: int
    record_size: int
    topic_hash: int


class TimerCheck(NamedTuple):
    """The progress of the timer."""

    delivered_ms: int = 0
    """All slots before this time are delivered."""
    log_position: int = 0
    queue_offset: int = 0
    """The queue offset of the first record of the topic that is not in the wheel yet."""


def decode_check(raw: bytes) -> TimerCheck:
    """Decode the beginning of ``timercheck``; missing bytes count as zeros."""
    words = (raw[:24] + bytes(24))[:24]
    return TimerCheck(*(int.from_bytes(words[at : at + 8], "big") for at in (0, 8, 16)))
