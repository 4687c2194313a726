"""A folder of segments as one byte range: loading, finding, rolling, truncating, retiring."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine, in_threads

from firetrail.errors import DiskFullError, SegmentSizeError, StoreDamagedError
from firetrail.format.names import segment_name
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue

SIZE = 4096


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def queue(machine: Machine, tmp_path: Path) -> Iterator[SegmentQueue]:
    queue = SegmentQueue(machine.system, tmp_path / "log", SIZE)
    yield queue
    queue.close()


def last_of(queue: SegmentQueue) -> Segment:
    assert queue.last is not None
    return queue.last


def content(data: memoryview | None) -> bytes:
    assert data is not None
    return bytes(data)


def roll(queue: SegmentQueue, count: int, *, filled: bool = True) -> None:
    for _ in range(count):
        segment = queue.roll()
        segment.allocate(SIZE)
        segment.view[:] = bytes([1 + segment.base // SIZE]) * SIZE
        if filled:
            segment.wrote_to(SIZE)


def reloaded(queue: SegmentQueue, *, writable: bool = True) -> SegmentQueue:
    again = SegmentQueue(queue.system, queue.folder, 999, writable=writable)
    again.load()
    return again


class TestLoad:
    def test_a_missing_folder_is_an_empty_queue(self, queue: SegmentQueue) -> None:
        queue.load()
        assert queue.segments == ()
        assert (queue.first, queue.last) == (None, None)
        assert (queue.min_offset, queue.wrote_offset, queue.readable_offset) == (0, 0, 0)

    def test_takes_the_size_from_the_files(self, queue: SegmentQueue) -> None:
        roll(queue, 3)
        again = reloaded(queue)
        assert again.segment_size == SIZE
        assert [segment.base for segment in again.segments] == [0, SIZE, 2 * SIZE]
        assert again.wrote_offset == 3 * SIZE
        again.close()

    def test_opens_no_file(self, queue: SegmentQueue, machine: Machine) -> None:
        roll(queue, 3)
        machine.files.forget()
        reloaded(queue)
        assert set(machine.files.tally()) == {"names", "size"}

    def test_leaves_foreign_names_alone(self, queue: SegmentQueue) -> None:
        roll(queue, 1)
        for name in ("readme.txt", "0" * 19, "0" * 19 + "x", "9" * 20, ".hidden"):
            (queue.folder / name).write_bytes(b"x")
        assert len(reloaded(queue).segments) == 1

    def test_begins_where_the_first_file_does(self, queue: SegmentQueue) -> None:
        roll(queue, 3)
        queue.path_of(0).unlink()
        assert reloaded(queue).min_offset == SIZE

    def test_a_gap_is_damage(self, queue: SegmentQueue) -> None:
        roll(queue, 3)
        queue.path_of(SIZE).unlink()
        with pytest.raises(StoreDamagedError, match=f"the file {segment_name(SIZE)} before it"):
            reloaded(queue)

    @pytest.mark.parametrize("number", [0, 1, 2])
    @pytest.mark.parametrize("length", [1, SIZE - 1, SIZE + 1])
    def test_a_file_of_another_size_is_refused(
        self, queue: SegmentQueue, number: int, length: int
    ) -> None:
        roll(queue, 3)
        os.truncate(queue.path_of(number * SIZE), length)
        with pytest.raises(SegmentSizeError, match="bytes, the other files have"):
            reloaded(queue)

    def test_an_empty_file_in_the_middle_is_refused(self, queue: SegmentQueue) -> None:
        roll(queue, 3)
        os.truncate(queue.path_of(SIZE), 0)
        with pytest.raises(SegmentSizeError, match=f"{segment_name(SIZE)}: the file has 0 bytes"):
            reloaded(queue)

    @pytest.mark.parametrize("writable", [True, False])
    def test_an_empty_last_file_is_what_a_crash_leaves(
        self, queue: SegmentQueue, writable: bool
    ) -> None:
        roll(queue, 2)
        os.truncate(queue.path_of(SIZE), 0)
        again = reloaded(queue, writable=writable)
        assert [segment.base for segment in again.segments] == [0]
        assert queue.path_of(SIZE).exists() is not writable

    def test_an_empty_file_alone_is_an_empty_queue(self, queue: SegmentQueue) -> None:
        roll(queue, 1)
        os.truncate(queue.path_of(0), 0)
        again = reloaded(queue)
        assert again.segments == ()
        assert again.segment_size == 999


class TestFind:
    @pytest.mark.parametrize(
        ("offset", "base"),
        [(0, 0), (SIZE - 1, 0), (SIZE, SIZE), (3 * SIZE - 1, 2 * SIZE), (3 * SIZE, None)],
    )
    def test_a_segment_is_found_by_any_offset_inside(
        self, queue: SegmentQueue, offset: int, base: int | None
    ) -> None:
        roll(queue, 3)
        found = queue.find(offset)
        assert (None if found is None else found.base) == base

    def test_by_offset_in_a_queue_that_does_not_begin_at_zero(self, queue: SegmentQueue) -> None:
        roll(queue, 3)
        queue.retire_first(0)
        assert queue.find(SIZE - 1) is None
        assert queue.find(SIZE) is queue.segments[0]
        assert queue.segments[0].base == SIZE
        assert queue.find(-1) is None

    def test_nothing_is_found_in_an_empty_queue(self, queue: SegmentQueue) -> None:
        assert queue.find(0) is None
        assert queue.read(0, 1) is None

    def test_segments_are_listed_from_an_offset_on(self, queue: SegmentQueue) -> None:
        roll(queue, 3)
        assert [s.base for s in queue.from_offset(SIZE - 1)] == [0, SIZE, 2 * SIZE]
        assert [s.base for s in queue.from_offset(SIZE)] == [SIZE, 2 * SIZE]
        assert list(queue.from_offset(3 * SIZE)) == []

    def test_read_gives_what_is_committed_only(self, queue: SegmentQueue) -> None:
        roll(queue, 1, filled=False)
        last_of(queue).wrote_to(10)
        assert content(queue.read(2, 8)) == b"\1" * 8
        assert queue.read(3, 8) is None
        assert queue.read(SIZE, 1) is None


class TestPositions:
    def test_readable_looks_past_a_new_and_empty_file(self, queue: SegmentQueue) -> None:
        roll(queue, 2)
        roll(queue, 1, filled=False)
        assert queue.readable_offset == 2 * SIZE
        assert queue.wrote_offset == 2 * SIZE

    def test_readable_ends_before_what_is_not_committed(self, queue: SegmentQueue) -> None:
        roll(queue, 1, filled=False)
        last_of(queue).wrote_to(10)
        last_of(queue).wrote = 30
        assert (queue.readable_offset, queue.wrote_offset) == (10, 30)


class TestRoll:
    def test_the_first_file_holds_the_given_offset(self, queue: SegmentQueue) -> None:
        assert queue.roll(2 * SIZE + 5).base == 2 * SIZE
        assert queue.roll(0).base == 3 * SIZE

    def test_disk_full_changes_nothing(self, queue: SegmentQueue, machine: Machine) -> None:
        roll(queue, 1)
        machine.files.fill_disk()
        with pytest.raises(DiskFullError):
            queue.roll()
        assert len(queue.segments) == 1
        assert sorted(os.listdir(queue.folder)) == [segment_name(0)]
        machine.files.heal()
        assert queue.roll().base == SIZE


class TestTruncate:
    def test_a_cut_inside_a_file_keeps_its_beginning(self, queue: SegmentQueue) -> None:
        roll(queue, 3)
        assert queue.truncate(SIZE + 100) > SIZE
        assert [s.base for s in queue.segments] == [0, SIZE]
        assert queue.wrote_offset == SIZE + 100
        assert not queue.path_of(2 * SIZE).exists()
        content = queue.path_of(SIZE).read_bytes()
        assert content == b"\2" * 100 + bytes(SIZE - 100)
        assert queue.path_of(0).read_bytes() == b"\1" * SIZE

    def test_a_cut_between_two_files_keeps_the_first_full(self, queue: SegmentQueue) -> None:
        roll(queue, 3)
        assert queue.truncate(SIZE) == 2 * SIZE
        assert [s.base for s in queue.segments] == [0]
        assert last_of(queue).is_full

    def test_at_the_end_does_nothing(self, queue: SegmentQueue, machine: Machine) -> None:
        roll(queue, 2)
        machine.files.forget()
        assert queue.truncate(2 * SIZE) == 0
        assert set(machine.files.tally()) <= {"names"}

    def test_keeps_the_first_file(self, queue: SegmentQueue) -> None:
        roll(queue, 2)
        assert queue.truncate(0) == 2 * SIZE
        assert queue.wrote_offset == 0
        assert queue.path_of(0).read_bytes() == bytes(SIZE)

    def test_a_cut_before_the_first_file_empties_it(self, queue: SegmentQueue) -> None:
        roll(queue, 2)
        queue.retire_first(0)
        queue.truncate(5)
        assert [(s.base, s.wrote) for s in queue.segments] == [(SIZE, 0)]

    def test_newest_first_so_that_a_crash_leaves_no_gap(
        self, queue: SegmentQueue, machine: Machine
    ) -> None:
        roll(queue, 4)
        machine.files.forget()
        queue.truncate(10)
        removed = [c.path.name for c in machine.files.calls if c.operation == "remove"]
        assert removed == [segment_name(n * SIZE) for n in (3, 2, 1)]


class TestRetire:
    def test_removes_the_oldest(self, queue: SegmentQueue) -> None:
        roll(queue, 2)
        assert queue.retire_first(0).base == 0
        assert queue.min_offset == SIZE
        assert not queue.path_of(0).exists()

    def test_waits_for_readers_and_sweeps_later(self, queue: SegmentQueue) -> None:
        roll(queue, 2)
        held = queue.read(0, 10)
        queue.retire_first(10_000)
        assert queue.min_offset == SIZE
        assert queue.read(0, 10) is None
        queue.sweep(10_000)
        assert queue.path_of(0).exists()
        assert content(held) == b"\1" * 10
        del held
        queue.sweep(10_000)
        assert not queue.path_of(0).exists()

    def test_close_removes_what_was_retired(self, queue: SegmentQueue, machine: Machine) -> None:
        roll(queue, 2)
        held = queue.read(0, 10)
        queue.retire_first(10_000)
        queue.close()
        assert not queue.path_of(0).exists()
        assert not machine.files.open_files
        assert content(held) == b"\1" * 10

    def test_a_failed_removal_is_tried_again(self, queue: SegmentQueue, machine: Machine) -> None:
        roll(queue, 3)
        machine.files.fail("remove", 5, times=1)
        with pytest.raises(OSError, match="Input/output error"):
            queue.retire_first(0)
        assert queue.min_offset == SIZE
        queue.sweep(0)
        assert not queue.path_of(0).exists()

    def test_a_queue_is_retired_from_while_another_thread_appends(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        """Neither change of the list may undo the other."""
        rounds = 3000
        queue = SegmentQueue(machine.system, tmp_path, SIZE)

        def add() -> None:
            for _ in range(rounds):
                base = queue.next_base()
                queue.append(Segment(machine.system, queue.path_of(base), base, SIZE))

        def remove() -> None:
            removed = 0
            while removed < rounds - 1:
                if len(queue.segments) > 1:
                    queue.retire_first(0)
                    removed += 1

        in_threads(add, remove)
        assert [segment.base for segment in queue.segments] == [(rounds - 1) * SIZE]


def test_keep_first_closes_the_others(queue: SegmentQueue, machine: Machine) -> None:
    roll(queue, 3)
    queue.keep_first(1)
    assert machine.files.open_files == [queue.path_of(0)]
    assert queue.path_of(2 * SIZE).exists()
