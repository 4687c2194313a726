"""The calls of consumers, cancelled at every await: every message is delivered, in order."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from tests.client.cancellation import Cancelled, Moment, at_every_await, interrupted, nothing_left
from tests.client.clusters import fill, until
from tests.helpers import PATIENCE_S

from firetrail.client import (
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Popped,
    Producer,
    PushConsumer,
    Received,
    RequestError,
    SimpleConsumer,
)
from firetrail.client.cluster.offsets import Offsets
from firetrail.client.consumers.push.queue_locks import QueueLocks

FIRST = ConsumeFromWhere.FIRST_OFFSET
LONG_S = 1000.0
"""Longer than every test, so that a lost message is not redelivered during the test."""


async def test_cancelled_receives_and_acks_lose_no_message(namesrv: str) -> None:
    """Every message is delivered, and no acknowledged message is redelivered."""
    await fill(namesrv, "T", 1)
    sent: set[bytes] = {b"0"}
    acked: set[bytes] = set()
    came: list[bytes] = []

    async def attempt(at: int, moment: Moment) -> bool:
        async with (
            Producer(namesrv) as producer,
            SimpleConsumer(namesrv, "G", {"T": "*"}) as consumer,
        ):
            body = b"%s %d" % (moment.name.encode(), at)
            await producer.send(Message("T", body))
            sent.add(body)
            was_interrupted = False
            messages: list[Popped] = []
            try:
                receive = consumer.receive(invisible_s=LONG_S, wait_s=20)
                was_interrupted, messages = await interrupted(receive, at, moment)
            except Cancelled:
                was_interrupted = True
            while not messages:
                messages = await consumer.receive(invisible_s=LONG_S, wait_s=20)
            came.extend(message.body for message in messages)
            assert not acked & set(came)
            try:
                was_interrupted |= (await interrupted(consumer.ack(*messages), at, moment))[0]
            except Cancelled:
                was_interrupted = True
                await consumer.ack(*messages)
            acked.update(message.body for message in messages)
            came.clear()
        return was_interrupted

    async with nothing_left():
        await at_every_await(attempt)
        async with SimpleConsumer(namesrv, "G", {"T": "*"}) as consumer:
            while acked < sent:
                messages = await consumer.receive(invisible_s=LONG_S, wait_s=20)
                bodies = {message.body for message in messages}
                assert not acked & bodies
                await consumer.ack(*messages)
                acked |= bodies
            assert await consumer.receive(wait_s=0.2) == []


async def test_a_cancelled_change_of_the_invisible_time_loses_no_message(namesrv: str) -> None:
    await fill(namesrv, "T", 1)
    async with SimpleConsumer(namesrv, "G", {"T": "*"}) as consumer:
        (message,) = await consumer.receive(invisible_s=0.01, wait_s=20)

        async def attempt(at: int, moment: Moment) -> bool:
            nonlocal message
            (message,) = await consumer.receive(invisible_s=LONG_S, wait_s=20)
            work = consumer.change_invisible(message, 0.01)
            try:
                return (await interrupted(work, at, moment))[0]
            except Cancelled:
                with suppress(RequestError):  # if the broker has done it already
                    await consumer.change_invisible(message, 0.01)
                return True

        await at_every_await(attempt)
        (message,) = await consumer.receive(invisible_s=LONG_S, wait_s=20)
        await consumer.ack(message)


@pytest.mark.parametrize("in_order", [False, True], ids=["concurrent", "in order"])
@pytest.mark.parametrize("call", ["commit", "rebalance", "continue_at", "open", "close"])
async def test_cancelled_calls_of_a_push_consumer_skip_no_message(
    namesrv: str, call: str, in_order: bool
) -> None:
    """No message is skipped and, with ``in_order``, none is consumed before an earlier one."""
    await fill(namesrv, "T", 1)
    heard: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, int] = {}

    def listener(message: Received) -> None:
        heard[message.queue_id].append(message.queue_offset)

    def member() -> PushConsumer:
        topics = {"T": "*"}
        return PushConsumer(namesrv, "G", listener, topics, in_order=in_order, start=FIRST)

    async def send(producer: Producer) -> None:
        for _ in range(2):
            sent = await producer.send(Message("T", b""))
            ends[sent.queue.queue_id] = sent.queue_offset + 1

    def is_all_heard() -> bool:
        return all(len(set(heard[queue])) == end for queue, end in ends.items())

    def work(consumer: PushConsumer) -> Coroutine[Any, Any, None]:
        if call == "continue_at":  # at the current offset, so some messages may be redelivered
            return consumer.continue_at({q: t.offset for q, t in consumer.assigned.items()})
        method: Callable[[], Coroutine[Any, Any, None]] = getattr(consumer, call)
        return method()

    async def attempt(at: int, moment: Moment) -> bool:
        async with nothing_left(), Producer(namesrv) as producer:
            consumer = member()
            if call != "open":
                await consumer.open()
            await send(producer)
            was_interrupted = True
            try:
                was_interrupted, _ = await interrupted(work(consumer), at, moment)
            except Cancelled:
                if call in ("open", "close"):
                    await consumer.close()
                    consumer = member()
                    await consumer.open()
            else:
                if call == "close":
                    consumer = member()
                    await consumer.open()
            await send(producer)
            await until(is_all_heard)
            await consumer.close()
        return was_interrupted

    await at_every_await(attempt)
    for offsets in heard.values():
        firsts = list(dict.fromkeys(offsets))
        assert firsts == sorted(firsts) == list(range(len(firsts))) or not in_order
        assert sorted(firsts) == list(range(len(firsts)))


@pytest.mark.parametrize("in_order", [False, True], ids=["concurrent", "in order"])
async def test_a_cancelled_close_commits_before_it_releases_queues(
    namesrv: str, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next member would begin before the last messages of this one."""
    monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.COMMIT_S", 1000.0)
    monkeypatch.setattr("firetrail.client.cluster.cluster_client.CANCELLED_CLOSE_S", PATIENCE_S)
    steps: list[str] = []
    commit, unlock = Offsets.commit, QueueLocks.unlock

    async def note_commit(*arguments: Any) -> str:
        address = await commit(*arguments)
        steps.append("committed")
        return address

    async def note_unlock(*arguments: Any) -> None:
        steps.extend(["released"] if len(arguments) == 1 else [])  # all queues
        await unlock(*arguments)

    monkeypatch.setattr(Offsets, "commit", note_commit)
    monkeypatch.setattr(QueueLocks, "unlock", note_unlock)
    await fill(namesrv, "T", 1)

    async def attempt(at: int, moment: Moment) -> bool:
        heard: list[Received] = []
        async with Producer(namesrv) as producer:
            await producer.send(Message("T", b""))
        member = PushConsumer(
            namesrv, "G", heard.append, {"T": "*"}, in_order=in_order, start=FIRST
        )
        await member.open()
        await until(lambda: heard)
        steps.clear()
        try:
            return (await interrupted(member.close(), at, moment))[0]
        except Cancelled:
            return True
        finally:
            assert steps[-1] == "released"
            assert "committed" not in steps[steps.index("released") :], (at, moment)

    await at_every_await(attempt)


