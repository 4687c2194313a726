"""Commits of members that were suspended: the group's offset is not taken back."""

import asyncio

import pytest
from tests.client.clusters import fill

from firetrail.client import ConsumeFromWhere, MessageQueue, PullConsumer, PushConsumer, Received
from firetrail.client.cluster.offsets import Offsets
from firetrail.client.consumers.push.commits import Commits
from firetrail.client.consumers.push.process_queue import ProcessQueue
from firetrail.client.consumers.push.queue_locks import QueueLocks
from firetrail.client.consumers.subscription import by_tags
from firetrail.errors import NoRouteYetError
from firetrail.remoting.wire.codes import ResponseCode

QUEUE = MessageQueue("T", "broker-a", 0)


class Owner(QueueLocks):
    """A member that holds the locks of its queues, or not."""

    def __init__(self, holds: bool) -> None:
        self._holds = holds

    def holds(self, queue: MessageQueue) -> bool:
        return self._holds


@pytest.mark.parametrize(
    ("holds", "is_late", "committed"), [(True, False, 3), (True, True, 20), (False, False, 20)]
)
async def test_a_commit_that_may_be_outdated_only_raises_the_offset(
    namesrv: str,
    holds: bool,
    is_late: bool,
    committed: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        "firetrail.client.consumers.push.commits.LATE_S", -1.0 if is_late else 1000.0
    )

    await fill(namesrv, "T", 1)
    async with PullConsumer(namesrv, "G") as other:
        await other.queues("T")
        offsets: Offsets = other.offsets
        await offsets.commit("G", QUEUE, 20)
        commits = Commits("G", offsets, Owner(holds))
        taken = ProcessQueue(QUEUE, by_tags("T", "*"), 3, 1)
        commits.begin_round()
        commits.begin_round()
        await commits.commit(QUEUE, taken, 3)
        assert await offsets.committed("G", QUEUE) == committed
        await commits.commit(QUEUE, taken, 25)
        assert await offsets.committed("G", QUEUE) == 25
        assert taken.committed == 25
        await commits.force(QUEUE, taken, 1)  # an administrator has reset it
        assert await offsets.committed("G", QUEUE) == 1
    assert ("went to another member" in caplog.text) is (committed == 20)


class TwoBrokers(Offsets):
    """The offsets of a master and its replica, of which one is asked."""

    def __init__(self) -> None:
        self.asked: str | None = "replica"
        self.saved = dict[str, int]()

    def address(self, queue: MessageQueue) -> str:
        if self.asked is None:
            raise NoRouteYetError(ResponseCode.TOPIC_NOT_EXIST, "not registered at the moment")
        return self.asked

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        return self.saved.get(self.address(queue))

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> str:
        self.saved[self.address(queue)] = offset
        return self.address(queue)


@pytest.mark.parametrize("holds", [True, False])
async def test_an_offset_that_a_replica_has_is_committed_again_when_the_master_is_back(
    holds: bool,
) -> None:
    offsets = TwoBrokers()
    commits = Commits("G", offsets, Owner(holds))
    taken = ProcessQueue(QUEUE, by_tags("T", "*"), 0, 1)
    assert commits.is_due(QUEUE, taken, 40)
    await commits.commit(QUEUE, taken, 40)
    assert not commits.is_due(QUEUE, taken, 40)
    offsets.asked = None
    assert not commits.is_due(QUEUE, taken, 40)  # there is no broker to commit to
    offsets.asked = "master"
    assert commits.is_due(QUEUE, taken, 40)
    await commits.commit(QUEUE, taken, 40)
    assert offsets.saved == {"replica": 40, "master": 40}
    assert not commits.is_due(QUEUE, taken, 40)


async def test_a_master_that_is_back_keeps_a_higher_offset() -> None:
    offsets = TwoBrokers()
    commits = Commits("G", offsets, Owner(True))
    taken = ProcessQueue(QUEUE, by_tags("T", "*"), 0, 1)
    await commits.commit(QUEUE, taken, 40)
    offsets.asked, offsets.saved["master"] = "master", 60
    await commits.commit(QUEUE, taken, 40)
    assert offsets.saved["master"] == 60
    assert not commits.is_due(QUEUE, taken, 40)


@pytest.mark.parametrize("in_order", [True, False])
async def test_a_member_that_gives_a_queue_up_does_not_take_the_offset_back(
    namesrv: str, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended; another member has consumed the queue in the meantime."""
    monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.COMMIT_S", 1000.0)

    await fill(namesrv, "T", 20)
    begun = asyncio.Event()

    async def hang(message: Received) -> None:
        begun.set()
        await asyncio.Event().wait()

    first = ConsumeFromWhere.FIRST_OFFSET
    async with PullConsumer(namesrv, "G") as other:
        queues = await other.queues("T")
        member = PushConsumer(namesrv, "G", hang, {"T": "*"}, start=first, in_order=in_order)
        async with member:
            await begun.wait()
            for queue in queues:
                await other.commit(queue, await other.offsets.end(queue))
            await member.close(grace_s=0.01)
        for queue in queues:
            committed = await other.offsets.committed("G", queue)
            assert committed == await other.offsets.end(queue)
