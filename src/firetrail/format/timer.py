"""The files of RocketMQ's timer, which delivers messages at any time: wheel, log and progress.

``timerwheel`` is a ring of slots, one a second, each with the first and last unit of a chain in
the files of ``timerlog/``; a unit leads to a record of the topic ``rmq_sys_wheel_timer``. All
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
"""Time in slots, first and last position in the log, how many wait, magic."""
UNIT = Struct(">iqiqiqii8x")
"""Size, previous position, magic, write time, slot time - write time, place and size of the record,
hash of the topic that it is for."""
SLOT_MS = 1000
NONE = -1
"""The position before the first unit of a slot."""
DELETES = 4
"""In the magic of a unit: it takes a waiting message back."""


class TimerSlot(NamedTuple):
    """What is to be delivered in one second."""

    time: int
    first: int
    last: int
    waiting: int
    magic: int

    @property
    def due_ms(self) -> int:
        """When."""
        return self.time * SLOT_MS


class Unit(NamedTuple):
    """A message that waits."""

    size: int
    previous: int
    magic: int
    written_ms: int
    delay_ms: int
    physical_offset: int
    record_size: int
    topic_hash: int


class TimerCheck(NamedTuple):
    """How far the timer is."""

    delivered_ms: int = 0
    """All slots before this time are delivered."""
    log_position: int = 0
    queue_offset: int = 0
    """The next record of the topic that the wheel does not know yet."""


def decode_check(raw: bytes) -> TimerCheck:
    """The beginning of ``timercheck``; zeros for what is missing."""
    words = (raw[:24] + bytes(24))[:24]
    return TimerCheck(*(int.from_bytes(words[at : at + 8], "big") for at in (0, 8, 16)))
