"""The memory of ended streams: short, and cheap."""

import pytest

from firetrail.proxy.http2 import past_streams
from firetrail.proxy.http2.past_streams import PastStreams, StreamEnd


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> PastStreams:
    monkeypatch.setattr(past_streams, "REMEMBERED", 3)
    return PastStreams()


def test_the_latest_complete_streams_are_remembered(past: PastStreams) -> None:
    for stream in range(1, 21, 2):
        past.add(stream, StreamEnd.COMPLETE)
    known = [stream for stream in range(1, 23) if past.end_of(stream) is not None]
    assert known == [15, 17, 19]
    assert past.end_of(19) is StreamEnd.COMPLETE


@pytest.mark.parametrize("end", [StreamEnd.RESET_HERE, StreamEnd.RESET_THERE])
def test_resets_are_remembered_longer_than_complete_streams(
    past: PastStreams, end: StreamEnd
) -> None:
    past.add(1, end)
    for stream in range(3, 23, 2):
        past.add(stream, StreamEnd.COMPLETE)
    assert past.end_of(1) is end
    for stream in range(23, 35, 2):
        past.add(stream, end)
    assert past.end_of(1) is None
    assert past.end_of(27) is end


def test_a_reset_after_the_end_counts(past: PastStreams) -> None:
    past.add(1, StreamEnd.COMPLETE)
    past.add(1, StreamEnd.RESET_HERE)
    assert past.end_of(1) is StreamEnd.RESET_HERE


def test_memory_does_not_depend_on_the_number_of_streams() -> None:
    past = PastStreams()
    for stream in range(1, 20_001, 2):
        past.add(stream, StreamEnd.COMPLETE)
    assert len(past._complete) * past._complete.itemsize == 4000
