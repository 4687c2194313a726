"""The start position of a group, while the queues still have their first message."""

import asyncio
import time

import pytest
from tests.client.clusters import Heard, fill, until

from firetrail.client import (
    Admin,
    ConfigError,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from firetrail.client.consumers.push.start_position import StartPosition

FIRST, LAST = ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET
TIMESTAMP = ConsumeFromWhere.TIMESTAMP


def begin(namesrv: str, heard: Heard, start: StartPosition) -> PushConsumer:
    return PushConsumer(
        namesrv, "G", heard, {"T": "*"}, start=start.where, start_time_ms=start._time_ms
    )


@pytest.mark.parametrize(
    ("start", "old"),
    [
        (StartPosition(FIRST, None), [b"0", b"1", b"2", b"3"]),
        (StartPosition(LAST, None), []),
        (StartPosition(TIMESTAMP, 0), [b"0", b"1", b"2", b"3"]),
    ],
    ids=["first", "last", "long ago"],
)
async def test_a_new_group_starts_where_start_says(
    namesrv: str, start: StartPosition, old: list[bytes]
) -> None:
    await fill(namesrv, "T", 4)
    heard = Heard()
    async with begin(namesrv, heard, start) as consumer, Producer(namesrv) as producer:
        await until(lambda: len([q for q in consumer.assigned if q.topic == "T"]) == 4)
        for queue_id in range(4):
            queue = MessageQueue("T", "broker-a", queue_id)
            await producer.send(Message("T", b"new"), queue=queue)
        await until(lambda: heard.bodies.count(b"new") == 4)
    assert heard.bodies == [*old, *[b"new"] * 4]


async def test_a_new_group_starts_at_a_time(namesrv: str) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    heard = Heard()
    async with Producer(namesrv) as producer:
        await producer.send(Message("T", b"old"), queue=queue)
        await asyncio.sleep(0.02)  # store times have a resolution of milliseconds
        between = time.time_ns() // 1_000_000
        await producer.send(Message("T", b"new"), queue=queue)
    async with PullConsumer(namesrv) as consumer:
        await consumer.queues("T")
        while await consumer.offsets.end(queue) < 2:
            await asyncio.sleep(0.002)
    async with begin(namesrv, heard, StartPosition(TIMESTAMP, between)):
        await until(lambda: b"new" in heard.bodies)
    assert heard.bodies == [b"new"]


async def test_an_added_queue_is_consumed_from_its_first_message(namesrv: str) -> None:
    """Otherwise the group would skip messages sent before it noticed the new queue."""
    heard = Heard()
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", 1)
        async with begin(namesrv, heard, StartPosition(LAST, None)):
            await producer.send(Message("T", b"0"))
            await until(lambda: heard.bodies == [b"0"])
        await admin.create_topic("T", 2)
        await producer.send(Message("T", b"1"), queue=MessageQueue("T", "broker-a", 1))
        async with begin(namesrv, heard, StartPosition(LAST, None)):
            await until(lambda: heard.bodies == [b"0", b"1"])


async def test_the_offset_of_a_new_group_is_none(namesrv: str) -> None:
    await fill(namesrv, "T", 1)
    async with PullConsumer(namesrv, "G") as consumer:
        assert [await consumer.committed(q) for q in await consumer.queues("T")] == [None] * 4


def test_start_time_ms_requires_timestamp() -> None:
    with pytest.raises(ConfigError, match=r"start_time_ms = 5: is allowed only with start="):
        StartPosition(LAST, 5)
