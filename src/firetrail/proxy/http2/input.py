"""Cuts the bytes of a client into frames, and joins the frames of a block of headers."""

from __future__ import annotations

from typing import Protocol

from firetrail.proxy.http2 import frames
from firetrail.proxy.http2.codes import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    PADDED,
    PREFACE,
    PRIORITY_FLAG,
    WINDOW_MAX,
    FrameType,
    Http2Error,
)
from firetrail.proxy.http2.faults import ConnectionFault, broken, wrong_size
from firetrail.proxy.http2.limits import Http2Limits

_HEADERS = int(FrameType.HEADERS)
_CONTINUATION = int(FrameType.CONTINUATION)
_SETTINGS = int(FrameType.SETTINGS)


class FrameHandler(Protocol):
    """The receiver of frames."""

    is_over: bool
    """Whether the rest of the bytes does not matter any more."""

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a frame other than HEADERS and CONTINUATION."""

    def on_block(
        self, stream_id: int, block: bytes, is_last: bool, depends_on_itself: bool
    ) -> None:
        """Handle a complete block of headers."""


class Input:
    """The bytes of one connection."""

    def __init__(self, handler: FrameHandler, limits: Http2Limits, now: float) -> None:
        self._handler = handler
        self._limits = limits
        self._rest = b""  # bytes of a frame that has not arrived completely
        self._has_preface = False
        self._has_settings = False
        self._block: _Block | None = None  # headers that have not arrived completely
        self.unfinished_since: float | None = now
        """When the preface, frame or block of headers started that has not arrived completely."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a frame, and of headers, that have not arrived completely."""
        return len(self._rest) + (self._block.size if self._block is not None else 0)

    def feed(self, data: bytes, now: float) -> None:
        """Handle all frames that are complete; raise ConnectionFault if the client errs."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if not self._has_preface:
            at = self._read_preface(data)
            if not self._has_preface:
                self._rest = data
                return
        begun = at
        frame_max = self._limits.frame_bytes
        while end - at >= HEAD_SIZE:
            high, low, kind, flags, stream_id = frames.read_head(data, at)
            length = high << 8 | low
            if length > frame_max:
                raise wrong_size("a frame is too long")
            stop = at + HEAD_SIZE + length
            if stop > end:
                break
            self._frame(kind, flags, stream_id & WINDOW_MAX, data[at + HEAD_SIZE : stop])
            if self._handler.is_over:
                return
            at = stop
        self._rest = data[at:]
        if not self._rest and self._block is None:
            self.unfinished_since = None
        elif self.unfinished_since is None or (at > begun and self._block is None):
            self.unfinished_since = now

    def _read_preface(self, data: bytes) -> int:
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise broken("the client does not speak HTTP/2")
        self._has_preface = len(data) >= len(PREFACE)
        return len(PREFACE)

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None:
            self._continue(self._block, kind, flags, stream_id, payload)
        elif not self._has_settings and (kind != _SETTINGS or flags & ACK):
            raise broken("the first frame is not SETTINGS")
        elif kind == _HEADERS:
            self._headers(flags, stream_id, payload)
        elif kind == _CONTINUATION:
            raise broken("CONTINUATION without HEADERS")
        else:
            self._has_settings = True
            self._handler.on_frame(kind, flags, stream_id, payload)

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = frames.without_padding(payload)
        depends_on = 0
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise wrong_size("HEADERS are too short")
            depends_on = frames.uint31(payload)
            payload = payload[5:]
        if not stream_id & 1:
            raise broken("a client uses odd numbers for its streams")
        block = _Block(stream_id, flags & END_STREAM != 0, depends_on == stream_id)
        if flags & END_HEADERS:
            self._handler.on_block(stream_id, payload, block.is_last, block.depends_on_itself)
        else:
            self._block = block
            self._add(block, payload)

    def _continue(
        self, block: _Block, kind: int, flags: int, stream_id: int, payload: bytes
    ) -> None:
        if kind != _CONTINUATION or stream_id != block.stream_id:
            raise broken("a block of headers is interrupted by another frame")
        self._add(block, payload)
        if flags & END_HEADERS:
            self._block = None
            data = b"".join(block.parts)
            self._handler.on_block(stream_id, data, block.is_last, block.depends_on_itself)

    def _add(self, block: _Block, payload: bytes) -> None:
        block.parts.append(payload)
        block.size += len(payload)
        limits = self._limits
        if block.size > limits.block_bytes or len(block.parts) > limits.block_frames:
            raise ConnectionFault(
                Http2Error.ENHANCE_YOUR_CALM, "the headers of a request are too long"
            )


class _Block:
    """The frames of a block of headers."""

    __slots__ = ("depends_on_itself", "is_last", "parts", "size", "stream_id")

    def __init__(self, stream_id: int, is_last: bool, depends_on_itself: bool) -> None:
        self.stream_id = stream_id
        self.is_last = is_last
        self.depends_on_itself = depends_on_itself
        self.parts: list[bytes] = []
        self.size = 0
