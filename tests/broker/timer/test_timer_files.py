"""The files of the timer: what they contain, recovery after a crash, and rebuilding them."""

import errno
import shutil
from pathlib import Path

import pytest
from tests.broker.timer.bench import Bench
from tests.helpers import crash_image

from firetrail.format.files.timer import CHECK, LOG, SLOT, UNIT, WHEEL, WHEEL_SLOTS, decode_check


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


@pytest.mark.parametrize("bit", [10, 12, 20, 63])
async def test_a_flipped_bit_in_the_read_time_loses_no_message(
    tmp_path: Path, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.clock.advance(-bench.clock.ms % (1 << 21))  # so that the bit is not set
    for number in range(9):
        bench.send(b"%d" % number, 1_000 * (1 + number))
    bench.pass_time(2_500)

    def flip(folder: Path) -> None:
        path = folder / "config" / CHECK
        raw = bytearray(path.read_bytes())
        raw[7 - bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)

    bench = await bench.restarted(flip)
    assert "corrected a flipped bit in read_ms" in caplog.text
    assert "rebuilt" not in caplog.text
    bench.pass_time(8_000, 500)
    assert bench.bodies == [b"%d" % number for number in range(9)]
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


async def test_old_files_of_the_log_are_removed_with_their_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for _ in range(6):
        for number in range(30):
            bench.send(b"%d" % number, 1_000, UNIQ_KEY="U", filler="x" * 30_000)
        bench.pass_time(3_000, 1_000)
    assert len(list((tmp_path / LOG).iterdir())) == 10
    bench.store.removal.settle()
    assert bench.store.embedded.delete_expired(forced=True) == 1
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


async def test_units_of_records_that_a_crash_took_are_undone(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "a")
    for number in range(25):
        bench.send(b"%d" % number, 4_000)
    bench.run()
    await bench.save()
    assert bench.store.embedded.wait_dispatched()
    bench.store.removal.settle()
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


async def test_a_crash_during_recovery_needs_no_rebuild(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Slots on disk must not refer to the units that the first recovery removed."""
    bench = Bench(tmp_path / "a")
    bench.send(b"0", 5_500)
    bench.run()
    await bench.save()
    for number in range(1, 4):
        bench.send(b"%d" % number, 5_500)
    bench.run()
    save = bench.timer._files.begin_save(bench.timer.read_ms)
    bench.files.fail("write", errno.EIO, CHECK)
    with pytest.raises(OSError, match="Input/output"):
        save()
    bench = bench.killed(tmp_path / "b")
    bench = bench.killed(tmp_path / "c")
    bench.pass_time(7_000, 500)
    assert bench.bodies == [b"0", b"1", b"2", b"3"]
    assert "rebuilt" not in caplog.text
    await bench.close()


async def test_shorter_slots_lose_no_message_that_waits_for_longer_than_their_window(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, wheel_slots=WHEEL_SLOTS)
    bench.send(b"a", 25 * 3_600_000)
    bench.run()
    bench.clock.advance(24 * 3_600_000)
    bench.run()
    bench = await bench.restarted(timer_precision_ms=100)
    bench.pass_time(3_601_000, 100_000)
    assert bench.bodies == [b"a"]
    await bench.close()
