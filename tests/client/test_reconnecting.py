"""Clients that reconnect to a broker which has restarted and does not know them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.client.clusters import SOON, Heard, until

from firetrail.broker.broker import Broker
from firetrail.client import (
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    Received,
)
from firetrail.client.cluster_client import ClusterClient
from firetrail.remoting.bodies import TopicConfig
from firetrail.remoting.connection import Connection

QUEUE = MessageQueue("T", "broker-a", 0)


def with_broker(test: Callable[[Broker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), Broker.running(store=SOON) as broker:
            broker.topics.put([TopicConfig("T", 1, 1)])
            await test(broker)

    asyncio.run(run())


def disconnect(client: ClusterClient, broker: Broker) -> None:
    """Close the connection, as a restarting broker does."""
    client._session._client._connections[broker.address].close()


def connections(broker: Broker) -> set[Connection]:
    """Return the connections over which members of the group have registered."""
    group = broker.clients.consumers.get("G")
    return set() if group is None else set(group.clients)


@pytest.fixture(autouse=True)
def pulled_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firetrail.client.process_queue.PULL_RETRY_S", 0.01)


def test_a_producer_registers_again_before_it_sends() -> None:
    async def test(broker: Broker) -> None:
        async with Producer(broker.namesrv, "P") as producer:
            await producer.send(Message("T", b"0"))
            await until(lambda: "P" in broker.clients.producers)
            disconnect(producer, broker)
            await until(lambda: "P" not in broker.clients.producers)
            await producer.send(Message("T", b"1"))
            await until(lambda: "P" in broker.clients.producers)

    with_broker(test)


@pytest.mark.parametrize("in_order", [False, True])
def test_a_consumer_registers_again(in_order: bool) -> None:
    async def test(broker: Broker) -> None:
        async with PushConsumer(
            broker.namesrv, "G", Heard(), {"T": "*"}, in_order=in_order
        ) as consumer:
            (before,) = broker.clients.consumers["G"].clients
            disconnect(consumer, broker)
            await until(lambda: connections(broker) and before not in connections(broker))

    with_broker(test)


def test_an_ordered_message_waits_until_the_lock_was_renewed() -> None:
    """The broker may have granted it to another client after its restart."""

    async def test(broker: Broker) -> None:
        owners: list[str] = []
        held = broker._parts.locks._held

        def listener(message: Received) -> None:
            owners.append(held["G"][message.queue][0])

        first = ConsumeFromWhere.FIRST_OFFSET
        async with (
            Producer(broker.namesrv) as producer,
            PushConsumer(
                broker.namesrv, "G", listener, {"T": "*"}, in_order=True, start=first
            ) as consumer,
        ):
            await producer.send(Message("T", b"0"))
            await until(lambda: len(owners) == 1)
            me, since = held["G"][QUEUE]
            held["G"][QUEUE] = "another", since
            disconnect(consumer, broker)
            await producer.send(Message("T", b"1"))
            await asyncio.sleep(0.3)  # many times the pauses between two attempts
            assert owners == [me]
            del held["G"][QUEUE]
            await until(lambda: len(owners) == 2)
            assert owners == [me, me]

    with_broker(test)


def test_a_lock_ends_with_the_connection_that_granted_it() -> None:
    async def test(broker: Broker) -> None:
        async with PushConsumer(
            broker.namesrv, "G", Heard(), {"T": "*"}, in_order=True
        ) as consumer:
            await consumer._locks.lock([QUEUE])
            assert consumer._locks.holds(QUEUE)
            consumer._session._lost(broker.address)
            assert not consumer._locks.holds(QUEUE)
            await until(lambda: consumer._locks.holds(QUEUE))

    with_broker(test)
