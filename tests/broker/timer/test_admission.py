"""Messages that wait for a delivery time, or are refused, by the rules of RocketMQ."""

from pathlib import Path

import pytest
from tests.broker.brokers import Talk, talking
from tests.broker.timer.bench import START_S, Bench

from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import RequestError
from firetrail.format.kernels.draft import Message
from firetrail.format.properties import decode_properties
from firetrail.format.recall_handle import RecallHandle, decode_handle
from firetrail.remoting.wire.codes import ResponseCode

NOW = START_S * 1000 + 300
MAX_MS = 3 * 86_400_000
TOO_LATE = (
    "the delay time should not be bigger than the max delay 259200000ms, which is 3 days; choose "
    "an earlier time, or raise timerMaxDelaySec of the broker"
)
NO_NUMBER = "the delay or the delivery time should be a whole number"
OVER = "the delay time should be bigger than the current time if it recalls a message"


def admitted(bench: Bench, properties: dict[str, str], *, half: bool = False) -> Message:
    return bench.admitted("T", b"x", properties, 3, half)


def out_ms(message: Message) -> int | None:
    found = decode_properties(message.raw_properties or b"").get("TIMER_OUT_MS")
    return int(found) if message.topic == "rmq_sys_wheel_timer" and found else None


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"TIMER_DELAY_SEC": "5"}, START_S * 1000 + 5_000),
        ({"TIMER_DELAY_MS": "1500"}, START_S * 1000 + 1_000),
        ({"TIMER_DELAY_MS": "+700"}, START_S * 1000),
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, START_S * 1000),
        ({"TIMER_DELIVER_MS": str(START_S * 1000 + 4_000)}, START_S * 1000 + 3_000),
        ({"TIMER_DELIVER_MS": str(START_S * 1000 + 4_001)}, START_S * 1000 + 4_000),
        ({"TIMER_DELIVER_MS": str(NOW + MAX_MS)}, START_S * 1000 + MAX_MS),
        # The first of them counts.
        (
            {"TIMER_DELIVER_MS": "5", "TIMER_DELAY_MS": "9000", "TIMER_DELAY_SEC": "2"},
            START_S * 1000 + 2_000,
        ),
        ({"TIMER_DELIVER_MS": "5", "TIMER_DELAY_MS": "9000"}, START_S * 1000 + 9_000),
        # These are not for the future.
        ({"TIMER_DELIVER_MS": str(NOW)}, None),
        ({"TIMER_DELAY_SEC": "-1"}, None),
        ({"TIMER_DELIVER_MS": str(NOW + 9_000), "TIMER_OUT_MS": "5"}, None),
        ({"KEYS": "TIMER_DELAY_SEC"}, None),
    ],
)
async def test_a_message_waits_in_the_slot_that_ends_at_its_time(
    tmp_path: Path, properties: dict[str, str], expected: int | None
) -> None:
    bench = Bench(tmp_path)
    bench.clock.set_wall(NOW)
    message = admitted(bench, properties)
    assert out_ms(message) == expected
    if expected is None:
        assert (message.topic, message.queue_id) == ("T", 3)
        assert decode_properties(message.raw_properties or b"") == properties
    else:
        added = {"TIMER_OUT_MS": str(expected), "REAL_TOPIC": "T", "REAL_QID": "3"}
        assert decode_properties(message.raw_properties or b"") == properties | added
        assert message.queue_id == 0
    await bench.close()


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"TIMER_DELAY_SEC": "soon"}, NO_NUMBER),
        ({"TIMER_DELAY_MS": "1.5"}, NO_NUMBER),
        ({"TIMER_DELIVER_MS": "99999999999999999999"}, NO_NUMBER),
        ({"TIMER_DELIVER_MS": str(NOW + MAX_MS + 1)}, TOO_LATE),
        ({"TIMER_DELAY_SEC": str(MAX_MS // 1000 + 1)}, TOO_LATE),
        ({"TIMER_DELIVER_MS": str(NOW), "TIMER_DEL_UNIQKEY": "U1"}, OVER),
    ],
)
async def test_impossible_times_are_refused(
    tmp_path: Path, properties: dict[str, str], reason: str
) -> None:
    bench = Bench(tmp_path)
    bench.clock.set_wall(NOW)
    with pytest.raises(RequestError) as caught:
        admitted(bench, properties)
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert caught.value.remark == f"timer message illegal, {reason}"
    await bench.close()


async def test_a_delay_level_takes_precedence_and_removes_the_time(tmp_path: Path) -> None:
    """Otherwise a Java broker would delay the message once more when the level has passed."""
    bench = Bench(tmp_path)
    message = admitted(bench, {"DELAY": "2", "TIMER_DELAY_SEC": "5", "KEYS": "k"})
    assert decode_properties(message.raw_properties or b"") == {"DELAY": "2", "KEYS": "k"}
    assert (message.topic, message.queue_id) == ("T", 3)
    assert out_ms(admitted(bench, {"DELAY": "0", "TIMER_DELAY_SEC": "5"})) is not None
    await bench.close()


async def test_a_half_message_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(RequestError, match="half message cannot have a delivery time") as error:
        admitted(bench, {"TIMER_DELAY_SEC": "5"}, half=True)
    assert error.value.code == ResponseCode.MESSAGE_ILLEGAL
    await bench.close()


async def test_a_congested_slot_refuses_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, timer_congestion=3)
    chance = [0.1]
    monkeypatch.setattr("firetrail.broker.timer.admission.random", lambda: chance[0])
    for number in range(4):
        bench.send(b"%d" % number, 5_000)
    bench.run()
    bench.send(b"other", 6_500)
    with pytest.raises(RequestError, match="4 messages wait for the same time") as caught:
        bench.send(b"4", 5_000)  # with a probability of a third
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    chance[0] = 0.9
    for number in range(4, 6):
        bench.send(b"%d" % number, 5_000)
        bench.run()
    with pytest.raises(RequestError, match="timerCongestNumEachSlot is 3"):
        bench.send(b"6", 5_000)  # twice as many wait
    await bench.close()


