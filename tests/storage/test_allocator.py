"""Space and files ahead of the writes, and what happens when they cannot be had."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine, eventually

from firetrail.errors import DiskFullError
from firetrail.storage.allocator import Allocator
from firetrail.storage.growth import PAGE_SIZE, Growth
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue

SIZE = 16 * PAGE_SIZE


class Bench:
    """An allocator over a queue with one file."""

    def __init__(self, folder: Path, **options: bool) -> None:
        self.machine = Machine()
        growth = Growth(PAGE_SIZE, 4 * PAGE_SIZE)
        self.queue = SegmentQueue(self.machine.system, folder, SIZE, growth=growth)
        self.queue.roll()
        options = {"warm_up": False, "lock_memory": False} | options
        self.allocator = Allocator(self.queue, **options)

    @property
    def active(self) -> Segment:
        assert self.queue.last is not None
        return self.queue.last

    def path(self, number: int) -> Path:
        return self.queue.path_of(number * SIZE)

    def write(self, position: int) -> None:
        self.active.allocate(position)
        self.active.wrote_to(position)
        self.allocator.wake()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.allocator.stop()
    bench.queue.close()


def test_allocates_the_next_step_before_it_is_needed(bench: Bench) -> None:
    bench.allocator.start()
    bench.write(PAGE_SIZE)
    eventually(lambda: bench.active.allocated >= 2 * PAGE_SIZE)


def test_creates_the_next_file_when_the_active_one_is_half_full(bench: Bench) -> None:
    bench.allocator.start()
    bench.write(SIZE // 2 - 1)
    eventually(lambda: bench.allocator.wake_at < SIZE)
    assert not bench.path(1).exists()
    bench.write(SIZE // 2)
    eventually(bench.path(1).exists)
    assert len(bench.queue.segments) == 1, "it was not requested yet"


def test_hands_the_prepared_file_over(bench: Bench) -> None:
    bench.allocator.start()
    bench.write(SIZE // 2)
    eventually(lambda: bench.allocator._ready is not None)
    bench.machine.files.forget()
    segment = bench.allocator.next_segment()
    assert (segment.base, bench.active) == (SIZE, segment)
    assert bench.machine.files.count("open", bench.path(1).name) == 0


def test_makes_a_file_on_the_spot_if_none_is_ready(bench: Bench) -> None:
    segment = bench.allocator.next_segment()
    assert (segment.base, bench.active) == (SIZE, segment)


def test_a_queue_without_files_needs_nothing(tmp_path: Path) -> None:
    machine = Machine()
    queue = SegmentQueue(machine.system, tmp_path, SIZE)
    allocator = Allocator(queue, warm_up=False, lock_memory=False)
    allocator.start()
    allocator.wake()
    allocator.stop()
    assert machine.files.tally() == {}


def test_stop_removes_a_file_that_was_not_used(bench: Bench) -> None:
    bench.allocator.start()
    bench.write(SIZE // 2)
    eventually(lambda: bench.allocator._ready is not None)
    bench.allocator.stop()
    assert not bench.path(1).exists()
    assert bench.machine.files.open_files == [bench.path(0)]


def test_stop_before_start(bench: Bench) -> None:
    bench.allocator.stop()


def test_a_full_disk_is_left_to_the_one_who_needs_space(bench: Bench) -> None:
    bench.allocator.start()
    bench.machine.files.fill_disk()
    bench.active.wrote_to(PAGE_SIZE)
    bench.allocator.wake()
    eventually(lambda: bench.machine.files.count("allocate") > 1)
    with pytest.raises(DiskFullError):
        bench.allocator.next_segment()
    assert len(bench.queue.segments) == 1
    bench.machine.files.heal()
    assert bench.allocator.next_segment().base == SIZE
    bench.write(PAGE_SIZE)
    eventually(lambda: bench.active.allocated >= 2 * PAGE_SIZE)


@pytest.mark.parametrize("operation", ["open", "set_size", "sync_folder", "map"])
def test_the_thread_survives_failures(bench: Bench, operation: str) -> None:
    bench.machine.files.fail(operation, errno.EIO, bench.path(1).name, times=1)
    if operation == "sync_folder":
        bench.machine.files.fail(operation, errno.EIO, times=1)
    bench.allocator.start()
    bench.write(SIZE // 2)
    bench.write(SIZE // 2)
    eventually(lambda: bench.allocator.wake_at == 1 << 62 or bench.path(1).exists())
    bench.machine.files.heal()
    segment = bench.allocator.next_segment()
    assert segment.base == SIZE
    bench.write(PAGE_SIZE)
    eventually(lambda: bench.active.allocated >= 2 * PAGE_SIZE)


def test_warm_up_allocates_whole_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path, warm_up=True)
    bench.allocator.start()
    eventually(lambda: bench.active.allocated == SIZE)
    bench.write(SIZE // 2)
    eventually(
        lambda: bench.allocator._ready is not None and bench.allocator._ready.allocated == SIZE
    )
    bench.allocator.stop()
    bench.queue.close()


def test_lock_memory_locks_the_next_file_or_goes_without(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lock_memory=True)
    bench.machine.files.fail("lock_memory", errno.EPERM)
    bench.allocator.start()
    bench.write(SIZE // 2)
    eventually(lambda: bench.machine.files.count("lock_memory") == 1)
    assert bench.allocator.next_segment().base == SIZE
    bench.allocator.stop()
    bench.queue.close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, True), ({"fault_in": False}, False), ({"fault_in": False, "warm_up": True}, True)],
)
def test_faults_in_what_is_written_through_mappings(
    tmp_path: Path, options: dict[str, bool], expected: bool
) -> None:
    bench = Bench(tmp_path, **options)
    bench.allocator.start()
    bench.write(SIZE // 2)
    eventually(lambda: bench.allocator._ready is not None and bench.allocator.wake_at <= SIZE)
    bench.allocator.stop()
    bench.queue.close()
    assert (bench.machine.files.count("populate") > 0) is expected
