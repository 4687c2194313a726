"""The server of gRPC: accepts connections, with TLS or without it on the same port."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from firetrail.pace.periodic import GuardedStep, every
from firetrail.proxy.call import Methods
from firetrail.proxy.transport.grpc_connection import SLICE, GrpcConnection
from firetrail.proxy.transport.limits import GrpcLimits, MemoryAccount
from firetrail.proxy.transport.server_call import SingleCall
from firetrail.remoting.addresses import ClientAddresses, Share
from firetrail.remoting.binding import FREE_IT, binding
from firetrail.remoting.buffer_budget import BufferBudget
from firetrail.remoting.connection import address_text
from firetrail.remoting.limited_log import LimitedLog
from firetrail.system import SYSTEM
from firetrail.tls.server_tls import ServerTls

_SWEEP_S = 1.0
"""Interval at which idle, dead and slow clients are looked for."""
_POLL_S = 0.005

_log = logging.getLogger(__name__)


class GrpcServer:
    """Serves methods to gRPC clients.

    Args:
        methods: the methods by path.
        limits: what clients may cost.
        tls: how clients that start with TLS, and others, are treated; None refuses the former.
    """

    def __init__(
        self,
        methods: Methods,
        limits: GrpcLimits | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self.methods = methods
        self.limits = limits or GrpcLimits()
        self.tls = tls
        self.memory = MemoryAccount(self.limits.server_bytes)
        self.budget = BufferBudget(self.limits.server_bytes, self.limits.stranger_bytes)
        self.tasks: set[asyncio.Future[Any]] = set()
        self.calls = 0
        self.connections: set[GrpcConnection] = set()
        self.log = LimitedLog(_log, SYSTEM.clock.monotonic)
        self._addresses = ClientAddresses(self.limits, SYSTEM.clock.monotonic)
        self._shares: dict[GrpcConnection, Share] = {}
        self._has_rates = bool(self.limits.request_rate or self.limits.byte_rate)
        self._waiting: deque[SingleCall] = deque()
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, remedy: str = FREE_IT) -> int:
        """Listen on an address, and return the port.

        Args:
            host: The address.
            port: The port; 0 picks a free one.
            remedy: What the user can do if the port is in use. Default: stop the other program, or
                choose another port.

        Raises:
            AddressInUseError: The port is in use.
            OSError: The address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        with binding(host, port, remedy):
            self._listener = await loop.create_server(
                lambda: GrpcConnection(self), host, port, backlog=1024
            )
        self._sweeper = loop.create_task(self._sweep())
        return self.port

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        assert self._listener is not None, "the server has been started"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def listens(self) -> list[str]:
        """The addresses ``ip:port`` that the server listens on."""
        assert self._listener is not None, "the server has been started"
        return [address_text(socket.getsockname()) for socket in self._listener.sockets]

    async def stop(self, grace_s: float = 3.0) -> None:
        """Accept no more calls, wait for those in progress, and close all connections.

        Calls that take longer than ``grace_s`` end with UNAVAILABLE; streams do so at once.
        """
        if self._listener is None or self._sweeper is None:
            return
        self._listener.close()
        self._sweeper.cancel()
        for connection in list(self.connections):
            connection.drain()
        until = asyncio.get_running_loop().time() + grace_s
        await self._wait(lambda: self.calls == 0, until)
        for connection in list(self.connections):
            connection.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._wait(lambda: not self.connections, until)
        for connection in list(self.connections):
            connection.abort()
        await self._listener.wait_closed()

    async def _wait(self, is_done: Callable[[], bool], until: float) -> None:
        while not is_done() and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(_POLL_S)

    def _sweep(self) -> Coroutine[None, None, None]:
        """Return the task that keeps the server tidy."""
        steps = [
            GuardedStep(self._addresses.sweep, "addresses could not be forgotten", _log),
            GuardedStep(self._check_all, "connections could not be checked", _log),
        ]
        if self.tls is not None:
            steps.append(GuardedStep(self.tls.poll, "certificates could not be read again", _log))
        return every(_SWEEP_S, *steps)

    def _check_all(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            try:
                connection.check(now)
            except Exception:
                _log.exception("%s could not be checked; it is disconnected", connection.peer)
                connection.abort()

    # -- called by connections ----------------------------------------------------------------

    def opened(self, connection: GrpcConnection) -> None:
        """Accept the connection, or refuse it if there are too many."""
        share = self._addresses.open(connection.host)
        if isinstance(share, str):
            text = f"refused a connection from {connection.peer}: {share}"
            self.log.log(logging.WARNING, "refused connection", text)
            connection.abort()
            return
        self._shares[connection] = share
        connection.rates = share if self._has_rates else None
        self.connections.add(connection)

    def closed(self, connection: GrpcConnection) -> None:
        """Forget the connection."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._addresses.close(self._shares.pop(connection))

    def start_later(self, call: SingleCall) -> None:
        """Start the call in a later iteration of the event loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._start_some)
        self._waiting.append(call)

    def _start_some(self) -> None:
        for _ in range(min(SLICE, len(self._waiting))):
            self._waiting.popleft().start()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._start_some)
