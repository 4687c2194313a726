"""Recalls: checks, marks, and their effect before, while and after a message is due."""

import base64
from pathlib import Path

import pytest
from tests.broker.brokers import Talk, talking
from tests.broker.timer.bench import START_S, Bench

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.timer.due_slot import delete_keys
from firetrail.format.kernels.draft import Message
from firetrail.format.properties import decode_properties
from firetrail.format.recall_handle import RecallHandle, decode_handle
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.admission.gate import Closure
from firetrail.store.settings.store_config import BrokerRole

LATER = "TIMER_DELAY_SEC\x01{}\x02UNIQ_KEY\x01{}\x02"


async def recall(talk: Talk, handle: str, topic: str = "T1") -> RemotingCommand:
    return await talk.ask(RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle)


async def test_a_recalled_message_is_not_delivered(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        handles = [
            (await talk.send("T1", b"%d" % n, i=LATER.format(2, f"U{n}"))).fields["recallHandle"]
            for n in range(3)
        ]
        answer = await recall(talk, handles[1])
        assert (answer.code, answer.fields["msgId"]) == (0, "U1")
        assert (await recall(talk, handles[1])).code == 0  # as often as it is asked
        records = await talk.pull_until("T1", 2)
        assert {record.body for record in records} == {b"0", b"2"}
        marks = [
            record
            for record in talk.broker.store.read("rmq_sys_wheel_timer", 0)
            if record.tags == "_RECALL_TAG_"
        ]
        assert [mark.properties["TIMER_DEL_UNIQKEY"] for mark in marks] == ["T1+U1", "U1"] * 2
        assert {mark.properties["REAL_TOPIC"] for mark in marks} == {"T1"}
        assert {mark.body for mark in marks} == {b"0"}


async def test_recalls_are_checked(talk: Talk) -> None:
    sent = await talk.send("T1", i=LATER.format(50, "U1"))
    handle = decode_handle(sent.fields["recallHandle"])
    wrong = {
        "not a handle": "recall failed, handle invalid: 'not a handle' is not Base64 text",
        handle._replace(topic="T2").encode(): "recall failed, topic not match",
        handle._replace(broker="other").encode(): "recall failed, broker service not available",
        handle._replace(time_ms=5).encode(): "recall failed, timestamp invalid",
        handle._replace(time_ms=handle.time_ms + 3 * 86_400_000).encode(): "timestamp invalid",
        base64.urlsafe_b64encode(b"v1 T1 broker-a x U1").decode(): "'x' is not a time",
    }
    for text, remark in wrong.items():
        answer = await recall(talk, text)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert remark in (answer.remark or "")
    answer = await recall(talk, handle._replace(topic="None").encode(), "None")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    never_sent = handle._replace(unique_key="other").encode()
    assert (await recall(talk, never_sent)).fields["msgId"] == "other"
    await talk.broker.become(BrokerRole.SLAVE, 1)
    assert (await recall(talk, handle.encode())).code == ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (BrokerConfig(recall=False), ResponseCode.NO_PERMISSION),
        (
            BrokerConfig(permission=4, recall_when_read_only=False),
            ResponseCode.SERVICE_NOT_AVAILABLE,
        ),
        (BrokerConfig(timer=False), ResponseCode.SYSTEM_ERROR),
        (BrokerConfig(permission=4), ResponseCode.SUCCESS),
    ],
)
async def test_recalls_can_be_switched_off(
    tmp_path: Path, config: BrokerConfig, code: ResponseCode
) -> None:
    async with talking(tmp_path) as talk:
        handle = (await talk.send("T1", i=LATER.format(50, "U1"))).fields["recallHandle"]
    async with talking(tmp_path, config) as talk:
        assert (await recall(talk, handle)).code == code


