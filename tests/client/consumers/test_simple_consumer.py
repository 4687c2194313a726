"""The simple consumer, against Firetrail's broker."""

import asyncio

import pytest
from tests.broker.brokers import SMALL
from tests.client.clusters import fill

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Admin, ClientClosedError, Message, Producer, SimpleConsumer, by_sql
from firetrail.errors import RequestError
from firetrail.format.values.javahash import java_hash
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.remoting.messages.headers import DEFAULT_QUEUES
from firetrail.remoting.wire.codes import Permission
from firetrail.store.reads.reader import Reader

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.mark.parametrize("recent", [True, False])
async def test_by_default_a_new_group_starts_at_message_0_only_if_it_is_recent(
    recent: bool, namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker decides, as RocketMQ's does: otherwise it starts at the last message."""
    await fill(namesrv, "T", 100)
    monkeypatch.setattr(Reader, "is_recent", lambda *_: recent)
    got: list[tuple[int, int]] = []
    async with SimpleConsumer(namesrv, "G", {"T": "*"}) as consumer:
        while len(got) < (100 if recent else DEFAULT_QUEUES):
            messages = await consumer.receive(32, wait_s=20)
            got += [(each.queue.queue_id, each.record.queue_offset) for each in messages]
            await consumer.ack(*messages)
        assert await consumer.receive(32, wait_s=0.2) == []
    queues = {queue_id for queue_id, _ in got}
    assert len(queues) == DEFAULT_QUEUES
    assert len(got) == (100 if recent else len(queues))
    assert all((queue_id, 0) in got for queue_id in queues) == recent


async def test_every_message_is_received_once(namesrv: str) -> None:
    await fill(namesrv, "T", 100)
    got: list[bytes] = []

    async def consume() -> None:
        async with SimpleConsumer(namesrv, "G", {"T": "*"}, start=FIRST) as consumer:
            while len(got) < 100:
                messages = await consumer.receive(10, wait_s=0.2)
                got.extend(message.body for message in messages)
                await consumer.ack(*messages)

    await asyncio.gather(consume(), consume(), consume())
    assert sorted(got) == sorted(b"%d" % n for n in range(100))


async def test_unacknowledged_messages_are_redelivered(namesrv: str) -> None:
    await fill(namesrv, "T", 1)
    async with SimpleConsumer(namesrv, "G", {"T": "*"}, start=FIRST) as consumer:
        (first,) = await consumer.receive(invisible_s=0.05)
        (second,) = await consumer.receive(invisible_s=60)
        assert [m.reconsume_times for m in (first, second)] == [0, 1]
        assert (second.topic, second.body, second.message_id) == ("T", first.body, first.message_id)
        third = await consumer.change_invisible(second, 0.05)
        assert third.body == first.body
        (fourth,) = await consumer.receive()
        assert fourth.reconsume_times == 2
        longer = await consumer.change_invisible(fourth, 60)
        await consumer.ack(longer)
        with pytest.raises(RequestError, match="this receipt is no longer valid"):
            await consumer.change_invisible(fourth, 60)
        assert await consumer.receive(wait_s=0.1) == []


async def test_acknowledged_messages_are_not_redelivered(namesrv: str) -> None:
    """The receipt ends with the acknowledgement, so the message cannot become visible again."""
    await fill(namesrv, "T", 1)
    async with SimpleConsumer(namesrv, "G", {"T": "*"}, start=FIRST) as consumer:
        (message,) = await consumer.receive(invisible_s=60, wait_s=20)
        await consumer.ack(message)
        with pytest.raises(RequestError, match="this receipt is no longer valid"):
            await consumer.change_invisible(message, 0.05)
        assert await consumer.receive(wait_s=0.1) == []


async def test_subscriptions_filter_messages(namesrv: str) -> None:
    assert java_hash("Aa") == java_hash("BB")
    async with Producer(namesrv) as producer:
        for tag in ("Aa", "BB", "C"):
            message = Message("T", tag.encode(), tags=tag, properties={"length": str(len(tag))})
            await producer.send(message)
    async with SimpleConsumer(namesrv, "G", {"T": "BB"}, start=FIRST) as consumer:
        assert await received(consumer, 1) == {b"BB"}
        assert await consumer.receive(wait_s=0.1) == []
    wanted = {"T": by_sql("T", "length = 1")}
    async with SimpleConsumer(namesrv, "S", wanted, start=FIRST) as consumer:
        assert await received(consumer, 1) == {b"C"}


async def received(consumer: SimpleConsumer, count: int) -> set[bytes]:
    found: set[bytes] = set()
    while len(found) < count:
        messages = await consumer.receive(invisible_s=60)
        found |= {message.body for message in messages}
        await consumer.ack(*messages)
    return found


async def test_messages_come_from_several_brokers_and_topics() -> None:
    async with Broker.running(store=SMALL) as one:
        config = BrokerConfig(name="broker-b", namesrv=one.namesrv)
        async with Broker.running(config=config, store=SMALL):
            async with Admin(one.namesrv) as admin:
                await admin.create_topic("T", cluster="DefaultCluster", queues=2)
                await admin.create_topic("U", cluster="DefaultCluster", queues=2)
            async with (
                Producer(one.namesrv) as producer,
                SimpleConsumer(one.namesrv, "G", {"T": "*", "U": "*"}) as consumer,
            ):
                assert await consumer.receive(wait_s=0.05) == []
                for number in range(8):
                    topic = "TU"[number % 2]
                    waiting = asyncio.create_task(consumer.receive(invisible_s=60))
                    sent = await producer.send(Message(topic, b"%d" % number))
                    (message,) = await waiting
                    assert (message.topic, message.body) == (topic, b"%d" % number)
                    assert message.queue.broker_name == sent.queue.broker_name
                    await consumer.ack(message)


@pytest.mark.parametrize("start", [ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET])
@pytest.mark.parametrize("others", [0, 1, 2])
async def test_a_topic_that_is_created_later_is_received_from_its_start(
    namesrv: str, start: ConsumeFromWhere, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is received soon and from its first message, whether or not other topics exist."""
    monkeypatch.setattr("firetrail.client.consumers.simple_consumer.TOPIC_POLL_S", 0.1)

    topics = {f"OTHER{number}": "*" for number in range(others)}
    async with Admin(namesrv) as admin:
        for topic in topics:
            await admin.create_topic(topic)
    consumer = SimpleConsumer(namesrv, "G", {"T": "*", **topics}, start=start)
    async with consumer:
        assert await consumer.receive(wait_s=0) == []
        receiving = asyncio.ensure_future(consumer.receive(wait_s=20))
        await asyncio.sleep(0.05)
        await fill(namesrv, "T", 3)
        found = await receiving
        while len(found) < 3:
            found += await consumer.receive(wait_s=20)
        assert sorted(message.body for message in found) == [b"0", b"1", b"2"]


async def test_a_topic_that_is_never_created_is_logged_once(
    namesrv: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = SimpleConsumer(namesrv, "G", {"NONE": "*"})
    await consumer.open()
    assert await consumer.receive(wait_s=0.1) == []
    receiving = asyncio.ensure_future(consumer.receive(wait_s=1000))
    await asyncio.sleep(0.05)
    await consumer.close()
    with pytest.raises(ClientClosedError):
        await receiving
    assert caplog.text.count("G: topic NONE does not exist yet; the consumer looks") == 1


async def test_a_topic_without_readable_queues_is_an_error(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("T", perm=Permission.WRITE)
        with pytest.raises(RequestError, match="no broker has queues of T"):
            await SimpleConsumer(namesrv, "G", {"T": "*"}).open()


async def test_the_consumer_is_listed_as_a_member_of_its_group(namesrv: str) -> None:
    await fill(namesrv, "T", 1)
    async with Admin(namesrv) as admin:
        (address,) = (await admin.masters()).values()
        async with SimpleConsumer(namesrv, "G", {"T": "*"}):
            members = await admin.consumers("G", address)
            assert members.consume_type == "CONSUME_POP"
        with pytest.raises(RequestError):
            await admin.consumers("G", address)
