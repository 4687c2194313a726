"""The limit up to which the timer may read its slots: all records stored by then are added.

A recall is accepted until its slot begins, and the mark that it stores has to be in the slot when
the slot is read. Under load, the timer may still have older records to add at that time.
"""


class DueGate:
    """Decides how far a timer may read its slots."""

    def __init__(self) -> None:
        self._open_ms = 0
        self._next_ms = 0
        self._next_to = 0

    def open_ms(self, current_ms: int, added_to: int, stored_to: int) -> int:
        """Return the time before which slots may be read.

        While records keep arriving, it advances as soon as those of the previous call are added.

        Args:
            current_ms: The slot of the current time; none that begins then or later is due.
            added_to: The queue offset up to which records are in their slots.
            stored_to: The queue offset up to which records are stored.
        """
        if added_to >= self._next_to:
            self._open_ms = current_ms if added_to >= stored_to else self._next_ms
            self._next_ms, self._next_to = current_ms, stored_to
        return min(self._open_ms, current_ms)
