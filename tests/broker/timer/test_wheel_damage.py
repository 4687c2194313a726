"""Damaged slots of the timer's wheel: no message is lost, and the log says what happened."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.timer.bench import START_S, Bench

from firetrail.format.files.timer import CHECK, LOG, SLOT, UNIT, WHEEL, decode_slot, encode_slot

SLOTS = 1 << 16
REBUILT = "the timer is rebuilt from the topic rmq_sys_wheel_timer: "
BODIES = sorted(b"%d" % number for number in range(40))
Damage = Callable[[bytes], bytes]


def with_last(last: int) -> Damage:
    return lambda raw: encode_slot(decode_slot(raw)._replace(last=last))


def with_time(change: int) -> Damage:
    return lambda raw: encode_slot(decode_slot(raw)._replace(time=decode_slot(raw).time + change))


DAMAGES: dict[str, Damage] = {
    "negative end": with_last(-5),
    "no end": with_last(-1),
    "end before the log": with_last(0),
    "end far away": with_last(10**12),
    "unaligned end": with_last(7),
    "wrong time": with_time(3),
    "next round": with_time(SLOTS),
    "no time": lambda raw: encode_slot(decode_slot(raw)._replace(time=0)),
    "wrong count": lambda raw: encode_slot(decode_slot(raw)._replace(waiting=1)),
    "zeros": lambda raw: bytes(len(raw)),
}


def spoil(folder: Path, second: int, damage: Damage) -> None:
    """Damage the slot of the messages that are due after ``second`` seconds."""
    with (folder / WHEEL).open("r+b") as file:
        at = (START_S + second) % SLOTS * SLOT.size
        file.seek(at)
        raw = file.read(SLOT.size)
        assert decode_slot(raw).time == START_S + second
        file.seek(at)
        file.write(damage(raw))


def filled(folder: Path, second: int = 2) -> Bench:
    """Return a timer with 5 messages in each of 8 slots from ``second`` on."""
    bench = Bench(folder, wheel_slots=SLOTS)
    for number in range(40):
        bench.send(b"%d" % number, 1_000 * (second + number % 8) + 500)
    bench.run()
    return bench


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_slot_is_noticed_at_the_start(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = filled(tmp_path, 200)
    bench = await bench.restarted(lambda folder: spoil(folder, 203, DAMAGES[damage]))
    assert f"{REBUILT}{bench.folder / WHEEL} at offset " in caplog.text
    assert caplog.text.count("nothing has to be done: the timer is rebuilt") == 1
    bench.clock.advance(190_000)
    bench.pass_time(24_000, 1_000)
    assert sorted(bench.bodies) == BODIES
    await bench.close()


@pytest.mark.parametrize("damage", ["negative end", "wrong time", "zeros"])
async def test_a_damaged_slot_that_is_due_soon_loses_nothing(tmp_path: Path, damage: str) -> None:
    bench = filled(tmp_path)
    bench = await bench.restarted(lambda folder: spoil(folder, 5, DAMAGES[damage]))
    bench.pass_time(14_000, 500)
    assert sorted(bench.bodies) == BODIES
    await bench.close()


async def test_a_wheel_of_zeros_is_noticed_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = filled(tmp_path / "a", 200)
    await bench.save()
    (tmp_path / "a" / WHEEL).write_bytes(bytes(SLOTS * SLOT.size))
    bench = bench.killed(tmp_path / "b")
    assert REBUILT in caplog.text
    bench.clock.advance(190_000)
    bench.pass_time(24_000, 1_000)
    assert sorted(bench.bodies) == BODIES
    await bench.close()


@pytest.mark.parametrize("damage", ["negative end", "wrong time", "zeros"])
async def test_a_slot_that_is_damaged_under_a_running_timer_is_noticed_when_it_is_due(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = filled(tmp_path)
    await bench.save()
    spoil(tmp_path, 5, DAMAGES[damage])
    await bench.save()
    bench.pass_time(14_000, 500)
    assert REBUILT in caplog.text
    assert sorted(bench.bodies) == BODIES
    assert bench.timer.waiting == 0
    await bench.close()


async def test_a_message_for_a_damaged_slot_rebuilds_the_timer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = filled(tmp_path)
    await bench.save()
    spoil(tmp_path, 9, DAMAGES["zeros"])
    bench.send(b"more", 9_500)  # its admission counts the messages of the slot
    bench.run()
    assert REBUILT in caplog.text
    bench.pass_time(14_000, 500)
    assert sorted(bench.bodies) == [*BODIES, b"more"]
    await bench.close()


async def test_a_slot_that_lacks_units_in_the_middle_is_noticed_when_it_is_due(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = filled(tmp_path)

    def shorten(folder: Path) -> None:
        path = folder / LOG / f"{1000:020}"  # units 18 to 35: the fourth one of a slot points …
        raw = bytearray(path.read_bytes())
        at = (27 - 18) * UNIT.size + 4
        raw[at : at + 8] = (3 * UNIT.size).to_bytes(8, "big")  # … to the first one
        path.write_bytes(raw)

    bench = await bench.restarted(shorten)
    bench.pass_time(14_000, 500)
    assert "the chain of units of slot" in caplog.text
    assert sorted(bench.bodies) == BODIES
    await bench.close()


async def test_slots_that_were_emptied_by_an_unfinished_save_need_no_rebuild(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = filled(tmp_path / "a")
    await bench.save()
    bench.send(b"40", 8_500)
    bench.pass_time(5_000, 500)
    delivered = len(bench.bodies)
    assert delivered > 10
    files = bench.timer._files
    files.begin_save(bench.timer.read_ms)
    files._store.embedded.flush()
    files.log.flush()
    files.wheel.write()  # a kill follows, before timercheck is replaced
    bench = bench.killed(tmp_path / "b")
    assert REBUILT not in caplog.text
    assert bench.timer.waiting == 40
    bench.pass_time(10_000, 500)
    assert sorted(bench.bodies) == sorted([*BODIES, b"40"])
    await bench.close()


async def test_an_impossible_read_time_is_not_believed(tmp_path: Path) -> None:
    bench = filled(tmp_path)

    def spoil_check(folder: Path) -> None:
        path = folder / "config" / CHECK
        raw = bytearray(path.read_bytes())
        raw[2] ^= 1
        path.write_bytes(raw)

    bench = await bench.restarted(spoil_check)
    bench.pass_time(14_000, 500)
    assert sorted(bench.bodies) == BODIES
    await bench.close()
