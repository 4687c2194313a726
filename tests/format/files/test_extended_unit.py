"""Extended units: their bytes, and addresses."""

import pytest

from firetrail.format.files.extended_unit import (
    ExtendedUnit,
    address_of,
    decode_extended,
    encode_extended,
    is_address,
    offset_of,
)


def test_the_bytes_are_those_of_java() -> None:
    unit = ExtendedUnit(2598919, 1600000000123, b"\x05\x80")
    content = encode_extended(unit)
    assert content.hex() == "0016000000000027a80700000174876e807b00020580"
    assert decode_extended(content + b"more") == unit
    assert decode_extended(encode_extended(ExtendedUnit(-1, 0))) == ExtendedUnit(-1, 0)


@pytest.mark.parametrize("content", [b"", bytes(20), b"\xff\xff" + bytes(40), b"\0\x16" + bytes(9)])
def test_other_bytes_are_no_unit(content: bytes) -> None:
    assert decode_extended(content) is None


def test_addresses_are_below_all_hashes() -> None:
    assert address_of(0) == -(2**63)
    assert offset_of(address_of(123456)) == 123456
    assert is_address(address_of(2**62))
    assert not is_address(-(2**31))
    assert not is_address(0)
