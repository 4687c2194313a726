"""The checkpoint file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format.files.checkpoint import (
    CHECKPOINT_SIZE,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)

GOLDEN = Path(__file__).parents[2] / "golden"

LITERALS = [
    (  # 4.9.8: closed cleanly, with one index file filled
        "000001a1de027838 000001a1de027838 000001a1de027803",
        Checkpoint(1794726066232, 1794726066232, 1794726066179),
    ),
    (  # 5.5.1: six fields
        "000001a1de6231e1 000001a1de6231e1 000001a1de6231de"
        "0000000000000000 0000000000000000 0000000000002743",
        Checkpoint(1794732339681, 1794732339681, 1794732339678, 0, 0, 10051),
    ),
]
int64 = st.integers(0, 2**63 - 1)
checkpoints = st.builds(Checkpoint, *[int64] * len(Checkpoint._fields))


def name_of(path: Path) -> str:
    return str(path.relative_to(GOLDEN))


@pytest.mark.parametrize(("raw", "checkpoint"), LITERALS)
def test_checkpoints_of_java_round_trip(raw: str, checkpoint: Checkpoint) -> None:
    data = bytes.fromhex(raw).ljust(4096, b"\0")
    assert decode_checkpoint(data) == checkpoint
    assert encode_checkpoint(checkpoint) == data


@given(checkpoints)
def test_a_checkpoint_is_decoded_as_it_was_encoded(checkpoint: Checkpoint) -> None:
    data = encode_checkpoint(checkpoint)
    assert len(data) == CHECKPOINT_SIZE
    assert decode_checkpoint(memoryview(data)) == checkpoint


def test_the_recovery_time_is_the_earliest_with_a_margin() -> None:
    checkpoint = Checkpoint(physic_timestamp=10_000, logics_timestamp=9_000, index_timestamp=500)
    assert checkpoint.min_timestamp == 6_000
    assert Checkpoint(2_999, 9_000).min_timestamp == 0


def test_fields_of_later_versions_are_ignored() -> None:
    assert decode_checkpoint(bytes(48) + b"\xff" * 4048) == Checkpoint()


@pytest.mark.parametrize("size", [0, 48, 4095])
def test_short_files_are_refused(size: int) -> None:
    with pytest.raises(FormatError) as caught:
        decode_checkpoint(bytes(size))
    assert str(caught.value) == f"checkpoint at offset 0: needs 4096 bytes, {size} are left"


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (0, "physic timestamp"),
        (8, "logics timestamp"),
        (16, "index timestamp"),
        (24, "master flushed offset"),
        (32, "confirm offset"),
        (40, "logics offset"),
    ],
)
def test_negative_times_are_refused(at: int, field: str) -> None:
    data = bytearray(CHECKPOINT_SIZE)
    data[at : at + 8] = b"\xff" * 8
    with pytest.raises(FormatError) as caught:
        decode_checkpoint(data)
    assert str(caught.value) == f"checkpoint {field} at offset {at}: -1 is negative"


def test_times_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FormatError, match=r"checkpoint index timestamp at offset 16: .* 64 bits"):
        encode_checkpoint(Checkpoint(index_timestamp=2**63))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/checkpoint")), ids=name_of)
def test_golden_files_re_encode(path: Path) -> None:
    data = path.read_bytes()
    assert encode_checkpoint(decode_checkpoint(data)) == data


def test_golden_after_a_crash_is_empty() -> None:
    assert decode_checkpoint((GOLDEN / "v4-crashed/checkpoint").read_bytes()) == Checkpoint()