async def test_a_mark_that_cannot_be_stored_has_the_code_of_other_puts(talk: Talk) -> None:
    handle = (await talk.send("T1", i=LATER.format(50, "U1"))).fields["recallHandle"]
    talk.broker.broker_store.gate.shut(Closure.FENCED, "a test")
    answer = await recall(talk, handle)
    assert answer.code == (await talk.send("T1")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (answer.remark or "").startswith("recall failed: ")


async def test_a_handle_must_name_the_message_that_has_its_key(talk: Talk) -> None:
    sent = await talk.send("T1", i=LATER.format(50, "U1"))
    await talk.send("T2", i=LATER.format(60, "U2"))
    handle = decode_handle(sent.fields["recallHandle"])
    end = talk.broker.store.log_range[1]
    for forged, remark in (
        (handle._replace(topic="T2"), "topic not match: no message of this topic has the key"),
        (handle._replace(time_ms=handle.time_ms + 5_000), "waits for another time"),
    ):
        answer = await recall(talk, forged.encode(), forged.topic)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert remark in (answer.remark or "")
    assert talk.broker.store.log_range[1] == end  # no mark was stored
    assert (await recall(talk, handle.encode())).code == 0
    assert (await recall(talk, handle.encode())).code == 0  # the mark is not taken for a message


async def test_two_topics_may_have_messages_with_the_same_key(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await talk.send("T1", b"kept", i=LATER.format(2, "U1"))
        sent = await talk.send("T2", b"gone", i=LATER.format(2, "U1"))
        assert (await recall(talk, sent.fields["recallHandle"], "T2")).code == 0
        (record,) = await talk.pull_until("T1", 1)
        assert record.body == b"kept"


def mark(bench: Bench, message: Message, key: str, value: str, topic: str = "T") -> None:
    """Store a mark of any form for a message."""
    text = bench.admission.recall_handle(decode_properties(message.raw_properties or b""))
    assert text is not None
    handle = decode_handle(text)
    properties = {
        "UNIQ_KEY": key,
        "TIMER_DELIVER_MS": str(handle.time_ms),
        "TIMER_DEL_UNIQKEY": value,
    }
    bench.put(topic, b"0", properties)


@pytest.mark.parametrize("form", [0, 1])
async def test_marks_of_all_versions_are_obeyed(tmp_path: Path, form: int) -> None:
    bench = Bench(tmp_path)
    sent = [bench.send(b"%d" % number, 3_000) for number in range(3)]
    mark(bench, sent[1], "U1", list(delete_keys("T", "U1"))[form])
    bench.pass_time(6_000)
    assert bench.bodies == [b"0", b"2"]
    assert bench.timer.waiting == 0
    await bench.close()


async def test_a_mark_names_one_topic(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    message = bench.send(b"a", 3_000)
    mark(bench, message, "Ua", "T2+Ua")
    for value in ("Ua", "T+Ua"):  # somebody may send to T2 only
        mark(bench, message, "Ua", value, "T2")
    bench.pass_time(6_000)
    assert bench.bodies == [b"a"]
    await bench.close()


async def test_a_recall_that_comes_too_late_has_no_effect(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    message = bench.send(b"a", 3_000)
    handle = bench.admission.recall_handle(decode_properties(message.raw_properties or b""))
    assert decode_handle(handle or "") == RecallHandle(
        "T", "broker-a", START_S * 1000 + 2_001, "Ua"
    )
    bench.pass_time(1_900)
    mark(bench, message, "Ua", "Ua")  # in its last moment
    bench.clock.advance(3_000)
    bench.run()
    assert bench.bodies == []
    late = bench.send(b"b", 3_000)
    bench.pass_time(5_000)
    assert bench.bodies == [b"b"]
    with pytest.raises(Exception, match="timer message illegal"):
        mark(bench, late, "Ub", "Ub")
    await bench.close()


async def test_far_messages_are_recalled_as_well(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_roll_window_slots=3)
    kept, gone = bench.send(b"kept", 10_000), bench.send(b"gone", 10_000)
    assert kept.topic == "rmq_sys_wheel_timer"
    bench.pass_time(2_000, 500)
    mark(bench, gone, "Ugone", "T+Ugone")
    bench.pass_time(12_000, 500)
    assert bench.bodies == [b"kept"]
    await bench.close()


async def test_a_recall_survives_a_kill_before_the_message_is_due(tmp_path: Path) -> None:
    """Message and mark are both overdue when the broker starts, and the mark comes second."""
    bench = Bench(tmp_path / "a")
    bench.send(b"before", 1_000)
    bench.pass_time(1_000)
    await bench.save()
    mark(bench, bench.send(b"gone", 3_000), "Ugone", "T+Ugone")
    bench.send(b"kept", 3_000)
    assert bench.store.embedded.wait_dispatched()
    bench.clock.advance(10_000)
    bench = bench.killed(tmp_path / "b")
    bench.run()
    assert bench.bodies == [b"before", b"kept"]
    await bench.close()
