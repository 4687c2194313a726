"""Clusters of running brokers, and the messages that tests send to them."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers import small_config
from tests.pipeline.wire.talk import create, run

from firetrail import Message
from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Admin, MessageQueue, Producer, PullConsumer


@contextmanager
def first_broker(folder: Path) -> Iterator[BackgroundBroker]:
    """A broker ``broker-a`` with a name server of its own, and the topic ``orders``."""
    with BackgroundBroker(folder, BrokerConfig(name="broker-a"), small_config()) as broker:
        create(broker.namesrv, "orders", 2)
        yield broker


@contextmanager
def second_broker(folder: Path, namesrv: str) -> Iterator[BackgroundBroker]:
    """A broker ``broker-b`` of the same name server, once that lists it."""
    config = BrokerConfig(name="broker-b", namesrv=namesrv)
    with BackgroundBroker(folder, config, small_config()) as broker:

        async def registered() -> None:
            async with Admin(namesrv) as admin:
                while "broker-b" not in await admin.masters():
                    await asyncio.sleep(0.01)

        run(registered)
        yield broker


def send(namesrv: str, *bodies: object, broker: str = "broker-a") -> None:
    """Send messages to the two queues of a broker in turn, and wait until consumers see them."""

    async def work() -> None:
        last: dict[MessageQueue, int] = {}
        async with Producer(namesrv) as producer, PullConsumer(namesrv) as consumer:
            queues = [q for q in await producer.queues("orders") if q.broker_name == broker]
            for number, body in enumerate(bodies):
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                message = Message("orders", content, keys=[f"k{number}"])
                queue = queues[number % len(queues)]
                last[queue] = (await producer.send(message, queue=queue)).queue_offset
            await consumer.queues("orders")
            for queue, offset in last.items():
                while await consumer.offsets.end(queue) <= offset:
                    await asyncio.sleep(0.01)

    run(work)


def recreate(namesrv: str, topic: str = "orders") -> None:
    """Delete a topic, and create it again."""
    delete(namesrv, topic)
    create(namesrv, topic, 2)


def delete(namesrv: str, topic: str = "orders") -> None:
    async def work() -> None:
        async with Admin(namesrv) as admin:
            await admin.delete_topic(topic)

    run(work)
