"""Bytes of a hostile client: the connection survives or ends, and never raises."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.http2.wire import BLOCKS, Wire, frame, frames_of, headers

from firetrail.proxy.http2.codes import PREFACE, FrameType

KINDS = st.sampled_from(FrameType) | st.integers(0, 255)
FLAGS = st.sampled_from([0, 1, 4, 5, 8, 9, 12, 13, 0x20, 0x25, 0x2D]) | st.integers(0, 255)
STREAMS = st.sampled_from([0, 1, 3, 5, 7, 2, 2**31 - 1]) | st.integers(0, 2**32 - 1)
PAYLOADS = st.one_of(
    st.sampled_from(BLOCKS),
    st.binary(max_size=40),
    st.sampled_from([bytes(4), bytes(5), bytes(6), bytes(8), b"\x7f\xff\xff\xff", b"\0\0\0\1"]),
)
FRAMES = st.builds(frame, KINDS, FLAGS, STREAMS, PAYLOADS)


def answer(wire: Wire, size: int) -> None:
    for request in list(wire.requests.values()):
        if request.is_complete and not request.events and request.stream.is_sending:
            wire.http2.output.respond(request.stream, b"\x88", bytes(size), b"\x88")


def check(wire: Wire) -> None:
    list(frames_of(b"".join(wire.http2.take_output())))  # the server writes whole frames
    output = wire.http2.output
    assert output.queued_bytes == sum(s.queued_bytes for s in wire.http2.streams.values())
    for number, request in wire.requests.items():
        assert len(request.events) <= 1
        assert (number in wire.http2.streams) == (not request.events)


@settings(max_examples=120)
@given(st.lists(FRAMES, max_size=15), st.integers(0, 100_000))
def test_frames_of_any_kind(sent: list[bytes], size: int) -> None:
    wire = Wire()
    wire.send(headers(1))
    for one in sent:
        wire.http2.receive(one, wire.now)
        answer(wire, size)
        check(wire)
    wire.http2.lost()
    check(wire)


@settings(max_examples=60)
@given(st.booleans(), st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes(with_preface: bool, sent: bytes, step: int) -> None:
    wire = Wire(greet=False)
    sent = PREFACE * with_preface + sent
    for at in range(0, len(sent), step):
        wire.http2.receive(sent[at : at + step], wire.now)
    check(wire)


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=100))
def test_any_block_of_headers(block: bytes) -> None:
    wire = Wire()
    wire.http2.receive(frame(FrameType.HEADERS, 5, 1, block), 0.0)
    wire.http2.receive(headers(3), 0.0)
    check(wire)
