"""The files of RocketMQ's timer: slots, units and progress."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format.files.timer import (
    BLANK,
    CHECK_SIZE,
    DELETES,
    NONE,
    ROLLS,
    SLOT,
    UNIT,
    WAITS,
    WHEEL_SLOTS,
    TimerSlot,
    TimerUnit,
    decode_check,
    decode_slot,
    decode_unit,
    encode_blank,
    encode_slot,
    encode_unit,
    encode_unsealed,
    log_fault,
    slot_fault,
    units_per_file,
)
from firetrail.format.values.javahash import java_hash

GOLDEN = Path(__file__).parents[2] / "golden" / "v5-timer"
int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
slots = st.builds(TimerSlot, int64, int64, int64, int32, int32)
units = st.builds(TimerUnit, int32, int64, int32, int64, int32, int64, int32, int32)


@given(slots)
def test_slots_round_trip(slot: TimerSlot) -> None:
    assert decode_slot(b"x" + encode_slot(slot), 1) == slot


@given(units)
def test_units_round_trip(unit: TimerUnit) -> None:
    assert decode_unit(b"x" + encode_unit(unit), 1) == unit


def test_files_of_java_are_encoded_byte_for_byte() -> None:
    again = bytearray()
    for path in sorted((GOLDEN / "timerlog").iterdir()):
        raw, file = path.read_bytes(), bytearray(1000)
        for number in range(units_per_file(1000)):
            unit = decode_unit(raw, number * UNIT.size)
            if unit.is_valid:
                file[number * UNIT.size : (number + 1) * UNIT.size] = encode_unit(unit)
        end = units_per_file(1000) * UNIT.size
        if not again:
            file[end : end + BLANK.size] = encode_blank(1000 - end)
        assert bytes(file) == raw
        again += file
    found = [decode_unit(again, at * 1000 + n * UNIT.size) for at in (0, 1) for n in range(18)]
    magics = [unit.magic for unit in found if unit.is_valid]
    assert magics == [WAITS] * 20 + [WAITS | ROLLS, WAITS | DELETES, WAITS]
    raw = (GOLDEN / "timerwheel.slots").read_bytes()
    slots = [TimerSlot._make(fields) for fields in SLOT.iter_unpack(raw)]
    assert b"".join(map(encode_slot, slots)) == raw
    for slot in slots:  # each chain leads from the last unit to the first
        position, waiting = slot.last, 0
        while position != NONE:
            unit = decode_unit(again, position)
            assert unit.slot_ms == slot.time * 1000
            waiting += unit.weight
            position, last = unit.previous, position
        assert (last, waiting) == (slot.first, slot.waiting)
    check = (GOLDEN / "config" / "timercheck").read_bytes()
    assert encode_unsealed(decode_check(check))[:56] == check[:56]
    assert len(check) == CHECK_SIZE
    assert found[0].topic_hash == java_hash("Timed")
    assert WHEEL_SLOTS * SLOT.size == 38_707_200


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "timer checkpoint at offset 0: it has fewer than 56 bytes"),
        (bytes(16) + b"\xff" * 8 + bytes(40), "timer checkpoint queue_offset at offset 16: is -1"),
    ],
)
def test_impossible_checkpoints_are_refused(raw: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_check(raw)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "unit",
    [
        TimerUnit(0, 0, 0, 0, 0, 0, 0, 0),
        TimerUnit(52, 0, 2, 0, 0, 0, 0, 0),
        TimerUnit(52, 0, 8 | 1, 0, 0, 0, 0, 0),
        TimerUnit(64, 0, -875286124, 0, 0, 0, 0, 0),
    ],
)
def test_other_bytes_are_no_units(unit: TimerUnit) -> None:
    assert not unit.is_valid


@pytest.mark.parametrize(
    ("files", "end", "fault"),
    [
        ([], 0, None),
        ([], 1, "do not reach the position 1"),
        ([(0, 100), (100, 100)], 0, None),
        ([(0, 100), (100, 100)], 200, None),
        ([(0, 100), (100, 100)], 201, "do not reach the position 201"),
        ([(100, 100), (200, 100)], 99, "do not reach the position 99"),
        ([(0, 100), (200, 100)], 250, f"the file {100:020} is missing"),
    ],
)
def test_the_files_of_a_log_are_all_there(
    files: list[tuple[int, int]], end: int, fault: str | None
) -> None:
    found = log_fault(end, files)
    assert found == fault if fault is None else fault in (found or "")


def test_a_slot_is_in_its_place() -> None:
    slot = TimerSlot(107, 0, 0, 1, 0)
    assert slot_fault(7, slot, 100) is None
    assert slot_fault(8, slot, 100) == "the slot has the impossible time 107"
