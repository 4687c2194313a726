"""The limits of a server that its settings ask for."""

from __future__ import annotations

from firetrail.remoting.limits import ServerLimits
from firetrail.settings.server_limits import ServerLimitSettings


def server_limits(config: ServerLimitSettings) -> ServerLimits:
    """Return the limits of a broker or a name server with these settings."""
    return ServerLimits(
        connections=config.max_connections,
        connections_per_address=config.connections_per_address,
        connection_rate=config.connection_rate_per_address,
        request_rate=config.request_rate_per_address,
        byte_rate=config.byte_rate_per_address,
        limit_loopback=config.limit_loopback,
        buffered_bytes=config.buffered_bytes,
        stranger_bytes=config.stranger_bytes,
    )
