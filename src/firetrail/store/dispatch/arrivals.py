"""The arrival of messages in a queue, and the readers that wait for it."""

from collections.abc import Iterator
from contextlib import contextmanager

from firetrail.store.dispatch.derivation import Arrival
from firetrail.system import Threads


class Arrivals:
    """Wakes readers when dispatch has brought new messages."""

    def __init__(self, threads: Threads) -> None:
        self._changed = threads.condition()
        self._waiting = 0
        self._rounds = 0
        self._closed = False

    def notice(self, arrivals: list[Arrival]) -> None:
        """Wake the readers; a listener of the dispatcher."""
        if self._waiting:
            with self._changed:
                self._rounds += 1
                self._changed.notify_all()

    def close(self) -> None:
        """End all waits: no more messages will arrive."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count arrivals while the block runs; outside of any block they cost nothing."""
        with self._changed:
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1

    @property
    def mark(self) -> int:
        """A mark to take before looking for messages and to pass to :meth:`wait` afterwards."""
        return self._rounds

    @property
    def is_closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._closed

    def wait(self, mark: int, timeout_s: float | None) -> bool:
        """Wait for an arrival since ``mark``; return False at the timeout or when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._rounds != mark or self._closed, timeout_s)
            return self._rounds != mark and not self._closed
