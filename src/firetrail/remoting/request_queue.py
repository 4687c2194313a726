"""The requests of a server that have arrived and are not handled yet.

They are handled in the order of their arrival, but those that keep clients alive (heartbeats and
the like) go first. After each slice of requests the event loop runs other tasks, so a flood of
requests delays only itself. A client that exceeds the limits is not read from until its requests
are done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence

from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.connection import Connection

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
_SLICE = 128
"""Requests that are handled before the event loop runs other tasks."""
_SERVER_FULL = "the server has too many bytes of requests waiting"
_QUEUE_FULL = "the connection has too many requests waiting"


class RequestQueue:
    """The queued requests of all connections, and those that wait until their peers read.

    Attributes:
        waiting_bytes: The bytes of all requests that have no answer yet.
        deferred: The requests of connections whose peers do not read.
    """

    def __init__(
        self,
        connections: Collection[Connection],
        bytes_max: int,
        handle: Callable[[Connection, RemotingCommand], None],
    ) -> None:
        """Start without requests.

        Args:
            connections: All open connections. None of them is read from while more than
                ``bytes_max`` wait.
            bytes_max: The limit for the bytes of all requests without an answer.
            handle: Handles a request. When it is answered, :meth:`finished` must be called.
        """
        self._connections = connections
        self._bytes_max = bytes_max
        self._handle = handle
        self._urgent: deque[tuple[Connection, RemotingCommand]] = deque()
        self._ordinary: deque[tuple[Connection, RemotingCommand]] = deque()
        self._is_scheduled = False
        self.waiting_bytes = 0
        self.deferred: dict[Connection, deque[RemotingCommand]] = {}

    def __bool__(self) -> bool:
        return bool(self._urgent or self._ordinary)

    def add(self, connection: Connection, requests: Sequence[RemotingCommand]) -> None:
        """Queue the requests that a connection has received."""
        for request in requests:
            queue = self._urgent if request.code in URGENT else self._ordinary
            queue.append((connection, request))
            self.waiting_bytes += request.size
        connection.queued += len(requests)
        if _is_full(connection, QUEUED_MAX):
            connection.hold(_QUEUE_FULL)
        if self.waiting_bytes > self._bytes_max:
            for held in self._connections:
                held.hold(_SERVER_FULL)
        self._schedule()

    def resume(self, connection: Connection) -> None:
        """Continue with the requests of a connection whose peer has read its answers."""
        connection.deferred_bytes = 0
        connection.account(progress=True)
        for request in reversed(self.deferred.pop(connection, ())):
            self.waiting_bytes += request.size
            self._ordinary.appendleft((connection, request))
        self._schedule()

    def finished(self, request: RemotingCommand) -> None:
        """Count the bytes of a request no longer; it is answered, or deferred."""
        was_full = self.waiting_bytes > self._bytes_max
        self.waiting_bytes -= request.size
        if was_full and self.waiting_bytes <= self._bytes_max:
            for held in self._connections:
                held.release(_SERVER_FULL)

    def forget(self, connection: Connection) -> None:
        """Forget the deferred requests of a connection that has ended."""
        self.deferred.pop(connection, None)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        for _ in range(_SLICE):
            if self._urgent:
                connection, request = self._urgent.popleft()
            elif self._ordinary:
                connection, request = self._ordinary.popleft()
            else:
                self._is_scheduled = False
                return
            if connection.is_unread and not connection.is_closed:
                self._defer(connection, request)
                continue
            _dequeued(connection)
            self._handle(connection, request)
        asyncio.get_running_loop().call_soon(self._work)

    def _defer(self, connection: Connection, request: RemotingCommand) -> None:
        """Keep a request until the peer reads its answers; its bytes count as those of answers."""
        self.deferred.setdefault(connection, deque()).append(request)
        self.finished(request)
        connection.deferred_bytes += request.size
        connection.account(progress=False)


def _dequeued(connection: Connection) -> None:
    connection.queued -= 1
    if not connection.queued:
        connection.unhandled_bytes = 0
    if connection.is_held and not _is_full(connection, QUEUED_MAX // 2):
        connection.release(_QUEUE_FULL)


def _is_full(connection: Connection, most: int) -> bool:
    return connection.queued > most or connection.unhandled_bytes > UNHANDLED_MAX
