"""The push consumer, against Firetrail's broker."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tests.client.clusters import Heard, buried, fill, until

from firetrail.client import MessageQueue, PullConsumer, PushConsumer, Received
from firetrail.client.consumers.push.process_queue import ProcessQueue
from firetrail.client.consumers.subscription import by_tags
from firetrail.remoting.messages.bodies import ConsumeFromWhere, MessageModel

FIRST = ConsumeFromWhere.FIRST_OFFSET


def numbers(count: int) -> list[bytes]:
    return sorted(b"%d" % n for n in range(count))


async def test_every_message_is_consumed_once(namesrv: str) -> None:
    heard = Heard()
    await fill(namesrv, "T", 20)
    async with PushConsumer(namesrv, "G", heard, {"T": "*"}, start=FIRST) as consumer:
        await until(lambda: len(heard.messages) >= 20)
        assert heard.bodies == numbers(20)
        assert {q.queue_id for q in consumer.assigned if q.topic == "T"} == {0, 1, 2, 3}
        await fill(namesrv, "T", 5)
        await until(lambda: len(heard.messages) >= 25)
    async with PullConsumer(namesrv, "G") as puller:
        for queue in await puller.queues("T"):
            assert await puller.committed(queue) == await puller.offsets.end(queue)
    late = Heard()
    await fill(namesrv, "T", 3)
    async with PushConsumer(namesrv, "G", late, {"T": "*"}):
        await until(lambda: len(late.messages) >= 3)
        assert late.bodies == numbers(3)


async def test_only_messages_with_the_tags_are_consumed(namesrv: str) -> None:
    heard = Heard()
    await fill(namesrv, "T", 3, tags="a")
    await fill(namesrv, "T", 4, tags="b")
    async with PushConsumer(namesrv, "G", heard, {"T": "b"}, start=FIRST) as consumer:
        await until(lambda: len(heard.messages) >= 4)
        assert {message.tags for message in heard.messages} == {"b"}
        await until(lambda: sum(taken.offset for taken in consumer.assigned.values()) == 7)


async def test_members_with_other_topics_get_queues_that_they_do_not_consume(namesrv: str) -> None:
    """The trap in the guide: queues of a member without the subscription are not consumed."""
    for topic in ("T", "U"):
        await fill(namesrv, topic, 4)
    async with (
        PushConsumer(namesrv, "G", Heard(), {"T": "*"}, start=FIRST) as first,
        PushConsumer(namesrv, "G", Heard(), {"U": "*"}, start=FIRST) as other,
    ):

        def queues() -> Counter[str]:
            return Counter(q.topic for each in (first, other) for q in each.assigned)

        await until(lambda: queues()["T"] == queues()["U"] == 2)


async def test_members_share_the_queues(namesrv: str) -> None:
    heard: dict[str, Heard] = defaultdict(Heard)
    await fill(namesrv, "T", 4)

    def member(name: str) -> PushConsumer:
        return PushConsumer(namesrv, "G", heard[name], {"T": "*"}, start=FIRST)

    def queues(consumer: PushConsumer) -> set[int]:
        return {queue.queue_id for queue in consumer.assigned if queue.topic == "T"}

    async with member("a") as a:
        assert queues(a) == {0, 1, 2, 3}
        async with member("b") as b:
            await until(lambda: len(queues(a)) == len(queues(b)) == 2)
            assert queues(a) | queues(b) == {0, 1, 2, 3}
            await fill(namesrv, "T", 40)
            await until(lambda: sum(len(h.messages) for h in heard.values()) >= 44)
            assert len(heard["b"].messages) >= 20
        await until(lambda: queues(a) == {0, 1, 2, 3})
    everything = Counter(m.message_id for h in heard.values() for m in h.messages)
    assert len(everything) == 44


class TestFailures:
    async def test_a_failed_message_is_redelivered(self, namesrv: str) -> None:
        heard = Heard()

        def listener(message: Received) -> None:
            heard.messages.append(message)
            if message.reconsume_times < 2:
                raise ValueError("not yet")

        await fill(namesrv, "T", 1)
        async with PushConsumer(namesrv, "G", listener, {"T": "*"}, start=FIRST):
            await until(lambda: len(heard.messages) >= 3)
        assert [m.reconsume_times for m in heard.messages] == [0, 1, 2]
        assert {(m.topic, m.body, m.message_id) for m in heard.messages} == {
            ("T", b"0", heard.messages[0].message_id)
        }

    async def test_after_max_retries_a_message_is_a_dead_letter(self, namesrv: str) -> None:
        tries: list[int] = []

        async def listener(message: Received) -> None:
            tries.append(message.reconsume_times)
            raise ValueError("never")

        await fill(namesrv, "T", 1)
        async with PushConsumer(namesrv, "G", listener, {"T": "*"}, start=FIRST, max_retries=1):
            assert await buried(namesrv) == [b"0"]
        assert tries == [0, 1]


async def test_a_broadcast_reaches_every_member_once(namesrv: str, tmp_path: Path) -> None:
    heard = [Heard(), Heard()]
    await fill(namesrv, "T", 4)

    def member(number: int) -> PushConsumer:
        return PushConsumer(
            namesrv,
            "G",
            heard[number],
            {"T": "*"},
            model=MessageModel.BROADCASTING,
            offsets_folder=tmp_path,
            instance=f"I{number}",
        )

    async with member(0), member(1):
        await fill(namesrv, "T", 10)
        await until(lambda: all(len(h.messages) >= 10 for h in heard))
    assert [h.bodies for h in heard] == [numbers(10)] * 2
    await fill(namesrv, "T", 3)  # while no member runs
    heard[0].messages.clear()
    async with member(0):
        await until(lambda: len(heard[0].messages) >= 3)
    assert heard[0].bodies == numbers(3)
    folders = [path.parent.parent.name for path in tmp_path.glob("*/G/offsets.json")]
    assert sorted(folder.partition("@")[2] for folder in folders) == ["I0", "I1"]


@pytest.mark.parametrize("start", [FIRST, ConsumeFromWhere.LAST_OFFSET])
async def test_a_topic_that_is_created_later_is_consumed_from_its_start(
    namesrv: str, start: ConsumeFromWhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is consumed soon and from its first message, because the consumer is older."""
    monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.REBALANCE_S", 1000)

    heard = Heard()
    async with PushConsumer(namesrv, "G", heard, {"T": "*"}, start=start):
        await fill(namesrv, "T", 3)
        await until(lambda: len(heard.messages) >= 3)
        assert heard.bodies == numbers(3)


