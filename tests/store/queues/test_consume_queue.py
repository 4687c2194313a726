"""One consume queue: units in and out, its ends, its files, and a disk that fills up."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine, in_threads

from firetrail.errors import DiskFullError, SegmentSizeError, StoreClosedError, StoreDamagedError
from firetrail.format.files.unit import PRE_BLANK, UNIT_SIZE, ConsumeQueueUnit, encode_unit
from firetrail.format.names import segment_name
from firetrail.store.queues.consume_queue import ConsumeQueue

UNITS = 10
FILE_SIZE = UNITS * UNIT_SIZE
FOLDER = Path("consumequeue", "T", "3")


@pytest.fixture
def machine() -> Machine:
    return Machine()


class Queues:
    """Makes queue objects over one folder."""

    def __init__(self, machine: Machine, root: Path) -> None:
        self.machine = machine
        self.root = root
        self.made: list[ConsumeQueue] = []

    def load(self, file_size: int = FILE_SIZE, *, writable: bool = True) -> ConsumeQueue:
        queue = ConsumeQueue(self.machine.system, self.root, "T", 3, file_size, writable=writable)
        self.made.append(queue)
        queue.load()
        return queue

    def path(self, number: int) -> Path:
        return self.root / FOLDER / segment_name(number * FILE_SIZE)


@pytest.fixture
def queues(machine: Machine, tmp_path: Path) -> Iterator[Queues]:
    queues = Queues(machine, tmp_path)
    yield queues
    for queue in queues.made:
        queue.close()
    assert not machine.files.open_files


@pytest.fixture
def queue(queues: Queues) -> ConsumeQueue:
    return queues.load()


def unit(number: int) -> ConsumeQueueUnit:
    return ConsumeQueueUnit(100 * number, 100, number)


def units(first: int, count: int) -> memoryview:
    return memoryview(b"".join(encode_unit(unit(n)) for n in range(first, first + count)))


def real(offset: int, unit: ConsumeQueueUnit) -> bool:
    return True


class TestAppend:
    def test_units_are_read_back_by_number(self, queue: ConsumeQueue) -> None:
        assert queue.append(0, units(0, 25)) == 25
        assert queue.max_offset == 25
        assert [queue.unit(n) for n in range(25)] == [unit(n) for n in range(25)]
        assert queue.last_unit == unit(24)

    @pytest.mark.parametrize("offset", [-1, 25, 1000])
    def test_there_are_no_units_outside(self, queue: ConsumeQueue, offset: int) -> None:
        queue.append(0, units(0, 25))
        assert queue.unit(offset) is None

    def test_an_empty_queue_starts_and_ends_at_0(self, queue: ConsumeQueue) -> None:
        assert (queue.max_offset, queue.min_offset(0), queue.last_unit) == (0, 0, None)

    def test_full_files_roll_over(self, queue: ConsumeQueue, queues: Queues) -> None:
        queue.append(0, units(0, 10))
        assert not queues.path(1).exists()
        queue.append(10, units(10, 15))
        assert [queues.path(n).stat().st_size for n in range(3)] == [FILE_SIZE] * 3

    def test_known_units_are_skipped(self, queue: ConsumeQueue) -> None:
        queue.append(0, units(0, 5))
        assert queue.append(0, units(0, 5)) == 0
        assert queue.append(3, units(3, 4)) == 2
        assert queue.append(1, units(1, 2)) == 0
        assert [queue.unit(n) for n in range(7)] == [unit(n) for n in range(7)]
        assert queue.max_offset == 7

    def test_a_gap_is_damage(self, queue: ConsumeQueue) -> None:
        queue.append(0, units(0, 5))
        with pytest.raises(StoreDamagedError) as caught:
            queue.append(7, units(7, 1))
        assert "queue T/3 has 5 units, but its next message in the log has number 7" in str(
            caught.value
        )
        assert caught.value.physical_offset == 700
        assert queue.max_offset == 5

    def test_an_append_without_units_changes_nothing(
        self, queue: ConsumeQueue, machine: Machine
    ) -> None:
        queue.append(0, units(0, 1))
        assert queue.append(1, memoryview(b"")) == 0


class TestBeginning:
    def test_blank_units_precede_a_later_beginning(
        self, queue: ConsumeQueue, queues: Queues
    ) -> None:
        queue.append(23, units(23, 2))
        assert queues.path(2).read_bytes()[: 5 * UNIT_SIZE] == (
            encode_unit(PRE_BLANK) * 3 + bytes(units(23, 2))
        )
        assert queue.min_offset(0) == queue.min_offset(2300) == 23
        assert queue.max_offset == 25
        again = queues.load()
        assert (again.min_offset(0), again.max_offset) == (23, 25)

    def test_none_at_the_start_of_a_file(self, queue: ConsumeQueue) -> None:
        queue.append(20, units(20, 2))
        assert (queue.min_offset(0), queue.unit(20)) == (20, unit(20))

    def test_the_question_before_does_not_spoil_the_answer(self, queue: ConsumeQueue) -> None:
        assert queue.min_offset(0) == 0
        queue.append(23, units(23, 1))
        assert queue.min_offset(0) == 23

    def test_an_append_after_the_disk_was_full(self, queue: ConsumeQueue, machine: Machine) -> None:
        """The file exists without its blank units, which are written later."""
        machine.files.fail("map", 28, times=1)
        with pytest.raises(OSError, match="No space left"):
            queue.append(23, units(23, 1))
        assert queue.append(23, units(23, 1)) == 1
        assert queue.unit(22) == PRE_BLANK
        assert queue.unit(23) == unit(23)

    def test_a_crash_right_after_the_first_file_was_created(self, queues: Queues) -> None:
        queues.load().files.roll(23 * UNIT_SIZE)
        again = queues.load()
        assert again.append(23, units(23, 1)) == 1
        assert again.min_offset(0) == 23

    @pytest.mark.parametrize(
        ("log_min", "expected"),
        [(0, 0), (1, 1), (100, 1), (101, 2), (950, 10), (1000, 10), (2400, 24), (2401, 25)],
    )
    def test_follows_the_log(self, queue: ConsumeQueue, log_min: int, expected: int) -> None:
        queue.append(0, units(0, 25))
        assert queue.min_offset(log_min) == expected
        assert queue.min_offset(log_min) == expected

    def test_a_queue_whose_messages_are_all_deleted(self, queue: ConsumeQueue) -> None:
        """The queue keeps its offsets: the next message gets the next number."""
        queue.append(0, units(0, 25))
        assert queue.min_offset(9999) == 25 == queue.max_offset
        queue.append(25, memoryview(encode_unit(ConsumeQueueUnit(9999, 1, 0))))
        assert queue.min_offset(9999) == 25

    def test_many_threads_agree(self, queue: ConsumeQueue) -> None:
        queue.append(0, units(0, 1000))

        def ask(log_min: int) -> None:
            for _ in range(300):
                assert queue.min_offset(log_min * 100) == log_min

        in_threads(*[lambda n=n: ask(n) for n in (10, 500, 900)])


class TestDiskFull:
    def test_a_full_disk_at_a_roll_refuses_the_units(
        self, queue: ConsumeQueue, queues: Queues, machine: Machine
    ) -> None:
        queue.append(0, units(0, 8))
        machine.files.fill_disk()
        for _ in range(2):
            with pytest.raises(DiskFullError, match=segment_name(FILE_SIZE)):
                queue.append(8, units(8, 5))
        assert queue.max_offset == 10, "the units that fit were written"
        assert not queues.path(1).exists()
        machine.files.heal()
        assert queue.append(8, units(8, 5)) == 3
        assert [queue.unit(n) for n in range(13)] == [unit(n) for n in range(13)]


class TestLoad:
    @pytest.mark.parametrize("count", [1, 9, 10, 11, 19, 20, 25])
    def test_finds_the_end(self, queues: Queues, count: int) -> None:
        queues.load().append(0, units(0, count))
        again = queues.load()
        assert (again.max_offset, again.next_offset) == (count, count)
        assert again.append(count, units(count, 1)) == 1
        assert again.unit(count) == unit(count)

    def test_leaves_out_files_without_units_but_not_their_space(self, queues: Queues) -> None:
        queue = queues.load()
        queue.append(0, units(0, 10))
        queue.files.roll()
        again = queues.load()
        assert (again.max_offset, len(again.files.segments)) == (10, 1)
        again.append(10, units(10, 1))
        assert again.unit(10) == unit(10)

    def test_a_folder_with_only_an_empty_file_is_an_empty_queue(self, queues: Queues) -> None:
        queues.load().files.roll()
        assert queues.load().max_offset == 0

    @pytest.mark.parametrize("size", [1, 19, 20, FILE_SIZE - UNIT_SIZE, FILE_SIZE + 1])
    def test_a_file_of_another_size_is_refused(self, queues: Queues, size: int) -> None:
        queues.load().append(0, units(0, 5))
        os.truncate(queues.path(0), size)
        with pytest.raises(SegmentSizeError) as caught:
            queues.load()
        assert f"{queues.path(0)}: {size} bytes long" in str(caught.value)
        assert "rebuild-derived" in str(caught.value)

    def test_as_a_reader_changes_nothing(self, queues: Queues) -> None:
        queues.load().append(0, units(0, 15))
        before = {path: path.read_bytes() for path in (queues.path(0), queues.path(1))}
        reader = queues.load(writable=False)
        assert reader.unit(14) == unit(14)
        assert {path: path.read_bytes() for path in before} == before


class TestCut:
    @pytest.mark.parametrize(
        ("log_end", "kept"), [(0, 0), (100, 1), (950, 10), (1000, 10), (1050, 11), (2500, 25)]
    )
    def test_units_after_the_end_of_the_log_are_removed(
        self, queue: ConsumeQueue, queues: Queues, log_end: int, kept: int
    ) -> None:
        queue.append(0, units(0, 25))
        assert queue.cut(log_end, real) == 25 - kept
        assert (queue.max_offset, queue.next_offset) == (kept, kept)
        assert queues.load().max_offset == kept
        assert [queue.unit(n) for n in range(kept)] == [unit(n) for n in range(kept)]
        queue.append(kept, units(kept, 5))
        assert queue.unit(kept + 4) == unit(kept + 4)

    def test_removed_units_are_zeroed(self, queue: ConsumeQueue, queues: Queues) -> None:
        queue.append(0, units(0, 8))
        queue.cut(500, real)
        assert queues.path(0).read_bytes() == bytes(units(0, 5)) + bytes(5 * UNIT_SIZE)

    def test_bytes_that_look_like_a_unit_are_removed(self, queue: ConsumeQueue) -> None:
        queue.append(0, units(0, 8))
        queue.cut(800, lambda offset, found: offset < 6)
        assert queue.max_offset == 6

    def test_keeps_blank_units(self, queue: ConsumeQueue) -> None:
        queue.append(5, units(5, 3))
        queue.cut(0, real)
        assert queue.max_offset == 5
        queue.append(5, units(5, 1))
        assert queue.min_offset(0) == 5


class TestFlush:
    def test_a_flush_waits_for_the_least_pages(self, machine: Machine, tmp_path: Path) -> None:
        queue = ConsumeQueue(machine.system, tmp_path, "T", 3, 1000 * UNIT_SIZE)
        queue.load()
        queue.append(0, units(0, 100))
        machine.files.forget()
        assert not queue.flush(2)
        assert machine.files.count("sync") == 0
        queue.append(100, units(100, 400))
        assert queue.flush(2)
        assert queue.flush()
        assert machine.files.count("sync") == 1
        queue.close()

    def test_full_files_are_due(self, queue: ConsumeQueue, machine: Machine) -> None:
        queue.append(0, units(0, 12))
        machine.files.forget()
        assert not queue.flush(2), "the last file waits"
        assert machine.files.count("sync") == 1
        assert queue.flush()


class TestExpiry:
    def test_files_go_when_all_their_units_do(self, queue: ConsumeQueue, queues: Queues) -> None:
        queue.append(0, units(0, 35))
        assert queue.delete_expired(900, 0) == 0, "unit 9 points to 900"
        assert queue.delete_expired(901, 0) == 1
        assert queue.delete_expired(2500, 0) == 1
        assert not queues.path(1).exists()
        assert (queue.min_offset(2500), queue.max_offset) == (25, 35)
        assert queue.unit(19) is None
        assert queue.unit(20) == unit(20)

    def test_never_the_last_file(self, queue: ConsumeQueue, queues: Queues) -> None:
        queue.append(0, units(0, 25))
        assert queue.delete_expired(10**9, 0) == 2
        assert queues.path(2).exists()
        assert (queue.min_offset(10**9), queue.max_offset) == (25, 25)

    def test_expired_files_wait_for_readers(self, queue: ConsumeQueue, queues: Queues) -> None:
        queue.append(0, units(0, 25))
        held = queue.files.read(0, UNIT_SIZE)
        queue.delete_expired(1000, 60_000)
        assert queue.unit(0) is None
        assert queues.path(0).exists()
        assert held is not None and bytes(held) == encode_unit(unit(0))
        del held
        queue.files.sweep(60_000)
        assert not queues.path(0).exists()


@pytest.mark.parametrize("damaged", range(UNITS))
def test_no_damaged_unit_hides_those_before_it(queue: ConsumeQueue, damaged: int) -> None:
    """The first four records are gone; a unit at any place points before the log's beginning."""
    queue.append(0, units(0, UNITS))
    queue.files.segments[0].view[damaged * UNIT_SIZE] = 0x80
    assert queue.min_offset(0) == 0
    first = queue.min_offset(unit(4).physical_offset)
    assert first == 4 or (first == 5 and damaged == 4) or (first < 4 and damaged < 4)


