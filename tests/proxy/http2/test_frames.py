"""Frames as bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.http2.wire import Frame, frames_of, uint32

from firetrail.proxy.http2 import frames
from firetrail.proxy.http2.codes import FrameType, Http2Error, SettingId
from firetrail.proxy.http2.faults import ConnectionFault

IDS = st.integers(0, 2**31 - 1)


@settings(max_examples=25)
@given(st.integers(0, 2**24 - 1), st.integers(0, 255), st.integers(0, 255), IDS)
def test_heads_read_back(length: int, kind: int, flags: int, stream_id: int) -> None:
    head = frames.frame_head(length, kind, flags, stream_id)
    assert len(head) == 9
    high, low, *rest = frames.read_head(head, 0)
    assert (high << 8 | low, *rest) == (length, kind, flags, stream_id)


@settings(max_examples=25)
@given(IDS, st.sampled_from(Http2Error), st.text("aé✓", max_size=5))
def test_frames_of_the_server(number: int, code: Http2Error, text: str) -> None:
    sent = frames.go_away(number, code, text) + frames.reset(number, code)
    sent += frames.window_update(number, 7) + frames.ping(b"abcdefgh", 1)
    assert list(frames_of(sent)) == [
        Frame(FrameType.GOAWAY, 0, 0, uint32(number) + uint32(code) + text.encode()),
        Frame(FrameType.RST_STREAM, 0, number, uint32(code)),
        Frame(FrameType.WINDOW_UPDATE, 0, number, uint32(7)),
        Frame(FrameType.PING, 1, 0, b"abcdefgh"),
    ]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(SettingId), st.integers(0, 2**32 - 1))))
def test_settings_read_back(values: list[tuple[SettingId, int]]) -> None:
    (found,) = frames_of(frames.settings(values))
    assert list(frames.read_settings(found.payload)) == values


@settings(max_examples=25)
@given(st.binary(max_size=50), st.integers(0, 255))
def test_padding_is_removed(payload: bytes, padding: int) -> None:
    padded = bytes([padding]) + payload + bytes(padding)
    assert frames.without_padding(padded) == payload


@pytest.mark.parametrize("padded", [b"", b"\x01", b"\x04abc"])
def test_padding_beyond_the_frame_is_refused(padded: bytes) -> None:
    with pytest.raises(ConnectionFault):
        frames.without_padding(padded)