async def test_a_close_waits_for_running_listeners(namesrv: str) -> None:
    begun, finished = asyncio.Event(), []

    async def listener(message: Received) -> None:
        begun.set()
        await asyncio.sleep(0.1)
        finished.append(message)

    await fill(namesrv, "T", 1)
    async with PushConsumer(namesrv, "G", listener, {"T": "*"}, start=FIRST):
        await begun.wait()
    assert len(finished) == 1
    async with PullConsumer(namesrv, "G") as puller:
        committed = [await puller.committed(queue) for queue in await puller.queues("T")]
        assert sum(offset or 0 for offset in committed) == 1


async def test_continue_at_redelivers_messages(namesrv: str) -> None:
    heard = Heard()
    await fill(namesrv, "T", 8)
    async with PushConsumer(namesrv, "G", heard, {"T": "*"}, start=FIRST) as consumer:
        await until(lambda: len(heard.messages) >= 8)
        queue = MessageQueue("T", "broker-a", 2)
        await consumer.continue_at({queue: 1, MessageQueue("T", "elsewhere", 0): 0})
        await until(lambda: len(heard.messages) >= 9)
        assert (heard.messages[8].queue, heard.messages[8].queue_offset) == (queue, 1)


async def test_messages_consumed_during_a_commit_are_in_the_next_commit() -> None:
    """A periodic commit must not prevent the last commit when the client closes."""
    consumer = PushConsumer("127.0.0.1:1", "G", Heard(), {"T": "*"})
    queue = MessageQueue("T", "broker-a", 0)
    taken = consumer.assigned[queue] = ProcessQueue(queue, by_tags("T"), 5, 1)
    committed: list[int] = []

    async def commit(group: str, queue: MessageQueue, offset: int) -> str:
        committed.append(offset)
        taken._next = 6
        return "127.0.0.1:2"

    async def last_committed(group: str, queue: MessageQueue) -> int | None:
        return committed[-1] if committed else None

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(consumer._offsets, "commit", commit)
        patched.setattr(consumer._offsets, "committed", last_committed)
        patched.setattr(consumer._offsets, "address", lambda queue: "127.0.0.1:2")
        await consumer._commit()
        await consumer._commit()
        await consumer._commit()
    assert committed == [5, 6]
