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

TABLES_MAX = 4
"""Requests for the same large table in progress; threads encode them."""
RUNNING: Mapping[int, int] = {
    RequestCode.GET_BROKER_CONSUME_STATS: TABLES_MAX,
    RequestCode.GET_ALL_PRODUCER_INFO: TABLES_MAX,
    RequestCode.GET_ALL_TOPIC_CONFIG: TABLES_MAX,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: TABLES_MAX,
    RequestCode.GET_ALL_CONSUMER_OFFSET: TABLES_MAX,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TABLES_MAX,
    RequestCode.GET_TOPICS_BY_CLUSTER: TABLES_MAX,
}
"""Requests of one code in progress, for tables of all topics, groups, queues or producers."""

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

URGENT = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.REGISTER_BROKER,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
    }
)
"""Requests that are handled before all others, because a delay would make clients look dead."""
QUEUED_MAX = 1000
"""Requests of a connection that may be queued. Above it, the connection is not read from until half
of them are done. Requests that were read together with the last one are queued as well."""
UNHANDLED_MAX = 32 << 20
"""The limit for the bytes of a connection's queued requests, headers included. Above it, the
connection is not read from until all of them are done."""
COSTLY = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
    }
)
"""Requests whose cost grows with the number of topics, groups or messages. The time that they take
is limited for each address."""
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
    """Limits on connections and on what each address may send, the same for all protocols."""

    connections: int = 10_000
    """Open connections; more are refused."""
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
    frames: Limits = field(default_factory=Limits)
    """Limits for the size of a frame."""
    body: int = BODY_MAX
    """Bytes of the body of a request; larger ones are answered with INVALID_PARAMETER."""
    bodies: Mapping[int, int] = field(default_factory=lambda: BODIES)
    """The same limit for individual codes."""
