"""The timer delivers every message once, in time and never early, also after restarts."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL
from tests.broker.timer.bench import REVIVE, START_S, Bench
from tests.helpers import PATIENCE_S, ManualClock, crash_image

from firetrail.errors import StoreError
from firetrail.format.kernels.draft import Message
from firetrail.format.timer import CHECK, LOG, SLOT, UNIT, WHEEL, WHEEL_SLOTS, decode_check

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


async def test_waiting_messages_survive_a_clean_stop(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(40):  # they fill several files of the log
        bench.send(b"%d" % number, 1_000 * (1 + number % 8))
    bench.pass_time(4_000)
    done = bench.bodies
    bench = await bench.restarted()
    assert bench.timer.waiting == 40 - len(done)
    bench.clock.advance(10_000)
    bench.run()
    assert sorted(bench.bodies) == sorted(b"%d" % number for number in range(40))
    await bench.close()


@pytest.mark.parametrize("saves", [False, True])
async def test_a_kill_loses_and_repeats_nothing(tmp_path: Path, saves: bool) -> None:
    bench = Bench(tmp_path / "a")
    for number in range(20):
        bench.send(b"%d" % number, 1_000 * (1 + number % 4))
    bench.pass_time(1_500)
    if saves:
        await bench.save()
    for number in range(20, 40):
        bench.send(b"%d" % number, 1_000 * (1 + number % 4))
    bench.pass_time(1_200)
    assert len(bench.bodies) > 5
    bench = bench.killed(tmp_path / "b")
    bench.pass_time(8_000, 500)
    assert sorted(bench.bodies) == sorted(b"%d" % number for number in range(40))
    assert bench.timer.waiting == 0
    await bench.close()


async def test_what_follows_the_last_save_is_undone_and_added_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "a")
    bench.send(b"0", 5_000)
    bench.run()
    check = await bench.save()
    for number in range(1, 30):
        bench.send(b"%d" % number, 5_000)
    bench.run()
    save = bench.timer._files.begin_save(bench.timer.read_ms)
    bench.files.fail("write", errno.EIO, CHECK)  # the last step of a save fails
    with pytest.raises(OSError, match="Input/output"):
        save()
    bench.files.heal()
    bench = bench.killed(tmp_path / "b")
    assert bench.timer._files.log.end == check.log_position
    assert bench.timer.waiting == 1
    bench.pass_time(7_000, 500)
    assert bench.bodies == [b"%d" % number for number in range(30)]
    await bench.close()


@pytest.mark.parametrize("lost", [WHEEL, LOG, f"config/{CHECK}"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
async def test_missing_and_damaged_files_are_rebuilt(
    tmp_path: Path, lost: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    for number in range(45):
        bench.send(b"%d" % number, 1_000 * (1 + number % 9))
    bench.pass_time(4_000)
    done = len(bench.bodies)

    def spoil(folder: Path) -> None:
        path = folder / lost
        paths = sorted(path.iterdir()) if path.is_dir() else [path]
        for each in paths[-1:] if damage == "cut" else paths:
            each.unlink() if damage == "missing" else each.write_bytes(each.read_bytes()[:40])

    bench = await bench.restarted(spoil)
    assert "the timer is rebuilt from the topic rmq_sys_wheel_timer: " in caplog.text
    bench.run()
    assert len(bench.bodies) == done
    bench.pass_time(8_000, 500)
    assert sorted(bench.bodies) == sorted(b"%d" % number for number in range(45))
    await bench.close()


async def test_a_damaged_chain_is_rebuilt_while_the_timer_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(9):
        bench.send(b"%d" % number, 3_000)
    bench.run()

    def spoil(folder: Path) -> None:
        path = folder / LOG / f"{0:020}"
        raw = bytearray(path.read_bytes())
        raw[4 * UNIT.size : 5 * UNIT.size] = bytes(UNIT.size)
        path.write_bytes(raw)

    bench = await bench.restarted(spoil)
    bench.pass_time(6_000)
    assert sorted(bench.bodies) == [b"%d" % number for number in range(9)]
    await bench.close()


async def test_a_record_that_is_gone_does_not_block_its_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    places = []
    for number in range(3):
        bench.send(b"%d" % number, 2_000)
        places.append(bench.waiting[-1].physical_offset)
    bench.run()
    stored = bench.store.stored

    def gone(offset: int) -> object:
        return None if offset == places[1] else stored(offset)

    bench.store.stored = gone  # type: ignore[assignment, method-assign]
    bench.pass_time(4_000)
    assert bench.bodies == [b"0", b"2"]
    assert bench.timer.missing == 1
    assert f"the message at {places[1]} was to be delivered by the timer and is gone" in caplog.text
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
    put = bench.store.put
    failures = [None, StoreError("busy"), None, StoreError("busy")]

    def failing(message: Message) -> object:
        error = failures.pop(0) if failures else None
        if error is not None:
            raise error
        return put(message)

    monkeypatch.setattr(bench.store, "put", failing)
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
    bench.store.put(Message("rmq_sys_wheel_timer", b"{}", properties=properties))
    bench.pass_time(3_000)
    assert bench.store.topics() == ["rmq_sys_wheel_timer"]
    await bench.save()
    assert bench.reads == [1]
    await bench.close()


async def test_old_files_of_the_log_are_removed_with_their_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for _ in range(6):
        for number in range(30):
            bench.send(b"%d" % number, 1_000, UNIQ_KEY="U", filler="x" * 30_000)
        bench.pass_time(3_000, 1_000)
    assert len(list((tmp_path / LOG).iterdir())) == 10
    bench.store.settle()
    assert bench.store.delete_expired(forced=True) == 1
    await bench.save()
    assert len(list((tmp_path / LOG).iterdir())) < 10
    bench = await bench.restarted()
    bench.send(b"last", 1_000)
    bench.pass_time(3_000, 1_000)
    assert bench.bodies[-1] == b"last"
    await bench.close()


async def test_no_files_exist_before_the_first_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.pass_time(3_000, 1_000)
    await bench.close()
    assert not {WHEEL, LOG} & {path.name for path in tmp_path.iterdir()}


async def test_files_have_the_sizes_that_java_requires(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wheel_slots=WHEEL_SLOTS)
    for number in range(40):
        bench.send(b"%d" % number, 1_000)
    bench.run()
    await bench.close()
    assert (tmp_path / WHEEL).stat().st_size == WHEEL_SLOTS * SLOT.size
    assert {path.stat().st_size for path in (tmp_path / LOG).iterdir()} == {1000}
    check = decode_check((tmp_path / "config" / CHECK).read_bytes())
    assert (check.queue_offset, check.log_position) == (40, 2000 + 4 * UNIT.size)


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
    slave.store.put(Message("Other", b"newer"))
    assert slave.store.wait_dispatched()
    slave.pass_time(4_000)
    assert slave.bodies == [b"0", b"1"]
    assert slave.timer.waiting == 4
    promoted = await slave.restarted(is_slave=False)
    promoted.run()
    assert promoted.bodies == [b"%d" % number for number in range(6)]
    await promoted.close()


# -- interrupted work -----------------------------------------------------------------------------


async def test_a_rebuild_that_is_interrupted_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its new wheel lacks what was not added yet, although the old progress would fit the log."""
    bench = Bench(tmp_path / "a")
    for number in range(30):
        bench.send(b"%d" % number, 5_000)
    bench.run()
    bench = await bench.restarted(lambda folder: (folder / WHEEL).unlink())
    monkeypatch.setattr("firetrail.broker.timer.timer_service.BATCH_SIZE", 10)
    assert bench.timer.step() == 0
    await bench.save()  # saves nothing yet
    bench.run(steps_max=20)
    assert bench.timer._files.log.end > 0
    crashed = bench.killed(tmp_path / "b")
    assert caplog.text.count("the timer is rebuilt") == 2
    crashed.pass_time(7_000, 500)
    assert crashed.bodies == [b"%d" % number for number in range(30)]
    await crashed.close()
    caplog.clear()
    again = Bench(tmp_path / "b", clock=crashed.clock)
    assert "the timer is rebuilt" not in caplog.text
    await again.close()


