"""The pull consumer, against Firetrail's broker."""

import asyncio

import pytest

from firetrail.client import Message, Producer, PullConsumer, by_sql, by_tags
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import MessageQueue, SubscriptionData

QUEUE = MessageQueue("T", "broker-a", 0)


async def fill_queue(namesrv: str, messages: list[Message]) -> None:
    async with Producer(namesrv) as producer, PullConsumer(namesrv) as consumer:
        end = 0
        for message in messages:
            end = (await producer.send(message, queue=QUEUE)).queue_offset + 1
        await consumer.queues("T")
        while await consumer.offsets.end(QUEUE) < end:
            await asyncio.sleep(0.002)


async def test_read_yields_all_messages_of_a_queue(namesrv: str) -> None:
    await fill_queue(namesrv, [Message("T", b"%d" % n) for n in range(100)])
    async with PullConsumer(namesrv) as consumer:
        assert [q.queue_id for q in await consumer.queues("T")] == [0, 1, 2, 3]
        assert [m.body async for m in consumer.read(QUEUE)] == [b"%d" % n for n in range(100)]
        assert [m.queue_offset async for m in consumer.read(QUEUE, 10, 13)] == [10, 11, 12]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (by_tags("T", "odd"), [b"1", b"3", b"5"]),
        (by_tags("T", "none || even"), [b"0", b"2", b"4"]),
        (by_sql("T", "n > 3"), [b"4", b"5"]),
    ],
    ids=["one tag", "tags", "sql"],
)
async def test_subscriptions_filter_messages(
    namesrv: str, wanted: SubscriptionData, expected: list[bytes]
) -> None:
    messages = [
        Message("T", b"%d" % n, tags="odd" if n % 2 else "even", properties={"n": str(n)})
        for n in range(6)
    ]
    await fill_queue(namesrv, messages)
    async with PullConsumer(namesrv) as consumer:
        assert [m.body async for m in consumer.read(QUEUE, subscription=wanted)] == expected


async def test_tags_with_equal_hashes_are_distinguished(namesrv: str) -> None:
    """Brokers compare only hashes, and "AaAa" and "BBBB" have the same hash."""
    await fill_queue(namesrv, [Message("T", tag.encode(), tags=tag) for tag in ("AaAa", "BBBB")])
    async with PullConsumer(namesrv) as consumer:
        wanted = by_tags("T", "BBBB")
        assert [m.body async for m in consumer.read(QUEUE, subscription=wanted)] == [b"BBBB"]


async def test_a_pull_waits_for_a_message(namesrv: str) -> None:
    await fill_queue(namesrv, [Message("T", b"first")])
    async with Producer(namesrv) as producer, PullConsumer(namesrv) as consumer:
        pull = asyncio.ensure_future(consumer.pull(QUEUE, 1, wait_s=20))
        await producer.send(Message("T", b"later"), queue=QUEUE)
        pulled = await pull
        assert [m.body for m in pulled.messages] == [b"later"]
        assert pulled.next_offset == pulled.max_offset == 2


async def test_pulls_at_and_beyond_the_end_find_nothing(namesrv: str) -> None:
    await fill_queue(namesrv, [Message("T", b"first")])
    async with PullConsumer(namesrv) as consumer:
        nothing = await consumer.pull(QUEUE, 1)
        assert (nothing.messages, nothing.next_offset, nothing.moved) == ([], 1, False)
        nowhere = await consumer.pull(QUEUE, 1000)
        assert (nowhere.messages, nowhere.next_offset, nowhere.moved) == ([], 1, True)
        with pytest.raises(RequestError, match="No topic route info"):
            await consumer.queues("U")


async def test_offsets_are_committed_and_found_by_time(namesrv: str) -> None:
    await fill_queue(namesrv, [Message("T", b"%d" % n) for n in range(3)])
    async with PullConsumer(namesrv, "CG") as consumer:
        await consumer.queues("T")
        assert await consumer.offsets.lowest(QUEUE) == 0
        assert await consumer.offsets.end(QUEUE) == 3
        assert await consumer.offsets.at_time(QUEUE, 0) == 0
        assert await consumer.offsets.at_time(QUEUE, 2**62) == 3  # the end
        await consumer.commit(QUEUE, 1)
        assert await consumer.committed(QUEUE) == 1
