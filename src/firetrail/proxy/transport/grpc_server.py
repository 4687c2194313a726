"""The server of gRPC: accepts connections, with TLS or without it on the same port."""

import asyncio
from collections import deque
from typing import Any

from firetrail.proxy.transport.call import Methods
from firetrail.proxy.transport.grpc_connection import SLICE, GrpcConnection
from firetrail.proxy.transport.grpc_limits import GrpcLimits, MemoryAccount
from firetrail.proxy.transport.server_call import SingleCall
from firetrail.remoting.connections.buffer_budget import BufferBudget
from firetrail.remoting.servers.acceptor import Acceptor, wait_until
from firetrail.remoting.servers.fair_shares import FairShares
from firetrail.remoting.servers.server_ports import FREE_IT
from firetrail.system import System
from firetrail.tls.server_tls import ServerTls


class GrpcServer:
    """Serves methods to gRPC clients.

    Args:
        methods: The methods by path.
        system: The clock, and the limit of descriptors.
        limits: The limits of clients.
        tls: The treatment of clients with TLS and without it; None refuses the former.

    Attributes:
        port: The port that the server listens on; 0 before its start.
    """

    def __init__(
        self,
        methods: Methods,
        system: System,
        limits: GrpcLimits | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self.methods = methods
        self.limits = limits or GrpcLimits()
        self.tls = tls
        self.now = system.clock.monotonic
        self.memory = MemoryAccount(self.limits.server_bytes)
        self.budget = BufferBudget(self.limits.server_bytes, self.limits.stranger_bytes)
        self.tasks: set[asyncio.Future[Any]] = set()
        remedy = "Close calls that wait, or make fewer at once"
        self.shares = FairShares("gRPC calls", remedy, lambda: self.limits.calls, self.now)
        self._acceptor = Acceptor[GrpcConnection](
            lambda: GrpcConnection(self), GrpcConnection.check, self.limits, system, tls
        )
        self.connections = self._acceptor.connections
        self.log = self._acceptor.log
        self._has_rates = bool(self.limits.request_rate or self.limits.byte_rate)
        self._waiting: deque[SingleCall] = deque()
        self.port = 0

    async def start(self, host: str, port: int, remedy: str = FREE_IT) -> int:
        """Listen on an address, and return the port.

        Args:
            host: The address.
            port: The port; 0 picks a free one.
            remedy: The remedy if the port is in use. Default: stop the other program, or
                choose another port.

        Raises:
            AddressInUseError: The port is in use.
            OSError: The address cannot be bound.
        """
        self.port = await self._acceptor.listen(host, port, remedy)
        return self.port

    @property
    def listens(self) -> list[str]:
        """The addresses ``ip:port`` that the server listens on."""
        return self._acceptor.addresses

    async def stop(self, grace_s: float = 3.0) -> None:
        """Accept no more calls, wait for those in progress, and close all connections.

        Calls that take longer than ``grace_s`` end with UNAVAILABLE; streams do so at once.
        """
        self._acceptor.close()
        for connection in list(self.connections):
            connection.drain()
        until = asyncio.get_running_loop().time() + grace_s
        await wait_until(lambda: self.shares.total == 0, until)
        for connection in list(self.connections):
            connection.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._acceptor.disconnect(until)

    # -- called by connections ----------------------------------------------------------------

    def opened(self, connection: GrpcConnection) -> None:
        """Accept the connection, or refuse it if there are too many."""
        share = self._acceptor.opened(connection)
        connection.rates = share if self._has_rates else None

    def proven(self, connection: GrpcConnection) -> None:
        """Keep the connection until it ends."""
        self._acceptor.proven(connection)

    def closed(self, connection: GrpcConnection) -> None:
        """Forget the connection."""
        self._acceptor.closed(connection)

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
