"""The memory of ended streams: short, and cheap."""

import pytest

from firetrail.proxy.http2 import past_streams
from firetrail.proxy.http2.past_streams import End, PastStreams


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> PastStreams:
    monkeypatch.setattr(past_streams, "REMEMBERED", 3)
    return PastStreams()


def test_the_latest_complete_streams_are_remembered(past: PastStreams) -> None:
    for stream in range(1, 21, 2):
        past.add(stream, End.COMPLETE)
    known = [stream for stream in range(1, 23) if past.end_of(stream) is not None]
    assert known == [15, 17, 19]
    assert past.end_of(19) is End.COMPLETE


@pytest.mark.parametrize("end", [End.RESET_HERE, End.RESET_THERE])
def test_resets_are_remembered_longer_than_complete_streams(past: PastStreams, end: End) -> None:
    past.add(1, end)
    for stream in range(3, 23, 2):
        past.add(stream, End.COMPLETE)
    assert past.end_of(1) is end
    for stream in range(23, 35, 2):
        past.add(stream, end)
    assert past.end_of(1) is None
    assert past.end_of(27) is end


def test_a_reset_after_the_end_counts(past: PastStreams) -> None:
    past.add(1, End.COMPLETE)
    past.add(1, End.RESET_HERE)
    assert past.end_of(1) is End.RESET_HERE


def test_memory_does_not_depend_on_the_number_of_streams() -> None:
    past = PastStreams()
    for stream in range(1, 20_001, 2):
        past.add(stream, End.COMPLETE)
    assert len(past._complete) * past._complete.itemsize == 4000
