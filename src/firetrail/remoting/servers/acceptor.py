"""The part of a server that accepts connections, counts them and looks after them.

The servers of remoting and of gRPC have one each, with the same limits, refusals and checks of
connections.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Generic, Protocol, TypeVar

from firetrail.pace.limited_log import LimitedLog
from firetrail.pace.periodic import GuardedStep, every
from firetrail.remoting.connections.unexpected_errors import log_unexpected
from firetrail.remoting.servers.addresses import AddressShare, ClientAddresses
from firetrail.remoting.servers.client_limits import ConnectionLimits
from firetrail.remoting.servers.server_ports import FREE_IT, Listeners
from firetrail.remoting.servers.slots import ConnectionSlots
from firetrail.system import System
from firetrail.tls.server_tls import ServerTls

SWEEP_S = 1.0
"""Interval at which idle, dead and slow clients are looked for."""
_POLL_S = 0.005
_LATE = "it has not begun, or not finished, the TLS handshake in time"

_log = logging.getLogger(__name__)


class AcceptedConnection(Protocol):
    """A connection, as an acceptor sees it."""

    @property
    def host(self) -> str:
        """The address of the client."""

    @property
    def peer(self) -> str:
        """The address and port of the client."""

    @property
    def handshake_deadline(self) -> float | None:
        """The time of the event loop by which the TLS handshake has to end; None if it has."""

    def abort(self) -> None:
        """Close the connection at once."""

    def drop(self, reason: str) -> None:
        """Close the connection at once, and log the reason."""


C = TypeVar("C", bound=AcceptedConnection)


class Acceptor(Generic[C]):
    """Listens on ports, and keeps the connections of a server within their limits.

    Args:
        connected: Returns the protocol of each accepted connection, which calls :meth:`opened` and
            :meth:`closed`.
        check: Ends a connection if it is idle, dead or slow at a time of the event loop. Those that
            are late with the TLS handshake are dropped before.
        limits: The limits of clients.
        system: The clock, and the limit of descriptors.
        tls: The TLS of the ports, whose files are looked at again. Default: none.

    Attributes:
        connections: The accepted connections.
        log: For lines that clients can cause.
    """

    def __init__(
        self,
        connected: Callable[[], asyncio.BaseProtocol],
        check: Callable[[C, float], None],
        limits: ConnectionLimits,
        system: System,
        tls: ServerTls | None = None,
    ) -> None:
        self.connections: set[C] = set()
        self.log = LimitedLog(_log, system.clock.monotonic)
        self._check = check
        self._tls = tls
        self._listeners = Listeners(connected)
        self._addresses = ClientAddresses(limits, system.clock.monotonic)
        self._slots = ConnectionSlots(limits.connections, system.files.descriptor_limit)
        self._shares: dict[C, AddressShare] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, remedy: str = FREE_IT) -> int:
        """Listen on an address, and return the port; port 0 picks a free one. May be repeated.

        Args:
            host: The address.
            port: The port.
            remedy: The remedy if the port is in use. Default: stop the other program, or
                choose another port.

        Raises:
            AddressInUseError: The port is in use.
            OSError: The address cannot be bound.
        """
        bound = await self._listeners.open(host, port, remedy)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        return bound

    @property
    def addresses(self) -> list[str]:
        """The addresses ``ip:port`` that the server listens on."""
        return self._listeners.addresses

    def close(self) -> None:
        """Accept no more connections, and stop looking after those that are open."""
        self._listeners.close()
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def disconnect(self, until: float) -> None:
        """Wait until all connections have ended, which have been closed; abort those that are late.

        Args:
            until: The time at which they have to have ended, in the time of the event loop.
        """
        await wait_until(lambda: not self.connections, until)
        for connection in list(self.connections):
            connection.abort()
        await self._listeners.wait_closed()

    def opened(self, connection: C) -> AddressShare | None:
        """Count a connection and return its share; None if it is refused, and aborted.

        If all slots are taken, the oldest connection that is not proven is closed for it.
        """
        share = self._admit(connection)
        if isinstance(share, str):
            text = f"refused a connection from {connection.peer}: {share}"
            self.log.log(logging.WARNING, "refused connection", text)
            connection.abort()
            return None
        self._shares[connection] = share
        self.connections.add(connection)
        return share

    def _admit(self, connection: C) -> AddressShare | str:
        """Return the share of a connection with a slot, or why it is refused."""
        share = self._addresses.open(connection.host)
        if isinstance(share, str):
            return share
        lack = self._slots.take(connection)
        if lack is None:
            return share
        self._addresses.close(share)
        return lack

    def proven(self, connection: C) -> None:
        """Note that a connection is proven: it keeps its slot until it ends."""
        self._slots.prove(connection)

    def closed(self, connection: C) -> bool:
        """Forget a connection; return whether it had been accepted."""
        share = self._shares.pop(connection, None)
        if share is None:
            return False
        self.connections.discard(connection)
        self._slots.free(connection)
        self._addresses.close(share)
        return True

    def share(self, connection: C) -> AddressShare | None:
        """Return the share of a connection's address; None if it is not connected."""
        return self._shares.get(connection)

    def _sweep(self) -> Coroutine[None, None, None]:
        """Return the task that keeps the server tidy."""
        steps = [
            GuardedStep(self._addresses.sweep, "addresses could not be forgotten", _log),
            GuardedStep(self._check_all, "connections could not be checked", _log),
        ]
        if self._tls is not None:
            steps.append(GuardedStep(self._tls.poll, "certificates could not be read again", _log))
        return every(SWEEP_S, *steps)

    def _check_all(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            try:
                deadline = connection.handshake_deadline
                if deadline is not None and now > deadline:
                    connection.drop(_LATE)
                else:
                    self._check(connection, now)
            except Exception as error:
                text = f"{connection.peer} could not be checked; it is disconnected"
                log_unexpected(text, error, "check")
                connection.abort()


async def wait_until(is_done: Callable[[], bool], until: float) -> None:
    """Wait until something is done, but not beyond a time of the event loop."""
    while not is_done() and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_POLL_S)
