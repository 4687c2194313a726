"""Frames, complete and in pieces, with both header encodings, and invalid frames."""

import json
from struct import pack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firetrail.errors import ProtocolError
from firetrail.remoting.wire.codes import (
    CommandFlag,
    Language,
    RequestCode,
    ResponseCode,
    Serialize,
)
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FrameLimits, FrameReader, decode_frame, encode_frame

# Code 105, topic T1, JAVA, version 399, opaque 1: as the Java client writes it.
JAVA_BINARY = bytes.fromhex(
    "0000002601000022006900018f0000000100000000000000000000000d0005746f706963000000025431"
)
JAVA_JSON = (
    b'{"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"JAVA","opaque":1,'
    b'"serializeTypeCurrentRPC":"JSON","version":399}'
)

text = st.text(st.characters(codec="utf-8"), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
commands = st.builds(
    RemotingCommand,
    code=st.integers(-(2**15), 2**15 - 1),
    fields=st.dictionaries(text, text, max_size=4),
    body=st.binary(max_size=40),
    remark=st.none() | text.filter(bool),
    opaque=int32,
    flag=st.integers(0, 3),
    language=st.sampled_from(Language),
    version=st.integers(0, 2**15 - 1),
    serialize=st.sampled_from(Serialize),
)


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def flat(command: RemotingCommand) -> bytes:
    return b"".join(encode_frame(command))


class TestGoldenBytes:
    def test_a_binary_frame_of_java_is_decoded_and_encoded(self) -> None:
        command = decode_frame(JAVA_BINARY)
        expected = RemotingCommand(
            105, {"topic": "T1"}, opaque=1, version=399, serialize=Serialize.ROCKETMQ
        )
        assert command == expected
        assert flat(command) == JAVA_BINARY

    def test_a_json_frame_of_java_is_decoded_and_encoded(self) -> None:
        command = decode_frame(frame(JAVA_JSON, b"body"))
        assert command == RemotingCommand(105, {"topic": "T1"}, b"body", opaque=1, version=399)
        assert flat(command) == frame(JAVA_JSON, b"body")


@given(commands)
def test_a_command_survives_encoding_and_decoding(command: RemotingCommand) -> None:
    assert decode_frame(flat(command)) == command


@given(st.lists(commands, max_size=4), st.lists(st.integers(1, 60), min_size=1))
def test_frames_may_arrive_in_any_pieces(sent: list[RemotingCommand], sizes: list[int]) -> None:
    stream = b"".join(map(flat, sent))
    reader = FrameReader()
    got: list[RemotingCommand] = []
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        got += reader.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert got == sent == list(FrameReader().feed(stream))
    assert reader.waiting == 0


@given(st.binary(max_size=200), st.integers(0, 1))
@example(b"", 0)
def test_random_headers_raise_only_protocol_errors(header: bytes, kind: int) -> None:
    """Only ProtocolError may be raised."""
    try:
        command = decode_frame(frame(header, b"", kind))
    except ProtocolError:
        return
    assert decode_frame(flat(command)).code == command.code


@given(st.binary(max_size=300), st.integers(1, 40))
def test_random_streams_decode_equally_whole_and_in_pieces(stream: bytes, size: int) -> None:
    """The same commands are decoded, and the same error is raised."""

    def outcome(parts: list[bytes]) -> tuple[list[RemotingCommand], bool]:
        reader, got = FrameReader(FrameLimits(frame=250, header=200)), []
        try:
            for part in parts:
                for command in reader.feed(part):
                    got.append(command)
        except ProtocolError:
            return got, True
        return got, False

    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert outcome(pieces) == outcome([stream])


class TestLimits:
    @pytest.mark.parametrize("length", [-1, -(2**31), 0, 3, 2**31 - 1, 101])
    def test_an_invalid_length_is_rejected(self, length: int) -> None:
        reader = FrameReader(FrameLimits(frame=100))
        with pytest.raises(ProtocolError, match=f"a frame of {length} bytes"):
            list(reader.feed(pack(">iI", length, 0)))

    def test_a_tls_handshake_is_named(self) -> None:
        hello = bytes.fromhex("16030102000100")
        reader = FrameReader()
        assert list(reader.feed(hello)) == []  # too short for a decision
        with pytest.raises(ProtocolError, match="the peer begins a TLS handshake, but this port"):
            list(reader.feed(b"\1"))
        with pytest.raises(ProtocolError, match="a frame of 369033213 bytes"):
            list(FrameReader().feed(bytes.fromhex("15fefffd00000000")))

    def test_a_port_for_grpc_clients_is_named(self) -> None:
        settings = bytes.fromhex("00001e040000000000")
        with pytest.raises(ProtocolError, match="speaks HTTP/2: this is the port for gRPC clients"):
            list(FrameReader().feed(settings))

    def test_a_header_longer_than_its_frame_is_rejected(self) -> None:
        with pytest.raises(ProtocolError, match="a header of 97 bytes in a frame of 100"):
            list(FrameReader().feed(pack(">iI", 100, 97)))

    def test_a_header_above_the_limit_is_rejected(self) -> None:
        with pytest.raises(ProtocolError, match="at most 50 are allowed"):
            list(FrameReader(FrameLimits(header=50)).feed(pack(">iI", 1000, 51)))

    def test_a_long_frame_is_rejected_before_its_bytes_arrive(self) -> None:
        """The first eight bytes are sufficient, so no memory is used for the rest."""
        reader = FrameReader(FrameLimits(frame=1000))
        with pytest.raises(ProtocolError):
            list(reader.feed(pack(">iI", 1001, 10)))
        assert reader.waiting == 0

    def test_an_unknown_type_of_header_is_rejected(self) -> None:
        with pytest.raises(ProtocolError, match="unknown type 2"):
            decode_frame(frame(b"{}", kind=2))

    def test_a_truncated_frame_is_rejected(self) -> None:
        with pytest.raises(ProtocolError, match="cut off"):
            decode_frame(b"\0\0\0")


class TestWhatClientsWrite:
    @pytest.mark.parametrize(
        ("value", "text"),
        [(7, "7"), (2**40, str(2**40)), (True, "true"), (False, "false"), ("x", "x"), (1.5, "1.5")],
    )
    def test_field_values_of_every_json_type_become_text(self, value: object, text: str) -> None:
        header = json.dumps({"code": 10, "extFields": {"f": value, "g": None}}).encode()
        assert decode_frame(frame(header)).fields == {"f": text}

    @pytest.mark.parametrize(
        ("language", "number"),
        [("CPP", 1), (9, 9), ("KLINGON", 7), (99, 7), (None, 7), ([], 7), (True, 7)],
    )
    def test_languages_are_decoded_from_names_and_numbers(
        self, language: object, number: int
    ) -> None:
        header = json.dumps({"code": 10, "language": language}).encode()
        assert decode_frame(frame(header)).language == number

    def test_missing_members_have_defaults(self) -> None:
        assert decode_frame(frame(b'{"code":34}\n')) == RemotingCommand(34, language=7, version=0)

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            (b"", "not JSON"),
            (b"\xff\xfe\xfd", "not JSON"),
            (b"[1]", "a list, not an object"),
            (b'{"code":1.5}', "code is not a 32-bit number"),
            (b'{"code":"x"}', "code is not a 32-bit number"),
            (b'{"code":true}', "code is not a 32-bit number"),
            (b'{"code":1,"opaque":2147483648}', "opaque is not a 32-bit number"),
            (b'{"code":1,"extFields":[1]}', "extFields is a list"),
            (b'{"code":1,"extFields":{"a":{}}}', "the field a is a dict"),
            (b'{"code":1,"remark":5}', "remark"),
            (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply|not JSON"),
            (b'{"code":' + b"9" * 10_000 + b"}", "not JSON|32-bit"),
        ],
    )
    def test_json_that_is_not_a_header_is_rejected(self, header: bytes, message: str) -> None:
        with pytest.raises(ProtocolError, match=message):
            decode_frame(frame(header))

    @pytest.mark.parametrize("cut", range(1, len(JAVA_BINARY) - 8))
    def test_truncated_binary_headers_are_rejected(self, cut: int) -> None:
        header = JAVA_BINARY[8:-cut]
        with pytest.raises(ProtocolError):
            decode_frame(frame(header, kind=1))


