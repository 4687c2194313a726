"""Pops: invisible time, acknowledgement, redelivery, and waiting pops."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.broker.brokers import SMALL, Fields, Talk, records, talking
from tests.broker.pops import MINUTE_MS, StoppedClock, ack, ask_pop, change, fill, pop, popped

from firetrail.broker.filter.message_selector import MessageSelector
from firetrail.broker.pop.pop_processor import PopProcessor
from firetrail.broker.pop.pop_queues import PopQueues
from firetrail.format import names
from firetrail.format.kernels.draft import Message
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig, TopicConfig
from firetrail.remoting.messages.pop.pop_bodies import BatchAck, BatchAckBody
from firetrail.remoting.messages.pop.receipts import ORDERED
from firetrail.remoting.wire.codes import Permission, RequestCode, ResponseCode
from firetrail.store.admission.gate import Closure
from firetrail.store.settings.store_config import FlushMode
from firetrail.system import System

LONG = 30_000
SECOND_RETRY = "%RETRY%CG+T1"


async def test_popped_messages_are_invisible_to_others(talk: Talk) -> None:
    await fill(talk, "T1", b"0", b"1", b"2")
    await fill(talk, "T1", b"3", e=2)
    first = await pop(talk, maxMsgNums=2)
    rest = await pop(talk)
    assert sorted(message.body for message in first + rest) == [b"0", b"1", b"2", b"3"]
    nothing = await ask_pop(talk)
    assert nothing.code == ResponseCode.POLLING_TIMEOUT
    assert nothing.fields["restNum"] == "0"
    other = await pop(talk, consumerGroup="OTHER")
    assert len(other) == 4


async def test_a_pop_may_name_one_queue(talk: Talk) -> None:
    await fill(talk, "T1", b"0")
    await fill(talk, "T1", b"3", e=3)
    assert [message.body for message in await pop(talk, queueId=3)] == [b"3"]
    assert [message.body for message in await pop(talk, queueId=0)] == [b"0"]


async def test_unacknowledged_messages_are_redelivered(still: Talk, clock: StoppedClock) -> None:
    talk = still
    await fill(talk, "T1", b"0", b"1")
    kept, done = await pop(talk, invisibleTime=MINUTE_MS)
    assert (await ack(talk, done)).code == 0
    clock.advance(MINUTE_MS)
    (again,) = popped(await ask_pop(talk, pollTime=LONG, invisibleTime=50))
    assert (again.body, again.record.topic) == (kept.body, "T1")
    assert again.record.reconsume_times == 1
    assert again.record.properties["RETRY_TOPIC"] == "T1"
    assert again.record.properties["ORIGIN_GROUP"] == "CG"
    assert again.record.properties["1ST_POP_TIME"] == str(kept.receipt.pop_time)
    clock.advance(50)
    (once_more,) = popped(await ask_pop(talk, pollTime=LONG))
    assert once_more.record.reconsume_times == 2
    assert (await ack(talk, once_more)).code == 0
    clock.advance(MINUTE_MS)
    assert (await ask_pop(talk, pollTime=200)).code == ResponseCode.POLLING_TIMEOUT


@pytest.fixture
def second_retries(still: Talk, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that adds messages as a Java broker with enableRetryTopicV2 leaves them."""

    def add(*bodies: bytes) -> None:
        with monkeypatch.context() as patch:  # topics of clients have no "+"
            patch.setattr(names, "_TOPIC", re.compile(r"[%|a-zA-Z0-9_+-]+"))
            still.broker.topics.ensure("T1", 4)
            still.broker.topics.ensure(SECOND_RETRY, 1)
            for body in bodies:
                result = still.broker.store.put(Message(SECOND_RETRY, body))
                assert result.ok

    return add


