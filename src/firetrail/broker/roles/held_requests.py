"""Requests that wait while the master changes, so that clients see a pause and no refusal."""

import asyncio
from collections.abc import Callable
from functools import partial

from firetrail.broker.replica.relay import RELAYED, expiry, not_master
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, respond
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

HELD_MAX = 10_000
"""Maximum number of requests that wait; further ones are refused."""
HELD_BYTES = 64 << 20
"""Maximum size of the frames of all requests that wait."""


class _WaitingRequest:
    """A request that waits."""

    __slots__ = ("connection", "request", "timer")

    def __init__(self, connection: Connection, request: RemotingCommand) -> None:
        self.connection = connection
        self.request = request
        self.timer: asyncio.TimerHandle | None = None


class HeldRequests:
    """Requests that wait, in the order of their arrival.

    The server does not wait for them when it drains: their handlers have not begun.
    """

    def __init__(self, ask: Callable[[Connection, RemotingCommand], Answer]) -> None:
        """Start without requests.

        Args:
            ask: Handles a request in the role that the broker has then.
        """
        self._ask = ask
        self._held: dict[_WaitingRequest, None] = {}
        self._bytes = 0
        self._answering: set[asyncio.Future[RemotingCommand | None]] = set()

    def hold(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Let a request wait until :meth:`release`; this is a handler.

        A request that a slave passes on is refused: it waits there.
        """
        if request.remark == RELAYED:
            return not_master(request)
        if len(self._held) >= HELD_MAX or self._bytes + request.size > HELD_BYTES:
            return _refusal(request)
        held = _WaitingRequest(connection, request)
        loop = asyncio.get_running_loop()
        held.timer = loop.call_at(expiry(request), self._give_up, held)
        self._held[held] = None
        self._bytes += request.size
        return None

    def release(self) -> None:
        """Handle all requests that wait."""
        for held in list(self._held):
            self._remove(held)
            # A client that has gone may have sent the same message to another broker.
            if held.request.is_one_way or not held.connection.is_closed:
                self._handle(held.connection, held.request)

    def refuse(self) -> None:
        """Refuse all requests that wait."""
        for held in list(self._held):
            self._give_up(held)

    def _give_up(self, held: _WaitingRequest) -> None:
        self._remove(held)
        respond(held.connection, held.request, _refusal(held.request))

    def _remove(self, held: _WaitingRequest) -> None:
        del self._held[held]
        self._bytes -= held.request.size
        if held.timer is not None:
            held.timer.cancel()

    def _handle(self, connection: Connection, request: RemotingCommand) -> None:
        answer = self._ask(connection, request)
        if answer is None or isinstance(answer, RemotingCommand):
            respond(connection, request, answer)
            return
        answering = asyncio.ensure_future(answer)
        self._answering.add(answering)
        answering.add_done_callback(partial(self._answered, connection, request))

    def _answered(
        self,
        connection: Connection,
        request: RemotingCommand,
        answering: asyncio.Future[RemotingCommand | None],
    ) -> None:
        self._answering.discard(answering)
        if not answering.cancelled():  # a server that stops has cancelled it
            respond(connection, request, answering.result())


def _refusal(request: RemotingCommand) -> RemotingCommand:
    return request.answer(
        ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is changing its role; retry in a moment"
    )
