"""The timer delivers every message once, in time and never early, also after restarts."""

import random
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL
from tests.broker.timer.bench import REVIVE, START_S, Bench
from tests.helpers import ManualClock
from tests.stores import overwrite

from firetrail.errors import StoreError
from firetrail.format import layout
from firetrail.format.files.timer import (
    LOG,
    TIMER_TOPIC,
    WHEEL,
    WHEEL_SLOTS,
    decode_unit,
    encode_unit,
)
from firetrail.format.kernels.draft import Message
from firetrail.format.names import queue_folder
from firetrail.format.record import Record

DAY_MS = 86_400_000


async def test_a_message_is_delivered_within_its_slot_and_never_early(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    source = random.Random(1)
    due = {}
    for number in range(60):
        after = source.choice((1, 999, 1000, 1001, 1500, 2000, source.randrange(1, 8000)))
        bench.clock.advance(source.randrange(100))
        due[b"%d" % number] = bench.clock.ms + after
        bench.send(b"%d" % number, after)
        if source.random() < 0.5:
            bench.run()
    bench.pass_time(12_000, 50)
    records = bench.records
    assert sorted(due) == sorted(record.body for record in records)
    for record in records:
        late = record.store_time - due[record.body]
        assert 0 <= late <= 1_000 + 100, (record.body, late)
    await bench.close()


async def test_a_delivered_message_has_the_properties_of_rocketmq(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send(b"a", 2_500, TAGS="A")
    bench.pass_time(4_000)
    (waited,), (record,) = bench.waiting, bench.records
    out = (START_S + 2) * 1000
    assert waited.properties == {
        "UNIQ_KEY": "Ua",
        "TAGS": "A",
        "TIMER_DELIVER_MS": str(out + 500),
        "TIMER_OUT_MS": str(out),
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
    }
    assert record.properties == waited.properties | {
        "TIMER_ENQUEUE_MS": str(START_S * 1000),
        "TIMER_DEQUEUE_MS": str(record.store_time),
    }
    assert (record.born_time, record.born_host) == (waited.born_time, waited.born_host)
    await bench.close()


async def test_messages_of_a_slot_are_delivered_in_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bodies = [b"%03d" % number for number in range(600)]
    for body in bodies:
        bench.send(body, 5_500)
    bench.pass_time(7_000, 1_000)
    assert bench.bodies == bodies
    assert bench.timer.waiting == 0
    await bench.close()


async def test_a_record_that_comes_too_late_for_its_slot_is_delivered_at_once(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.send(b"first", 1_000)
    bench.pass_time(5_000)
    message = bench.send(b"late", 900)
    bench.clock.advance(2_000)
    bench.timer.step()  # another slot was read before the record was dispatched
    bench.run()
    assert bench.bodies == [b"first", b"late"]
    late = bench.records[-1].properties
    assert message.topic == "rmq_sys_wheel_timer"
    assert late["TIMER_ENQUEUE_MS"] in (str(2**63 - 1), str((START_S + 7) * 1000))
    bench = await bench.restarted()
    bench.pass_time(3_000)
    assert bench.bodies == [b"first", b"late"]
    await bench.close()


async def test_a_record_that_is_gone_does_not_block_its_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    for number in range(3):
        bench.send(b"%d" % number, 2_000)
    bench.run()
    message = bench.store.reads.message

    def gone(topic: str, queue_id: int, offset: int) -> Record | None:
        return None if offset == 1 else message(topic, queue_id, offset)

    bench.store.reads.message = gone  # type: ignore[method-assign]
    bench.pass_time(4_000)
    assert bench.bodies == [b"0", b"2"]
    assert bench.timer.missing == 1
    assert "message 1 of rmq_sys_wheel_timer was to be delivered by the timer and is gone" in (
        caplog.text
    )
    await bench.close()


@pytest.mark.parametrize("reached", ["queue", "log"])
async def test_a_damaged_unit_leads_to_its_own_message(
    tmp_path: Path, reached: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The unit of the first message points to the second, in the queue or in the timer's log."""
    bench = Bench(tmp_path)
    for number in range(2):
        bench.send(b"%d" % number, 2_000 + 5_000 * number)
    if reached == "queue":
        assert bench.store.embedded.wait_dispatched()
        path = tmp_path / queue_folder(TIMER_TOPIC, 0) / f"{0:020}"
        overwrite(path, 0, path.read_bytes()[layout.UNIT.size : 2 * layout.UNIT.size])
    bench.run()
    if reached == "log":
        path = tmp_path / LOG / f"{0:020}"
        unit = decode_unit(path.read_bytes())
        place = bench.waiting[1].physical_offset
        overwrite(path, 0, encode_unit(unit._replace(physical_offset=place)))
    bench.pass_time(4_000)
    assert bench.bodies == [b"0"]
    bench.pass_time(5_000)
    assert bench.bodies == [b"0", b"1"]
    assert ("points to the record of another" in caplog.text) is (reached == "log")
    await bench.close()


async def test_far_messages_are_stored_again_and_delivered_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "a", timer_roll_window_slots=3)
    bench.send(b"far", 10_000)
    bench.send(b"near", 2_000)
    bench.pass_time(8_000, 500)
    assert bench.bodies == [b"near"]
    rolled = [record.properties.get("TIMER_ROLL_TIMES") for record in bench.waiting]
    assert rolled[:3] == [None, None, "1"]
    assert len({record.properties["TIMER_OUT_MS"] for record in bench.waiting}) == 2
    bench = bench.killed(tmp_path / "b")
    bench.pass_time(5_000, 500)
    assert bench.bodies == [b"near", b"far"]
    last = bench.records[-1]
    assert last.store_time >= START_S * 1000 + 10_000
    assert last.properties["TIMER_ROLL_TIMES"] == bench.waiting[-1].properties["TIMER_ROLL_TIMES"]
    await bench.close()


async def test_a_rebuild_ignores_messages_that_were_stored_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_roll_window_slots=3)
    bench.send(b"far", 8_000)
    bench.pass_time(6_000, 500)
    assert len(bench.waiting) > 2
    bench = await bench.restarted(lambda folder: (folder / WHEEL).unlink())
    bench.pass_time(6_000, 500)
    assert bench.bodies == [b"far"]
    await bench.close()


async def test_messages_wait_no_longer_than_the_commit_log_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, store=SMALL.replace(file_reserved_hours=3))
    bench.send(b"a", DAY_MS)
    bench.run()
    unit = bench.timer._files.log.unit(0)
    assert unit is not None
    assert (unit.magic, unit.delay_ms) == (3, 2 * 3_600_000)
    await bench.close()


async def test_a_week_without_a_broker_loses_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wheel_slots=WHEEL_SLOTS)
    for number in range(5):
        bench.send(b"%d" % number, 60_000 * (1 + number))
    bench.pass_time(1_000)
    await bench.close()
    bench.clock.advance(20 * DAY_MS)
    bench = Bench(tmp_path, clock=bench.clock, wheel_slots=WHEEL_SLOTS)
    bench.run()
    assert bench.bodies == [b"%d" % number for number in range(5)]
    await bench.close()


