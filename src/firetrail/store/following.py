"""Waiting for messages to arrive in a queue."""

from __future__ import annotations

import threading

from firetrail.store.deriving import Arrival


class Arrivals:
    """Wakes those who wait when dispatch has brought new messages."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0
        self._rounds = 0
        self._closed = False

    def notice(self, arrivals: list[Arrival]) -> None:
        """Listener of the dispatcher."""
        if self._waiting:
            with self._changed:
                self._rounds += 1
                self._changed.notify_all()

    def close(self) -> None:
        """Nothing will arrive any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def mark(self) -> int:
        """To be taken before looking for messages, and given to :meth:`wait` after."""
        with self._changed:
            self._waiting += 1
            return self._rounds

    def wait(self, mark: int, timeout_s: float | None) -> bool:
        """Wait until something arrived since ``mark``; False at the timeout or the end."""
        with self._changed:
            try:
                self._changed.wait_for(lambda: self._rounds != mark or self._closed, timeout_s)
                return self._rounds != mark and not self._closed
            finally:
                self._waiting -= 1
