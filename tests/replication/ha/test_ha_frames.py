"""The frames of the HA protocol, against the bytes that Java sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import ProtocolError
from firetrail.replication.ha.ha_frames import (
    BODY_MAX,
    ReportReader,
    TransferReader,
    encode_header,
    encode_report,
)


def test_a_report_is_the_offset_in_8_bytes() -> None:
    assert encode_report(4096).hex() == "0000000000001000"


def test_a_transfer_begins_with_offset_and_size() -> None:
    assert encode_header(4096, 200).hex(" ", 4) == "00000000 00001000 000000c8"


@given(
    bodies=st.lists(st.binary(max_size=40), max_size=6),
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=10),
)
def test_transfers_are_read_whatever_the_cuts(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b""
    offset = 4096
    for body in bodies:
        stream += encode_header(offset, len(body)) + body
        offset += len(body)
    reader = TransferReader()
    content, heartbeats, position = b"", 0, 4096
    at = number = 0
    while at < len(stream):
        size = cuts[number % len(cuts)]
        for piece in reader.feed(memoryview(stream)[at : at + size]):
            assert piece.offset == position
            position += len(piece.content)
            content += bytes(piece.content)
            heartbeats += not piece.content
        at += size
        number += 1
    assert content == b"".join(bodies)
    assert heartbeats == bodies.count(b"")


@pytest.mark.parametrize(("offset", "size"), [(-1, 0), (0, -1), (0, BODY_MAX + 1)])
def test_an_impossible_header_is_refused(offset: int, size: int) -> None:
    with pytest.raises(ProtocolError, match="check that the address is that of an HA port"):
        list(TransferReader().feed(memoryview(encode_header(offset, size))))


@given(offsets=st.lists(st.integers(0, 2**63 - 1), max_size=8), cut=st.integers(1, 20))
def test_reports_are_read_whatever_the_cuts(offsets: list[int], cut: int) -> None:
    stream = b"".join(encode_report(offset) for offset in offsets)
    reader = ReportReader()
    found: list[int] = []
    for at in range(0, len(stream), cut):
        found += reader.feed(stream[at : at + cut])
    assert found == offsets
