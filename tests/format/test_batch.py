"""Batch bodies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format.batch import BatchItem, decode_batch, encode_batch

# The first two messages of the golden batch, as MessageDecoder.encodeMessages of 4.9.8 writes them.
LITERAL = (
    bytes.fromhex("0000002d 00000000 00000000 00000000 00000006 626174636830 0011")
    + b"WAIT\x01true\x02TAGS\x01tb"
    + bytes.fromhex("0000002d 00000000 00000000 00000001 00000006 626174636831 0011")
    + b"WAIT\x01true\x02TAGS\x01tb",
    (
        BatchItem(0, b"batch0", b"WAIT\x01true\x02TAGS\x01tb"),
        BatchItem(1, b"batch1", b"WAIT\x01true\x02TAGS\x01tb"),
    ),
)
items = st.builds(
    BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)
)
ONE = encode_batch([BatchItem(7, b"body", b"A\x01b\x02")])  # 30 bytes


def test_a_batch_of_java_round_trips() -> None:
    raw, expected = LITERAL
    assert decode_batch(raw) == expected
    assert encode_batch(expected) == raw


@given(st.lists(items, max_size=8))
def test_a_batch_is_decoded_as_it_was_encoded(expected: list[BatchItem]) -> None:
    assert decode_batch(memoryview(encode_batch(expected))) == tuple(expected)


@given(st.binary(max_size=80))
def test_anything_decodes_or_raises_format_error(data: bytes) -> None:
    try:
        found = decode_batch(data)
    except FormatError:
        return
    assert sum(22 + len(item.body) + len(item.properties) for item in found) == len(data)


def test_magic_and_crc_are_not_looked_at() -> None:
    raw = bytearray(ONE)
    raw[4:12] = b"\xff" * 8
    assert decode_batch(raw) == decode_batch(ONE)


def test_limit_of_the_properties() -> None:
    full = BatchItem(0, b"", b"x" * 32767)
    assert decode_batch(encode_batch([full])) == (full,)


def patched(at: int, value: int, size: int) -> bytes:
    """A good item, then a second one with one field replaced."""
    second = bytearray(ONE)
    second[at : at + size] = value.to_bytes(size, "big", signed=True)
    return ONE + second


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (ONE[:21], "batch item 0 at offset 0: needs at least 22 bytes, 21 are left"),
        (ONE + b"\0", "batch item 1 at offset 30: needs at least 22 bytes, 1 are left"),
        (patched(0, 21, 4), "batch item 1 total size at offset 30: 21 is not in 22..30"),
        (patched(0, 31, 4), "batch item 1 total size at offset 30: 31 is not in 22..30"),
        (patched(0, -1, 4), "batch item 1 total size at offset 30: -1 is not in 22..30"),
        (patched(16, 9, 4), "batch item 1 body length at offset 46: 9 is not in 0..8"),
        (patched(16, -1, 4), "batch item 1 body length at offset 46: -1 is not in 0..8"),
        (
            patched(24, 5, 2),
            "batch item 1 properties length at offset 54: 5 where the total size leaves 4",
        ),
        (
            patched(24, -1, 2),
            "batch item 1 properties length at offset 54: -1 where the total size leaves 4",
        ),
    ],
)
def test_malformed_batches_are_refused(raw: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_batch(raw)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            BatchItem(0, b"body", b"x" * 32768),
            "batch item 1 properties length at offset 24: 32768 is more than 32767",
        ),
        (
            BatchItem(2**31, b"", b""),
            "batch item 1 flag at offset 12: 2147483648 does not fit in 32 bits",
        ),
    ],
)
def test_not_encoded(item: BatchItem, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        encode_batch([BatchItem(0, b"", b""), item])
    assert str(caught.value) == message
