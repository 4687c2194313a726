"""Compressed headers, with the library hpack as the reference."""

from collections.abc import Iterator

import hpack
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from firetrail.proxy.http2.codes import Http2Error
from firetrail.proxy.http2.faults import ConnectionFault
from firetrail.proxy.http2.limits import Http2Limits
from firetrail.proxy.kernels import block_decoder
from firetrail.proxy.kernels.block_decoder import BlockDecoder

NAMES = st.sampled_from([":path", "te", "x-a", "x-b", "content-type", "x" * 200])
VALUES = st.sampled_from(["", "a", "trailers", "y" * 150]) | st.text("az09 -é", max_size=20)
FIELDS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=12)


def decoded(decoder: BlockDecoder, block: bytes) -> list[tuple[str, str]]:
    return [(name, value) for name, value, _ in decoder.decode(block)]


def is_allowed(value: str) -> bool:
    return value == value.strip()


@settings(max_examples=60)
@given(st.lists(FIELDS, max_size=5), st.booleans(), st.sampled_from([4096, 300, 0]))
def test_blocks_of_a_library(
    blocks: list[list[tuple[str, str, bool]]], huffman: bool, table: int
) -> None:
    """Later blocks refer to the table that earlier ones have filled."""
    encoder, decoder = hpack.Encoder(), BlockDecoder(Http2Limits())
    encoder.header_table_size = table
    for fields in blocks:
        block = encoder.encode(
            [
                hpack.NeverIndexedHeaderTuple(name, value) if secret else (name, value)
                for name, value, secret in fields
            ],
            huffman=huffman,
        )
        assert decoded(decoder, block) == [
            (name if is_allowed(value) else "", value) for name, value, _ in fields
        ]


@settings(max_examples=150)
@given(st.lists(st.binary(min_size=1, max_size=30), max_size=3))
def test_any_bytes_are_decoded_as_by_a_library(blocks: list[bytes]) -> None:
    reference, decoder = hpack.Decoder(max_header_list_size=32 << 10), BlockDecoder(Http2Limits())
    reference.max_allowed_table_size = 4096
    assume(b"\x80\x80\x80" not in b"".join(blocks))  # we refuse numbers with needless zeros
    for block in blocks:
        try:
            expected = list(reference.decode(block, raw=True))
        except hpack.HPACKError:
            with pytest.raises(ConnectionFault):
                decoder.decode(block)
            return
        found = decoder.decode(block)
        values = [value.decode("utf-8", "replace") for _, value in expected]
        assert [value for _, value, _ in found] == values
        for (name, _, size), (raw_name, raw_value) in zip(found, expected, strict=True):
            assert name in ("", raw_name.decode("latin-1"))
            assert size == len(raw_name) + len(raw_value) + 32


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # a field that is not in the table
        b"\xff\xff\xff\xff\xff\xff\x01",  # a very large index
        b"\xff",  # an incomplete index
        b"\x00",  # a field without name and value
        b"\x00\x01",  # an incomplete name
        b"\x00\x01x\x05abcd",  # an incomplete value
        b"\x00\x81\x00\x01x",  # Huffman padding that is too long
        b"\x7e\x01x",  # the name of a field that is not in the table
        b"\x82\x20",  # a change of the table's size after a field
        b"\x3f\xe2\x1f",  # a table of 4097 bytes
    ],
)
def test_undecodable_blocks(block: bytes) -> None:
    with pytest.raises(ConnectionFault) as failed:
        BlockDecoder(Http2Limits()).decode(block)
    assert failed.value.code is Http2Error.COMPRESSION_ERROR


def test_the_table_forgets_the_oldest_fields() -> None:
    decoder = BlockDecoder(Http2Limits(header_table_bytes=100))
    decoder.decode(b"\x40\x01a\x01b" * 2 + b"\x40\x01c\x01d")  # 34 bytes each
    assert decoded(decoder, b"\xbe\xbf") == [("c", "d"), ("a", "b")]
    with pytest.raises(ConnectionFault):
        decoder.decode(b"\xc0")
    decoder = BlockDecoder(Http2Limits(header_table_bytes=100))
    decoder.decode(b"\x40\x01a\x01b" + b"\x40\x01c\x7f\x0a" + b"d" * 137)
    with pytest.raises(ConnectionFault):  # a field that is larger than the table empties it
        decoder.decode(b"\xbe")


def test_headers_that_are_too_long() -> None:
    decoder = BlockDecoder(Http2Limits(header_list_bytes=100))
    assert len(decoder.decode(b"\x00\x01a\x01b" * 2)) == 2
    with pytest.raises(ConnectionFault) as failed:
        decoder.decode(b"\x00\x01a\x01b" * 3)
    assert failed.value.code is Http2Error.ENHANCE_YOUR_CALM


def literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


@pytest.mark.parametrize("name", ["", "X", "a b", "ä", "a:b", ":", ":METHOD", "a\n"])
def test_illegal_names(name: str) -> None:
    ((found, _, _),) = BlockDecoder(Http2Limits()).decode(literal(name.encode(), b"x"))
    assert found == ""


@pytest.mark.parametrize("value", ["\0", "a\rb", "a\nb", " a", "a ", "\ta", "a\t", "\n"])
def test_illegal_values(value: str) -> None:
    ((found, _, _),) = BlockDecoder(Http2Limits()).decode(literal(b"x", value.encode()))
    assert found == ""


@pytest.mark.parametrize("value", [b"", b"a\tb", b"a b", "größe".encode(), b"\xff a"])
def test_legal_values(value: bytes) -> None:
    found = decoded(BlockDecoder(Http2Limits()), literal(b"x", value))
    assert found == [("x", value.decode("utf-8", "replace"))]


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Forget all names during the test."""
    before = dict(block_decoder.known_names)
    block_decoder.known_names.clear()
    yield
    block_decoder.known_names.clear()
    block_decoder.known_names.update(before)


@pytest.mark.usefixtures("forgotten")
def test_long_names_are_decoded_but_not_remembered() -> None:
    decoder = BlockDecoder(Http2Limits())
    longest = b"x" * block_decoder.KNOWN_NAME_BYTES
    for name in (longest, longest + b"x", longest * 100):
        block = hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(name, b"y")])
        assert decoded(decoder, block) == [(name.decode(), "y")]
    assert list(block_decoder.known_names) == [longest]


@pytest.mark.usefixtures("forgotten")
def test_the_names_that_are_remembered_are_limited() -> None:
    decoder = BlockDecoder(Http2Limits())
    for number in range(block_decoder.KNOWN_NAMES_MAX + 10):
        decoder.decode(literal(f"x-{number}".encode(), b""))
    assert len(block_decoder.known_names) == block_decoder.KNOWN_NAMES_MAX
