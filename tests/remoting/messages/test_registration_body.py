"""The compressed body of a registration."""

import zlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import ProtocolError
from firetrail.remoting.messages import registration_body
from firetrail.remoting.messages.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)
from firetrail.remoting.messages.registration_body import (
    checksum,
    decode_registration,
    encode_registration,
)

BODY = RegisterBrokerBody(
    TopicConfigTable(
        {
            "T1": TopicConfig("T1", 4, 8, 6),
            "T2": TopicConfig("T2", 1, 1, 4, attributes={"+message.type": "FIFO"}),
        },
        DataVersion(3, 1600),
    ),
    ["10.0.0.1:5000"],
)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_survives_encoding_and_decoding(compressed: bool) -> None:
    raw = encode_registration(BODY, compressed=compressed)
    assert decode_registration(raw, compressed=compressed) == BODY


def sized(raw: bytes) -> bytes:
    return pack(">i", len(raw)) + raw


def test_a_compressed_registration_of_java_is_decoded() -> None:
    raw = zlib.decompress(encode_registration(BODY, compressed=True))
    assert raw == (
        sized(b'{"counter":3,"timestamp":1600}')
        + pack(">i", 2)
        + sized(b"T1 4 8 6 SINGLE_TAG")
        + sized(b'T2 1 1 4 SINGLE_TAG {"+message.type":"FIFO"}')
        + sized(b'["10.0.0.1:5000"]')
    )
    newer = zlib.compress(raw + pack(">i", 0))
    assert decode_registration(newer, compressed=True) == BODY


def test_an_empty_body_has_no_topics() -> None:
    assert decode_registration(b"", compressed=False) == RegisterBrokerBody()


def test_the_checksum_is_never_negative() -> None:
    assert zlib.crc32(b"a") > 0x7FFFFFFF
    assert checksum(b"a") == zlib.crc32(b"a") - 0x80000000


class TestInvalidRegistrations:
    @pytest.mark.parametrize(
        ("inside", "message"),
        [
            (b"", "ends at 0"),
            (pack(">i", -1), "the invalid length -1 at 0"),
            (pack(">i", 100) + b"{}", "the invalid length 100"),
            (sized(b"{}") + pack(">i", 1) + sized(b"T1 4 4"), "not a valid topic"),
            (sized(b"{}") + pack(">i", 1) + sized(b"T1 4 x 6 SINGLE_TAG"), "not a valid topic"),
            (sized(b"[]") + pack(">i", 0) + sized(b"[]"), "must be an object"),
        ],
    )
    def test_invalid_content_is_rejected(self, inside: bytes, message: str) -> None:
        with pytest.raises(ProtocolError, match=message):
            decode_registration(zlib.compress(inside), compressed=True)

    def test_a_registration_that_expands_beyond_the_limit_is_rejected(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registration_body, "INFLATED_MAX", 1000)
        with pytest.raises(ProtocolError, match="more than 1000 bytes"):
            decode_registration(zlib.compress(bytes(100_000)), compressed=True)

    def test_a_truncated_registration_is_rejected(self) -> None:
        with pytest.raises(ProtocolError, match="cut off"):
            decode_registration(encode_registration(BODY, compressed=True)[:-8], compressed=True)

    @given(st.binary(max_size=200))
    def test_random_bytes_raise_only_protocol_errors(self, raw: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode_registration(zlib.compress(raw), compressed=True)
