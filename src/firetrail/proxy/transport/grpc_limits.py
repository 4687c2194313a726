"""Limits of the gRPC server, and the accounts of the memory that requests take."""

from __future__ import annotations

from dataclasses import dataclass, field

from firetrail.proxy.http2.limits import Http2Limits
from firetrail.remoting.servers.client_limits import ConnectionLimits
from firetrail.remoting.servers.configured_limits import connection_limits
from firetrail.settings.server_limits import ServerLimitSettings


@dataclass(frozen=True, slots=True)
class GrpcLimits(ConnectionLimits):
    """Limits for each client and for all clients together."""

    calls: int = 100_000
    """Calls in progress on all connections; more are answered with RESOURCE_EXHAUSTED."""
    message_bytes: int = 8 << 20
    """A message of a client; methods may have a smaller limit. The limit for bodies is 4 MiB, and
    is checked by the method, which has a code of its own for it."""
    inflated_bytes: int = 8 << 20
    """The same after decompression, if the message was compressed with gzip."""
    connection_bytes: int = 160 << 20
    """Requests of a connection that are arriving or being handled."""
    server_bytes: int = 512 << 20
    """The same for all connections together."""
    response_bytes: int = 64 << 20
    """Responses that wait until the client accepts them. Above it, new calls are refused."""
    idle_s: float = 120.0
    """A connection without calls is closed after this time."""
    silent_s: float = 60.0
    """A client that has calls and sends nothing for this long is asked whether it is alive."""
    ping_s: float = 20.0
    """It has to answer within this time."""
    message_s: float = 30.0
    """A request that is incomplete may pause for this long."""
    http2: Http2Limits = field(default_factory=Http2Limits)
    """Limits of the protocol below."""


def grpc_limits(config: ServerLimitSettings) -> GrpcLimits:
    """Return the limits of a broker's gRPC service, or of a proxy, with these settings."""
    return GrpcLimits(**connection_limits(config), server_bytes=config.buffered_bytes)


class MemoryAccount:
    """Counts bytes, also in the account above."""

    __slots__ = ("_above", "_limit", "taken")

    def __init__(self, limit: int, above: MemoryAccount | None = None) -> None:
        self._limit = limit
        self._above = above
        self.taken = 0

    def take(self, size: int) -> bool:
        """Add to the account; return False, and add nothing, if that exceeds a limit."""
        if self.taken + size > self._limit:
            return False
        if self._above is not None and not self._above.take(size):
            return False
        self.taken += size
        return True

    def give_back(self, size: int) -> None:
        """Remove from the account."""
        self.taken -= size
        if self._above is not None:
            self._above.give_back(size)
