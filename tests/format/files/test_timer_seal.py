"""Firetrail's seal in ``timercheck``."""

from hypothesis import given
from hypothesis import strategies as st
from tests.format.files.test_timer import GOLDEN, slots

from firetrail.format.files.timer import CHECK_SIZE, TimerCheck, TimerSlot, decode_check
from firetrail.format.files.timer_seal import (
    NEXT_SLOTS,
    WheelSeal,
    added,
    decode_seal,
    encode_check,
    flipped_bit,
    sealed_precision_ms,
    slot_sum,
)

natural = st.integers(0, 2**63 - 1)
checks = st.builds(TimerCheck, *[natural] * 7)
seals = st.builds(WheelSeal, st.integers(0, 2**64 - 1), st.lists(slots, max_size=3).map(tuple))
FULL = WheelSeal(7, (TimerSlot(1, 2, 3, 4),) * NEXT_SLOTS)


@given(checks, st.integers(1, 2**31 - 1), seals)
def test_checkpoints_round_trip_and_are_sealed(
    check: TimerCheck, precision: int, seal: WheelSeal
) -> None:
    raw = encode_check(check, precision, seal)
    assert len(raw) == CHECK_SIZE
    assert decode_check(raw) == decode_check(raw[:56]) == check
    assert decode_seal(raw, precision) == decode_seal(raw) == seal
    assert decode_seal(raw, precision - 1) is None
    assert sealed_precision_ms(raw) == precision


@given(checks, st.integers(0, 8 * (56 + 24 + 32 * NEXT_SLOTS + 4) - 1))
def test_a_flipped_bit_breaks_the_seal(check: TimerCheck, bit: int) -> None:
    raw = bytearray(encode_check(check, 1000, FULL))
    raw[bit // 8] ^= 1 << bit % 8
    assert decode_seal(raw, 1000) is None


@given(checks, st.integers(0, 8 * 56 - 1), st.integers(0, 8 * 56 - 1))
def test_one_flipped_bit_is_found_and_two_are_not(check: TimerCheck, bit: int, other: int) -> None:
    good = encode_check(check, 1000, FULL)
    assert flipped_bit(good) is None
    raw = bytearray(good)
    raw[bit // 8] ^= 1 << bit % 8
    assert flipped_bit(raw) == (TimerCheck._fields[bit // 64], bit // 8, good)
    if other != bit:
        raw[other // 8] ^= 1 << other % 8
        assert flipped_bit(raw) is None


def test_numbers_that_java_has_written_are_no_flipped_bits() -> None:
    ours = encode_check(TimerCheck(5, 6, 7, 8), 1000, WheelSeal())
    assert flipped_bit((9000).to_bytes(8, "big") + ours[8:]) is None
    assert flipped_bit((GOLDEN / "config" / "timercheck").read_bytes()) is None
    assert flipped_bit(b"") is None


def test_java_breaks_the_seal_when_it_writes() -> None:
    ours = encode_check(TimerCheck(5, 6, 7, 8), 1000, WheelSeal())
    assert decode_seal(ours, 1000) is not None
    assert decode_seal((9).to_bytes(8, "big") + ours[8:], 1000) is None
    assert decode_seal((GOLDEN / "config" / "timercheck").read_bytes(), 1000) is None
    assert decode_seal(b"", 1000) is None


def test_the_sum_of_a_wheel_does_not_depend_on_the_order_of_changes() -> None:
    first, second = slot_sum(b"a" * 32), slot_sum(b"b" * 32)
    assert added(added(0, first), second) == added(added(0, second), first)
    assert added(added(added(0, first), second), -first) == second
    assert 0 <= added(0, -first) < 1 << 64