@pytest.mark.parametrize("in_order", [False, True], ids=["concurrent", "in order"])
@pytest.mark.parametrize("call", ["open", "rebalance", "close"])
async def test_cancelled_handovers_neither_skip_nor_duplicate_messages(
    namesrv: str, call: str, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues go to a member that joins, and back: no message is skipped, and none comes twice.

    ``rebalance`` is that of the old member, when it has to give up queues.
    """
    monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.COMMIT_S", 1000.0)
    for limit in (
        "cluster.cluster_client.CANCELLED_CLOSE_S",
        "consumers.push.push_consumer.HANDOVER_GRACE_S",
    ):
        monkeypatch.setattr(f"firetrail.client.{limit}", PATIENCE_S)

    await fill(namesrv, "T", 1)
    heard: dict[int, list[int]] = defaultdict(list)
    ends: dict[MessageQueue, int] = {}
    members: list[PushConsumer] = []

    def listener(message: Received) -> None:
        heard[message.queue_id].append(message.queue_offset)

    def member() -> PushConsumer:
        return PushConsumer(namesrv, "G", listener, {"T": "*"}, in_order=in_order, start=FIRST)

    def is_consumed(queue: MessageQueue, end: int) -> bool:
        """Return whether a member knows that its listener has finished the last message."""
        owners = [each.assigned[queue] for each in members if queue in each.assigned]
        return any(owner.offset > end for owner in owners)

    async def consume(producer: Producer) -> None:
        for queue_id in range(4):
            queue = MessageQueue("T", "broker-a", queue_id)
            ends[queue] = (await producer.send(Message("T", b""), queue=queue)).queue_offset
        await until(lambda: all(is_consumed(*each) for each in ends.items()))

    async def attempt(at: int, moment: Moment) -> bool:
        joining = member()
        members[:] = old, joining
        calls = {"open": joining.open, "rebalance": old.rebalance, "close": joining.close}
        if call == "close":
            await joining.open()
            await consume(producer)
        elif call == "rebalance":
            with monkeypatch.context() as patch:
                patch.setattr(old, "notice_change", lambda: None)
                await joining.open()
        try:
            return (await interrupted(calls[call](), at, moment))[0]
        except Cancelled:
            return True
        finally:
            old.notice_change()  # as a notification of the broker would do
            await consume(producer)
            await joining.close()

    async with Producer(namesrv) as producer, member() as old:
        assert await at_every_await(attempt) > 3
        await consume(producer)
    for offsets in heard.values():
        found = offsets if in_order else sorted(offsets)
        assert found == list(range(len(found)))


async def test_cancelled_receives_from_a_topic_that_is_created_later(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is cancelled before or after the creation, the first message is received."""
    monkeypatch.setattr("firetrail.client.consumers.simple_consumer.TOPIC_POLL_S", 0.01)

    made = 0

    async def attempt(at: int, moment: Moment) -> bool:
        nonlocal made
        made += 1
        topic = f"T{made}"
        async with SimpleConsumer(namesrv, "G", {topic: "*"}) as consumer:
            receive = consumer.receive(invisible_s=LONG_S, wait_s=20)
            receiving = asyncio.ensure_future(interrupted(receive, at, moment))
            await asyncio.sleep(0)
            await producer.send(Message(topic, b"first"))
            was_interrupted = True
            messages: list[Popped] = []
            with suppress(Cancelled):
                was_interrupted, messages = await receiving
            while not messages:
                messages = await consumer.receive(invisible_s=LONG_S, wait_s=20)
            assert [message.body for message in messages] == [b"first"]
        return was_interrupted and at < 12  # it polls until the topic exists

    async with Producer(namesrv) as producer:
        assert await at_every_await(attempt) > 3
