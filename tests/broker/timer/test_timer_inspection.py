"""The check of the timer's files by ``firetrail fsck``, and what ``firetrail info`` counts."""

from pathlib import Path

import pytest
from tests.broker.timer.bench import START_S, Bench
from tests.broker.timer.test_wheel_damage import DAMAGES, spoil
from tests.helpers import crash_image

from firetrail.broker.timer.timer_inspection import timer_problems, timer_waiting
from firetrail.format.files.timer import CHECK, LOG, SLOT, UNIT, WHEEL, WHEEL_SLOTS
from firetrail.store.inspect.view import StoreView
from firetrail.store.problems import Problem, ProblemKind, advice

SLOTS = 1 << 16
ADVICE = "start a Firetrail broker: it rebuilds the files of the timer from their topic"


def found(folder: Path, slots: int = SLOTS) -> list[Problem]:
    with StoreView.open(folder) as view:
        return timer_problems(view, slots)


def filled(folder: Path) -> Bench:
    """Return a timer in which messages wait, some are delivered, and one is recalled."""
    bench = Bench(folder, wheel_slots=SLOTS)
    for number in range(40):
        bench.send(b"%d" % number, 1_000 * (1 + number % 8) + 500)
    bench.send(b"near", 300)
    bench.run()
    bench.send(b"", 7_500, TIMER_DEL_UNIQKEY="T+U6")
    bench.pass_time(3_000, 500)
    return bench


async def test_good_files_have_no_problems(tmp_path: Path) -> None:
    bench = filled(tmp_path / "a")
    await bench.save()
    bench.send(b"later", 9_500)
    bench.pass_time(1_000, 500)
    crash_image(tmp_path / "a", tmp_path / "b")
    assert found(tmp_path / "b") == []  # the store was killed after a save
    files = bench.timer._files
    files.begin_save(bench.timer.read_ms)
    files.log.flush()
    files.wheel.write()
    crash_image(tmp_path / "a", tmp_path / "c")
    assert found(tmp_path / "c") == []  # during a save
    assert found(tmp_path / "a") == []  # the store is open
    await bench.close()
    assert found(tmp_path / "a") == []  # it was closed


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_slots_are_reported(tmp_path: Path, damage: str) -> None:
    bench = filled(tmp_path)
    await bench.close()
    spoil(tmp_path, 5, DAMAGES[damage])
    at = (START_S + 5) % SLOTS * SLOT.size
    problems = found(tmp_path)
    if damage in ("zeros", "no time"):  # the seal has a copy of slots that are due soon
        assert [problem.kind for problem in problems] == [ProblemKind.TIMER_SLOT]
    else:
        assert (WHEEL, at, ProblemKind.TIMER_SLOT) in [
            (problem.file, problem.offset, problem.kind) for problem in problems
        ]
    assert advice(problems, "data") == ADVICE


async def test_a_slot_without_its_messages_is_reported_with_their_number(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wheel_slots=SLOTS)
    for number in range(3):
        bench.send(b"%d" % number, 300_500)
    bench.run()
    await bench.close()
    spoil(tmp_path, 300, DAMAGES["zeros"])
    time_ms = (START_S + 300) * 1000
    (problem,) = found(tmp_path)
    assert problem == Problem(
        WHEEL,
        time_ms // 1000 % SLOTS * SLOT.size,
        None,
        ProblemKind.TIMER_SLOT,
        f"3 messages are due at {time_ms}, and the slot lacks them",
    )


async def test_damaged_units_are_reported(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    await bench.close()
    path = tmp_path / LOG / f"{1000:020}"
    raw = path.read_bytes()
    at = 9 * UNIT.size  # unit 27, which belongs to the slot of unit 19
    for offset, detail in (
        (0, "this is not the unit of message 27 of rmq_sys_wheel_timer"),
        (28, "this is not the unit of message 27 of rmq_sys_wheel_timer"),
        (11, "its slot has no unit at"),
    ):
        spoilt = bytearray(raw)
        spoilt[at + offset] ^= 1
        path.write_bytes(spoilt)
        problem = found(tmp_path)[0]
        assert (problem.file, problem.offset) == (f"{LOG}/{1000:020}", at)
        assert problem.kind is ProblemKind.TIMER_UNIT
        assert problem.detail.startswith(detail)
    path.write_bytes(raw)
    assert found(tmp_path) == []


async def test_a_flipped_bit_in_the_progress_is_reported(tmp_path: Path) -> None:
    await filled(tmp_path).close()
    path = tmp_path / "config" / CHECK
    raw = bytearray(path.read_bytes())
    raw[6] ^= 2
    path.write_bytes(raw)
    (problem,) = found(tmp_path)
    assert (problem.file, problem.offset) == ("config/timercheck", 6)
    assert problem.detail == "a bit of read_ms is flipped"
    assert problem.kind is ProblemKind.TIMER_FILE


async def test_missing_files_are_reported(tmp_path: Path) -> None:
    bench = filled(tmp_path)
    await bench.close()
    sizes = sorted((tmp_path / LOG).iterdir())
    sizes[-1].unlink()
    assert "its files do not reach the position" in found(tmp_path)[0].detail
    assert found(tmp_path, SLOTS + 1)[0].detail == "it has 2097152 bytes instead of 2097184"
    (tmp_path / WHEEL).unlink()
    assert found(tmp_path)[0].detail == "the file is missing"
    (tmp_path / "config" / CHECK).unlink()
    assert found(tmp_path) == []  # as in a store of Java: the broker rebuilds them


async def test_waiting_messages_are_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wheel_slots=WHEEL_SLOTS)
    for number in range(5):
        bench.send(b"%d" % number, 300_500 + 1_000 * number)
    bench.run()
    await bench.save()
    bench.send(b"later", 400_000)
    assert bench.store.embedded.wait_dispatched()
    with StoreView.open(tmp_path) as view:
        first, last = (START_S + 300) * 1000, (START_S + 304) * 1000
        assert timer_waiting(view) == (6, first, last)
    await bench.close()


def test_a_store_without_timer_messages_has_no_timer(tmp_path: Path) -> None:
    Bench(tmp_path).store.close()
    with StoreView.open(tmp_path) as view:
        assert timer_waiting(view) is None
    assert found(tmp_path) == []
