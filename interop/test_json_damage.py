"""A bit flipped in the JSON files of a broker, and how brokers of both sides handle it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from interop.servers import our_name_server
from interop.tormented import JavaBroker

from firetrail.broker.broker import Broker
from firetrail.client import Admin, Message, Producer, PullConsumer
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.store.settings.store_config import StoreConfig

GROUP, TOPIC, OTHER = "G", "T-single", "Other"
STORE = StoreConfig().for_files(
    commit_log_file_size=1 << 20,
    consume_queue_file_size=4000,
    index_slots=500,
    index_entries=2000,
)


async def save(root: Path, offset: int) -> None:
    """Run a broker with messages, two topics, and a group at ``offset``."""
    async with Broker.running(root, store=STORE) as broker:
        async with Admin(broker.namesrv) as admin:
            await admin.create_topic(OTHER, offset)
        async with (
            Producer(broker.namesrv) as producer,
            PullConsumer(broker.namesrv, GROUP) as consumer,
        ):
            for _ in range(20):
                await producer.send(Message(TOPIC, b"x"))
            first = min(await consumer.queues(TOPIC), key=lambda queue: queue.queue_id)
            while await consumer.offsets.end(first) < offset:  # queues are filled after the log
                await asyncio.sleep(0.01)
            await consumer.commit(first, offset)


def flip(path: Path, before: str, after: str) -> None:
    content = path.read_text()
    assert content.count(before) == 1, content
    path.write_text(content.replace(before, after))


async def made(root: Path) -> None:
    """Saved with 2, then with 3; of that a bit is flipped: another offset, another number."""
    for offset in (2, 3):
        await save(root, offset)
    flip(root / "config" / "consumerOffset.json", "0:3", "0:1")
    text = (root / "config" / "topics.json").read_text()
    at = text.index('"readQueueNums":3')
    (root / "config" / "topics.json").write_text(text[: at + 16] + "1" + text[at + 17 :])


async def test_firetrail_notices_a_flipped_bit_and_takes_the_backup(tmp_path: Path) -> None:
    """It goes back to what was saved the time before."""
    await made(tmp_path / "store")
    async with Broker.running(tmp_path / "store", store=STORE) as broker:
        assert broker.offsets.get(GROUP, TOPIC, 0) == 2
        topic = broker.topics.get(OTHER)
        assert topic is not None and topic.read_queue_nums == 2


async def test_rocketmq_does_not_notice_a_flipped_bit(tmp_path: Path) -> None:
    await made(tmp_path / "store")
    with our_name_server() as namesrv:
        broker = JavaBroker("v5", tmp_path, namesrv, {})
        await broker.start()
        try:
            async with PullConsumer(namesrv, GROUP) as consumer, Admin(namesrv) as admin:
                await consumer.queues(TOPIC)
                assert await consumer.committed(MessageQueue(TOPIC, "broker-a", 0)) == 1
                topics = await admin.topic_configs(broker.address)
                assert topics[OTHER].read_queue_nums == 1
        finally:
            await broker.close()
