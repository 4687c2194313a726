"""The consume-queue unit."""

import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format.files.unit import (
    PRE_BLANK,
    UNIT_SIZE,
    ConsumeQueueUnit,
    decode_unit,
    encode_unit,
)

GOLDEN = Path(__file__).parents[2] / "golden"

# Unit 1 of T1/0, and the delayed message in SCHEDULE_TOPIC_XXXX/2 (its tags code is a time).
LITERALS = [
    ("000000000000014c 000000a6 000000000027a7f8", ConsumeQueueUnit(332, 166, 2598904)),
    ("000000000000084e 0000009e 000001a1de00a3ed", ConsumeQueueUnit(2126, 158, 1794725946349)),
]
units = st.builds(
    ConsumeQueueUnit,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


def name_of(path: Path) -> str:
    return str(path.relative_to(GOLDEN))


@pytest.mark.parametrize(("raw", "unit"), LITERALS)
def test_units_of_java_round_trip(raw: str, unit: ConsumeQueueUnit) -> None:
    assert decode_unit(bytes.fromhex(raw)) == unit
    assert encode_unit(unit) == bytes.fromhex(raw)


@given(units, st.binary(max_size=30))
def test_a_unit_is_decoded_from_any_position(unit: ConsumeQueueUnit, before: bytes) -> None:
    data = encode_unit(unit)
    assert len(data) == UNIT_SIZE == 20
    assert decode_unit(memoryview(before + data), len(before)) == unit


def test_written_and_end() -> None:
    assert ConsumeQueueUnit(0, 1, 0).is_written
    assert not ConsumeQueueUnit(0, 0, 0).is_written
    assert not ConsumeQueueUnit(-1, 1, 0).is_written
    assert PRE_BLANK.is_written  # Java's recovery takes it for valid; it ends no log
    assert ConsumeQueueUnit(332, 166, 0).end_offset == 498


@pytest.mark.parametrize(
    ("size", "at", "message"),
    [
        (19, 0, "unit at offset 0: needs 20 bytes, 19 are left"),
        (40, 21, "unit at offset 21: needs 20 bytes, 19 are left"),
        (40, 60, "unit at offset 60: needs 20 bytes, 0 are left"),
        (40, -20, "unit at offset -20: needs 20 bytes"),
    ],
)
def test_an_incomplete_unit_is_refused(size: int, at: int, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_unit(bytes(size), at)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (ConsumeQueueUnit(2**63, 1, 0), "unit physical offset at offset 0: 9223372036854775808"),
        (ConsumeQueueUnit(0, 2**31, 0), "unit size at offset 8: 2147483648 does not fit in 32"),
        (ConsumeQueueUnit(0, 1, -(2**63) - 1), "unit tags code at offset 12: -92233720368547758"),
    ],
)
def test_values_that_do_not_fit_are_refused(unit: ConsumeQueueUnit, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        encode_unit(unit)
    assert message in str(caught.value)


def test_an_error_does_not_hold_a_mapping() -> None:
    mapping = mmap.mmap(-1, 30)
    with pytest.raises(FormatError) as caught:
        decode_unit(mapping, 20)
    mapping.close()  # would raise BufferError if the traceback kept a view
    assert caught.value.offset == 20


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/consumequeue/*/*/*")), ids=name_of)
def test_golden_files_re_encode(path: Path) -> None:
    data = path.read_bytes()
    units = [decode_unit(data, at) for at in range(0, len(data), UNIT_SIZE)]
    assert b"".join(map(encode_unit, units)) == data
    written = [unit.is_written for unit in units]
    assert written == sorted(written, reverse=True)  # zeros only at the end


def test_the_first_unit_of_a_rebuilt_queue_is_the_pre_blank() -> None:
    """The rebuilt store lost its oldest log files: queue T1/0 starts at unit 48."""
    data = (GOLDEN / "v4-rebuilt/consumequeue/T1/0/00000000000000000000").read_bytes()
    assert data[: 48 * UNIT_SIZE] == encode_unit(PRE_BLANK) * 48
    assert decode_unit(data, 48 * UNIT_SIZE) == ConsumeQueueUnit(16384, 168, 2598902)