class TestAnswers:
    @pytest.mark.parametrize("serialize", Serialize)
    def test_a_response_has_the_encoding_of_its_request(self, serialize: Serialize) -> None:
        request = RemotingCommand(RequestCode.HEART_BEAT, opaque=77, serialize=serialize)
        answer = request.answer(ResponseCode.SYSTEM_ERROR, "no", {"a": "b"}, b"x")
        assert (answer.opaque, answer.serialize) == (77, serialize)
        assert (answer.is_response, answer.is_one_way) == (True, False)
        assert decode_frame(flat(answer)).remark == "no"

    def test_bodies_in_pieces_are_not_copied(self) -> None:
        log = memoryview(b"one two three")
        answer = RemotingCommand(11).answer(body=[log[:3], b"", log[4:7]])
        pieces = encode_frame(answer)
        assert pieces[1:] == [b"one", b"two"]
        assert pieces[1].obj is log.obj  # type: ignore[union-attr]
        assert decode_frame(b"".join(pieces)).body == answer.content == b"onetwo"

    def test_a_command_with_the_one_way_flag_is_one_way(self) -> None:
        assert RemotingCommand(15, flag=CommandFlag.ONE_WAY).is_one_way

    def test_pop_codes_have_no_binary_form(self) -> None:
        with pytest.raises(ProtocolError, match=r"200050.*use JSON"):
            encode_frame(RemotingCommand(RequestCode.POP_MESSAGE, serialize=Serialize.ROCKETMQ))

    def test_a_lone_surrogate_is_replaced(self) -> None:
        for serialize in Serialize:
            sent = RemotingCommand(10, {"a\ud800": "\udfff"}, remark="\ud800", serialize=serialize)
            assert decode_frame(flat(sent)).fields == {"a?": "?"}
