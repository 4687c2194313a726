"""The slot of a message: by its time, or an earlier one if that is too far away."""

from typing import NamedTuple

from firetrail.format.files.timer import ROLLS, WAIT_MAX_MS, WAITS, WINDOW_MAX
from firetrail.store.broker_store import BrokerStore

_HOUR_MS = 3_600_000


class Slot(NamedTuple):
    """The time of a slot, and the magic of a unit in it."""

    time_ms: int
    magic: int


class SlotPlacement:
    """Places messages in slots, by the rules of RocketMQ.

    Attributes:
        precision_ms: The duration of a slot.
        longest_ms: Slots up to this long ago and up to this far away are different ones.
    """

    def __init__(
        self, store: BrokerStore, precision_ms: int, window_slots: int, wheel_slots: int
    ) -> None:
        """Create the rules.

        Args:
            store: The store; it may delete records that are older than its settings say.
            precision_ms: The duration of a slot.
            window_slots: The number of slots that a message waits at most, before it is stored
                again.
            wheel_slots: The number of slots in the wheel.
        """
        self._store = store
        self.precision_ms = precision_ms
        longest = min(WINDOW_MAX, wheel_slots // 2, WAIT_MAX_MS // precision_ms)
        self.longest_ms = longest * precision_ms
        self._window_slots = window_slots if 2 <= window_slots <= longest else longest

    def floor(self, time_ms: int) -> int:
        """Return the time of the slot that contains a time."""
        return time_ms - time_ms % self.precision_ms

    @property
    def _window(self) -> int:
        """The window, shorter than configured if the commit log is kept for a shorter time."""
        kept_ms = self._store.config.file_reserved_hours * _HOUR_MS
        return max(min(self._window_slots, kept_ms * 2 // 3 // self.precision_ms), 2)

    def slot_of(self, due_ms: int, current_ms: int) -> Slot:
        """Return the slot of a message that is due in slot ``due_ms``.

        A message whose time is too far away gets an earlier slot. It is then stored again, so that
        the commit log is not deleted while the message waits.
        """
        window = self._window * self.precision_ms
        if due_ms - current_ms < window:
            return Slot(due_ms, WAITS)
        if due_ms - current_ms - window < self._window // 3 * self.precision_ms:
            return Slot(current_ms + self._window // 2 * self.precision_ms, WAITS | ROLLS)
        return Slot(current_ms + window, WAITS | ROLLS)
