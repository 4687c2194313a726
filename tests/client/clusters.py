"""A cluster for the tests of clients, in the same process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from tests.broker.brokers import SMALL

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Message, MessageQueue, Producer, PullConsumer, Received
from firetrail.errors import RequestError
from firetrail.format.record import Record
from firetrail.format.values.delay import DelayLevels
from firetrail.format.values.hosts import Host

SOON = SMALL.replace(delay_levels=DelayLevels.parse("1s 0s 0s 0s"))
"""A store whose retries are redelivered almost at once."""

WAIT_S = 60
"""How long a test waits for a condition before it fails."""


@asynccontextmanager
async def running_cluster(config: BrokerConfig | None = None) -> AsyncIterator[str]:
    """Run a name server and a broker, and return the address of the name server.

    The fixture ``namesrv`` does so with the default settings.
    """
    async with Broker.running(config=config, store=SOON) as broker:
        yield broker.namesrv


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail if it does not hold within ``WAIT_S``."""
    deadline = monotonic() + WAIT_S
    while not condition():
        assert monotonic() < deadline, f"the condition did not hold within {WAIT_S} s"
        await asyncio.sleep(0.005)


async def fill(namesrv: str, topic: str, count: int, **more: Any) -> None:
    """Send messages ``0``, ``1``, … and wait until they can be read.

    The first message creates the topic. Queues are filled a little later than the log.
    """
    async with Producer(namesrv, "filling") as producer, PullConsumer(namesrv) as consumer:
        ends = {}
        for number in range(count):
            result = await producer.send(Message(topic, b"%d" % number, **more))
            ends[result.queue] = result.queue_offset + 1
        await consumer.queues(topic)
        for queue, end in ends.items():
            while await consumer.offsets.end(queue) < end:
                await asyncio.sleep(0.002)


async def read_all(namesrv: str, topic: str, count: int) -> list[Received]:
    """Return all messages of a topic, by queue and offset, once there are ``count``."""
    async with PullConsumer(namesrv) as consumer:
        queues = await consumer.queues(topic)
        while sum([await consumer.offsets.end(queue) for queue in queues]) < count:
            await asyncio.sleep(0.002)
        return [message for queue in queues async for message in consumer.read(queue)]


async def buried(namesrv: str) -> list[bytes]:
    """Return the messages in the dead-letter topic of a group, once it exists."""
    while True:
        try:
            return [m.body for m in await read_all(namesrv, "%DLQ%G", 1)]
        except RequestError:  # no such topic yet
            await asyncio.sleep(0.01)


class Heard:
    """Records the messages that listeners get."""

    def __init__(self) -> None:
        self.messages: list[Received] = []

    async def __call__(self, message: Received) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)


def received(queue_id: int = 0) -> Received:
    """Return a message that was not sent by a broker."""
    host = Host("127.0.0.1", 1)
    numbers = {name: 0 for name in Record._fields}
    record = Record(**numbers)._replace(  # type: ignore[arg-type]
        born_host=host, store_host=host, body=b"", topic="T", raw_properties=b""
    )
    return Received(MessageQueue("T", "broker-a", queue_id), record)
