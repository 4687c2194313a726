"""Waiting for messages to arrive in a queue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from firetrail.store.dispatch.deriver import Arrival


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

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Arrivals are noticed inside the block only."""
        with self._changed:
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1

    @property
    def mark(self) -> int:
        """To be taken before looking for messages, and given to :meth:`wait` after."""
        return self._rounds

    @property
    def is_closed(self) -> bool:
        """Whether nothing will arrive any more."""
        return self._closed

    def wait(self, mark: int, timeout_s: float | None) -> bool:
        """Wait until something arrived since ``mark``; False at the timeout or the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._rounds != mark or self._closed, timeout_s)
            return self._rounds != mark and not self._closed
