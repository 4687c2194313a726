"""Clients that reconnect to a broker which has restarted and does not know them."""

import asyncio
from collections.abc import AsyncIterator

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
from firetrail.client.cluster.cluster_client import ClusterClient
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.messages.bodies import TopicConfig

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker.running(store=SOON) as broker:
        broker.topics.put([TopicConfig("T", 1, 1)])
        yield broker


def disconnect(client: ClusterClient, broker: Broker) -> None:
    """Close the connection, as a restarting broker does."""
    client._session._client._connections[broker.address].close()


def connections(broker: Broker) -> set[Connection]:
    """Return the connections over which members of the group have registered."""
    group = broker.clients.consumers.get("G")
    return set() if group is None else set(group.clients)


@pytest.fixture(autouse=True)
def pulled_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firetrail.client.consumers.push.process_queue.PULL_RETRY_S", 0.01)


async def test_a_producer_registers_again_before_it_sends(broker: Broker) -> None:
    async with Producer(broker.namesrv, "P") as producer:
        await producer.send(Message("T", b"0"))
        await until(lambda: "P" in broker.clients.producers)
        disconnect(producer, broker)
        await until(lambda: "P" not in broker.clients.producers)
        await producer.send(Message("T", b"1"))
        await until(lambda: "P" in broker.clients.producers)


@pytest.mark.parametrize("in_order", [False, True])
async def test_a_consumer_registers_again(broker: Broker, in_order: bool) -> None:
    async with PushConsumer(
        broker.namesrv, "G", Heard(), {"T": "*"}, in_order=in_order
    ) as consumer:
        (before,) = broker.clients.consumers["G"].clients
        disconnect(consumer, broker)
        await until(lambda: connections(broker) and before not in connections(broker))


async def test_an_ordered_message_waits_until_the_lock_was_renewed(broker: Broker) -> None:
    """The broker may have granted it to another client after its restart."""
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
        mine = held["G"][QUEUE]
        held["G"][QUEUE] = mine._replace(client_id="another")
        disconnect(consumer, broker)
        await producer.send(Message("T", b"1"))
        await asyncio.sleep(0.3)  # many times the pauses between two attempts
        assert owners == [mine.client_id]
        del held["G"][QUEUE]
        await until(lambda: len(owners) == 2)
        assert owners == [mine.client_id] * 2


async def test_a_lock_ends_with_the_connection_that_granted_it(broker: Broker) -> None:
    async with PushConsumer(broker.namesrv, "G", Heard(), {"T": "*"}, in_order=True) as consumer:
        await consumer._locks.lock([QUEUE])
        assert consumer._locks.holds(QUEUE)
        consumer._session._lost(broker.address)
        assert not consumer._locks.holds(QUEUE)
        await until(lambda: consumer._locks.holds(QUEUE))
