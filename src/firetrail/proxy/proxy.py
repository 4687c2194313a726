"""The proxy: the gRPC service of RocketMQ 5 in front of brokers."""

import asyncio
from typing import Self

from firetrail.access.guard import Guard
from firetrail.broker.broker import Broker
from firetrail.broker.ports import reachable
from firetrail.proxy.calls.grpc_guard import GrpcGuard
from firetrail.proxy.calls.messaging_service import DELAY_MAX_MS, MessagingService
from firetrail.proxy.transport.grpc_limits import GrpcLimits, grpc_limits
from firetrail.proxy.transport.grpc_server import GrpcServer
from firetrail.proxy.upstream.embedded import EmbeddedBroker
from firetrail.proxy.upstream.interface import RegisteringBrokers
from firetrail.remoting.connections.connection import address_text
from firetrail.remoting.servers.exposure import check_exposure
from firetrail.remoting.servers.server_ports import FREE_IT
from firetrail.system import SYSTEM, System
from firetrail.tls.self_signed import self_signed_context
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsMode


class Proxy:
    """Serves gRPC clients of RocketMQ 5, with TLS and without it on one port.

    Attributes:
        address: ``ip:port`` that clients connect to, after the start.
    """

    def __init__(
        self,
        brokers: RegisteringBrokers,
        *,
        tls: ServerTls | None = None,
        limits: GrpcLimits | None = None,
        delay_max_ms: int = DELAY_MAX_MS,
        system: System = SYSTEM,
        guard: Guard | None = None,
    ) -> None:
        """Prepare a proxy.

        Args:
            brokers: The brokers behind it.
            tls: The TLS of the port. Default: clients may use TLS, with a self-signed certificate,
                which Java, Go and C# clients accept, or plaintext.
            limits: Limits on connections and calls. Default: ``GrpcLimits()``.
            delay_max_ms: The longest delay of a message. Default: a day.
            system: Files and clock to use; tests replace them. Default: those of the machine.
            guard: Knows the users and their permissions. Default: every call is allowed.
        """
        self._guard = guard
        self._brokers = brokers
        self._tls = tls
        self._limits = limits
        self._delay_max_ms = delay_max_ms
        self._system = system
        self._server: GrpcServer | None = None
        self._service: MessagingService | None = None
        self.address = ""

    @classmethod
    def of_broker(cls, broker: Broker) -> Self:
        """Return a proxy for a broker in this process, with its TLS, limits and access control."""
        return cls(
            EmbeddedBroker(broker),
            tls=broker.tls,
            limits=grpc_limits(broker.config),
            delay_max_ms=broker.config.grpc_delay_max_ms,
            system=broker.system,
            guard=broker.access.guard,
        )

    async def start(
        self,
        host: str,
        port: int,
        *,
        advertised: str = "",
        remedy: str = FREE_IT,
        insecure: bool = False,
    ) -> None:
        """Listen on an address.

        Args:
            host: The address to listen on.
            port: The port; 0 picks a free one.
            advertised: The address that clients use if the proxy listens on all addresses.
                Default: ``host``.
            remedy: The remedy if the port is in use. Default: stop the other program, or
                choose another port.
            insecure: Whether the proxy may listen beyond the loopback interface without a guard.
                Default: False.

        Raises:
            ConfigError: The proxy would be exposed without a guard.
            AddressInUseError: The port is in use.
            OSError: The address cannot be bound.
        """
        check_exposure(host, self._tls, self._guard, insecure=insecure)
        tls = self._tls or ServerTls.of_context(await asyncio.to_thread(self_signed_context))
        clock = self._system.clock
        guard = GrpcGuard(self._guard, clock.now_ms) if self._guard is not None else None
        service = MessagingService(self._brokers, clock, self._delay_max_ms, guard)
        chosen = tls if tls.mode is not TlsMode.DISABLED else None
        server = GrpcServer(service.methods, self._system, self._limits, chosen)
        bound = await server.start(host, port, remedy)
        self.address = reachable(server.listens, address_text((advertised or host, bound)))
        service.start()
        self._server, self._service = server, service

    async def stop(self) -> None:
        """Answer the calls in progress, and close all connections."""
        if self._server is None or self._service is None:
            return
        stopping = asyncio.ensure_future(self._server.stop())
        await asyncio.sleep(0)  # from now on there are no new calls
        self._brokers.release()
        await stopping
        await self._service.stop()