@pytest.mark.parametrize("damaged", range(UNITS - 2))
def test_no_damaged_units_hide_those_before_them(queue: ConsumeQueue, damaged: int) -> None:
    """Three consecutive units are overwritten with zeros."""
    queue.append(0, units(0, UNITS))
    at = damaged * UNIT_SIZE
    queue.files.segments[0].view[at : at + 3 * UNIT_SIZE] = bytes(3 * UNIT_SIZE)
    assert queue.min_offset(0) == 0
    first = queue.min_offset(unit(4).physical_offset)
    assert first == 4 or (first < 4 and damaged < 4)


class TestTheEndOfAFile:
    """The end is found with a few reads, in files as every kind of store leaves them."""

    SIZE = 6_000_000

    def make(self, queues: Queues, count: int, *, whole: bool) -> Path:
        path = queues.root / FOLDER / segment_name(0)
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.write(bytes(units(1, count)))
            if whole:  # as after a copy, or where Java has warmed a file up
                file.write(bytes(self.SIZE - count * UNIT_SIZE))
            file.truncate(self.SIZE)
        return path

    @pytest.mark.parametrize("count", [1, 203, 204, 205, 1000, 299_999, 300_000])
    @pytest.mark.parametrize("whole", [False, True])
    def test_the_end_of_a_file_is_found(
        self, machine: Machine, queues: Queues, count: int, whole: bool
    ) -> None:
        self.make(queues, count, whole=whole)
        queue = queues.load(self.SIZE, writable=False)
        assert queue.max_offset == count
        assert queue.unit(count - 1) == queue.last_unit == unit(count)
        assert machine.files.count("map") == 0
        assert machine.files.count("open") == 1
        assert machine.files.count("read_at") <= 13  # 300,000 units are 1,465 pages

    def test_of_a_sparse_file_is_one_read(self, machine: Machine, queues: Queues) -> None:
        path = self.make(queues, 20, whole=False)
        if path.stat().st_blocks * 512 > 64 << 10:
            pytest.skip("this file system knows no holes")
        machine.files.forget()
        assert queues.load(self.SIZE).max_offset == 20
        tally = machine.files.tally()
        assert (tally["open"], tally["read_at"], tally["map"]) == (1, 1, 0)

    def test_a_unit_whose_last_bytes_are_a_hole(self, queues: Queues) -> None:
        """Zeros of a sparse copy: the tags code 0 of the unit across the first two pages."""
        path = self.make(queues, 204, whole=False)
        last = encode_unit(ConsumeQueueUnit(20500, 100, 0))
        with path.open("r+b") as file:
            file.seek(204 * UNIT_SIZE)
            file.write(last[:16])
        assert queues.load(self.SIZE, writable=False).max_offset == 205

    def test_units_are_read_a_page_at_a_time(self, machine: Machine, queues: Queues) -> None:
        self.make(queues, 1000, whole=False)
        queue = queues.load(self.SIZE, writable=False)
        machine.files.forget()
        assert [queue.unit(number) for number in range(1000)] == [
            unit(number) for number in range(1, 1001)
        ]
        assert queue.unit(1000) is None and queue.unit(-1) is None
        assert machine.files.count("read_at") == 5


class TestNewLife:
    """A replica begins a queue again while other threads read and flush it."""

    def test_the_new_units_take_the_place_of_the_old(self, queue: ConsumeQueue) -> None:
        queue.append(0, units(0, 15))
        queue.begin_generation()
        assert (queue.max_offset, queue.unit(0)) == (0, None)
        queue.append(0, units(50, 2))
        assert [queue.unit(0), queue.unit(1), queue.unit(2)] == [unit(50), unit(51), None]

    def test_cached_units_are_forgotten(self, queues: Queues) -> None:
        queues.load().append(0, units(0, 3))
        queue = queues.load()
        queue.window = 0, bytes(units(0, 3))
        queue.begin_generation()
        assert queue.unit(0) is None

    def test_a_flush_that_meets_it_goes_on(self, queue: ConsumeQueue) -> None:
        queue.append(0, units(0, 3))
        (old,) = queue.files.segments
        queue.begin_generation()
        queue._flush(old)

    def test_a_flush_of_a_closed_queue_fails(self, queue: ConsumeQueue) -> None:
        queue.append(0, units(0, 3))
        queue.close()
        with pytest.raises(StoreClosedError):
            queue.flush()
