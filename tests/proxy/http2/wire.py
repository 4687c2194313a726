"""A client of HTTP/2 for tests: writes frames, and reads those of the server."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from firetrail.proxy.http2.codes import (
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    PREFACE,
    FrameType,
    Http2Error,
)
from firetrail.proxy.http2.frames import frame_head, read_head
from firetrail.proxy.http2.http2_connection import Http2Connection
from firetrail.proxy.http2.http2_stream import Http2Stream
from firetrail.proxy.http2.limits import Http2Limits
from firetrail.proxy.http2.response_headers import encode_block
from firetrail.proxy.kernels.request_head import RequestHead

REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Service/Echo"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
OK_BLOCK = b"\x88"
BLOCKS = [
    encode_block(REQUEST),
    encode_block(REQUEST[:3]),
    encode_block([("x", "y")]),
    encode_block([*REQUEST, ("content-length", "4")]),
]
SETTINGS_FRAME = frame_head(0, FrameType.SETTINGS, 0, 0)


class Frame(NamedTuple):
    """A frame of the server."""

    kind: FrameType
    flags: int
    stream_id: int
    payload: bytes

    @property
    def error(self) -> Http2Error:
        """The code of an RST_STREAM or GOAWAY frame."""
        at = 0 if self.kind is FrameType.RST_STREAM else 4
        return Http2Error(int.from_bytes(self.payload[at : at + 4], "big"))


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frame_head(len(payload), kind, flags, stream_id) + payload


def uint32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def frames_of(data: bytes) -> Iterator[Frame]:
    at = 0
    while at < len(data):
        high, low, kind, flags, stream_id = read_head(data, at)
        end = at + HEAD_SIZE + (high << 8 | low)
        assert end <= len(data), "the server has written an incomplete frame"
        yield Frame(FrameType(kind), flags, stream_id, data[at + HEAD_SIZE : end])
        at = end


def headers(
    stream_id: int, fields: Iterable[tuple[str, str]] = REQUEST, flags: int = END_HEADERS
) -> bytes:
    return frame(FrameType.HEADERS, flags, stream_id, encode_block(fields))


def data(stream_id: int, payload: bytes, flags: int = END_STREAM) -> bytes:
    return frame(FrameType.DATA, flags, stream_id, payload)


@dataclass
class Request:
    """A request as the server's side sees it."""

    stream: Http2Stream
    head: RequestHead
    body: bytes = b""
    is_complete: bool = False
    events: list[str] = field(default_factory=list)

    def data(self, data: bytes, is_last: bool) -> None:
        assert not self.is_complete
        self.body += data
        self.is_complete = is_last

    def cancelled(self) -> None:
        self.events.append("cancelled")

    def written(self) -> None:
        self.events.append("written")


class Wire:
    """A connection without sockets, and the requests that it has passed on."""

    def __init__(self, limits: Http2Limits | None = None, greet: bool = True) -> None:
        self.now = 0.0
        self.requests: dict[int, Request] = {}
        self.http2 = Http2Connection(self, limits or Http2Limits(), self.now)
        if greet:
            self.send(PREFACE + SETTINGS_FRAME)

    def opened(self, stream: Http2Stream, head: RequestHead) -> None:
        assert stream.id not in self.requests
        stream.receiver = self.requests[stream.id] = Request(stream, head)

    def send(self, *parts: bytes) -> list[Frame]:
        self.http2.receive(b"".join(parts), self.now)
        return self.take()

    def take(self) -> list[Frame]:
        """Return the frames of the server since the last call."""
        return list(frames_of(b"".join(self.http2.take_output())))

    def respond(self, stream_id: int, body: bytes, end: bytes = b"\x88") -> list[Frame]:
        self.http2.output.respond(self.requests[stream_id].stream, OK_BLOCK, body, end)
        return self.take()


def failure_of(found: list[Frame]) -> Http2Error | None:
    codes = [one.error for one in found if one.kind is FrameType.GOAWAY]
    return codes[0] if codes else None


def reset_of(found: list[Frame], stream_id: int) -> Http2Error | None:
    resets = [one for one in found if one.kind is FrameType.RST_STREAM]
    codes = [one.error for one in resets if one.stream_id == stream_id]
    return codes[0] if codes else None