class TestPriorities:
    @pytest.fixture
    async def filled(self, talk: Talk) -> Talk:
        talk.broker.topics.put([TopicConfig("T1", 4, 4, attributes={"+message.type": "PRIORITY"})])
        for priority in (1, 3, 0, 2, 9):
            properties = f"_SYS_MSG_PRIORITY_\x01{priority}\x02"
            answer = await talk.send("T1", b"%d" % priority, i=properties, e=0)
            assert answer.fields["queueId"] == str(min(priority, 3))
        await asyncio.to_thread(talk.broker.store.wait_dispatched)
        return talk

    async def test_messages_with_high_priorities_are_popped_first(self, filled: Talk) -> None:
        found = [(await pop(filled, maxMsgNums=1))[0].body for _ in range(5)]
        assert found == [b"3", b"9", b"2", b"1", b"0"]

    async def test_a_group_can_ignore_priorities(self, filled: Talk) -> None:
        """With a factor of 0, each pop begins with another queue."""
        group = SubscriptionGroupConfig("CG", attributes={"+priority.factor": "0"})
        filled.broker.groups.put([group])
        first = [(await pop(filled, maxMsgNums=1))[0].body for _ in range(4)]
        assert sorted(first) == [b"0", b"1", b"2", b"3"]
        assert (await pop(filled))[0].body == b"9"

    async def test_a_group_can_heed_priorities_in_some_pops(self, filled: Talk) -> None:
        group = SubscriptionGroupConfig("CG", attributes={"+priority.factor": "25"})
        filled.broker.groups.put([group])
        queues = PopQueues(
            filled.broker.broker_store,
            filled.broker.topics,
            filled.broker.groups,
            filled.broker.offsets,
            cast(MessageSelector, None),
        )
        descending = [("T1", number) for number in (3, 2, 1, 0)]
        heeded = [list(queues.of("CG", "T1", -1)) == descending for _ in range(100)]
        assert heeded.count(True) == 25
        assert all(any(heeded[at : at + 10]) for at in range(0, 100, 10))

    async def test_other_topics_have_no_priorities(self, talk: Talk) -> None:
        await fill(talk, "T1", b"0")
        await fill(talk, "T1", b"3", e=3)
        firsts = set()
        for number in range(4):
            firsts.add((await pop(talk, consumerGroup=f"G{number}", maxMsgNums=1))[0].body)
        assert firsts == {b"0", b"3"}


class TestSecondRetryTopic:
    async def test_its_messages_are_popped_and_acknowledged(
        self, still: Talk, clock: StoppedClock, second_retries: Callable[..., None]
    ) -> None:
        second_retries(b"left")
        (message,) = await pop(still, invisibleTime=MINUTE_MS)
        assert (message.body, message.record.topic, message.receipt.retry) == (b"left", "T1", "2")
        assert (await ack(still, message)).code == 0
        clock.advance(MINUTE_MS)
        assert (await ask_pop(still, pollTime=200)).code == ResponseCode.POLLING_TIMEOUT

    async def test_they_are_redelivered_through_the_first_one(
        self, still: Talk, clock: StoppedClock, second_retries: Callable[..., None]
    ) -> None:
        second_retries(b"left")
        await pop(still, invisibleTime=MINUTE_MS)
        clock.advance(MINUTE_MS)
        (again,) = popped(await ask_pop(still, pollTime=LONG))
        assert (again.body, again.record.topic, again.receipt.retry) == (b"left", "T1", "1")
        assert again.record.reconsume_times == 1

    async def test_both_are_popped_at_once(
        self, still: Talk, clock: StoppedClock, second_retries: Callable[..., None]
    ) -> None:
        second_retries(b"left")
        await fill(still, "T1", b"first")
        await pop(still, invisibleTime=MINUTE_MS, maxMsgNums=1)  # that of the topic itself
        clock.advance(MINUTE_MS)
        while still.broker.store.max_offset("%RETRY%CG_T1", 0) < 1:
            await asyncio.sleep(0.005)
        found = await pop(still)
        assert {(each.body, each.receipt.retry) for each in found} == {
            (b"first", "1"),
            (b"left", "2"),
        }
        for message in found:
            assert (await ack(still, message)).code == 0

    async def test_a_message_that_arrives_there_wakes_a_pop(
        self, still: Talk, second_retries: Callable[..., None]
    ) -> None:
        second_retries()
        waiting = asyncio.ensure_future(ask_pop(still, pollTime=LONG))
        asked: Fields = {"consumerGroup": "CG", "topic": "T1", "queueId": -1}
        while (await still.ask(RequestCode.POLLING_INFO, asked)).fields["pollingNum"] != "1":
            await asyncio.sleep(0.005)
        second_retries(b"new")
        (message,) = popped(await waiting)
        assert message.body == b"new"


