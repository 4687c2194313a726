"""The limits of a server that its settings ask for."""

from typing import Any

from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.settings.server_limits import ServerLimitSettings


def connection_limits(config: ServerLimitSettings) -> dict[str, Any]:
    """Return the limits of connections and addresses, by their names in ``ConnectionLimits``."""
    return {
        "connections": config.max_connections,
        "connections_per_address": config.connections_per_address,
        "connection_rate": config.connection_rate_per_address,
        "request_rate": config.request_rate_per_address,
        "byte_rate": config.byte_rate_per_address,
        "limit_loopback": config.limit_loopback,
        "stranger_bytes": config.stranger_bytes,
    }


def server_limits(config: ServerLimitSettings) -> ServerLimits:
    """Return the limits of a broker or a name server with these settings."""
    return ServerLimits(**connection_limits(config), buffered_bytes=config.buffered_bytes)
