"""Pops in order: one batch per queue at a time, redelivered from the first open message."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import Field, Fields, Talk, talking
from tests.broker.pops import (
    MINUTE_MS,
    Popped,
    StoppedClock,
    ack,
    ask_pop,
    change,
    fill,
    pop,
    popped,
)

from firetrail.format.files import config_json
from firetrail.remoting.messages.pop.pop_bodies import BatchAck, BatchAckBody
from firetrail.remoting.wire.codes import RequestCode, ResponseCode

ORDERED: Fields = {"order": True, "queueId": 0}


async def take(talk: Talk, **changes: Field) -> list[Popped]:
    return await pop(talk, ORDERED, **changes)


def bodies(messages: list[Popped]) -> list[bytes]:
    return [message.body for message in messages]


async def test_a_queue_is_closed_until_all_messages_are_acknowledged(talk: Talk) -> None:
    await fill(talk, "T1", *(b"%d" % n for n in range(5)))
    first, second = await take(talk, maxMsgNums=2)
    assert first.receipt.revive_queue == 999
    assert await take(talk) == []
    await ack(talk, second)
    assert await take(talk) == []
    assert await talk.committed() == 0
    await ack(talk, first)
    assert await talk.committed() == 2
    assert bodies(await take(talk)) == [b"2", b"3", b"4"]
    assert bodies(await take(talk, consumerGroup="OTHER", maxMsgNums=1)) == [b"0"]


async def test_unacknowledged_messages_are_redelivered_in_order(
    still: Talk, clock: StoppedClock
) -> None:
    talk = still
    await fill(talk, "T1", b"0", b"1", b"2")
    first, second, _ = await take(talk, invisibleTime=MINUTE_MS)
    await ack(talk, first)
    clock.advance(MINUTE_MS)
    answer = await ask_pop(talk, ORDERED)
    assert bodies(popped(answer)) == [b"1", b"2"]
    assert answer.fields["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1;0 0 1"
    assert (await ack(talk, second)).code == 0  # of the earlier pop: too late, and ignored
    assert await take(talk) == []
    assert await talk.committed() == 1


async def test_an_acknowledgement_wakes_waiting_pops(talk: Talk) -> None:
    await fill(talk, "T1", b"0", b"1")
    (first,) = await take(talk, maxMsgNums=1)
    waiting = asyncio.create_task(ask_pop(talk, order=True, pollTime=30_000))
    fields: Fields = {"consumerGroup": "CG", "topic": "T1", "bornTime": 0, "pollTime": 30_000}
    notice = asyncio.create_task(talk.ask(RequestCode.NOTIFICATION, fields | ORDERED))
    await asyncio.sleep(0.05)
    assert not waiting.done() and not notice.done()
    batch = BatchAck("CG", "T1", 0, 0, 999, first.receipt.pop_time, 60_000, "AQ==")
    body = BatchAckBody("broker-a", [batch]).encode(standard=True)
    assert (await talk.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
    assert bodies(popped(await waiting)) == [b"1"]
    notice.cancel()


async def test_the_invisible_time_can_be_extended_and_shortened(
    still: Talk, clock: StoppedClock
) -> None:
    talk = still
    await fill(talk, "T1", b"0")
    (message,) = await take(talk, invisibleTime=MINUTE_MS)
    answer = await change(talk, message, 2 * MINUTE_MS)
    assert answer.fields["reviveQid"] == "999"
    assert answer.fields["popTime"] == str(message.receipt.pop_time)
    clock.advance(MINUTE_MS)
    assert await take(talk) == []
    assert (await change(talk, message, 10)).code == 0
    clock.advance(10)
    assert bodies(await take(talk)) == [b"0"]
    assert (await change(talk, message, 10)).code == ResponseCode.NO_MESSAGE


async def test_the_same_attempt_gets_the_same_answer(talk: Talk) -> None:
    await fill(talk, "T1", b"0", b"1")
    assert bodies(await take(talk, attemptId="a", maxMsgNums=1)) == [b"0"]
    again = await ask_pop(talk, ORDERED, attemptId="a", maxMsgNums=1)
    assert bodies(popped(again)) == [b"0"]
    assert again.fields["orderCountInfo"] == "0 0 0"
    assert await take(talk, attemptId="b") == []


async def test_messages_that_were_not_popped_cannot_be_acknowledged(talk: Talk) -> None:
    await fill(talk, "T1", b"0", b"1")
    (message,) = await take(talk, maxMsgNums=1)
    assert (await ack(talk, message, offset=1)).code == ResponseCode.MESSAGE_ILLEGAL
    assert await talk.committed() == 0


async def test_a_pop_after_a_reset_begins_at_the_new_offset(talk: Talk) -> None:
    await fill(talk, "T1", b"0", b"1", b"2")
    (message,) = await take(talk, maxMsgNums=1)
    talk.broker.offsets.commit("CG", "T1", 0, 2)
    assert bodies(await take(talk)) == [b"2"]
    talk.broker.offsets.commit("CG", "T1", 0, 0)
    await ack(talk, message)
    assert await talk.committed() == 0


async def test_the_state_is_saved_in_the_file_of_rocketmq(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await fill(talk, "T1", b"0", b"1", b"2")
        _, second, third = await take(talk)
        assert (await ack(talk, third)).code == 0
        assert (await ack(talk, second)).code == 0
    path = tmp_path / "config" / "consumerOrderInfo.json"
    info = config_json.loads(path.read_bytes())["table"]["T1@CG"][0]
    assert (info["o"], info["cm"], info["i"]) == ([0, 1, 2], 0b110, 60_000)
    async with talking(tmp_path) as talk:
        assert await take(talk) == []
        assert bodies(await take(talk, consumerGroup="OTHER")) == [b"0", b"1", b"2"]


async def test_a_waiting_pop_is_woken_when_the_last_invisible_time_is_over(talk: Talk) -> None:
    await fill(talk, "T1", b"0", b"1")
    first, second = await take(talk)
    assert (await change(talk, first, 1)).code == 0
    assert (await change(talk, second, 300)).code == 0
    answer = await ask_pop(talk, ORDERED, pollTime=600_000)
    assert bodies(popped(answer)) == [b"0", b"1"]


async def test_acknowledged_pops_leave_no_timers(
    monkeypatch: pytest.MonkeyPatch, talk: Talk
) -> None:
    """Many pops per second, each with a timer of an hour, would fill the memory."""
    planned: list[asyncio.TimerHandle] = []

    await fill(talk, "T1", *(b"%d" % n for n in range(20)))
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def note(delay: float, *what: Any, **how: Any) -> asyncio.TimerHandle:
        handle = call_later(delay, *what, **how)
        if delay > 1000:
            planned.append(handle)
        return handle

    monkeypatch.setattr(loop, "call_later", note)
    for _ in range(20):
        (message,) = await take(talk, maxMsgNums=1, invisibleTime=3_600_000)
        assert (await ack(talk, message)).code == 0
    assert len(planned) == 20
    assert all(handle.cancelled() for handle in planned)


async def test_a_clock_that_is_set_back_does_not_close_a_queue_for_long(
    monkeypatch: pytest.MonkeyPatch, talk: Talk
) -> None:
    await fill(talk, "T1", b"0")
    assert bodies(await take(talk)) == [b"0"]
    orders = talk.broker._parts.orders
    yesterday = orders._now_ms() - 86_400_000
    for later, found in ((0, []), (59_999, []), (60_000, [b"0"])):
        monkeypatch.setattr(orders, "_now_ms", lambda: yesterday + later)  # noqa: B023
        assert bodies(await take(talk)) == found


async def test_pops_that_were_over_a_day_ago_are_forgotten(
    still: Talk, clock: StoppedClock
) -> None:
    """One whose messages are still invisible keeps its queue closed."""
    await fill(still, "T1", b"1")
    await fill(still, "T2", b"1")
    orders = still.broker._parts.orders
    assert len(await take(still, invisibleTime=MINUTE_MS)) == 1
    assert len(await take(still, topic="T2", invisibleTime=48 * 60 * MINUTE_MS)) == 1
    clock.advance(24 * 60 * MINUTE_MS + MINUTE_MS)
    orders.saver.changed()
    await orders.saved()
    assert list(orders.content().table) == ["T2@CG"]
    assert await take(still, topic="T2") == []