async def test_the_invisible_time_can_be_extended_and_shortened(
    still: Talk, clock: StoppedClock
) -> None:
    talk = still
    await fill(talk, "T1", b"0", b"1")
    first, second = await pop(talk, invisibleTime=MINUTE_MS)
    answer = await change(talk, first, 2 * MINUTE_MS)
    assert answer.fields["invisibleTime"] == str(2 * MINUTE_MS)
    assert (await change(talk, second, 10)).code == 0
    clock.advance(100)
    (again,) = popped(await ask_pop(talk, pollTime=LONG, invisibleTime=10 * MINUTE_MS))
    assert again.body == b"1"
    late = await change(talk, first, 1)
    assert late.code == ResponseCode.NO_MESSAGE  # that receipt was exchanged for another
    clock.advance(MINUTE_MS)
    assert (await ask_pop(talk, pollTime=300)).code == ResponseCode.POLLING_TIMEOUT
    receipt = first.receipt._replace(
        start=first.receipt.offset, pop_time=int(answer.fields["popTime"])
    )
    assert (await change(talk, first._replace(receipt=receipt), 10)).code == 0
    clock.advance(100)
    (back,) = popped(await ask_pop(talk, pollTime=LONG))
    assert back.body == b"0"


async def test_a_batch_acknowledges_several_messages(still: Talk, clock: StoppedClock) -> None:
    talk = still
    await fill(talk, "T1", *(b"%d" % n for n in range(5)))
    found = await pop(talk, invisibleTime=MINUTE_MS)
    receipt = found[0].receipt
    bits = BatchAck.bits_of(receipt.start, [m.receipt.offset for m in found if m.body != b"3"])
    batch = BatchAck(
        "CG",
        "T1",
        receipt.start,
        receipt.queue_id,
        receipt.revive_queue,
        receipt.pop_time,
        receipt.invisible_ms,
        bits,
    )
    others = [
        replace(batch, topic="NONE"),
        replace(batch, queue_id=99),
        replace(batch, queue_id=-1),
    ]
    body = BatchAckBody("broker-a", [*others, batch]).encode(standard=True)
    assert (await talk.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
    clock.advance(MINUTE_MS)
    (again,) = popped(await ask_pop(talk, pollTime=LONG))
    assert again.body == b"3"
    empty = await talk.ask(RequestCode.BATCH_ACK_MESSAGE, body=b"{}")
    assert empty.code == ResponseCode.NO_MESSAGE


async def test_no_acknowledgement_counts_for_a_queue_that_the_topic_does_not_have(
    talk: Talk,
) -> None:
    """RocketMQ, too, reports success for any batch."""
    await fill(talk, "T1", b"0", e=3)
    (found,) = await pop(talk)
    talk.broker.topics.put([TopicConfig("T1", 1, 1)])
    start, time, invisible, revive, kind, *_ = found.receipt
    bits = BatchAck.bits_of(start, [start])
    batch = BatchAck("CG", "T1", start, 3, revive, time, invisible, bits, kind)
    body = BatchAckBody("broker-a", [batch]).encode(standard=True)
    assert (await talk.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
    assert (await ack(talk, found)).code == ResponseCode.MESSAGE_ILLEGAL
    assert len(list(talk.broker._parts.checkpoints.pops())) == 1


async def test_waiting_pops_are_counted_for_those_who_may_pop(talk: Talk) -> None:
    await fill(talk, "T1", b"0")
    await pop(talk)
    talk.broker.topics.put([TopicConfig("WRITTEN", 4, 4, perm=Permission.WRITE)])
    talk.broker.groups.put([SubscriptionGroupConfig("STOPPED", consume_enable=False)])
    where: Fields = {"consumerGroup": "CG", "topic": "T1", "queueId": -1}
    peek: Fields = {"maxMsgNums": 1}
    for more, code in (
        ({}, ResponseCode.SUCCESS),
        ({"topic": "NONE"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "WRITTEN"}, ResponseCode.NO_PERMISSION),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "STOPPED"}, ResponseCode.NO_PERMISSION),
    ):
        asked: Fields = {**where, **more}
        answer = await talk.ask(RequestCode.POLLING_INFO, asked)
        sibling = await talk.ask(RequestCode.PEEK_MESSAGE, asked | peek)
        assert answer.code == code
        assert answer.remark == sibling.remark or code == ResponseCode.SUCCESS


