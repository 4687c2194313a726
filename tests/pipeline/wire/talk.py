"""Access to the brokers of the tests, for tests without an event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from firetrail.client import Admin, Message, MessageQueue, Producer, PullConsumer, Received
from firetrail.remoting.wire.codes import Permission

Result = TypeVar("Result")


def run(work: Callable[[], Awaitable[Result]]) -> Result:
    async def limited() -> Result:
        async with asyncio.timeout(60):
            return await work()

    return asyncio.run(limited())


READ_WRITE = Permission.READ | Permission.WRITE


def create(namesrv: str, topic: str, queues: int, perm: Permission = READ_WRITE) -> None:
    async def work() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, queues, perm=perm)

    run(work)


def send(namesrv: str, messages: Sequence[Message]) -> None:
    """Send messages to the queues that they name, in order, and wait until consumers see them."""

    async def work() -> None:
        last: dict[MessageQueue, int] = {}
        async with Producer(namesrv) as producer, PullConsumer(namesrv) as consumer:
            for message in messages:
                queues = await producer.queues(message.topic)
                queue = next(q for q in queues if q.queue_id == message.queue_id)
                last[queue] = (await producer.send(message, queue=queue)).queue_offset
            for queue, offset in last.items():
                await consumer.queues(queue.topic)
                while await consumer.offsets.end(queue) <= offset:
                    await asyncio.sleep(0.01)

    run(work)


def received(namesrv: str, topic: str, count: int) -> list[Received]:
    async def work() -> list[Received]:
        async with PullConsumer(namesrv) as consumer:
            while True:
                queues = await consumer.queues(topic)
                if sum([await consumer.offsets.end(queue) for queue in queues]) >= count:
                    return [m for queue in queues async for m in consumer.read(queue)]
                await asyncio.sleep(0.01)

    return run(work)
