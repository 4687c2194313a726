"""Puts of an event loop that wait for replicas.

Many are answered at once, so each must cost little: one timer serves all of them, and a callback
costs a fraction of a task.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Callable, Generator
from math import inf
from typing import Any

from firetrail.store.log.flusher import LoopWaiter
from firetrail.store.log.replica_acks import ReplicaAcks
from firetrail.store.results import PutResult

_log = logging.getLogger(__name__)


class PendingPut(LoopWaiter):
    """A message that is stored, and that replicas have yet to confirm; it can be awaited."""

    __slots__ = ("_callback", "_puts", "deadline", "outcome", "started", "stored")

    def __init__(self, puts: PendingPuts, stored: PutResult, started: float) -> None:
        super().__init__(stored.end_offset, puts.loop)
        self._puts = puts
        self._callback: Callable[[PutResult], None] | None = None
        self.stored = stored
        self.started = started
        self.deadline = 0.0
        """The time at which the wait is over, by the loop's clock."""
        self.outcome: PutResult | None = None
        """The result of the put, once it is known."""

    def then(self, callback: Callable[[PutResult], None]) -> None:
        """Call ``callback`` in the event loop with the result, once it is known."""
        if self.outcome is not None:
            callback(self.outcome)
        else:
            self._callback = callback

    def __await__(self) -> Generator[Any, None, PutResult]:
        if self.outcome is None:
            future: Future[PutResult] = self.loop.create_future()
            self.then(lambda outcome: None if future.done() else future.set_result(outcome))
            yield from future
            assert self.outcome is not None
        return self.outcome

    def resolve(self, durable: bool) -> None:
        if self.outcome is None:
            self._puts.end(self, durable)

    def tell_caller(self) -> None:
        """Call the callback, if there is one already, and forget it: it may refer to this put."""
        callback, self._callback = self._callback, None
        if callback is not None and self.outcome is not None:
            callback(self.outcome)


class PendingPuts:
    """The puts of an event loop that wait for replicas, in the order in which they came."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        acks: ReplicaAcks,
        time_limit_ms: Callable[[], int],
        outcome_of: Callable[[PutResult, bool, float], PutResult],
    ) -> None:
        """Start without puts.

        Args:
            loop: The event loop that puts messages.
            acks: The confirmations of replicas.
            time_limit_ms: Returns how long a put may wait, in milliseconds.
            outcome_of: Takes the stored message, whether replicas have confirmed it, and when the
                put began; returns the result of the put.
        """
        self.loop = loop
        self._acks = acks
        self._time_limit_ms = time_limit_ms
        self._outcome_of = outcome_of
        self._waiting: deque[PendingPut] = deque()
        self._timer: TimerHandle | None = None
        self._looks_at = inf  # when the timer ends the puts that have waited too long

    def add(self, stored: PutResult, started: float) -> PendingPut:
        """Wait for replicas, in the thread of the event loop.

        Args:
            stored: The stored message.
            started: The time at which the put began, for ``outcome_of``.
        """
        put = PendingPut(self, stored, started)
        put.deadline = self.loop.time() + self._time_limit_ms() / 1000
        self._waiting.append(put)
        if put.deadline < self._looks_at:
            self._look_at(put.deadline)
        self._acks.add(put)
        return put

    def end(self, put: PendingPut, confirmed: bool) -> None:
        """End the wait of a put."""
        put.outcome = self._outcome_of(put.stored, confirmed, put.started)
        while self._waiting and self._waiting[0].outcome is not None:
            self._waiting.popleft()
        try:
            put.tell_caller()
        except Exception:  # the others must be told as well
            _log.exception("a put was stored, but its caller failed to take the result")

    def _look_at(self, time: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = time
        self._timer = self.loop.call_at(time, self._end_late_ones) if time < inf else None

    def _end_late_ones(self) -> None:
        """End the puts whose time is over. The time limit of a later one can be shorter."""
        now = self.loop.time()
        for put in list(self._waiting):
            if put.outcome is None and put.deadline <= now:
                put.timed_out = True
                # A loop that was held up may have read the confirmation in this iteration.
                self.end(put, self._acks.have_confirmed(put.offset))
        waiting = (put.deadline for put in self._waiting if put.outcome is None)
        self._look_at(min(waiting, default=inf))
