"""Every call of every client, cancelled at every await, against Firetrail's broker.

Acknowledged messages are stored once and in order. The client stays usable or is closed, and no
task or connection is left. The calls of consumers are in ``test_cancelled_consumers.py``.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.client.cancellation import (
    Cancelled,
    Interrupted,
    Moment,
    at_every_await,
    interrupted,
    nothing_left,
)
from tests.client.clusters import SOON, Heard, fill, read_all, running_cluster, until

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import (
    Admin,
    ClientClosedError,
    ConsumeFromWhere,
    Message,
    MessageModel,
    MessageQueue,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
    RequestError,
    SimpleConsumer,
)
from firetrail.client.cluster.cluster_client import ClusterClient

FIRST = ConsumeFromWhere.FIRST_OFFSET
QUEUE = MessageQueue("T", "broker-a", 1)


class TestHarness:
    """The helper works as the tests below expect."""

    @pytest.mark.parametrize("moment", Moment)
    async def test_it_cancels_at_the_given_moment(self, moment: Moment) -> None:
        reached: list[int] = []

        async def work() -> None:
            for number in range(3):
                reached.append(number)
                await asyncio.sleep(0.001)

        for at in range(1, 4):
            reached.clear()
            with pytest.raises(Cancelled):
                await interrupted(work(), at, moment)
            assert reached == list(range(at))
        assert await interrupted(work(), 4, moment) == (False, None)

    async def test_a_late_cancellation_comes_after_the_result(self) -> None:
        future = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await future

        interruption = Interrupted(work(), 1, Moment.LATE)

        async def run() -> None:
            await interruption

        task = asyncio.ensure_future(run())
        await asyncio.sleep(0)
        future.set_result("swallowed")
        await asyncio.wait({task})
        assert task.cancelled() and future.result() == "swallowed"


def clients(namesrv: str, folder: Path) -> dict[str, Callable[[], ClusterClient]]:
    """Return a client of each kind, for topic T and group G."""

    def push(**more: Any) -> Callable[[], ClusterClient]:
        return lambda: PushConsumer(namesrv, "G", Heard(), {"T": "*"}, start=FIRST, **more)

    broadcast = {"model": MessageModel.BROADCASTING, "offsets_folder": folder}
    return {
        "producer": lambda: Producer(namesrv),
        "pull": lambda: PullConsumer(namesrv),
        "simple": lambda: SimpleConsumer(namesrv, "G", {"T": "*"}),
        "admin": lambda: Admin(namesrv),
        "push": push(),
        "in order": push(in_order=True),
        "broadcasting": push(**broadcast),
    }


@pytest.mark.parametrize(
    "kind", ["producer", "pull", "simple", "admin", "push", "in order", "broadcasting"]
)
async def test_cancelled_opens_and_closes_leave_nothing(kind: str, tmp_path: Path) -> None:
    """No task, connection, registration or lock is left, and the next open succeeds."""
    async with Broker.running(store=SOON) as broker:
        await fill(broker.namesrv, "T", 4)
        make = clients(broker.namesrv, tmp_path)[kind]

        def locked(group: str) -> object:
            return broker._parts.locks._held.get(group)

        async def is_gone() -> None:
            await until(lambda: not broker.clients.consumers and not locked("G"))

        async def opening(at: int, moment: Moment) -> bool:
            client = make()
            async with nothing_left():
                try:
                    was_interrupted, _ = await interrupted(client.open(), at, moment)
                except Cancelled:
                    await client.open()
                    was_interrupted = True
                await client.close()
            await is_gone()
            return was_interrupted

        async def closing(at: int, moment: Moment) -> bool:
            client = make()
            async with nothing_left():
                await client.open()
                try:
                    was_interrupted, _ = await interrupted(client.close(), at, moment)
                except Cancelled:
                    was_interrupted = True
                with pytest.raises(ClientClosedError):
                    await client.open()
            await is_gone()
            return was_interrupted

        assert await at_every_await(opening) >= 1
        await at_every_await(closing)


@pytest.mark.parametrize("how", ["order_key", "queue", "batch", "one way"])
async def test_cancelled_sends_store_a_message_at_most_once(namesrv: str, how: str) -> None:
    """Messages of completed sends are stored once; of cancelled ones, at most once, in order."""

    def send(producer: Producer, body: bytes) -> Coroutine[Any, Any, object]:
        message = Message("T", body)
        if how == "order_key":
            return producer.send(message, order_key="k")
        if how == "batch":
            return producer.send_batch([message], queue=QUEUE)
        if how == "one way":
            return producer.send_one_way(message, queue=QUEUE)
        return producer.send(message, queue=QUEUE)

    await fill(namesrv, "T", 1)
    sent: list[bytes] = []
    cancelled: set[bytes] = set()

    async def attempt(at: int, moment: Moment) -> bool:
        body = b"%s %d" % (moment.name.encode(), at)
        async with nothing_left(), Producer(namesrv) as producer:
            sent.append(body + b" a")
            try:
                was_interrupted, _ = await interrupted(send(producer, sent[-1]), at, moment)
            except Cancelled:
                cancelled.add(sent[-1])
                was_interrupted = True
            sent.append(body + b" b")
            await send(producer, sent[-1])
            if how == "one way":
                await producer.send(Message("T", b"flushed"), queue=QUEUE)
        return was_interrupted

    assert await at_every_await(attempt) >= (1 if how == "one way" else 2)
    stored: list[bytes] = []
    while sent[-1] not in stored:  # how many were stored depends on the cancellations
        stored = [m.body for m in await read_all(namesrv, "T", 1)]
    stored = [body for body in stored if body in sent]
    assert len(stored) == len(set(stored))
    assert stored == sorted(stored, key=sent.index)
    assert set(stored) >= set(sent) - cancelled


async def test_cancelled_transactions_end_as_decided() -> None:
    """A message is seen if, and only if, its transaction was committed."""
    async with running_cluster(BrokerConfig(transaction_check_interval_ms=1000)) as namesrv:
        await fill(namesrv, "T", 1)
        committed: list[bytes] = []

        async def decide(message: Message) -> Outcome:
            await asyncio.sleep(0)
            committed.append(bytes(message.body))
            return Outcome.COMMIT

        def check(message: Received) -> Outcome:
            return Outcome.COMMIT if message.body in committed else Outcome.ROLLBACK

        async def attempt(at: int, moment: Moment) -> bool:
            body = b"%s %d" % (moment.name.encode(), at)
            async with nothing_left(), Producer(namesrv, "PG", check=check) as producer:
                work = producer.send_in_transaction(Message("T", body), decide)
                try:
                    was_interrupted, _ = await interrupted(work, at, moment)
                except Cancelled:
                    was_interrupted = True
                await producer.send_in_transaction(Message("T", body + b" again"), decide)
            return was_interrupted

        assert await at_every_await(attempt) >= 4
        seen = [m.body for m in await read_all(namesrv, "T", len(committed) + 1)]
        assert sorted(seen) == sorted([b"0", *committed])


async def test_cancelled_requests_and_replies_can_be_repeated(namesrv: str) -> None:
    await fill(namesrv, "T", 1)
    async with Producer(namesrv, "G") as replying:

        async def listener(message: Received) -> None:
            if "CORRELATION_ID" in message.properties:
                await replying.reply(message, message.body)

        async def attempt(at: int, moment: Moment) -> bool:
            async with nothing_left(), Producer(namesrv, "asking") as producer:
                work = producer.request(Message("T", b"x"), 20)
                try:
                    was_interrupted, _ = await interrupted(work, at, moment)
                except Cancelled:
                    was_interrupted = True
                assert (await producer.request(Message("T", b"y"), 20)).body == b"y"
            return was_interrupted

        async with PushConsumer(namesrv, "G", listener, {"T": "*"}):
            await replying.queues("T")  # it opens its connections before they are counted
            await at_every_await(attempt)


async def test_cancelled_pulls_have_no_effect(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        for number in range(40):
            await producer.send(Message("T", b"%d" % number), queue=QUEUE)
    await read_all(namesrv, "T", 40)

    async def read(consumer: PullConsumer) -> None:
        async for _ in consumer.read(QUEUE):
            pass

    calls: list[Callable[[PullConsumer], Coroutine[Any, Any, object]]] = [
        lambda consumer: consumer.queues("T"),
        lambda consumer: consumer.pull(QUEUE, 0),
        lambda consumer: consumer.pull(QUEUE, 40, wait_s=0.01),
        read,
        lambda consumer: consumer.commit(QUEUE, 7),
        lambda consumer: consumer.committed(QUEUE),
    ]
    for call in calls:

        async def attempt(
            at: int,
            moment: Moment,
            call: Callable[[PullConsumer], Coroutine[Any, Any, object]] = call,
        ) -> bool:
            async with nothing_left(), PullConsumer(namesrv, "G") as consumer:
                was_interrupted = True
                try:
                    was_interrupted, _ = await interrupted(call(consumer), at, moment)
                except Cancelled:
                    await call(consumer)
                bodies = [message.body async for message in consumer.read(QUEUE)]
                assert bodies == [b"%d" % number for number in range(40)]
            return was_interrupted

        await at_every_await(attempt)


ADMIN: dict[str, Callable[[Admin], Coroutine[Any, Any, object]]] = {
    "create_topic": lambda admin: admin.create_topic("U", 2),
    "delete_topic": lambda admin: admin.delete_topic("U"),
    "create_group": lambda admin: admin.create_group("G"),
    "delete_group": lambda admin: admin.delete_group("G"),
    "reset_offsets": lambda admin: admin.reset_offsets("G", "T", -1),
    "topic_stats": lambda admin: admin.topic_stats("T"),
    "find": lambda admin: admin.find("T", "k"),
    "put_kv": lambda admin: admin.put_kv("n", "k", "v"),
}


@pytest.mark.parametrize("call", ADMIN)
async def test_cancelled_changes_can_be_repeated(namesrv: str, call: str) -> None:
    """A change can be repeated, whatever the effect of the first attempt was."""
    await fill(namesrv, "T", 1)

    async def attempt(at: int, moment: Moment) -> bool:
        async with nothing_left(), Admin(namesrv) as admin:
            if call == "delete_topic":
                await admin.create_topic("U", 2)
            await admin.create_group("G")
            was_interrupted = True
            try:
                was_interrupted, _ = await interrupted(ADMIN[call](admin), at, moment)
            except Cancelled:
                with suppress(*([RequestError] if call.startswith("delete") else [])):
                    await ADMIN[call](admin)  # there may be nothing left to delete
            assert "T" in await admin.topics()
            assert ("U" in await admin.topics()) == (call == "create_topic")
        return was_interrupted

    assert await at_every_await(attempt) >= 1