class TestAfterARestart:
    @pytest.mark.parametrize("flush", list(FlushMode))
    async def test_only_unacknowledged_messages_are_redelivered(
        self, tmp_path: Path, clock: StoppedClock, flush: FlushMode
    ) -> None:
        config, system = SMALL.replace(flush=flush), System(clock=clock)
        async with talking(tmp_path, store=config, system=system) as talk:
            await fill(talk, "T1", b"open", b"done")
            unanswered, done = await pop(talk, invisibleTime=MINUTE_MS)
            assert (await ack(talk, done)).code == 0
            assert unanswered.body == b"open"
        clock.advance(MINUTE_MS)
        async with talking(tmp_path, store=config, system=system) as talk:
            (again,) = popped(await ask_pop(talk, pollTime=LONG))
            assert (again.body, again.record.reconsume_times) == (b"open", 1)
            assert (await ask_pop(talk, pollTime=300)).code == ResponseCode.POLLING_TIMEOUT


class TestWaiting:
    async def test_a_message_wakes_one_pop(self, talk: Talk) -> None:
        await fill(talk, "T1", b"0")
        await pop(talk)
        waiting = [asyncio.create_task(ask_pop(talk, pollTime=LONG)) for _ in range(3)]
        where: Fields = {"consumerGroup": "CG", "topic": "T1", "queueId": -1}
        while (await talk.ask(RequestCode.POLLING_INFO, where)).fields["pollingNum"] != "3":
            await asyncio.sleep(0.01)
        await talk.send("T1", b"news", e=3)
        done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (answer,) = [task.result() for task in done]
        assert [message.body for message in popped(answer)] == [b"news"]
        await talk.send("T1", b"more", e=1)
        done, others = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        assert len(others) == 1
        await talk.send("T1", b"last")
        await asyncio.gather(*others)
        assert (await talk.ask(RequestCode.POLLING_INFO, where)).fields["pollingNum"] == "0"

    async def test_a_waiting_pop_is_answered_with_sync_flush(self) -> None:
        async with talking(store=SMALL.replace(flush=FlushMode.SYNC)) as talk:
            await talk.send("T1", b"0")
            first = await ask_pop(talk, pollTime=LONG)
            assert len(popped(first)) == 1
            waiting = asyncio.create_task(ask_pop(talk, pollTime=LONG))
            await asyncio.sleep(0.05)
            await talk.send("T1", b"news")
            (message,) = popped(await waiting)
            assert (await ack(talk, message)).code == 0

    async def test_only_matching_messages_wake_a_pop(self, talk: Talk) -> None:
        await fill(talk, "T1", b"a", b"a", i="TAGS\x01A\x02")
        waiting = asyncio.create_task(ask_pop(talk, pollTime=LONG, exp="B"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await talk.send("T1", b"a", i="TAGS\x01A\x02")
        await talk.send("T1", b"b", i="TAGS\x01B\x02")
        assert [message.body for message in popped(await waiting)] == [b"b"]

    async def test_a_disconnected_consumer_takes_no_messages(self, talk: Talk) -> None:
        await fill(talk, "T1", b"0")
        await pop(talk)
        other = RemotingClient()
        leaving = asyncio.create_task(ask_pop(Talk(talk.broker, other), pollTime=LONG))
        await asyncio.sleep(0.05)
        await other.close()
        with pytest.raises(ConnectionError):
            await leaving
        await asyncio.sleep(0.05)
        await fill(talk, "T1", b"1")
        assert [message.body for message in await pop(talk)] == [b"1"]

    async def test_a_notification_does_not_take_messages(self, talk: Talk) -> None:
        await fill(talk, "T1", b"0")
        await pop(talk)
        fields: Fields = {"consumerGroup": "CG", "topic": "T1", "queueId": -1, "bornTime": 0}
        nothing = await talk.ask(RequestCode.NOTIFICATION, fields, pollTime=20)
        assert nothing.fields["hasMsg"] == "false"
        waiting = asyncio.create_task(talk.ask(RequestCode.NOTIFICATION, fields, pollTime=LONG))
        await asyncio.sleep(0.05)
        await talk.send("T1", b"news")
        assert (await waiting).fields["hasMsg"] == "true"
        assert [message.body for message in await pop(talk)] == [b"news"]


async def test_pops_filter_by_sql92(talk: Talk) -> None:
    for n in range(5):
        await fill(talk, "T1", b"%d" % n, i=f"n\x01{n}\x02")
    found = await pop(talk, exp="n > 2", expType="SQL92")
    assert [message.body for message in found] == [b"3", b"4"]
    assert (await ask_pop(talk)).code == ResponseCode.POLLING_TIMEOUT  # they are skipped for good
    wrong = await ask_pop(talk, exp="n >", expType="SQL92")
    assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_the_init_mode_decides_where_a_new_group_begins(talk: Talk) -> None:
    await fill(talk, "T1", *(b"%d" % n for n in range(10)))
    assert len(await pop(talk, initMode=0)) == 10
    recent = await pop(talk, initMode=1, consumerGroup="NEW")
    assert len(recent) == 10  # the queue still has its first message


async def test_peek_takes_nothing(talk: Talk) -> None:
    await fill(talk, "T1", b"0", b"1")
    fields: Fields = {"consumerGroup": "CG", "topic": "T1", "queueId": -1, "maxMsgNums": 8}
    answer = await talk.ask(RequestCode.PEEK_MESSAGE, fields)
    assert [record.body for record in records(answer.content)] == [b"0", b"1"]
    assert answer.fields["restNum"] == "2"
    assert len(await pop(talk)) == 2
    nothing = await talk.ask(RequestCode.PEEK_MESSAGE, fields)
    assert nothing.code == ResponseCode.PULL_NOT_FOUND


class TestRefusals:
    async def test_invalid_pops_are_refused(self, talk: Talk) -> None:
        await fill(talk, "T1", b"0")
        cases: list[tuple[Fields, int]] = [
            ({"topic": "NONE"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
            ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
            ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
            ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER),
            ({"consumerGroup": "a/b"}, ResponseCode.SYSTEM_ERROR),
        ]
        for fields, code in cases:
            assert (await ask_pop(talk, fields)).code == code
        talk.broker.topics.put([TopicConfig("W", perm=2)])
        assert (await ask_pop(talk, topic="W")).code == ResponseCode.NO_PERMISSION
        talk.broker.groups.put([SubscriptionGroupConfig("CG", consume_enable=False)])
        assert (await ask_pop(talk)).code == ResponseCode.NO_PERMISSION

    async def test_invalid_acknowledgements_are_refused(self, talk: Talk) -> None:
        await fill(talk, "T1", b"0")
        (message,) = await pop(talk)
        cases: list[tuple[Fields, int]] = [
            ({"topic": "NONE"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"queueId": 4}, ResponseCode.MESSAGE_ILLEGAL),
            ({"offset": 7}, ResponseCode.NO_MESSAGE),
            ({"extraInfo": "1 2 3"}, ResponseCode.MESSAGE_ILLEGAL),
        ]
        for fields, code in cases:
            assert (await ack(talk, message, fields)).code == code
        assert (await ack(talk, message)).code == 0
        assert (await ack(talk, message)).code == 0
        assert (await change(talk, message, 10)).code == ResponseCode.NO_MESSAGE

    async def test_a_store_that_refuses_puts_is_not_available(self, talk: Talk) -> None:
        """As for sends: 14 tells clients to try again later, or another broker."""
        await fill(talk, "T1", b"x")
        (message,) = await pop(talk)
        talk.broker.broker_store.gate.shut(Closure.FENCED, "a test")
        for refused in (await ack(talk, message), await change(talk, message, 10)):
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert (refused.remark or "").startswith("StoreReadOnlyError: SERVICE_NOT_AVAILABLE: ")
        talk.broker.broker_store.gate.lift(Closure.FENCED)
        assert (await ack(talk, message)).code == 0

    async def test_clients_cannot_send_to_the_revive_topic(self, talk: Talk) -> None:
        answer = await talk.send(talk.broker.topics.revive, b"{}")
        assert answer.code == ResponseCode.NO_PERMISSION
        answer = await talk.send("rmq_sys_wheel_timer", b"{}")
        assert "is forbidden" in (answer.remark or "")


@pytest.mark.parametrize("room", [20, 100, 400])
async def test_a_message_that_cannot_be_redelivered_does_not_block_others(
    talk: Talk, room: int
) -> None:
    """Its properties leave no room for those that a redelivery adds."""
    added = "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
    taken = len("K\x01\x02" + added)
    full = f"K\x01{'v' * (32_767 - taken - room)}\x02"
    await fill(talk, "T1", b"full", i=full)
    assert len(await pop(talk, invisibleTime=20)) == 1
    await fill(talk, "T1", b"other")
    assert len(await pop(talk, invisibleTime=20)) == 1
    (again,) = await pop(talk, pollTime=LONG)
    assert again.body == b"other"


async def test_equal_waiting_pops_read_the_queue_once(
    monkeypatch: pytest.MonkeyPatch, talk: Talk
) -> None:
    looks = 0
    take = PopProcessor._take

    def counted(self: PopProcessor, *what: Any) -> Any:
        nonlocal looks
        looks += 1
        return take(self, *what)

    await fill(talk, "T1", b"0")
    assert len(await pop(talk)) == 1
    monkeypatch.setattr(PopProcessor, "_take", counted)
    waiting = [
        asyncio.ensure_future(ask_pop(talk, pollTime=LONG, maxMsgNums=1)) for _ in range(100)
    ]
    for n in range(100):
        await fill(talk, "T1", b"%d" % n, e=n % 4)
    found = [message for answer in waiting for message in popped(await answer)]
    assert sorted(int(message.body) for message in found) == list(range(100))
    assert looks <= 400


@pytest.mark.parametrize("ordered", [False, True])
async def test_receipts_may_have_the_further_fields_of_the_grpc_proxy(
    talk: Talk, ordered: bool
) -> None:
    await fill(talk, "T1", b"0", b"1")
    first, second = await pop(talk, order=ordered)
    assert (first.receipt.revive_queue == ORDERED) is ordered
    done = await ack(talk, first, extraInfo=f"{first.receipt.encode()} 3608")
    longer = await change(talk, second, 60_000, extraInfo=f"{second.receipt.encode()} 0 3608")
    assert (done.code, longer.code) == (0, 0)