async def test_a_clock_that_is_set_back_delivers_nothing_early(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send(b"before", 2_000)
    bench.pass_time(4_000)
    bench.clock.set_wall(bench.clock.ms - 3_600_000)
    bench.send(b"after", 5_000)
    due = bench.clock.ms + 5_000
    bench.pass_time(4_900)
    assert bench.bodies == [b"before"]
    bench = await bench.restarted()
    bench.pass_time(1_500)
    assert bench.bodies == [b"before", b"after"]
    assert bench.records[-1].store_time >= due
    bench.pass_time(3_600_000, 60_000)  # the slots of the first hour are empty now
    assert bench.bodies == [b"before", b"after"]
    await bench.close()


class TestClockSteps:
    """A step of the clock changes when messages come, so it is logged."""

    async def test_back(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench(tmp_path)
        bench.send(b"before", 60_000)
        bench.run()
        bench.clock.set_wall(bench.clock.ms - 3_600_000)
        bench.send(b"after", 5_000)
        bench.pass_time(10_000, 1_000)
        (text,) = (m for m in caplog.messages if "set back by 3600 s" in m)
        assert text == (
            "the clock was set back by 3600 s: the timer delivers 1 waiting message at times of "
            "the new clock, later than expected when they were sent"
        )
        assert bench.bodies == [b"after"], "an earlier one comes at its time of the new clock"
        bench.pass_time(3_660_000, 60_000)
        assert bench.bodies == [b"after", b"before"]
        await bench.close()

    async def test_ahead(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench(tmp_path)
        bench.send(b"1", 1_800_000)
        bench.run()
        bench.clock.set_wall(bench.clock.ms + 3_600_000)
        bench.run()
        assert "the clock was set ahead by 3600 s: the timer delivers 1 waiting" in caplog.text
        assert bench.bodies == [b"1"]
        await bench.close()

    async def test_while_the_broker_is_stopped(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = Bench(tmp_path)
        bench.send(b"1", 60_000)
        bench.pass_time(2_000)
        bench.clock.set_wall(bench.clock.ms - 3_600_000)
        bench = await bench.restarted()
        assert "the clock is 3600 s behind the time at which the timer was last" in caplog.text
        bench.pass_time(3_660_000, 60_000)
        assert bench.bodies == [b"1"]
        await bench.close()


async def test_a_clock_that_jumps_ahead_makes_messages_due(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wheel_slots=WHEEL_SLOTS)
    for number in range(3):
        bench.send(b"%d" % number, DAY_MS * number + 1)
    bench.clock.set_wall(bench.clock.ms + DAY_MS + 5_000)
    bench.run()
    assert bench.bodies == [b"0", b"1"]
    await bench.close()


async def test_a_put_that_fails_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    for number in range(4):
        bench.send(b"%d" % number, 1_000)
    bench.run()
    put = bench.store.embedded.put
    failures = [None, StoreError("busy"), None, StoreError("busy")]

    def failing(message: Message) -> object:
        error = failures.pop(0) if failures else None
        if error is not None:
            raise error
        return put(message)

    monkeypatch.setattr(bench.store.embedded, "put", failing)
    bench.clock.advance(3_000)
    for _ in range(2):
        with pytest.raises(StoreError, match="busy"):
            bench.run()
    bench.run()
    assert bench.bodies == [b"0", b"1", b"2", b"3"]
    await bench.close()


async def test_a_full_disk_delays_and_loses_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.files.fill_disk("timerlog")
    bench.send(b"0", 1_000)
    with pytest.raises(StoreError, match="no space"):
        bench.run()
    bench.files.heal()
    bench.pass_time(3_000)
    assert bench.bodies == [b"0"]
    await bench.close()


async def test_records_of_pops_are_passed_over(tmp_path: Path) -> None:
    """They are taken over from a Java broker in another way."""
    bench = Bench(tmp_path)
    properties = {"REAL_TOPIC": REVIVE, "REAL_QID": "0", "TIMER_OUT_MS": str(START_S * 1000)}
    bench.store.embedded.put(Message("rmq_sys_wheel_timer", b"{}", properties=properties))
    bench.pass_time(3_000)
    assert bench.store.queues.topics() == ["rmq_sys_wheel_timer"]
    await bench.save()
    assert bench.reads == [1]
    await bench.close()


# -- slaves ---------------------------------------------------------------------------------------


async def test_a_slave_adds_and_never_delivers(tmp_path: Path) -> None:
    clock = ManualClock(START_S * 1000)
    master = Bench(tmp_path / "master", clock=clock)
    for number in range(6):
        master.send(b"%d" % number, 1_000 * (1 + number))
    master.pass_time(2_500)
    await master.save()
    check = master.timer.check
    assert len(master.bodies) == 2
    slave = master.killed(tmp_path / "slave", is_slave=True)
    (tmp_path / "slave" / WHEEL).unlink()
    slave.timer._files.close()
    slave.store.close()
    slave = Bench(tmp_path / "slave", clock=clock, is_slave=True)
    slave.pass_time(4_000)
    slave.timer.follow(check)  # its log has nothing newer than the progress of the master
    slave.timer.follow(check._replace(timestamp=2**62))
    slave.run()
    assert slave.timer._follow_to == 0
    slave.store.embedded.put(Message("Other", b"newer"))
    assert slave.store.embedded.wait_dispatched()
    slave.pass_time(4_000)
    assert slave.bodies == [b"0", b"1"]
    assert slave.timer.waiting == 4
    promoted = await slave.restarted(is_slave=False)
    promoted.run()
    assert promoted.bodies == [b"%d" % number for number in range(6)]
    await promoted.close()


async def test_a_slave_keeps_the_slot_that_its_master_delivers_next(tmp_path: Path) -> None:
    clock = ManualClock(START_S * 1000)
    master = Bench(tmp_path / "master", clock=clock)
    master.send(b"0", 1_000)
    master.send(b"1", 3_000)  # in the slot that begins after 2 s
    master.pass_time(2_500)
    await master.save()
    check = master.timer.check
    assert check.read_ms == (START_S + 2) * 1000
    slave = master.killed(tmp_path / "slave", is_slave=True)
    clock.advance(1)
    slave.store.embedded.put(Message("Other", b"newer"))
    slave.run()
    for lag_ms in (2_000, 1_000, 0):
        slave.timer.follow(check._replace(read_ms=check.read_ms - lag_ms))
        slave.run()
        assert slave.timer.waiting == 1, lag_ms
    promoted = await slave.restarted(is_slave=False)
    promoted.pass_time(1_000)
    assert promoted.bodies == [b"0", b"1"]
    await promoted.close()


async def test_the_clock_of_a_slave_does_not_decide_when_a_far_message_is_stored_again(
    tmp_path: Path,
) -> None:
    """A slave empties the slot when its master has passed it: the master must not be later."""
    clock = ManualClock(START_S * 1000)
    master = Bench(tmp_path / "master", clock=clock, timer_roll_window_slots=100)
    master.send(b"near", 1_000)
    master.pass_time(3_000)
    await master.save()
    check = master.timer.check
    slave = master.killed(tmp_path / "slave", is_slave=True)
    slave.send(b"far", 1_000_000)
    sent = clock.ms
    clock.advance(1)
    slave.store.embedded.put(Message("Other", b"newer"))
    clock.set_wall(sent - 10_000)
    slave.timer.follow(check._replace(master_queue_offset=2, timestamp=sent))
    slave.run()
    log = slave.timer._files.log
    unit = log.unit(log.before(log.end))
    assert unit is not None and unit.slot_ms == sent + 100_000
    await slave.close()
