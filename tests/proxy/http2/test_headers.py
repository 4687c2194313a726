"""Blocks of headers: the rules for requests, and the blocks of responses."""

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.http2.wire import REQUEST

from firetrail.proxy.http2 import headers
from firetrail.proxy.http2.codes import Http2Error
from firetrail.proxy.http2.faults import ConnectionFault
from firetrail.proxy.http2.headers import BlockDecoder, MalformedError, request_head
from firetrail.proxy.http2.limits import Http2Limits

ASCII = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))
LENGTHS = st.integers(120, 130) | st.integers(250, 260) | st.integers(16_000, 17_000)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1)


def raw(*fields: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]


def without(name: str) -> list[tuple[bytes, bytes]]:
    return raw(*(field for field in REQUEST if field[0] != name))


@settings(max_examples=40)
@given(st.lists(st.tuples(NAMES, ASCII | LENGTHS.map("x".__mul__)), max_size=8))
def test_a_library_reads_our_blocks(fields: list[tuple[str, str]]) -> None:
    decoder = hpack.Decoder(max_header_list_size=1 << 30)
    found = decoder.decode(headers.encode_block(fields), raw=True)
    assert [(name, value) for name, value in found] == raw(*fields)


@settings(max_examples=40)
@given(st.lists(st.tuples(NAMES, ASCII), max_size=20), st.booleans())
def test_our_decoder_reads_the_blocks_of_a_library(
    fields: list[tuple[str, str]], huffman: bool
) -> None:
    encoder, decoder = hpack.Encoder(), BlockDecoder(Http2Limits())
    for _ in range(3):  # later blocks refer to the table that earlier ones filled
        block = encoder.encode(fields, huffman=huffman)
        assert decoder.decode(block) == raw(*fields)


def test_the_fields_of_a_request() -> None:
    head = request_head(raw(*REQUEST, ("x", "1"), ("x", "2"), ("content-length", "12")))
    assert (head.method, head.scheme, head.path) == ("POST", "http", "/test.Service/Echo")
    assert head.authority == "localhost"
    assert head.content_length == 12
    assert head.fields["x"] == "2", "the last value counts"


def test_the_host_replaces_a_missing_authority() -> None:
    assert request_head([*without(":authority"), (b"host", b"h:1")]).authority == "h:1"


def test_values_may_be_text_in_utf8() -> None:
    fields = [*raw(*REQUEST), (b"x", "größe".encode()), (b"y", b"\xff a")]
    assert request_head(fields).fields["x"] == "größe"
    assert request_head(fields).fields["y"] == "\ufffd a"


@pytest.mark.parametrize("name", ["", "X", "a b", "ä", "a:b", ":", ":status", ":METHOD", "a\n"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(MalformedError):
        request_head([*raw(*REQUEST[:4]), (name.encode(), b"x"), *raw(*REQUEST[4:])])


@pytest.mark.parametrize("value", ["\0", "a\rb", "a\nb", " a", "a ", "\ta", "a\t", "\n"])
def test_illegal_values(value: str) -> None:
    with pytest.raises(MalformedError):
        request_head(raw(*REQUEST, ("x", value)))


@pytest.mark.parametrize("value", ["", "a\tb", "a b", "ä"])
def test_legal_values(value: str) -> None:
    fields = [*raw(*REQUEST), (b"x", value.encode())]
    assert request_head(fields).fields["x"] == value


@pytest.mark.parametrize(
    "fields",
    [
        without(":method"),
        without(":scheme"),
        without(":path"),
        [*without(":path"), (b":path", b"")],
        [*raw(REQUEST[0]), *raw(*REQUEST)],
        [*without(":path"), (b":path", b"/x")],
        [*raw(*REQUEST), (b"te", b"gzip")],
        [*raw(*REQUEST), (b"connection", b"close")],
        [*raw(*REQUEST), (b"transfer-encoding", b"chunked")],
        [*raw(*REQUEST), (b"content-length", b"-1")],
        [*raw(*REQUEST), (b"content-length", b"1" * 20)],
        [*raw(*REQUEST), (b"content-length", "¹".encode())],
    ],
)
def test_malformed_requests(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedError):
        request_head(fields)


def test_the_names_that_are_remembered_are_limited() -> None:
    for number in range(headers._KNOWN_NAMES_MAX + 10):
        request_head(raw(*REQUEST, (f"x-{number}", "")))
    assert len(headers._known_names) == headers._KNOWN_NAMES_MAX


def test_a_table_above_the_limit_is_refused() -> None:
    decoder = BlockDecoder(Http2Limits(header_table_bytes=4096))
    decoder.decode(b"\x3f\xe1\x1f")  # 4096
    with pytest.raises(ConnectionFault) as failed:
        decoder.decode(b"\x3f\xe2\x1f")
    assert failed.value.code is Http2Error.COMPRESSION_ERROR
