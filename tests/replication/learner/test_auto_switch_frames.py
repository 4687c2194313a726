"""The frames of RocketMQ's auto-switch HA protocol."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replication.auto_switch_master import handshake, transfer

from firetrail.errors import ProtocolError
from firetrail.replication.learner.auto_switch_frames import (
    EpochPiece,
    MasterHandshake,
    MasterReader,
    encode_learner_handshake,
    encode_report,
)
from firetrail.replication.log.epochs import EPOCHS_MAX, Epoch

EPOCHS = (Epoch(1, 0), Epoch(3, 100))
STREAM = (
    handshake(4296, EPOCHS)
    + transfer(4096, bytes(range(200)), EPOCHS[1], 4296)
    + transfer(4296, b"", EPOCHS[1], 4290)
    + transfer(-1, b"", EPOCHS[0], -1)
)


def read(*parts: bytes) -> list[MasterHandshake | EpochPiece]:
    """Return the frames of a stream; pieces of one transfer that follow each other are joined."""
    reader = MasterReader()
    found: list[MasterHandshake | EpochPiece] = []
    for part in parts:
        for frame in reader.feed(memoryview(part)):
            last = found[-1] if found else None
            if (
                isinstance(frame, EpochPiece)
                and isinstance(last, EpochPiece)
                and last.content
                and frame.content
                and last.offset + len(last.content) == frame.offset
            ):
                joined = bytes(last.content) + bytes(frame.content)
                found[-1] = last._replace(content=memoryview(joined))
            else:
                found.append(frame)
    return found


EXPECTED = [
    MasterHandshake(4296, EPOCHS),
    EpochPiece(4096, memoryview(bytes(range(200))), EPOCHS[1], 4296),
    EpochPiece(4296, memoryview(b""), EPOCHS[1], 4290),
    EpochPiece(-1, memoryview(b""), EPOCHS[0], -1),
]


def test_frames_of_a_slave() -> None:
    assert encode_learner_handshake().hex(" ", 4) == "00000001 00000001 00000100 00000000"
    assert encode_report(4096).hex(" ", 4) == "00000002 00000000 00001000"


def test_frames_of_a_master() -> None:
    assert read(
        bytes.fromhex("00000001 0000000C 00000000000010C8 00000001 00000001 0000000000000000")
    ) == [MasterHandshake(4296, (Epoch(1, 0),))]
    header = "00000002 00000003 0000000000001000 00000001 0000000000000000 00000000000010C8"
    assert read(bytes.fromhex(header) + b"abc") == [
        EpochPiece(4096, memoryview(b"abc"), Epoch(1, 0), 4296)
    ]


def test_a_master_without_epochs() -> None:
    assert read(handshake(0, [])) == [MasterHandshake(0, ())]


def test_a_stream_in_single_bytes() -> None:
    assert read(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == EXPECTED


@given(st.lists(st.integers(0, len(STREAM)), max_size=5))
def test_a_stream_in_any_parts(cuts: list[int]) -> None:
    cuts = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[a:b] for a, b in pairwise(cuts)]
    assert read(*parts) == EXPECTED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            bytes.fromhex("00000004"),
            "the master sent a frame of state 4; check that the address is that of the HA port of "
            "a master in controller mode",
        ),
        (
            bytes.fromhex("00000001 0000000D 0000000000000000 00000001"),
            "the master sent a list of epochs of 13 bytes",
        ),
        (
            b"\0\0\0\1" + (12 * EPOCHS_MAX + 12).to_bytes(4, "big") + bytes(12),
            "the master sent a list of epochs of 786444 bytes",
        ),
        (
            handshake(9, [Epoch(2, 0), Epoch(1, 5)]),
            "the master sent a wrong list of epochs: epoch 1 from offset 5 cannot follow epoch 2 "
            "from offset 0: both must grow",
        ),
        (
            transfer(-1, b"x", Epoch(1, 0), 0),
            "the master sent a transfer of 1 bytes at offset -1, which is not possible: a transfer "
            "has 0 to 4194292 bytes",
        ),
        (
            bytes.fromhex("00000002 FFFFFFFF") + bytes(28),
            "the master sent a transfer of -1 bytes at offset 0, which is not possible: a transfer "
            "has 0 to 4194292 bytes",
        ),
    ],
)
def test_impossible_frames_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        read(content)
    assert str(caught.value) == message