# -- through a broker -----------------------------------------------------------------------------


async def test_a_broker_delivers_messages_at_their_time(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        for name, value in (("TIMER_DELAY_MS", "300"), ("TIMER_DELAY_SEC", "1")):
            sent = await talk.send(
                "T1", name.encode(), e=2, i=f"{name}\x01{value}\x02UNIQ_KEY\x01U"
            )
            assert (sent.code, sent.fields["queueId"]) == (0, "2")
            handle = decode_handle(sent.fields["recallHandle"])
            assert handle == RecallHandle("T1", "broker-a", handle.time_ms, "U")
            assert handle.time_ms % 1000 == 1
        records = await talk.pull_until("T1", 2, queueId=2)
        assert {record.body for record in records} == {b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC"}
        for record in records:
            assert record.store_time >= int(record.properties["TIMER_OUT_MS"]) + 1000


async def test_only_messages_that_wait_and_can_be_named_have_a_handle(talk: Talk) -> None:
    later = "TIMER_DELAY_SEC\x0150\x02"
    assert "recallHandle" not in (await talk.send("T1")).fields
    assert "recallHandle" not in (await talk.send("T1", i="TIMER_DELAY_SEC\x01-5\x02")).fields
    assert "recallHandle" not in (await talk.send("T1", i=later)).fields
    sent = await talk.send("%RETRY%CG", i=f"{later}UNIQ_KEY\x01U\x02")
    assert (sent.code, "recallHandle" in sent.fields) == (0, False)


async def test_without_the_timer_sends_are_refused_and_messages_are_kept(tmp_path: Path) -> None:
    later = "TIMER_DELAY_SEC\x011\x02UNIQ_KEY\x01U\x02"
    async with talking(tmp_path) as talk:
        assert (await talk.send("T1", b"kept", i=later)).code == 0
    async with talking(tmp_path, BrokerConfig(timer=False)) as talk:
        answer = await talk.send("T1", i=later)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
    async with talking(tmp_path) as talk:
        assert [record.body for record in await talk.pull_until("T1", 1)] == [b"kept"]
