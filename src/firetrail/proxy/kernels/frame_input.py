"""The splitter of a client's bytes into frames; the frames of a block of headers are joined."""

from __future__ import annotations

from typing import Any, Protocol

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.proxy.http2 import codes
from firetrail.proxy.http2.faults import ConnectionFault, broken, wrong_size
from firetrail.proxy.http2.frames import uint31, without_padding
from firetrail.proxy.http2.limits import Http2Limits

COMPILED = cython.compiled

_HEAD = cython.declare(cython.Py_ssize_t, codes.HEAD_SIZE)
_HEADERS = cython.declare(cython.int, int(codes.FrameType.HEADERS))
_CONTINUATION = cython.declare(cython.int, int(codes.FrameType.CONTINUATION))
_SETTINGS = cython.declare(cython.int, int(codes.FrameType.SETTINGS))
_ACK = cython.declare(cython.int, codes.ACK)
_END_HEADERS = cython.declare(cython.int, codes.END_HEADERS)
_END_STREAM = cython.declare(cython.int, codes.END_STREAM)
_PADDED = cython.declare(cython.int, codes.PADDED)
_PRIORITY_FLAG = cython.declare(cython.int, codes.PRIORITY_FLAG)
_PREFACE: bytes = cython.declare(bytes, codes.PREFACE)


class FrameHandler(Protocol):
    """The receiver of frames."""

    is_over: bool
    """Whether the rest of the bytes no longer matters."""

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a frame other than HEADERS and CONTINUATION."""

    def on_block(
        self, stream_id: int, block: bytes, is_last: bool, depends_on_itself: bool
    ) -> None:
        """Handle a complete block of headers."""


@cython.cclass
class FrameInput:
    """The bytes of one connection.

    Attributes:
        unfinished_since: When the preface, frame or block of headers started that has not arrived
            completely; None if there is none.
    """

    unfinished_since = cython.declare(object, visibility="public")
    _handler: FrameHandler
    _limits: Http2Limits
    _frame_max: cython.Py_ssize_t
    _rest: bytes
    _has_preface: cython.bint
    _has_settings: cython.bint
    _parts: list[bytes]
    _block_size: cython.Py_ssize_t
    _block_stream: cython.uint
    _block_is_last: cython.bint
    _block_depends_on_itself: cython.bint

    def __init__(self, handler: FrameHandler, limits: Http2Limits, now: float) -> None:
        self._handler = handler
        self._limits = limits
        self._frame_max = limits.frame_bytes
        self._rest = b""  # bytes of a frame that has not arrived completely
        self._has_preface = False
        self._has_settings = False
        self._parts = []  # the frames of headers that have not arrived completely
        self._block_size = 0  # their bytes
        self._block_stream = 0
        self._block_is_last = False
        self._block_depends_on_itself = False
        self.unfinished_since = now

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a frame, and of headers, that have not arrived completely."""
        return len(self._rest) + self._block_size

    def feed(self, data: bytes, now: float) -> None:
        """Handle all frames that are complete; raise ConnectionFault if the client errs."""
        at: cython.Py_ssize_t = 0
        begun: cython.Py_ssize_t
        if self._rest:
            data = self._rest + data
        if not self._has_preface:
            if not _PREFACE.startswith(data[: len(_PREFACE)]):
                raise broken("the client does not speak HTTP/2")
            if len(data) < len(_PREFACE):
                self._rest = data
                return
            self._has_preface = True
            at = len(_PREFACE)
        begun = at
        at = self._frames(data, at)
        if at < 0:
            return
        self._rest = data[at:]
        if not self._rest and not self._parts:
            self.unfinished_since = None
        elif self.unfinished_since is None or (at > begun and not self._parts):
            self.unfinished_since = now

    @cython.cfunc
    def _frames(self, data: bytes, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Handle frames from a position on, and return where they end; -1 if all is over."""
        source: cython.pointer(cython.const[cython.uchar]) = data
        end: cython.Py_ssize_t = len(data)
        stop: cython.Py_ssize_t
        length: cython.Py_ssize_t
        stream_id: cython.uint
        while end - at >= _HEAD:
            length = source[at] << 16 | source[at + 1] << 8 | source[at + 2]
            if length > self._frame_max:
                raise wrong_size("a frame is too long")
            stop = at + _HEAD + length
            if stop > end:
                break
            stream_id = source[at + 5] & 0x7F
            stream_id = stream_id << 24 | source[at + 6] << 16 | source[at + 7] << 8
            stream_id |= source[at + 8]
            self._frame(source[at + 3], source[at + 4], stream_id, data[at + _HEAD : stop])
            if self._handler.is_over:
                return -1
            at = stop
        return at

    @cython.cfunc
    def _frame(
        self, kind: cython.int, flags: cython.int, stream_id: cython.uint, payload: bytes
    ) -> cython.void:
        if self._parts:
            self._continue(kind, flags, stream_id, payload)
        elif not self._has_settings and (kind != _SETTINGS or flags & _ACK):
            raise broken("the first frame is not SETTINGS")
        elif kind == _HEADERS:
            self._headers(flags, stream_id, payload)
        elif kind == _CONTINUATION:
            raise broken("CONTINUATION without HEADERS")
        else:
            self._has_settings = True
            self._handler.on_frame(kind, flags, stream_id, payload)

    @cython.cfunc
    def _headers(self, flags: cython.int, stream_id: cython.uint, payload: bytes) -> cython.void:
        depends_on: cython.uint = 0
        if flags & _PADDED:
            payload = without_padding(payload)
        if flags & _PRIORITY_FLAG:
            if len(payload) < 5:
                raise wrong_size("HEADERS are too short")
            depends_on = uint31(payload)
            payload = payload[5:]
        if not stream_id & 1:
            raise broken("a client uses odd numbers for its streams")
        if flags & _END_HEADERS:
            is_last: cython.bint = flags & _END_STREAM != 0
            itself: cython.bint = depends_on == stream_id
            self._handler.on_block(stream_id, payload, is_last, itself)
        else:
            self._block_stream = stream_id
            self._block_is_last = flags & _END_STREAM != 0
            self._block_depends_on_itself = depends_on == stream_id
            self._add(payload)

    @cython.cfunc
    def _continue(
        self, kind: cython.int, flags: cython.int, stream_id: cython.uint, payload: bytes
    ) -> cython.void:
        if kind != _CONTINUATION or stream_id != self._block_stream:
            raise broken("a block of headers is interrupted by another frame")
        self._add(payload)
        if flags & _END_HEADERS:
            block: Any = b"".join(self._parts)
            self._parts = []
            self._block_size = 0
            self._handler.on_block(
                stream_id, block, self._block_is_last, self._block_depends_on_itself
            )

    @cython.cfunc
    def _add(self, payload: bytes) -> cython.void:
        self._parts.append(payload)
        self._block_size += len(payload)
        if (
            self._block_size > self._limits.block_bytes
            or len(self._parts) > self._limits.block_frames
        ):
            raise ConnectionFault(
                codes.Http2Error.ENHANCE_YOUR_CALM, "the headers of a request are too long"
            )
