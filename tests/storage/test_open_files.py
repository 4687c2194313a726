"""More files than may be open: some rest, and nothing is lost by it."""

import errno
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.helpers import Machine, in_threads

from firetrail.storage.growth import PAGE_SIZE, QUEUE_GROWTH
from firetrail.storage.open_files import OpenSegments
from firetrail.storage.segment import Segment

SIZE = 4 * PAGE_SIZE
FEW = 4


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def open_segments() -> OpenSegments:
    found = OpenSegments(1024)
    found.most = FEW
    return found


@pytest.fixture
def segments(
    machine: Machine, open_segments: OpenSegments, tmp_path: Path
) -> Iterator[list[Segment]]:
    """Ten files, each with its number in it."""
    made = []
    for number in range(10):
        path = tmp_path / str(number)
        segment = Segment.create(machine.system, path, 0, SIZE, QUEUE_GROWTH, open_segments)
        write(segment, bytes([number]))
        made.append(segment)
    yield made
    for segment in made:
        segment.close()
    assert not machine.files.open_files


def write(segment: Segment, data: bytes) -> None:
    end = segment.wrote + len(data)
    segment.allocate(end)
    segment.view[segment.wrote : end] = data
    segment.wrote_to(end)


def test_no_more_are_open(segments: list[Segment], machine: Machine) -> None:
    assert len(machine.files.open_files) <= FEW


def test_all_can_be_used(segments: list[Segment], machine: Machine) -> None:
    for segment in segments:
        write(segment, b"x")
    assert [bytes(segment.view[:2]) for segment in segments] == [bytes([n, 120]) for n in range(10)]
    assert len(machine.files.open_files) <= FEW


def test_what_rests_is_on_disk(segments: list[Segment], machine: Machine) -> None:
    assert segments[0].flushed == 1
    assert segments[-1].flushed == 0
    segments[0].flush()  # nothing to do, and no reason to open it
    assert len(machine.files.open_files) <= FEW


def test_what_is_read_stays_open(segments: list[Segment]) -> None:
    content = segments[-1].view[:1]
    assert not segments[-1].close_if_idle()
    assert segments[-1].view[:1] == content
    content.release()
    assert segments[-1].close_if_idle()
    assert segments[-1].view[0] == 9


def test_more_are_open_while_all_are_read(
    segments: list[Segment], open_segments: OpenSegments
) -> None:
    contents = [segment.view[:1] for segment in segments]
    assert len(open_segments) == 10
    del contents
    for segment in segments * 2:
        segment.close_if_idle()
    assert segments[3].view[0] == 3
    assert len(open_segments) <= FEW


def test_a_failed_sync_is_no_rest(segments: list[Segment], machine: Machine) -> None:
    machine.files.fail("sync", errno.EIO, times=1)
    assert not segments[-1].close_if_idle()
    for _ in range(2):  # a second sync would succeed, although the pages may be gone
        with pytest.raises(OSError, match="Input/output"):
            segments[-1].flush()
    assert segments[-1].flushed == 0


def test_a_failed_sync_is_not_the_fault_of_who_opens(
    segments: list[Segment], machine: Machine, open_segments: OpenSegments
) -> None:
    for segment in segments:
        write(segment, b"x")
    machine.files.fail("sync", errno.EIO, times=1)
    assert segments[0].view[0] == 0
    failed = [segment for segment in segments if segment.flushed == 1]
    with pytest.raises(OSError, match="Input/output"):
        for segment in failed:
            segment.flush()


def test_no_rest_while_pages_are_faulted_in(
    segments: list[Segment], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = segments[-1]
    populate = machine.files.populate

    def check_and_populate(view: memoryview, offset: int, length: int) -> None:
        assert not segment.close_if_idle()
        populate(view, offset, length)

    monkeypatch.setattr(machine.files, "populate", check_and_populate)
    segment.fill_in()
    assert segment.view[0] == 9


def test_a_closed_one_counts_no_more(segments: list[Segment], open_segments: OpenSegments) -> None:
    for segment in segments:
        segment.close()
    assert all(segment.close_if_idle() for segment in segments)


def test_many_threads_share_the_open_files(segments: list[Segment]) -> None:
    """Each thread writes files of its own and reads all; the files take turns in being open."""

    def use(thread: int) -> None:
        for turn in range(60):
            for segment in segments[thread::3]:
                write(segment, bytes([turn]))
            segments[(turn + thread) % 10].flush()
            for number, segment in enumerate(segments):
                view = segment.look()
                assert view is not None and view[0] == number

    in_threads(*(partial(use, thread) for thread in range(3)))
    assert all(bytes(segment.view[1:61]) == bytes(range(60)) for segment in segments)
