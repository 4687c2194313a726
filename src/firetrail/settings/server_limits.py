"""The settings that limit what the clients of a broker, a name server or a proxy may use."""

from dataclasses import dataclass, fields
from typing import Any

from firetrail.settings.settings_table import Flag, Group, Whole

LIMITS = Group(
    "Server limits",
    "These settings limit what clients may use of a broker (`broker.conf`), a name server"
    " (`namesrv.conf`) or a proxy (`firetrail proxy -c FILE`). [Limits](design/limits.md) has all"
    " limits, and what happens beyond them.",
)


@dataclass(frozen=True, kw_only=True)  # no slots: of several bases, only one can have them
class ServerLimitSettings:
    """The limits of a server that an operator can change."""

    max_connections: int = LIMITS(
        10_000,
        "",
        Whole(1, 1_000_000),
        "Open connections. If all are in use, a new one replaces the oldest on which no request "
        "has succeeded. If there is none, the new one is refused.",
    )
    connections_per_address: int = LIMITS(
        2_000,
        "",
        Whole(0, 1_000_000),
        "Open connections from one address, or from one IPv6 network of 64 bits. More are refused."
        " 0 means no limit. All clients behind one gateway have one address.",
    )
    connection_rate_per_address: int = LIMITS(
        500,
        "",
        Whole(0, 1_000_000),
        "New connections per second from one address. More are refused. 0 means no limit.",
    )
    request_rate_per_address: int = LIMITS(
        0,
        "",
        Whole(0),
        "Requests per second from one address. Above it, nothing is read from the connection for a"
        " while, and gRPC calls are answered `TOO_MANY_REQUESTS`. 0 means no limit.",
    )
    byte_rate_per_address: int = LIMITS(
        0, "", Whole(0, unit="bytes"), "The same limit for the bytes of requests per second."
    )
    connections_per_user: int = LIMITS(
        0,
        "",
        Whole(0, 1_000_000),
        "Connections of one user, and gRPC clients of it. Requests on others are refused as busy."
        " 0 means no limit. The limits of a user do not apply to super users.",
    )
    request_rate_per_user: int = LIMITS(
        0,
        "",
        Whole(0),
        "Requests per second of one user. Above it, nothing is read from the connection for a"
        " while, and gRPC calls are answered `TOO_MANY_REQUESTS`. 0 means no limit.",
    )
    byte_rate_per_user: int = LIMITS(
        0, "", Whole(0, unit="bytes"), "The same limit for the bytes of requests per second."
    )
    limit_loopback: bool = LIMITS(
        False,
        "",
        Flag(),
        "Apply the limits of connections per address to clients on the same machine, too.",
    )
    buffered_bytes: int = LIMITS(
        512 << 20,
        "",
        Whole(32 << 20, unit="bytes"),
        "Bytes of requests that have not arrived completely and of answers that clients have not"
        " read, of all connections. Above it, the slowest connections are closed. The gRPC port"
        " has a limit of the same size for responses, and another one for requests. Above that,"
        " calls are refused.",
    )
    stranger_bytes: int = LIMITS(
        64 << 20,
        "",
        Whole(1 << 20, unit="bytes"),
        "The part of `buffered_bytes` for connections on which no request has succeeded yet. Above"
        " it, the slowest of them are closed.",
    )

    def limits(self) -> dict[str, Any]:
        """Return these limits by their names, for another server of the same process."""
        return {limit.name: getattr(self, limit.name) for limit in fields(ServerLimitSettings)}
