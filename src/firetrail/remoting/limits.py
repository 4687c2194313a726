"""The limits of a server, for each client and for all clients together.

``docs/design/limits.md`` lists them with the limits of the broker and the name server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from firetrail.remoting.body import DIALECT_MAX
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.frames import FRAME_MAX, Limits

BODY_MAX = 1 << 20
"""Bytes of the body of a request without a limit in ``BODIES``. A heartbeat with a
thousand subscriptions has a fifth of this."""

BODIES: Mapping[int, int] = {
    RequestCode.SEND_MESSAGE: FRAME_MAX,
    RequestCode.SEND_MESSAGE_V2: FRAME_MAX,
    RequestCode.SEND_BATCH_MESSAGE: FRAME_MAX,
    RequestCode.SEND_REPLY_MESSAGE: FRAME_MAX,
    RequestCode.SEND_REPLY_MESSAGE_V2: FRAME_MAX,
    RequestCode.REGISTER_BROKER: FRAME_MAX,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: DIALECT_MAX,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: 4 << 20,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: 4 << 20,
}
"""The limits of other bodies: messages, tables of topics or groups, and a route, which may be in
fastjson's dialect."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits for each client and for all clients together."""

    connections: int = 10_000
    """Open connections; more are refused."""
    waiting_bytes: int = 256 << 20
    """Bytes of the bodies of requests that are queued or being handled."""
    idle_s: float = 120.0
    """A connection that sends nothing for this long is closed."""
    frame_s: float = 30.0
    """A frame has to arrive completely within this time."""
    waiting_requests: int = 10_000
    """Asynchronous requests of one code in progress; more are answered with SYSTEM_BUSY."""
    running: Mapping[int, int] = field(default_factory=dict)
    """The same limit for individual codes."""
    frames: Limits = field(default_factory=Limits)
    """Limits for the size of a frame."""
    body: int = BODY_MAX
    """Bytes of the body of a request; larger ones are answered with INVALID_PARAMETER."""
    bodies: Mapping[int, int] = field(default_factory=lambda: BODIES)
    """The same limit for individual codes."""
