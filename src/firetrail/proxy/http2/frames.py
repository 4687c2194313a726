"""Frames: their heads, padding, and those that a server sends."""

from collections.abc import Iterable, Iterator
from struct import Struct

from firetrail.proxy.http2.codes import ACK, FrameType, Http2Error, SettingId
from firetrail.proxy.http2.faults import ConnectionFault

_HEAD = Struct(">HBBBL")
_SETTING = Struct(">HL")
_UINT32 = Struct(">L")
_TWO_UINT32 = Struct(">LL")
_ID_MASK = 0x7FFF_FFFF
read_head = _HEAD.unpack_from
"""Reads the head of a frame: high 16 and low 8 bits of the length, type, flags, stream id."""


def frame_head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Return the 9 bytes in front of a payload."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def settings(values: Iterable[tuple[SettingId, int]]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(_SETTING.pack(key, value) for key, value in values)
    return frame_head(len(payload), FrameType.SETTINGS, 0, 0) + payload


SETTINGS_ACK = frame_head(0, FrameType.SETTINGS, ACK, 0)


def ping(payload: bytes, flags: int = 0) -> bytes:
    """Return a PING frame with 8 bytes."""
    return frame_head(8, FrameType.PING, flags, 0) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame_head(4, FrameType.WINDOW_UPDATE, 0, stream_id) + _UINT32.pack(increment)


def reset(stream_id: int, code: Http2Error) -> bytes:
    """Return an RST_STREAM frame."""
    return frame_head(4, FrameType.RST_STREAM, 0, stream_id) + _UINT32.pack(code)


def go_away(last_stream_id: int, code: Http2Error, text: str) -> bytes:
    """Return a GOAWAY frame."""
    debug = text.encode("utf-8")
    head = frame_head(8 + len(debug), FrameType.GOAWAY, 0, 0)
    return head + _TWO_UINT32.pack(last_stream_id, code) + debug


def uint31(payload: bytes) -> int:
    """Return the first 31-bit number of a payload: an increment, or the stream depended on."""
    number: int = _UINT32.unpack_from(payload)[0]
    return number & _ID_MASK


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the ids and values of a SETTINGS frame, including unknown ids."""
    if len(payload) % 6:
        raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "each setting must have 6 bytes")
    return _SETTING.iter_unpack(payload)


def without_padding(payload: bytes) -> bytes:
    """Return the payload of a frame with the flag PADDED without its padding."""
    if not payload:
        raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "a padded frame is empty")
    end = len(payload) - payload[0]
    if end < 1:
        raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "the padding is longer than the frame")
    return payload[1:end]
