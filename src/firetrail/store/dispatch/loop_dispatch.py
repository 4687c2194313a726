"""Dispatch in the event loop that puts messages, instead of the dispatcher's thread."""

import asyncio
from collections.abc import Awaitable
from threading import get_ident

from firetrail.store.dispatch.catch_ups import CatchUps
from firetrail.store.dispatch.dispatcher import Dispatcher
from firetrail.store.log.commit_log import CommitLog

LATER_S = 0.01
"""The time that a message that is not urgent may wait to be dispatched with others."""


class LoopDispatch:
    """Dispatches the messages that one event loop puts; before :meth:`attach`, there is no such
    loop.

    All puts of one iteration of the loop are dispatched together, at its end. A request that a
    client makes after it has got the response to a send is handled after that. On a SYNC_MASTER the
    same is true of messages that replicas confirm to the loop.
    """

    def __init__(self, log: CommitLog, dispatcher: Dispatcher) -> None:
        self._log = log
        self.dispatcher = dispatcher
        """Dispatches what other threads put."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._soon: asyncio.Handle | None = None  # in this iteration of the loop
        self._later: asyncio.TimerHandle | None = None
        self._catch_ups: CatchUps | None = None
        self.thread = 0
        """The id of the thread that runs the loop; 0 before :meth:`attach`."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Dispatch in this loop, which the calling thread runs."""
        self._loop, self.thread = loop, get_ident()
        self._catch_ups = CatchUps(loop, self.dispatcher)

    def appended(self, is_urgent: bool) -> None:
        """Dispatch a message that the loop has put, in the thread of the loop.

        Args:
            is_urgent: Whether to dispatch it in this iteration. Otherwise it is dispatched with the
                next urgent one, or after LATER_S.
        """
        loop = self._loop
        assert loop is not None
        if self._soon is not None:
            return
        if is_urgent:
            self._soon = loop.call_soon(self._dispatch)
        elif self._later is None:
            self._later = loop.call_later(LATER_S, self._dispatch)

    def confirmed(self) -> None:
        """Dispatch messages that replicas have confirmed."""
        if get_ident() == self.thread:
            self.appended(is_urgent=True)
        else:
            self.dispatcher.wake_if_idle()

    def _dispatch(self) -> None:
        self._soon = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self.dispatcher.relieve()

    def catch_up(self) -> Awaitable[None] | None:
        """Dispatch messages that consumers may see now; return an awaitable of the rest, None
        without any.

        Messages that a producer put without waiting (``WAIT=false``) are not part of it before they
        are synced, if the store has SYNC_FLUSH.
        """
        self._log.commit()  # bytes in a write buffer are not readable
        if self.dispatcher.behind:
            self.dispatcher.help()
        if not self.dispatcher.behind or self._catch_ups is None:
            return None
        return self._catch_ups.wait(self._log.dispatchable())
