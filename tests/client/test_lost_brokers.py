"""Consumers of several brokers, of which some are down: the others are not affected."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.client.clusters import SOON, Heard, until

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import (
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from firetrail.client.cluster.cluster_client import ClusterClient
from firetrail.remoting.messages.bodies import TopicConfig

FIRST = ConsumeFromWhere.FIRST_OFFSET
AWAY, THERE = "broker-a-away", "broker-there"
"""The broker that goes down sorts first."""
TOPICS = ("Shared", "There")


@asynccontextmanager
async def second_broker(namesrv: str) -> AsyncIterator[Broker]:
    config = BrokerConfig(name=AWAY, namesrv=namesrv)
    store = SOON.replace(store_host=SOON.store_host._replace(port=0))
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(folder, config, store)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()


@pytest.fixture
async def there() -> AsyncIterator[Broker]:
    async with Broker.running(config=BrokerConfig(name=THERE), store=SOON) as broker:
        yield broker


@pytest.fixture
async def away(there: Broker) -> AsyncIterator[Broker]:
    async with second_broker(there.namesrv) as broker:
        yield broker


@pytest.fixture
async def namesrv(there: Broker, away: Broker) -> str:
    """The address of the name server of both brokers, which knows their topics."""
    for broker in (there, away):
        broker.topics.put([TopicConfig("Shared", 1, 1)])
    there.topics.put([TopicConfig("There", 1, 1)])
    async with PullConsumer(there.namesrv) as consumer:
        while len(await consumer.queues("Shared")) < 2:
            await asyncio.sleep(0.01)
            consumer._session.forget_route("Shared")
    return there.namesrv


async def send(namesrv: str, topic: str, body: bytes, broker: str = THERE) -> None:
    async with Producer(namesrv) as producer:
        await producer.send(Message(topic, body), queue=MessageQueue(topic, broker, 0))


def cut_off(consumer: ClusterClient, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the answers of a broker that is still in the routes."""
    session = consumer._session
    request = session._client.request

    async def refuse(address: str, *args: object) -> object:
        if address == broker.address:
            raise ConnectionError(f"{address}: cannot be reached")
        return await request(address, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(session._client, "request", refuse)


@pytest.mark.parametrize("in_order", [False, True])
async def test_queues_of_a_broker_that_has_left_are_given_up(
    namesrv: str,
    away: Broker,
    in_order: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.REBALANCE_S", 0.05)
    monkeypatch.setattr("firetrail.client.consumers.push.process_queue.PULL_RETRY_S", 0.05)
    heard = Heard()
    wanted = dict.fromkeys(TOPICS, "*")
    async with PushConsumer(
        namesrv, "G", heard, wanted, start=FIRST, in_order=in_order
    ) as consumer:
        await send(namesrv, "Shared", b"1", AWAY)
        await until(lambda: heard.bodies == [b"1"])
        await away.stop()
        await until(lambda: not any(q.broker_name == AWAY for q in consumer.assigned))
        for topic in TOPICS:
            await send(namesrv, topic, b"2")
        await until(lambda: heard.bodies == [b"1", b"2", b"2"])
        await consumer.rebalance()
    lines = [r.getMessage() for r in caplog.records if "some of its messages may" in r.getMessage()]
    assert any("G: Shared queue 0 on broker-a-away was given up" in line for line in lines)


async def test_offsets_are_committed_to_the_brokers_that_answer(
    namesrv: str, away: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.COMMIT_S", 1000)
    heard = Heard()
    wanted = dict.fromkeys(TOPICS, "*")
    async with PushConsumer(namesrv, "G", heard, wanted, start=FIRST) as consumer:
        await send(namesrv, "Shared", b"1", AWAY)
        await send(namesrv, "Shared", b"2")
        await send(namesrv, "There", b"3")
        await until(lambda: heard.bodies == [b"1", b"2", b"3"])
        cut_off(consumer, away, monkeypatch)
        with pytest.raises(ConnectionError, match="cannot be reached"):
            await consumer.commit()
        async with PullConsumer(namesrv, "G") as puller:
            for topic in TOPICS:
                await puller.queues(topic)
                assert await puller.committed(MessageQueue(topic, THERE, 0)) == 1


async def test_locks_are_renewed_on_the_brokers_that_answer(
    namesrv: str, away: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    wanted = dict.fromkeys(TOPICS, "*")
    async with PushConsumer(namesrv, "G", heard, wanted, in_order=True) as consumer:
        cut_off(consumer, away, monkeypatch)
        consumer._locks._granted.clear()
        await consumer._renew_locks()
        held = {queue for queue in consumer.assigned if consumer._locks.holds(queue)}
        assert {q for q in held if q.topic in TOPICS} == {
            MessageQueue(topic, THERE, 0) for topic in TOPICS
        }


async def test_members_are_requested_from_a_broker_that_answers(
    namesrv: str, away: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = dict.fromkeys(TOPICS, "*")
    async with PushConsumer(namesrv, "G", Heard(), wanted) as consumer:
        cut_off(consumer, away, monkeypatch)
        async with PushConsumer(namesrv, "G", Heard(), wanted):
            await consumer.rebalance()
            shared = [queue for queue in consumer.assigned if queue.topic == "Shared"]
            assert len(shared) == 1


async def test_messages_are_received_from_the_brokers_that_answer(
    namesrv: str, away: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SimpleConsumer(namesrv, "G", {"Shared": "*"}, start=FIRST) as consumer:
        cut_off(consumer, away, monkeypatch)
        for body in (b"1", b"2", b"3"):  # so that each broker is asked first once
            await send(namesrv, "Shared", body)
            (message,) = await consumer.receive()
            assert message.body == body
            await consumer.ack(message)
        with pytest.raises(ConnectionError, match="cannot be reached"):
            await consumer.receive(wait_s=0)
