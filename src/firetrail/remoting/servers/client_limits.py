"""The limits of a server, for each client and for all clients together.

``docs/design/limits.md`` lists them with the limits of the broker and the name server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from firetrail.remoting.messages.requests import BODIES, BODY_MAX, RUNNING
from firetrail.remoting.wire.frames import FrameLimits

QUEUED_MAX = 1000
"""Requests of a connection that may be queued. Above it, the connection is not read from until half
of them are done. Requests that were read together with the last one are queued as well."""
UNHANDLED_MAX = 32 << 20
"""The limit for the bytes of a connection's queued requests, headers included. Above it, the
connection is not read from until all of them are done."""
COSTLY_SHARE = 0.25
"""Share of the event loop's time for the costly requests of one address, while there are other
requests to handle."""
COSTLY_BURST_S = 5.0
"""Seconds of it that may be used at once."""
COSTLY_QUEUED_MAX = 1000
"""Costly requests of one address that may be queued; more are answered with SYSTEM_BUSY."""
COSTLY_WAIT_S = 2.0
"""Seconds that a costly request may be queued; then it is answered with SYSTEM_BUSY. Clients wait 3
s or longer for an answer."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on connections and on the requests of each address, the same for all protocols."""

    connections: int = 10_000
    """Open connections. For another one, the oldest is closed that is not proven; if all are, the
    new one is refused."""
    connections_per_address: int = 2_000
    """Open connections from one address; more are refused. 0 means no limit. A network of clients
    behind one gateway has one address."""
    connection_rate: int = 500
    """New connections per second from one address; more are refused. 0 means no limit."""
    request_rate: int = 0
    """Requests per second from one address. Above it, nothing is read from the address for a while,
    and gRPC calls are refused. 0 means no limit."""
    byte_rate: int = 0
    """The same limit for the bytes of requests."""
    limit_loopback: bool = False
    """Whether the limits for connections from one address apply to clients of this machine."""
    stranger_bytes: int = 64 << 20
    """Bytes of unfinished requests and unread answers of all connections on which no request has
    succeeded yet. Above it, the slowest of them are dropped."""


@dataclass(frozen=True, slots=True)
class ServerLimits(ConnectionLimits):
    """Limits for each client and for all clients together."""

    buffered_bytes: int = 512 << 20
    """Bytes of unfinished frames and of answers that peers have not read, of all connections. Above
    it, the slowest connections are dropped."""
    unread_bytes: int = 64 << 20
    """Bytes that wait for one peer. A connection with more is dropped when yet another answer or
    request for the peer comes."""
    waiting_bytes: int = 256 << 20
    """Bytes of requests that are queued or being handled. Above it, no connection is read from."""
    idle_s: float = 120.0
    """A connection that sends nothing for this long is closed."""
    frame_s: float = 30.0
    """A frame has to arrive completely within this time."""
    waiting_requests: int = 10_000
    """Asynchronous requests of one code in progress; more are answered with SYSTEM_BUSY."""
    running: Mapping[int, int] = field(default_factory=lambda: RUNNING)
    """Limits for individual codes. Requests that wait for their turn do not count."""
    frames: FrameLimits = field(default_factory=FrameLimits)
    """Limits for the size of a frame."""
    body: int = BODY_MAX
    """Bytes of the body of a request; larger ones are answered with INVALID_PARAMETER."""
    bodies: Mapping[int, int] = field(default_factory=lambda: BODIES)
    """The same limit for individual codes."""
