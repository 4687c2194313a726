"""Messages, deadlines and statuses in HTTP/2."""

import gzip
import zlib
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.kernels.test_block_decoder import decoded

from firetrail.errors import GrpcError
from firetrail.proxy.http2.limits import Http2Limits
from firetrail.proxy.kernels.block_decoder import BlockDecoder
from firetrail.proxy.transport import codec
from firetrail.proxy.transport.call import StatusCode
from firetrail.proxy.transport.codec import MessageReader, frame_message


def reader(encoding: str = "identity") -> MessageReader:
    return MessageReader(encoding, message_max=1000, inflated_max=2000)


def compressed(payload: bytes) -> bytes:
    return b"\x01" + len(payload).to_bytes(4, "big") + payload


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(1, 30))
def test_messages_are_cut_wherever_the_data_is_cut(messages: list[bytes], step: int) -> None:
    data = b"".join(map(frame_message, messages))
    found: list[bytes] = []
    one = reader()
    for at in range(0, len(data), step):
        found += one.feed(data[at : at + step])
    assert found == messages
    assert one.waiting_bytes == 0


def test_an_incomplete_message_waits() -> None:
    one = reader()
    assert one.feed(frame_message(b"abc") + frame_message(b"defg")[:-1]) == [b"abc"]
    assert one.waiting_bytes == 8
    assert one.feed(b"g") == [b"defg"]


def test_compressed_messages_are_inflated() -> None:
    one = reader("gzip")
    assert one.feed(compressed(gzip.compress(b"x" * 2000)) + frame_message(b"y")) == [
        b"x" * 2000,
        b"y",
    ]
    assert one.inflated_bytes == 2000


def refused(one: MessageReader, data: bytes) -> tuple[int, str]:
    with pytest.raises(GrpcError) as failed:
        one.feed(data)
    return failed.value.code, failed.value.text


def test_messages_that_cannot_be_accepted() -> None:
    assert refused(reader(), b"\0\0\0\x03\xe9") == (
        StatusCode.RESOURCE_EXHAUSTED,
        "a message of 1001 bytes is longer than 1000 bytes",
    )
    assert refused(reader(), compressed(b"x")) == (
        StatusCode.INTERNAL,
        "a message is compressed, but grpc-encoding names no compression",
    )
    assert refused(reader("gzip"), compressed(gzip.compress(bytes(2001)))) == (
        StatusCode.RESOURCE_EXHAUSTED,
        "a decompressed message is longer than 2000 bytes",
    )
    assert refused(reader("gzip"), compressed(zlib.compress(b"x"))) == (
        StatusCode.INTERNAL,
        "a message cannot be decompressed",
    )
    assert refused(reader("gzip"), compressed(gzip.compress(b"x" * 100)[:-9])) == (
        StatusCode.INTERNAL,
        "a compressed message is incomplete",
    )
    with pytest.raises(GrpcError, match="the compression 'snappy' is not supported"):
        reader("snappy")


@settings(max_examples=50)
@given(st.text(max_size=30))
def test_texts_are_percent_encoded(text: str) -> None:
    encoded = codec.percent_encoded(text)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert unquote(encoded) == text.encode("utf-8", "replace").decode()


def test_long_texts_are_cut_between_characters() -> None:
    assert unquote(codec.percent_encoded("é" * 2000)) == "é" * 500
    assert unquote(codec.percent_encoded("x" + "é" * 2000)) == "x" + "é" * 499


def test_the_blocks_of_a_status() -> None:
    decoder = BlockDecoder(Http2Limits())
    status = ("grpc-status", "12")
    text = ("grpc-message", "50%25")
    assert decoded(decoder, codec.trailers(StatusCode.UNIMPLEMENTED, "50%")) == [status, text]
    assert decoded(decoder, codec.trailers(StatusCode.OK, "")) == [("grpc-status", "0")]
    assert decoded(decoder, codec.trailers_only(StatusCode.UNIMPLEMENTED, "")) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        status,
        ("grpc-accept-encoding", "identity,gzip"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1H", 3600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("2999m", 2.999),
        ("100u", 1e-4),
        ("99999999n", 0.099999999),
    ],
)
def test_deadlines(text: str, expected: float) -> None:
    assert codec.timeout_s(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "1", "S", "-1S", "1s", "1.5S", "123456789S", "¹S"])
def test_malformed_deadlines(text: str) -> None:
    with pytest.raises(GrpcError, match="grpc-timeout is malformed"):
        codec.timeout_s(text)
