"""Offset ids and unique ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format.values.hosts import Host, unpack_ip
from firetrail.format.values.ids import (
    MessageId,
    decode_message_id,
    encode_message_id,
    encode_unique_id,
)

# The second record of the clean golden store, and its one IPv6 record.
LITERALS = [
    ("C0A8010200002A9F00000000000000A6", MessageId(Host("192.168.1.2", 10911), 166)),
    (
        "0000000000000000000000000000000100002A9F00000000000007CC",
        MessageId(Host("::1", 10911), 1996),
    ),
]
ips = (st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)).map(unpack_ip)


@pytest.mark.parametrize(("text", "message_id"), LITERALS)
def test_message_ids_of_java_round_trip(text: str, message_id: MessageId) -> None:
    assert decode_message_id(text) == message_id
    assert decode_message_id(text.lower()) == message_id
    assert encode_message_id(*message_id) == text


@given(st.builds(Host, ips, st.integers(0, 65535)), st.integers(0, 2**63 - 1))
def test_offset_id_round_trip(host: Host, offset: int) -> None:
    text = encode_message_id(host, offset)
    assert len(text) == (56 if host.is_v6 else 32)
    assert text == text.upper()
    assert decode_message_id(text) == (host, offset)


def test_a_unique_id_is_encoded_as_java_does() -> None:
    """Made by MessageClientIDSetter of 4.9.8 in a process with this id and class loader hash."""
    text = "FD0000000000000000000000000000023D6930946E0949FE70000000"
    assert encode_unique_id("fd00::2", 15721, 815033865, 1241411584, 0) == text


def test_the_time_of_a_unique_id_is_unsigned() -> None:
    """In the last week of a month, more than 2**31 ms have passed since its start."""
    ms = 31 * 86_400_000 - 1
    assert encode_unique_id("10.1.2.3", 1, 2, ms, 3) == f"0A010203000100000002{ms:08X}0003"


def test_a_unique_id_keeps_the_low_bits() -> None:
    """As Java's casts do: process ids above 65535, negative hash codes, a counter that wraps."""
    text = encode_unique_id("10.1.2.3", 0x12345, -1, 5, 0x10001)
    assert text == "0A0102032345FFFFFFFF000000050001"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at offset 0: has 0 characters, not 32 or 56"),
        ("C0A8", "at offset 0: has 4 characters, not 32 or 56"),
        ("C0A80102 0002A9F00000000000000A6", "at offset 8: ' ' is not a hex digit"),
        ("xC0A8010200002A9F000000000000000", "at offset 0: 'x' is not a hex digit"),
        ("\uff10" * 32, "at offset 0: '\uff10' is not a hex digit"),
    ],
)
def test_malformed_ids_are_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_message_id(text)
    assert message in str(caught.value)


def test_ports_and_offsets_out_of_range_are_refused() -> None:
    with pytest.raises(FormatError, match="port at offset 4: -1 is not in 0"):
        decode_message_id("C0A80102FFFFFFFF00000000000000A6")
    with pytest.raises(FormatError, match="message id physical offset at offset 16: -1 is neg"):
        decode_message_id("C0A8010200002A9F" + "F" * 16)
    with pytest.raises(FormatError, match="message id physical offset at offset 16: -1 is not"):
        encode_message_id(Host("192.168.1.2", 10911), -1)
    with pytest.raises(FormatError, match="message id physical offset at offset 40: 9223372036"):
        encode_message_id(Host("::1", 10911), 2**63)
