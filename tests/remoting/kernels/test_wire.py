"""Frames that are cut from a stream of bytes."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.remoting.kernels.wire import cut_frames


def frame(header: bytes, body: bytes, mark: int = 0) -> bytes:
    return pack(">iI", 4 + len(header) + len(body), mark << 24 | len(header)) + header + body


class TestCutting:
    @given(
        st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=9), st.binary(max_size=9))),
        st.integers(0, 40),
    )
    def test_complete_frames_are_cut(
        self, frames: list[tuple[int, bytes, bytes]], cut: int
    ) -> None:
        parts = [frame(header, body, mark) for mark, header, body in frames]
        stream = b"".join(parts)
        found, rest_at = cut_frames(stream[: max(len(stream) - cut, 0)], 1000, 1000)
        assert found == frames[: len(found)]
        assert rest_at == sum(map(len, parts[: len(found)]))
        assert len(stream) - rest_at - cut < max(map(len, parts), default=1)

    @pytest.mark.parametrize(
        "prefix",
        [pack(">iI", length, header) for length, header in ((-1, 0), (3, 0), (101, 5), (50, 47))],
    )
    def test_a_frame_above_the_limit_is_left(self, prefix: bytes) -> None:
        first = frame(b"h", b"b")
        assert cut_frames(first + prefix + bytes(200), 100, 46) == ([(0, b"h", b"b")], len(first))
