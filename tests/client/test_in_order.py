"""Consumption in order, against Firetrail's broker."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.client.clusters import buried, fill, until

from firetrail.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
)
from firetrail.remoting.messages.headers import SendHeaderV2

FIRST = ConsumeFromWhere.FIRST_OFFSET


async def test_messages_of_a_queue_are_consumed_in_order(namesrv: str) -> None:
    heard: list[tuple[int, bytes]] = []
    failed: Counter[bytes] = Counter()

    def listener(message: Received) -> None:
        if message.body == b"5" and failed[b"5"] < 2:
            failed[b"5"] += 1
            assert message.reconsume_times == failed[b"5"] - 1
            raise ValueError("again")
        heard.append((message.queue.queue_id, message.body))

    queue = MessageQueue("T", "broker-a", 1)
    async with Producer(namesrv) as producer:
        await producer.send(Message("T", b"x"), queue=queue)
        for n in range(10):
            await producer.send(Message("T", b"%d" % n), queue=queue)
    async with PushConsumer(namesrv, "G", listener, {"T": "*"}, in_order=True, start=FIRST):
        await until(lambda: len(heard) >= 11)
    assert [body for _, body in heard] == [b"x", *(b"%d" % n for n in range(10))]
    assert failed[b"5"] == 2


class TestRetriesInOrder:
    """A message that always fails, followed by another one in the same queue."""

    @staticmethod
    def consume(namesrv: str, tries: list[bytes], fails: int, **more: Any) -> PushConsumer:
        def listener(message: Received) -> None:
            tries.append(message.body)
            if message.body == b"0" and tries.count(b"0") <= fails:
                raise ValueError("not yet")

        return PushConsumer(namesrv, "G", listener, {"T": "*"}, in_order=True, start=FIRST, **more)

    @staticmethod
    async def send_two(namesrv: str) -> None:
        async with Producer(namesrv) as producer:
            for body in (b"0", b"1"):
                await producer.send(Message("T", body), queue=MessageQueue("T", "broker-a", 1))

    async def test_retries_have_no_limit_by_default(self, namesrv: str) -> None:
        tries: list[bytes] = []
        await self.send_two(namesrv)
        async with self.consume(namesrv, tries, fails=40):
            await until(lambda: b"1" in tries)
        assert tries == [b"0"] * 41 + [b"1"]

    async def test_after_max_retries_the_message_is_a_dead_letter(self, namesrv: str) -> None:
        tries: list[bytes] = []
        await self.send_two(namesrv)
        async with self.consume(namesrv, tries, fails=99, max_retries=2):
            await until(lambda: b"1" in tries)
            assert await buried(namesrv) == [b"0"]
        assert tries == [b"0"] * 3 + [b"1"]

    async def test_a_negative_count_of_a_producer_does_not_add_retries(
        self, namesrv: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def counted(**fields: Any) -> SendHeaderV2:
            return SendHeaderV2(**(fields | {"reconsume_times": -50}))

        tries: list[bytes] = []
        monkeypatch.setattr("firetrail.client.messages.send_requests.SendHeaderV2", counted)
        await self.send_two(namesrv)
        async with self.consume(namesrv, tries, fails=99, max_retries=2):
            await until(lambda: b"1" in tries)
        assert tries == [b"0"] * 3 + [b"1"]

    async def test_after_max_retries_a_broadcast_message_is_skipped(
        self, namesrv: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        tries: list[bytes] = []
        broadcast = {"model": MessageModel.BROADCASTING, "offsets_folder": tmp_path}
        await self.send_two(namesrv)
        async with self.consume(namesrv, tries, fails=99, max_retries=1, **broadcast):
            await until(lambda: b"1" in tries)
        assert tries == [b"0", b"0", b"1"]
        assert "is skipped" in caplog.text


async def test_in_order_a_queue_is_kept_while_a_message_of_it_is_consumed(namesrv: str) -> None:
    """While a listener is slow, no other member may start with the same message."""
    await fill(namesrv, "T", 4)
    at_work: Counter[bytes] = Counter()
    most: Counter[bytes] = Counter()
    go_on = asyncio.Event()

    async def listener(message: Received) -> None:
        at_work[message.body] += 1
        most[message.body] = max(most[message.body], at_work[message.body])
        await go_on.wait()
        at_work[message.body] -= 1

    def member() -> PushConsumer:
        return PushConsumer(namesrv, "G", listener, {"T": "*"}, in_order=True, start=FIRST)

    async with member():
        await until(lambda: len(at_work) == 4)
        async with member() as b:
            await asyncio.sleep(0.3)  # many times the grace period of a handover
            assert not any(queue.topic == "T" for queue in b.assigned)
            go_on.set()
            await until(lambda: len([q for q in b.assigned if q.topic == "T"]) == 2)
    assert set(most.values()) == {1}


async def test_in_order_a_queue_has_one_consumer(namesrv: str) -> None:
    await fill(namesrv, "T", 4)
    working: Counter[int] = Counter()
    order: dict[int, list[int]] = defaultdict(list)

    async def listener(message: Received) -> None:
        number = message.queue.queue_id
        working[number] += 1
        assert working[number] == 1
        await asyncio.sleep(0.002)
        order[number].append(message.queue_offset)
        working[number] -= 1

    def member() -> PushConsumer:
        return PushConsumer(namesrv, "G", listener, {"T": "*"}, in_order=True, start=FIRST)

    async with member():
        await fill(namesrv, "T", 40)
        async with member() as b:
            await until(lambda: len([q for q in b.assigned if q.topic == "T"]) == 2)
            await fill(namesrv, "T", 40)
            await until(lambda: sum(map(len, order.values())) >= 84)
    for offsets in order.values():
        assert offsets == sorted(offsets)


async def test_in_order_a_reset_frees_a_queue_from_a_message_that_always_fails(
    namesrv: str,
) -> None:
    """The consumer checks for a reset during retries, because it does not pull then."""
    heard: list[bytes] = []
    tried = asyncio.Event()

    def listener(message: Received) -> None:
        if message.body == b"bad":
            tried.set()
            raise ValueError("never")
        heard.append(message.body)

    queue = MessageQueue("T", "broker-a", 0)
    async with Producer(namesrv) as producer, Admin(namesrv) as admin:
        for body in (b"0", b"bad", b"skipped"):
            await producer.send(Message("T", body), queue=queue)
        async with PushConsumer(
            namesrv, "G", listener, {"T": "*"}, in_order=True, start=FIRST
        ) as consumer:
            await tried.wait()
            await admin.reset_offsets("G", "T", -1)
            await until(lambda: consumer.assigned[queue].offset == 3)
            await producer.send(Message("T", b"next"), queue=queue)
            await until(lambda: b"next" in heard)
        async with PullConsumer(namesrv, "G") as puller:
            await puller.queues("T")
            assert await puller.committed(queue) == 4
    assert heard == [b"0", b"next"]
