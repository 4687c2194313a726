"""The order in which costly requests run: one at a time, and each address in its turn."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import thread_time
from typing import NamedTuple

from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer
from firetrail.remoting.servers.addresses import AddressShare
from firetrail.remoting.servers.client_limits import COSTLY_QUEUED_MAX, COSTLY_SHARE, COSTLY_WAIT_S
from firetrail.remoting.wire.codes import ResponseCode, request_name
from firetrail.remoting.wire.command import RemotingCommand

IDLE_S = 0.1
"""A server is idle if all requests that it handled in this time were costly."""
_POLL_S = 0.02
"""Interval at which queued requests are looked at while none of them may run."""


class _QueuedRequest(NamedTuple):
    """A costly request that waits for its turn."""

    connection: Connection
    turn: asyncio.Future[bool]
    """Its result is whether the request may run. False: it has waited for too long."""
    until: float


class CostlyRequests:
    """Runs costly requests, at most one in each iteration of the event loop.

    Requests that arrive meanwhile wait for at most one costly request. The addresses with queued
    requests take turns. An address that has used up its share of the time has its turn only while
    the server is idle, or when the share is refilled.

    Servers that run in the same event loop share an object of this class, so that one is not
    considered idle while another one is busy.

    Args:
        now: A monotonic clock in seconds.

    Attributes:
        others: The number of other requests that were handled. The servers count them.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.others = 0
        self._others_seen = 0
        self._idle_since = now()
        # Calls _next; None while no request is queued and none has just run.
        self._wake: asyncio.Handle | None = None
        self._is_polling = False
        # The address whose turn is next comes first.
        self._queues: dict[AddressShare, deque[_QueuedRequest]] = {}

    def answer(
        self,
        share: AddressShare,
        connection: Connection,
        request: RemotingCommand,
        handle: Callable[[], Answer],
    ) -> Answer:
        """Answer a request at once or later, or refuse it with SYSTEM_BUSY.

        Args:
            share: The share of the client's address.
            connection: The connection that the request came over.
            request: The request.
            handle: Calls its handler.
        """
        now = self._now()
        has_time = share.costly.level(now) > 0
        if has_time and self._wake is None:
            self._wake = asyncio.get_running_loop().call_soon(self._next)
            return _charged(share, handle)
        queue = self._queues.setdefault(share, deque())
        if len(queue) >= COSTLY_QUEUED_MAX:
            return request.answer(
                ResponseCode.SYSTEM_BUSY,
                f"{len(queue)} costly requests of {connection.host}, such as "
                f"{request_name(request.code)}, are waiting; wait for their answers",
            )
        turn = asyncio.get_running_loop().create_future()
        queue.append(_QueuedRequest(connection, turn, now + COSTLY_WAIT_S))
        if self._wake is None or (self._is_polling and has_time):
            self._wake_in(0)
        return _answer_later(share, connection, request, handle, turn)

    def _next(self) -> None:
        """Let the next request run in the coming iteration of the event loop."""
        now = self._now()
        is_chosen = self._choose(now, self._is_idle(now))
        self._refuse_late(now)
        if is_chosen:
            self._wake_in(0)
        elif self._queues:
            self._wake_in(_POLL_S)
        else:
            self._wake = None

    def _wake_in(self, delay_s: float) -> None:
        """Call ``_next`` in the coming iteration of the event loop, or after a delay."""
        if self._is_polling and self._wake is not None:
            self._wake.cancel()
        loop = asyncio.get_running_loop()
        self._is_polling = delay_s > 0
        self._wake = loop.call_later(delay_s, self._next) if delay_s else loop.call_soon(self._next)

    def _is_idle(self, now: float) -> bool:
        if self.others != self._others_seen:
            self._others_seen, self._idle_since = self.others, now
        return now - self._idle_since >= IDLE_S

    def _choose(self, now: float, is_idle: bool) -> bool:
        """Let the first request run that may; return False if none may."""
        for share, queue in self._queues.items():
            if not is_idle and share.costly.level(now) <= 0:
                continue
            for queued in queue:
                if not queued.connection.is_unread and not queued.turn.done():
                    queue.remove(queued)
                    queued.turn.set_result(True)
                    self._queues[share] = self._queues.pop(share)
                    return True
        return False

    def _refuse_late(self, now: float) -> None:
        """Refuse requests that have waited for too long; forget those that were cancelled."""
        for share, queue in list(self._queues.items()):
            while queue and (queue[0].until <= now or queue[0].turn.done()):
                queued = queue.popleft()
                if not queued.turn.done():
                    queued.turn.set_result(False)
            if not queue:
                del self._queues[share]


def _charged(share: AddressShare, handle: Callable[[], Answer]) -> Answer:
    """Call a handler, and charge its time to an address."""
    began = thread_time()  # without the time that other processes had
    answer = handle()
    share.costly.charge(thread_time() - began)
    return answer


async def _answer_later(
    share: AddressShare,
    connection: Connection,
    request: RemotingCommand,
    handle: Callable[[], Answer],
    turn: Awaitable[bool],
) -> RemotingCommand | None:
    if not await turn:
        return request.answer(
            ResponseCode.SYSTEM_BUSY,
            f"{request_name(request.code)} has waited for {COSTLY_WAIT_S:g} s: while the server "
            f"handles other requests, costly ones of {connection.host} may take "
            f"{COSTLY_SHARE:.0%} of its time; ask less often",
        )
    if connection.is_closed:
        return None
    answer = _charged(share, handle)
    return answer if answer is None or isinstance(answer, RemotingCommand) else await answer
