"""The server side of the protocol: accepts connections and dispatches requests to handlers.

Requests are handled in the order of their arrival, but those that keep clients alive (such
as heartbeats) go first. After each slice of requests the event loop runs other tasks, so a flood of
requests delays only itself. A client that exceeds its buffer limits is not read from until they
drain.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from firetrail.auth.caller import proves
from firetrail.remoting.connections.backlog import Backlog
from firetrail.remoting.connections.buffer_budget import BufferBudget
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import (
    Answer,
    Handler,
    LaterAnswer,
    WaitingHandler,
    answer_to,
    outcome_of,
    respond,
)
from firetrail.remoting.messages.requests import COSTLY, URGENT
from firetrail.remoting.servers.acceptor import Acceptor, wait_until
from firetrail.remoting.servers.client_limits import QUEUED_MAX, UNHANDLED_MAX, ServerLimits
from firetrail.remoting.servers.costly_requests import CostlyRequests
from firetrail.remoting.servers.refusals import CompoundRequest, Refusals
from firetrail.remoting.wire.codes import ResponseCode, request_name
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import System
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsMode

BUSY = "[OVERLOAD]system busy, start flow control for a while"
"""RocketMQ's remark, which stock clients look for."""
_SLICE = 128
"""Number of requests that are handled before the event loop runs other tasks."""
_SERVER_FULL = "the server has too many bytes of requests waiting"
_TOO_FAST = "its address sends more than is allowed per second"
_QUEUE_FULL = "the connection has too many requests waiting"
_SUCCESS = int(ResponseCode.SUCCESS)
RECORDED_S = 1.0
"""The time that an answer waits until it is recorded. A disk that is slower does not block
requests."""

_log = logging.getLogger(__name__)

RequestGuard = Callable[[Connection, RemotingCommand], RemotingCommand | None]
"""Returns the refusal of a request that came over a socket, or None if it may be handled."""
RequestAudit = Callable[[Connection, RemotingCommand, RemotingCommand | None], Future[None] | None]
"""A function that records a request with its answer, and returns an awaitable before which the
answer must not be sent, or None."""

T = TypeVar("T")