async def test_units_of_records_that_a_crash_took_are_undone(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "a")
    for number in range(25):
        bench.send(b"%d" % number, 4_000)
    bench.run()
    await bench.save()
    assert bench.store.wait_dispatched()
    bench.store.settle()
    crash_image(tmp_path / "a", tmp_path / "b")
    for number in range(25, 60):
        bench.send(b"lost %d" % number, 4_000)
    bench.run()
    await bench.save()
    for name in (WHEEL, LOG, f"config/{CHECK}"):
        target = tmp_path / "b" / name
        if target.is_dir():
            shutil.rmtree(target)
            shutil.copytree(tmp_path / "a" / name, target)
        else:
            shutil.copy(tmp_path / "a" / name, target)
    await bench.close()
    short = Bench(tmp_path / "b", clock=bench.clock)
    assert (short.timer.waiting, short.timer._files.queue_offset) == (25, 25)
    short.send(b"new", 4_000)
    short.pass_time(7_000, 500)
    assert short.bodies == [b"%d" % number for number in range(25)] + [b"new"]
    await short.close()


async def test_a_stop_waits_for_the_save_that_is_under_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send(b"0", 5_000)
    bench.run()
    with bench.files.stalled("sync", LOG) as reached:
        task = asyncio.ensure_future(bench.timer._save())
        await asyncio.to_thread(reached.wait, PATIENCE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert bench.timer._saving is not None
    bench.timer._tasks = [task]
    await bench.timer.stop()
    assert bench.timer._saving is None
    bench.store.close()
    bench = Bench(tmp_path, clock=bench.clock)
    assert bench.timer.waiting == 1
    await bench.close()
