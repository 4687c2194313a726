"""The brokers behind a proxy: the one in the same process, or those of a cluster.

A method that can answer at once returns its result, and one that has to wait returns an awaitable.
In the same process most requests are answered at once, and need no task of the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, TypeVar

from firetrail.broker.pop.ack_processor import PopAck
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig, TopicConfig, TopicRouteData
from firetrail.remoting.wire.command import RemotingCommand

T = TypeVar("T")


ClientCommands = Callable[[ProxyClient, str, RemotingCommand], Awaitable[RemotingCommand] | None]
"""Handles a request that the broker of a name sends to a client. The result is an awaitable of the
response, or None if there is none."""


def ignored(
    client: ProxyClient, broker: str, command: RemotingCommand
) -> Awaitable[RemotingCommand] | None:
    """Ignore a request of a broker to a client, until a proxy handles them."""
    return None


class Brokers(Protocol):
    """The brokers behind a proxy, as calls use them."""

    @property
    def reserved(self) -> Collection[str]:
        """Names of topics, besides those of every cluster, that are reserved for the system."""

    def route(self, topic: str) -> TopicRouteData | Awaitable[TopicRouteData]:
        """Return the route of a topic.

        Raises:
            RequestError: The topic does not exist (TOPIC_NOT_EXIST).
        """

    def topic(self, topic: str) -> TopicConfig | Awaitable[TopicConfig | None] | None:
        """Return the settings of a topic with its attributes, None if it does not exist."""

    def group(
        self, group: str
    ) -> SubscriptionGroupConfig | Awaitable[SubscriptionGroupConfig | None] | None:
        """Return the settings of a consumer group, None if it does not exist."""

    def request(
        self, client: ProxyClient, broker: str, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Ask a broker on behalf of a client, and return its response, with any code.

        Args:
            client: The client; brokers see its address and id.
            broker: The name of the broker.
            command: The request, with the caller whose permissions apply to the records that are
                found. A request without one has the caller of the client's latest call.

        Raises:
            RequestError: No broker has this name.
            NotReachedError: The broker cannot be reached, or does not answer.
        """

    def withdraw(self, answer: asyncio.Future[RemotingCommand]) -> bool:
        """Cancel a request that waits for messages, if the broker has taken none for it yet.

        Args:
            answer: The future that a request returned, or a task that awaits it.

        Returns:
            Whether it was cancelled. If not, the answer may still come.
        """

    def acknowledge(
        self, client: ProxyClient, broker: str, acks: Sequence[PopAck]
    ) -> Sequence[RemotingCommand | Awaitable[RemotingCommand]]:
        """Acknowledge messages on behalf of a client; return the responses in the same order.

        Args:
            client: The client; brokers see its address and id.
            broker: The name of the broker that the messages are from.
            acks: The acknowledgements.

        Raises:
            As :meth:`request`, as far as it is known at once.
        """


class RegisteringBrokers(Brokers, Protocol):
    """The brokers behind a proxy, which also learn about its clients.

    Attributes:
        on_command: Receives the requests of brokers to clients.
    """

    on_command: ClientCommands

    def heartbeat(self, client: ProxyClient) -> Awaitable[None] | None:
        """Register the producers and consumers of a client, or refresh their registration.

        Raises:
            RequestError: A broker refuses it.
            NotReachedError: A broker cannot be reached, or does not answer.
        """

    def release(self) -> None:
        """Answer the requests that wait for messages, as if their time were over."""

    def left(self, client: ProxyClient) -> None:
        """Forget a client: brokers send it no more requests."""


async def resolved(value: T | Awaitable[T]) -> T:
    """Return the result of a call that may have answered at once."""
    if hasattr(value, "__await__"):  # a check for Awaitable takes several times as long
        return await value
    return value
