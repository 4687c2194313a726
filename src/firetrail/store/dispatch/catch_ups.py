"""Requests of an event loop that wait until the messages stored before them are dispatched."""

from asyncio import AbstractEventLoop, Future
from collections import deque
from typing import NamedTuple

from firetrail.store.dispatch.dispatcher import Dispatcher

CATCH_UP_S = 1.0
"""Maximum time that a read waits until messages that were put before it are dispatched."""
CHECK_S = 0.001
"""The pause between two checks of the position of the dispatcher while requests wait."""


class _DispatchWait(NamedTuple):
    end: int
    deadline: float
    reached: Future[None]


class CatchUps:
    """The waiting requests, in the order in which they came; one timer serves all of them."""

    def __init__(self, loop: AbstractEventLoop, dispatcher: Dispatcher) -> None:
        """Start without requests.

        Args:
            loop: The event loop that handles the requests.
            dispatcher: Dispatches the messages that they wait for.
        """
        self._loop = loop
        self._dispatcher = dispatcher
        self._waiting: deque[_DispatchWait] = deque()

    def wait(self, end: int) -> Future[None]:
        """Return a future that is done when the log is dispatched up to ``end``.

        It is done after CATCH_UP_S in any case, or if dispatch is stuck.
        """
        reached: Future[None] = self._loop.create_future()
        self._waiting.append(_DispatchWait(end, self._loop.time() + CATCH_UP_S, reached))
        if len(self._waiting) == 1:
            self._check()
        return reached

    def _check(self) -> None:
        now, dispatcher = self._loop.time(), self._dispatcher
        while self._waiting:
            end, deadline, reached = self._waiting[0]
            if dispatcher.position < end and now < deadline and not dispatcher.is_stuck:
                dispatcher.wake_if_idle()
                self._loop.call_later(CHECK_S, self._check)
                return
            self._waiting.popleft()
            if not reached.done():
                reached.set_result(None)
