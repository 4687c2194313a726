"""Queues that move from one member to another: messages are consumed once, and in order."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.client.clusters import fill, until

from firetrail.client import (
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    Received,
)
from firetrail.client.cluster.session import Session
from firetrail.client.consumers.push.queue_locks import QueueLocks

FIRST = ConsumeFromWhere.FIRST_OFFSET
QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]


@pytest.fixture(autouse=True)
def late_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable periodic commits, and let listeners delay a handover for long."""
    monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.COMMIT_S", 1000.0)
    monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.HANDOVER_GRACE_S", 20.0)
    monkeypatch.setattr("firetrail.client.consumers.push.queue_locks.HANDOVER_S", 20.0)


class Oracle:
    """Records the messages of members, and blocks their listeners until released."""

    def __init__(self, namesrv: str, in_order: bool) -> None:
        self._namesrv = namesrv
        self._in_order = in_order
        self.heard: dict[MessageQueue, list[int]] = defaultdict(list)
        self.by: Counter[str] = Counter()
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.sent = 0

    def member(self, name: str) -> PushConsumer:
        async def listener(message: Received) -> None:
            self.heard[message.queue].append(message.queue_offset)
            self.by[name] += 1
            await self.may_finish.wait()

        return PushConsumer(
            self._namesrv, "G", listener, {"T": "*"}, in_order=self._in_order, start=FIRST
        )

    async def send(self, producer: Producer, count: int) -> None:
        for queue in QUEUES:
            for _ in range(count):
                await producer.send(Message("T", b""), queue=queue)
        self.sent += count * len(QUEUES)

    async def all_heard(self) -> None:
        await until(lambda: sum(map(len, self.heard.values())) >= self.sent)

    def check(self) -> None:
        """Check that every message was consumed once and, with ``in_order``, in order."""
        for offsets in self.heard.values():
            found = offsets if self._in_order else sorted(offsets)
            assert found == list(range(len(found)))


def queues_of(consumer: PushConsumer) -> set[MessageQueue]:
    return {queue for queue in consumer.assigned if queue.topic == "T"}


@pytest.mark.parametrize("in_order", [False, True], ids=["concurrent", "in order"])
async def test_messages_are_consumed_once_when_a_member_joins_and_leaves(
    namesrv: str, in_order: bool
) -> None:
    """Listeners are running, and their member has not committed an offset yet."""
    oracle = Oracle(namesrv, in_order)
    async with Producer(namesrv) as producer:
        await oracle.send(producer, 3)
        old, new = oracle.member("old"), oracle.member("new")
        await old.open()
        await oracle.all_heard()
        oracle.may_finish.clear()
        await oracle.send(producer, 1)
        await oracle.all_heard()
        await new.open()
        await oracle.send(producer, 1)
        await asyncio.sleep(0.05)
        assert queues_of(new) == set()  # the old member keeps them while its listeners run
        oracle.may_finish.set()
        await until(lambda: len(queues_of(new)) == len(queues_of(old)) == 2)
        await oracle.send(producer, 2)
        await oracle.all_heard()
        assert oracle.by["new"] >= 4
        oracle.check()

        oracle.may_finish.clear()
        await oracle.send(producer, 1)
        await until(lambda: sum(map(len, oracle.heard.values())) >= oracle.sent)
        leaving = asyncio.ensure_future(new.close(20))
        await asyncio.sleep(0.05)
        oracle.may_finish.set()
        await leaving
        await until(lambda: len(queues_of(old)) == 4)
        await oracle.send(producer, 2)
        await oracle.all_heard()
        await old.close()
        oracle.check()


@asynccontextmanager
async def locking(namesrv: str) -> AsyncIterator[QueueLocks]:
    session = Session(namesrv)
    await session.open()
    await session.route("T")
    try:
        yield QueueLocks(session, "G")
    finally:
        await session.close()


async def test_queues_of_a_dead_member_are_taken_over_after_a_moment(
    monkeypatch: pytest.MonkeyPatch, namesrv: str
) -> None:
    """It holds its locks; without ``in_order`` its queues are taken over nevertheless."""
    await fill(namesrv, "T", 4)
    oracle = Oracle(namesrv, False)
    oracle.sent = 4
    async with locking(namesrv) as gone:
        assert await gone.lock(QUEUES) == QUEUES
    monkeypatch.setattr("firetrail.client.consumers.push.queue_locks.HANDOVER_S", 0.2)
    async with oracle.member("next"):
        await oracle.all_heard()
    oracle.check()


async def test_locks_of_queues_assigned_to_others_are_released(namesrv: str) -> None:
    await fill(namesrv, "T", 4)
    async with locking(namesrv) as one, locking(namesrv) as other:
        assert await one.lock(QUEUES) == QUEUES
        assert await other.take_over(QUEUES) == []
        await one.keep_only("T", QUEUES[:1])
        assert await other.take_over(QUEUES) == QUEUES[1:]


async def test_a_new_wait_for_a_queue_has_the_full_time(
    monkeypatch: pytest.MonkeyPatch, namesrv: str
) -> None:
    """A queue that was refused and then assigned to others is waited for again."""
    await fill(namesrv, "T", 4)
    async with locking(namesrv) as one, locking(namesrv) as other:
        await one.lock(QUEUES)
        assert await other.take_over(QUEUES) == []
        await other.keep_only("T", QUEUES[:1])
        monkeypatch.setattr("firetrail.client.consumers.push.queue_locks.HANDOVER_S", 0.0)
        assert await other.take_over(QUEUES[:1]) == QUEUES[:1]
        monkeypatch.setattr("firetrail.client.consumers.push.queue_locks.HANDOVER_S", 20.0)
        assert await other.take_over(QUEUES) == []
