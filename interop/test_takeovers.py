"""A broker's whole folder goes from Firetrail to Java and back: groups continue where they were.

The next broker, with the same name at the same name server, takes over messages, topics, groups,
consumer offsets and pending delayed messages.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from interop.servers import LINES, Servers, our_name_server

from firetrail.client import (
    Admin,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
)
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig

NAME, TOPIC, GROUP = "broker-a", "Taken", "G"
QUEUES = 2
LIMIT_S = 360.0
"""For three starts of brokers, and the work with each."""


async def offsets(admin: Admin) -> dict[int, int]:
    """Return the offsets of the group, by queue."""
    stats = await admin.consume_stats(GROUP, TOPIC)
    return {queue.queue_id: at.consumer_offset for queue, at in stats.offset_table.items()}


async def send(namesrv: str, who: str) -> set[str]:
    """Two messages for each queue, and one that is on its way when the broker stops."""
    bodies = [f"{who}{n}" for n in range(2 * QUEUES)]
    async with Producer(namesrv) as producer:
        for n, body in enumerate(bodies):
            queue = MessageQueue(TOPIC, NAME, n % QUEUES)
            await producer.send(Message(TOPIC, body.encode(), keys=[who]), queue=queue)
        await producer.send(Message(TOPIC, f"{who} late".encode(), delay_level=4))
    return {*bodies, f"{who} late"}


async def serving(namesrv: str) -> None:
    """Wait until the broker is known: Java's 5.x registers ten seconds after its start."""
    async with Admin(namesrv) as admin:
        while NAME not in await admin.masters() or TOPIC not in await admin.topics():
            await asyncio.sleep(0.1)


async def heard(namesrv: str, count: int) -> set[str]:
    """Return the messages that a member of the group receives, until it has this number."""
    got: set[str] = set()

    def listener(message: Received) -> None:
        got.add(message.body.decode())

    async with PushConsumer(namesrv, GROUP, listener, {TOPIC: "*"}) as consumer:
        while len(got) < count:
            await asyncio.sleep(0.02)
        await consumer.commit()
    return got


async def stored(namesrv: str) -> list[str]:
    """Return every message of the topic."""
    async with PullConsumer(namesrv, "reading") as consumer:
        queues = await consumer.queues(TOPIC)
        return [m.body.decode() for queue in queues async for m in consumer.read(queue)]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.time_limit(LIMIT_S)
async def test_groups_continue_after_each_takeover(line: str, tmp_path: Path) -> None:
    java = Servers(line, tmp_path)
    sent: set[str] = set()

    async def first(namesrv: str) -> None:
        nonlocal sent
        async with Admin(namesrv) as admin:
            await admin.create_topic(TOPIC, QUEUES)
            await admin.create_group(SubscriptionGroupConfig(GROUP, retry_max_times=7))
        sent = await send(namesrv, "first")
        async with Admin(namesrv) as admin:
            for queue in await admin.queues(TOPIC):
                await admin.offsets.commit(GROUP, queue, 1)

    async def java_goes_on(namesrv: str) -> None:
        nonlocal sent
        await serving(namesrv)
        async with Admin(namesrv) as admin:
            assert await offsets(admin) == dict.fromkeys(range(QUEUES), 1)
            assert (await admin.groups())[GROUP].retry_max_times == 7
            assert len(await admin.queues(TOPIC)) == QUEUES
        assert await heard(namesrv, 3) == {"first2", "first3", "first late"}
        sent |= await send(namesrv, "second")

    async def we_go_on(namesrv: str) -> None:
        await serving(namesrv)
        async with Admin(namesrv) as admin:
            assert sum((await offsets(admin)).values()) == 5
            assert (await admin.groups())[GROUP].retry_max_times == 7
            assert len(await admin.find(TOPIC, "second")) == 2 * QUEUES
        assert await heard(namesrv, 5) == {*(f"second{n}" for n in range(4)), "second late"}
        got = await stored(namesrv)
        assert (len(got), set(got)) == (10, sent)  # each once, the late ones, too

    with our_name_server() as namesrv:
        for broker, step in (
            (java.our_broker, first),
            (java.broker, java_goes_on),
            (java.our_broker, we_go_on),
        ):
            with broker(namesrv, NAME):
                await step(namesrv)
