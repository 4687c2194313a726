"""A slot of the timer whose time has come: its units, oldest first, and the marks that cancel some.

A slot can have millions of units, so they are read in steps, and only their positions are kept.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from firetrail.broker.timer.timer_log import TimerLog
from firetrail.format.files.timer import DELETES, NONE, ROLLS, TimerSlot, TimerUnit
from firetrail.format.properties import REAL_TOPIC, TIMER_DEL_UNIQKEY, UNIQ_KEY, get_property
from firetrail.format.record import Record

KEY_SEPARATOR = "+"
"""The separator of topic and unique key in a mark of RocketMQ up to 5.3."""


class DueUnit(NamedTuple):
    """A unit of a slot, and its position in the log of the timer."""

    position: int
    unit: TimerUnit


class DueSlot:
    """The units of one slot.

    Attributes:
        time_ms: The time of the slot.
        is_broken: Whether the chain ends with bytes that are not a unit of the slot.
        recalled: The topics and values of the marks that cancel messages.
    """

    def __init__(self, log: TimerLog, time_ms: int, slot: TimerSlot) -> None:
        self._log = log
        self.time_ms = time_ms
        self.is_broken = False
        self.recalled: set[tuple[str, str]] = set()
        self._next = slot.last
        self._left = slot.waiting  # less those that are read
        self._positions = array("q")
        self._marks = array("q")

    def gather(self, count: int) -> bool:
        """Read up to ``count`` units; return whether all of them are known now."""
        for _ in range(count):
            if self._next == NONE and self._left == 0:
                return True
            if 0 <= self._next < self._log.first:
                return True  # files before the first were removed with the records of their units
            unit = self._log.unit(self._next)
            if (
                unit is None
                or not unit.is_valid
                or unit.slot_ms != self.time_ms
                or unit.previous >= self._next
            ):
                self.is_broken = True
                return True
            if unit.magic & DELETES and not unit.magic & ROLLS:
                self._marks.append(self._next)
            else:
                self._positions.append(self._next)
            self._left -= unit.weight
            self._next = unit.previous
        return False

    def next_mark(self) -> DueUnit | None:
        """Return the next unit of a mark, if there is one; it stays until :meth:`mark_done`."""
        return self._last(self._marks)

    def mark_done(self) -> None:
        """Remove the unit that :meth:`next_mark` returned."""
        self._marks.pop()

    def next_message(self) -> DueUnit | None:
        """Return the oldest unit of a message; it stays until :meth:`message_done`."""
        return self._last(self._positions)

    def message_done(self) -> None:
        """Remove the unit that :meth:`next_message` returned."""
        self._positions.pop()

    def _last(self, positions: Sequence[int]) -> DueUnit | None:
        unit = self._log.unit(positions[-1]) if positions else None
        return None if unit is None else DueUnit(positions[-1], unit)

    def recall(self, mark: Record) -> None:
        """Cancel the message that a mark names."""
        topic = get_property(mark.raw_properties, REAL_TOPIC)
        key = get_property(mark.raw_properties, TIMER_DEL_UNIQKEY)
        if topic and key:
            self.recalled.add((topic, key))

    def is_recalled(self, record: Record) -> bool:
        """Return whether a mark, of any version of RocketMQ, cancels this message.

        A mark counts for the topic that it was sent to, because it was stored with the permission
        for that topic. The mark of RocketMQ 5.4 has only a key, which a producer of another topic
        can use as well.
        """
        if not self.recalled:
            return False
        topic = get_property(record.raw_properties, REAL_TOPIC)
        key = get_property(record.raw_properties, UNIQ_KEY)
        if topic is None or key is None:
            return False
        return any((topic, value) in self.recalled for value in delete_keys(topic, key))


def delete_keys(topic: str, unique_key: str) -> Iterator[str]:
    """Yield the values that marks for a message have: up to RocketMQ 5.3, and from 5.4 on."""
    yield f"{topic}{KEY_SEPARATOR}{unique_key}"
    yield unique_key