class RemotingServer:
    """Accepts connections, and answers their requests with handlers.

    Attributes:
        costly: The turns of costly requests. Servers in one event loop have the same.
        on_closed: Called with each connection that has ended. Default: None.
        running: How many requests that take time are in progress, by code.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        system: System,
        limits: ServerLimits | None = None,
        guard: RequestGuard | None = None,
        tls: ServerTls | None = None,
        audit: RequestAudit | None = None,
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            handlers: The handlers by request code.
            system: The clock, and the limit of descriptors.
            limits: Limits for clients. Default: ``ServerLimits()``.
            guard: Decides about every request. Default: None, which allows all.
            tls: The TLS of the ports. Default: plaintext only.
            audit: Called with every request before its answer is sent. Default: None.
        """
        self._audit = audit
        self._handlers = handlers
        self._guard = guard
        self._tls = tls if tls is not None and tls.mode is not TlsMode.DISABLED else None
        self._limits = limits or ServerLimits()
        self._now = system.clock.monotonic
        self._refusals = Refusals(self._now)
        self._acceptor = Acceptor[Connection](
            self._new_connection, self._check, self._limits, system, self._tls
        )
        self.connections = self._acceptor.connections
        self._running_max = self._limits.running
        self._waiting_max = self._limits.waiting_requests
        self._body_max, self._bodies_max = self._limits.body, self._limits.bodies
        self.on_closed: Callable[[Connection], None] | None = None
        self._urgent: deque[tuple[Connection, RemotingCommand]] = deque()
        self._ordinary: deque[tuple[Connection, RemotingCommand]] = deque()
        self._is_scheduled = False
        self._waiting_bytes = 0
        self.running: Counter[int] = Counter()
        self._working: Counter[int] = Counter()  # of codes with a limit: handlers, not those queued
        self._tasks: set[asyncio.Task[Any]] = set()
        self._later = 0  # requests that a callback will answer
        self._budget = BufferBudget(self._limits.buffered_bytes, self._limits.stranger_bytes)
        self.costly = CostlyRequests(self._now)
        self._has_rates = bool(self._limits.request_rate or self._limits.byte_rate)
        # Requests of connections whose peers do not read.
        self._deferred: dict[Connection, deque[RemotingCommand]] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen on an address, and return the port; port 0 picks a free one. May be repeated.

        Raises:
            AddressInUseError: The port is in use.
            OSError: The address cannot be bound.
        """
        return await self._acceptor.listen(host, port)

    @property
    def listens(self) -> list[str]:
        """The addresses ``ip:port`` that the server listens on."""
        return self._acceptor.addresses

    async def stop(self, grace_s: float = 3.0) -> None:
        """Accept no more requests, answer those in progress, and close all connections."""
        self._acceptor.close()
        for connection in self.connections:
            connection.hold("the server is stopping")
        deadline = asyncio.get_running_loop().time() + grace_s
        await self.drain(grace_s)
        for connection in list(self.connections):
            connection.close()
        await self._acceptor.disconnect(deadline)

    async def drain(self, grace_s: float = 3.0) -> None:
        """Wait until all requests are answered that have arrived; connections stay open.

        A request that takes longer than ``grace_s`` is cancelled. A send that waits for replicas
        only is answered at its time limit, or when the store is closed, if its connection is still
        open then.
        """
        deadline = asyncio.get_running_loop().time() + grace_s
        await wait_until(lambda: not self._is_busy, deadline)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _is_busy(self) -> bool:
        return bool(self._urgent or self._ordinary or self._tasks or self._later)

    # -- connections --------------------------------------------------------------------------

    def _new_connection(self) -> Connection:
        limits = self._limits
        return Connection(
            self,
            limits.frames,
            self._budget,
            self._acceptor.log,
            limits.unread_bytes,
            tls=self._tls,
        )

    def opened(self, connection: Connection) -> None:
        """Accept the connection, or refuse it if there are too many clients."""
        self._acceptor.opened(connection)

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """Forget the connection."""
        if self._acceptor.closed(connection):
            self._deferred.pop(connection, None)
            if self.on_closed is not None:
                self.on_closed(connection)

    def received(self, connection: Connection, requests: Sequence[RemotingCommand]) -> None:
        """Queue the requests."""
        for request in requests:
            self._queue_of(request).append((connection, request))
            self._waiting_bytes += request.size
        connection.backlog.requests += len(requests)
        if self._has_rates:
            self._charge(connection, requests)
        if _is_full(connection.backlog, QUEUED_MAX):
            connection.hold(_QUEUE_FULL)
        if self._waiting_bytes > self._limits.waiting_bytes:
            self._hold(self.connections)
        self._schedule()

    def _charge(self, connection: Connection, requests: Sequence[RemotingCommand]) -> None:
        """Count the requests, and pause the connection if its address sends too fast."""
        share = self._acceptor.share(connection)
        if share is None:
            return
        size = sum(request.size for request in requests)
        pause = share.charge(len(requests), size, self._now())
        if pause:
            connection.hold(_TOO_FAST)
            loop = asyncio.get_running_loop()
            loop.call_later(pause, connection.release, _TOO_FAST)

    def _hold(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            connection.hold(_SERVER_FULL)

    def _check(self, connection: Connection, now: float) -> None:
        """Close a connection that is idle, or whose current frame takes too long to arrive."""
        began = None if connection.is_held else connection.unfinished_since
        if began is not None and now - began > self._limits.frame_s:
            connection.drop(f"a frame did not arrive within {self._limits.frame_s:g} s")
        elif now - connection.last_heard > 2 * self._limits.idle_s:
            connection.abort()  # the close below waits for data that the peer never reads
        elif now - connection.last_heard > self._limits.idle_s:
            connection.close()

    # -- requests -----------------------------------------------------------------------------

    def _work(self) -> None:
        for _ in range(_SLICE):
            if self._urgent:
                connection, request = self._urgent.popleft()
            elif self._ordinary:
                connection, request = self._ordinary.popleft()
            else:
                self._is_scheduled = False
                return
            if connection.is_unread and not connection.is_closed:
                self._defer(connection, request)
                continue
            self._dequeued(connection)
            self._handle(connection, request)
        asyncio.get_running_loop().call_soon(self._work)

    def _defer(self, connection: Connection, request: RemotingCommand) -> None:
        """Keep a request until the peer reads its answers; its bytes count as those of answers."""
        self._deferred.setdefault(connection, deque()).append(request)
        self._forget_bytes(request)
        connection.backlog.deferred_bytes += request.size
        connection.account(progress=False)

    def drained(self, connection: Connection) -> None:
        """Continue with the requests of a connection whose peer has read its answers."""
        connection.backlog.deferred_bytes = 0
        connection.account(progress=True)
        for request in reversed(self._deferred.pop(connection, ())):
            self._waiting_bytes += request.size
            self._queue_of(request).appendleft((connection, request))
        self._schedule()

    def _queue_of(self, request: RemotingCommand) -> deque[tuple[Connection, RemotingCommand]]:
        return self._urgent if request.code in URGENT else self._ordinary

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._work)

    def _dequeued(self, connection: Connection) -> None:
        backlog = connection.backlog
        backlog.requests -= 1
        if not backlog.requests:
            backlog.bytes = 0
        if connection.is_held and not _is_full(backlog, QUEUED_MAX // 2):
            connection.release(_QUEUE_FULL)

    def ask(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Answer a request of this process, within the limits of those that arrive on sockets.

        Stopping and draining the server waits for the answer, too.
        """
        answer = self._too_large(request) or self._answer(connection, request)
        if answer is None or isinstance(answer, RemotingCommand):
            self._note(connection, request, answer)
            return answer
        return self._begin(request, self._outcome(connection, request, answer))

    def _handle(self, connection: Connection, request: RemotingCommand) -> None:
        answer: Answer = self._too_large(request)  # the guard decodes bodies
        if answer is None and self._guard is not None:
            answer = self._guard(connection, request)
        if answer is None:
            answer = self._answer(connection, request)
        if answer is None or isinstance(answer, RemotingCommand):
            self._respond(connection, request, answer)
        elif isinstance(answer, LaterAnswer):
            self.running[request.code] += 1
            self._later += 1
            answer.then(partial(self._finish_given, connection, request))
        else:
            self._begin(request, self._await(connection, request, answer))

    def _too_large(self, request: RemotingCommand) -> RemotingCommand | None:
        """Return the refusal of a request whose body is too large; None if it is not."""
        most = self._bodies_max.get(request.code, self._body_max)
        if len(request.body) <= most:
            return None
        return request.answer(
            ResponseCode.INVALID_PARAMETER,
            f"the body of {request_name(request.code)} has {len(request.body)} bytes; at most "
            f"{most} are allowed. Send less in one request",
        )

    def _answer(self, connection: Connection, request: RemotingCommand) -> Answer:
        code = request.code
        if self.running.get(code, 0) >= self._waiting_max:
            return request.answer(ResponseCode.SYSTEM_BUSY, BUSY)
        handler = self._handlers.get(code)
        if isinstance(handler, WaitingHandler) and (awaited := handler.wait()) is not None:
            return self._answer_after(awaited, connection, request)
        return self._answer_now(connection, request)

    async def _answer_after(
        self, awaited: Awaitable[None], connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        await awaited
        answer = self._answer_now(connection, request)
        return answer if answer is None or isinstance(answer, RemotingCommand) else await answer

    def _answer_now(self, connection: Connection, request: RemotingCommand) -> Answer:
        code = request.code
        if code in COSTLY and (share := self._acceptor.share(connection)) is not None:
            handle = partial(self._call, connection, request)
            return self.costly.answer(share, connection, request, handle)
        self.costly.others += 1
        return self._call(connection, request)

    def _call(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Call the handler, unless its code has a limit and as many are working already."""
        code = request.code
        most = self._running_max.get(code)
        if most is not None and self._working[code] >= most:
            return request.answer(ResponseCode.SYSTEM_BUSY, BUSY)
        answer = answer_to(self._handlers, connection, request)
        if most is None or answer is None or isinstance(answer, RemotingCommand):
            return answer
        self._working[code] += 1
        return self._until_done(code, answer)

    async def _until_done(
        self, code: int, answer: Awaitable[RemotingCommand | None]
    ) -> RemotingCommand | None:
        try:
            return await answer
        finally:
            self._working[code] -= 1

    def _begin(self, request: RemotingCommand, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        self.running[request.code] += 1
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _finish_given(
        self, connection: Connection, request: RemotingCommand, response: RemotingCommand | None
    ) -> None:
        self.running[request.code] -= 1
        self._later -= 1
        self._respond(connection, request, response)

    def _respond(
        self, connection: Connection, request: RemotingCommand, response: RemotingCommand | None
    ) -> None:
        """Record a request and send its response, which may have to wait for the record."""
        recorded = self._note(connection, request, response)
        if recorded is None:
            self._finish(connection, request, response)
        else:
            self._begin(request, self._finish_later(connection, request, response, recorded))

    async def _await(
        self,
        connection: Connection,
        request: RemotingCommand,
        answer: Awaitable[RemotingCommand | None],
    ) -> None:
        response: RemotingCommand | None = None
        try:
            response = await self._outcome(connection, request, answer)
        finally:
            self._finish(connection, request, response)

    async def _finish_later(
        self,
        connection: Connection,
        request: RemotingCommand,
        response: RemotingCommand | None,
        recorded: Future[None],
    ) -> None:
        try:
            await _wait_for(recorded)
        finally:
            self.running[request.code] -= 1
            self._finish(connection, request, response)

    async def _outcome(
        self,
        connection: Connection,
        request: RemotingCommand,
        answer: Awaitable[RemotingCommand | None],
    ) -> RemotingCommand | None:
        try:
            response = await outcome_of(request, answer)
            recorded = self._note(connection, request, response)
            if recorded is not None:
                await _wait_for(recorded)
            return response
        finally:
            self.running[request.code] -= 1

    def _note(
        self, connection: Connection, request: RemotingCommand, response: RemotingCommand | None
    ) -> Future[None] | None:
        """Log and record a request; return an awaitable before which its answer must not be sent,
        or None."""
        if response is not None and response.code:
            self._refusals.note(connection.peer, request, response)
        elif isinstance(request, CompoundRequest):
            for refusal in request.refusals.values():
                self._refusals.note(connection.peer, request, refusal)
        if self._audit is None:
            return None
        return self._audit(connection, request, response)

    def _finish(
        self, connection: Connection, request: RemotingCommand, response: RemotingCommand | None
    ) -> None:
        if response is not None and not request.is_one_way:
            respond(connection, request, response)
            if response.code == _SUCCESS and not connection.is_proven and proves(request.caller):
                self._budget.prove(connection)
                self._acceptor.proven(connection)
        self._forget_bytes(request)

    def _forget_bytes(self, request: RemotingCommand) -> None:
        full = self._waiting_bytes > self._limits.waiting_bytes
        self._waiting_bytes -= request.size
        if full and self._waiting_bytes <= self._limits.waiting_bytes:
            for held in self.connections:
                held.release(_SERVER_FULL)


def _is_full(backlog: Backlog, most: int) -> bool:
    return backlog.requests > most or backlog.bytes > UNHANDLED_MAX


async def _wait_for(recorded: Future[None]) -> None:
    await asyncio.wait([asyncio.wrap_future(recorded)], timeout=RECORDED_S)
