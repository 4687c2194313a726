"""The broker in the same process: its handlers are called without a socket between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.pop.ack_processor import PopAck, PopAcks
from firetrail.errors import ProxyError, RequestError
from firetrail.format.system_topics import own_topics
from firetrail.proxy.schema.messages import Code
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.heartbeats import heartbeat_of
from firetrail.proxy.upstream.interface import ClientCommands, ignored
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.messages.bodies import (
    BrokerData,
    QueueData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRouteData,
)
from firetrail.remoting.messages.requests import AWAITING
from firetrail.remoting.servers.local_connection import LocalConnection
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

ROUTES_MAX = 1000
"""Topics whose routes are remembered. If there are more, all are computed again."""


class KnownRoute(NamedTuple):
    """The route of a topic, and the data that it was computed from."""

    topic: TopicConfig
    config: BrokerConfig
    address: str
    route: TopicRouteData

    def is_of(self, topic: TopicConfig, config: BrokerConfig, address: str) -> bool:
        """Whether the route is still valid. Settings are replaced when they change."""
        return self.topic is topic and self.config is config and self.address == address


class EmbeddedConnection(LocalConnection):
    """Represents a client of the proxy at the broker."""

    def __init__(self, owner: EmbeddedBroker, client: ProxyClient) -> None:
        super().__init__(owner, client.peer)
        self.client = client

    @property
    def is_encrypted(self) -> bool:
        """Whether the client speaks TLS with the proxy."""
        return self.client.is_encrypted


class EmbeddedBroker:
    """The broker in the same process, as the only one of a proxy.

    A client has one connection at the broker for as long as it is known. The broker may change its
    role meanwhile: each request finds the handlers and tables of the current role.

    Attributes:
        on_command: Receives the requests of the broker to clients.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connections: dict[ProxyClient, EmbeddedConnection] = {}
        self._polls: dict[asyncio.Future[RemotingCommand], EmbeddedConnection] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.on_command: ClientCommands = ignored
        self._reserved: tuple[object, frozenset[str]] = (None, frozenset())
        self._routes: dict[str, KnownRoute] = {}

    # -- what a proxy asks --------------------------------------------------------------------

    @property
    def reserved(self) -> frozenset[str]:
        """The topics that are named after the broker and its cluster."""
        config = self._broker.config
        known, names = self._reserved
        if known is not config:
            names = own_topics(config.cluster, config.name)
            self._reserved = (config, names)
        return names

    def topic(self, topic: str) -> TopicConfig | None:
        """Return the settings of a topic with its attributes, None if it does not exist."""
        return self._broker.topics.get(topic)

    def group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the settings of a consumer group, None if it does not exist."""
        return self._broker.groups.get(group)

    def route(self, topic: str) -> TopicRouteData:
        """Return the queues of a topic in this broker.

        Raises:
            RequestError: The topic does not exist.
        """
        found = self.topic(topic)
        if found is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} does not exist; create it with 'firetrail topic create'",
            )
        config, address = self._broker.config, self._broker.address
        known = self._routes.get(topic)
        if known is not None and known.is_of(found, config, address):
            return known.route
        offered = self._broker.topics.offer(found)
        queues = QueueData(
            config.name,
            offered.read_queue_nums,
            offered.write_queue_nums,
            offered.perm,
            offered.topic_sys_flag,
        )
        broker = BrokerData(config.name, config.cluster, {config.broker_id: address})
        route = TopicRouteData([queues], [broker])
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = KnownRoute(found, config, address, route)
        return route

    def request(
        self, client: ProxyClient, broker: str, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Ask the broker on behalf of a client, and return its response, with any code.

        Raises:
            ProxyError: The broker has another name.
        """
        if broker != self._broker.config.name:
            raise ProxyError(
                Code.BAD_REQUEST,
                f"there is no broker {broker!r:.80} here, only {self._broker.config.name}",
            )
        command.language, command.version = client.language, client.version
        if command.caller is None:  # as a request of this process, nothing would be checked
            command.caller = client.caller
        if command.code in AWAITING or client.is_closed:
            connection = EmbeddedConnection(self, client)
            answer = connection.ask(self._broker.ask, command)
            if not isinstance(answer, RemotingCommand):
                self._polls[answer] = connection
                answer.add_done_callback(self._polled)
            return answer
        answer = self._connection_of(client).ask(self._broker.ask, command)
        # A call that ends early must not stop the broker half-way, for example after it has stored
        # a half message and before it has noted the transaction.
        return answer if isinstance(answer, RemotingCommand) else asyncio.shield(answer)

    def withdraw(self, answer: asyncio.Future[RemotingCommand]) -> bool:
        """Cancel a request that waits for messages.

        Returns False if messages are taken for it, and only the record of the pop has to be synced.
        """
        connection = self._polls.get(answer)
        if connection is None or not self._broker.withdraw(connection):
            return False
        return answer.cancel()

    def _polled(self, answer: asyncio.Future[RemotingCommand]) -> None:
        self._broker.closed(self._polls.pop(answer))

    def acknowledge(
        self, client: ProxyClient, broker: str, acks: Sequence[PopAck]
    ) -> Sequence[RemotingCommand | Awaitable[RemotingCommand]]:
        """Acknowledge messages; those of one pop share a record in the log."""
        request = PopAcks(RequestCode.BATCH_ACK_MESSAGE, acks=acks)
        answer = self.request(client, broker, request)
        if isinstance(answer, RemotingCommand):
            if not request.refusals:
                return [answer] * len(acks)
            return [request.refusals.get(number, answer) for number in range(len(acks))]
        stored = asyncio.ensure_future(answer)

        async def outcome(number: int) -> RemotingCommand:
            response = await asyncio.shield(stored)
            return response if response.code else request.refusals.get(number, response)

        return [outcome(number) for number in range(len(acks))]

    def heartbeat(self, client: ProxyClient) -> None:
        """Register the producers and consumers of a client, or refresh their registration.

        Raises:
            RequestError: The broker refuses it.
        """
        answer = self.request(client, self._broker.config.name, heartbeat_of(client))
        if isinstance(answer, RemotingCommand) and answer.code:
            raise RequestError(answer.code, answer.remark or "")

    def release(self) -> None:
        """Answer all requests that wait for messages as if their time limit had passed."""
        self._broker.release_polls()

    def left(self, client: ProxyClient) -> None:
        """Forget a client."""
        connection = self._connections.get(client)
        if connection is not None:
            connection.close()

    # -- the connections of clients -----------------------------------------------------------

    def _connection_of(self, client: ProxyClient) -> EmbeddedConnection:
        connection = self._connections.get(client)
        if connection is None:
            connection = self._connections[client] = EmbeddedConnection(self, client)
        elif connection.peer != client.peer:
            connection.peer = client.peer
        return connection

    def opened(self, connection: Connection) -> None:
        """Do nothing: a connection within the process is never opened."""

    def drained(self, connection: Connection) -> None:
        """Do nothing: no request waits for that."""

    def received(self, connection: Connection, requests: Sequence[RemotingCommand]) -> None:
        """Pass requests of the broker on to the client."""
        if isinstance(connection, EmbeddedConnection):
            for request in requests:
                answer = self.on_command(connection.client, self._broker.config.name, request)
                if answer is not None:
                    task = asyncio.get_running_loop().create_task(self._answer(connection, answer))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)

    async def _answer(
        self, connection: EmbeddedConnection, answer: Awaitable[RemotingCommand]
    ) -> None:
        connection.answer(await answer)

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """Forget a connection that the broker or the proxy closed; the client gets a new one."""
        if isinstance(connection, EmbeddedConnection) and (
            self._connections.get(connection.client) is connection
        ):
            del self._connections[connection.client]
        self._broker.closed(connection)
