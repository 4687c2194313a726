"""Frames in the bytes of a client, compared with a model that reads all bytes at once."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from tests.proxy.http2.wire import SETTINGS_FRAME, frame

from firetrail.proxy.http2 import codes
from firetrail.proxy.http2.codes import FrameType, Http2Error
from firetrail.proxy.http2.faults import ConnectionFault
from firetrail.proxy.http2.limits import Http2Limits
from firetrail.proxy.kernels.frame_input import FrameInput

LIMITS = Http2Limits(block_bytes=200, block_frames=4, frame_bytes=100)
CONNECTIONS = 300
"""Generated connections per seed."""
KINDS = [0, *[1] * 6, *[9] * 6, 4, 6, 8, 200]
FLAGS = [0, 0, 1, 4, 4, 5, 8, 0x20, 0x2C, 0x2D, 255]
STREAMS = [*[1] * 8, 3, 0, 2, 2**31 - 1, 2**31 + 1, 2**32 - 1]
SIZES = [*[0, 1, 4, 5, 6, 20, 50] * 3, 100, 101]


class Handled:
    """Notes frames and blocks; says that all is over after some of them."""

    def __init__(self, last: int | None = None) -> None:
        self.log: list[Any] = []
        self.is_over = False
        self._last = last

    def _note(self, *event: Any) -> None:
        self.log.append(event)
        self.is_over = len(self.log) == self._last

    def on_frame(self, *frame: Any) -> None:
        self._note("frame", *frame)

    def on_block(self, stream_id: int, block: bytes, is_last: Any, itself: Any) -> None:
        self._note("block", stream_id, block, bool(is_last), bool(itself))


class ModelError(Exception):
    """The client errs; the argument is the code."""


class Model:
    """Reads all bytes of a client from the start: slow, and without any state between calls.

    Attributes:
        log: What is handled.
        waiting: Bytes of unfinished frames and blocks.
        fault: The code of the error that the bytes end with; None if there is none.
    """

    def __init__(self, data: bytes, last: int | None) -> None:
        self.log: list[Any] = []
        self.fault: Http2Error | None = None
        self._block: list[bytes] = []
        self._head: tuple[int, bool, bool] = (0, False, False)
        self._rest = data
        try:
            if data[:24] != codes.PREFACE[: len(data)]:
                raise ModelError(Http2Error.PROTOCOL_ERROR)
            if len(data) >= 24:
                self._rest = data[24:]
                for kind, flags, stream_id, payload in self._frames():
                    self._handle(kind, flags, stream_id, payload)
                    if len(self.log) == last:
                        break
        except ModelError as error:
            self.fault = error.args[0]
        self.waiting = len(self._rest) + sum(map(len, self._block))

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while len(self._rest) >= 9:
            size = int.from_bytes(self._rest[:3])
            if size > LIMITS.frame_bytes:
                raise ModelError(Http2Error.FRAME_SIZE_ERROR)
            if len(self._rest) < 9 + size:
                return
            head, payload = self._rest[:9], self._rest[9 : 9 + size]
            self._rest = self._rest[9 + size :]
            yield head[3], head[4], int.from_bytes(head[5:]) % 2**31, payload

    def _handle(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        is_settings = kind == FrameType.SETTINGS and not flags & codes.ACK
        if self._block:
            if kind != FrameType.CONTINUATION or stream_id != self._head[0]:
                raise ModelError(Http2Error.PROTOCOL_ERROR)
        elif kind == FrameType.CONTINUATION or not (self.log or is_settings):
            raise ModelError(Http2Error.PROTOCOL_ERROR)
        elif kind == FrameType.HEADERS:
            payload = self._begin(flags, stream_id, payload)
            if flags & codes.END_HEADERS:  # the limits of blocks are above that of a frame
                self.log.append(("block", stream_id, payload, *self._head[1:]))
                return
        else:
            self.log.append(("frame", kind, flags, stream_id, payload))
            return
        self._block.append(payload)
        size = sum(map(len, self._block))
        if size > LIMITS.block_bytes or len(self._block) > LIMITS.block_frames:
            raise ModelError(Http2Error.ENHANCE_YOUR_CALM)
        if flags & codes.END_HEADERS:
            self.log.append(("block", stream_id, b"".join(self._block), *self._head[1:]))
            self._block = []

    def _begin(self, flags: int, stream_id: int, payload: bytes) -> bytes:
        """Note the first frame of a block; return its part of the headers."""
        if flags & codes.PADDED:
            if not payload:
                raise ModelError(Http2Error.FRAME_SIZE_ERROR)
            if payload[0] >= len(payload):
                raise ModelError(Http2Error.PROTOCOL_ERROR)
            payload = payload[1 : len(payload) - payload[0]]
        itself = False
        if flags & codes.PRIORITY_FLAG:
            if len(payload) < 5:
                raise ModelError(Http2Error.FRAME_SIZE_ERROR)
            itself = int.from_bytes(payload[:4]) % 2**31 == stream_id
            payload = payload[5:]
        if stream_id % 2 == 0:
            raise ModelError(Http2Error.PROTOCOL_ERROR)
        self._head = (stream_id, bool(flags & codes.END_STREAM), itself)
        return payload


def connection(random: Random) -> bytes:
    """Return the bytes of a client, most of them legal."""
    data = codes.PREFACE if random.random() < 0.95 else codes.PREFACE[: random.randrange(24)] + b"x"
    first = [SETTINGS_FRAME, frame(FrameType.SETTINGS, codes.ACK, 0), b""]
    data += random.choices(first, [18, 1, 1])[0]
    if random.random() < 0.3:
        data += b"".join(block(random))
    for _ in range(random.randrange(12)):
        stream_id = random.choice(STREAMS)
        payload = random.randbytes(random.choice(SIZES))
        if payload and random.random() < 0.5:  # a padding that fits
            payload = bytes([random.randrange(8)]) + payload[1:]
        if random.random() < 0.2:  # a stream that depends on itself
            payload = stream_id.to_bytes(4) + payload[4:]
        data += frame(random.choice(KINDS), random.choice(FLAGS), stream_id, payload)
    return data if random.random() < 0.7 else data[: random.randrange(len(data) + 1)]


def block(random: Random) -> Iterator[bytes]:
    count = random.randrange(1, LIMITS.block_frames + 2)
    for at in range(count):
        flags = codes.END_HEADERS if at == count - 1 else 0
        kind = FrameType.CONTINUATION if at else FrameType.HEADERS
        yield frame(kind, flags, 1, random.randbytes(random.choice([0, 40, 60, 100])))


def compare(pieces: list[bytes], last: int | None) -> Model:
    """Feed the pieces, compare everything with the model after each, and return the last model."""
    handled = Handled(last)
    found = FrameInput(handled, LIMITS, 0.0)
    seen = b""
    model = Model(b"", last)
    for now, piece in enumerate(pieces, 1):
        seen += piece
        model = Model(seen, last)
        if model.fault is not None:
            with pytest.raises(ConnectionFault) as failed:
                found.feed(piece, float(now))
            assert (failed.value.code, handled.log) == (model.fault, model.log)
            break
        found.feed(piece, float(now))
        assert handled.log == model.log
        if handled.is_over:
            break
        assert found.waiting_bytes == model.waiting
        if model.waiting:
            assert found.unfinished_since is not None
            assert found.unfinished_since <= now
    return model


@pytest.mark.parametrize("seed", range(4))
def test_generated_connections_are_cut_as_by_the_model(seed: int) -> None:
    random = Random(seed)
    faults: set[Http2Error | None] = set()
    kinds: set[str] = set()
    for _ in range(CONNECTIONS):
        data = connection(random)
        cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(6)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        model = compare(pieces, random.choice([None, None, 2, 3]))
        faults.add(model.fault)
        kinds.update(event[0] for event in model.log)
    assert faults == {
        None,
        Http2Error.PROTOCOL_ERROR,
        Http2Error.FRAME_SIZE_ERROR,
        Http2Error.ENHANCE_YOUR_CALM,
    }
    assert kinds == {"frame", "block"}


def test_bytes_that_arrive_one_by_one() -> None:
    data = codes.PREFACE + SETTINGS_FRAME
    data += frame(FrameType.HEADERS, codes.END_STREAM, 1, b"ab")
    data += frame(FrameType.CONTINUATION, 0, 1, b"")
    data += frame(FrameType.CONTINUATION, codes.END_HEADERS, 1, b"c")
    data += frame(FrameType.PING, 0, 0, bytes(8))
    model = compare([data[at : at + 1] for at in range(len(data))], None)
    assert model.log == [
        ("frame", FrameType.SETTINGS, 0, 0, b""),
        ("block", 1, b"abc", True, False),
        ("frame", FrameType.PING, 0, 0, bytes(8)),
    ]
