"""One file of a queue: creation, growth, positions, truncation, readers and removal."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine, in_threads

from firetrail.errors import DiskFullError, SegmentSizeError, StoreClosedError
from firetrail.storage.growth import PAGE_SIZE, Growth
from firetrail.storage.segment import Segment, any_data
from firetrail.system import files

SIZE = 16 * PAGE_SIZE
STEP = Growth(PAGE_SIZE, 4 * PAGE_SIZE)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def segment(machine: Machine, tmp_path: Path) -> Iterator[Segment]:
    segment = Segment.create(machine.system, tmp_path / "a", 1000, SIZE, STEP)
    yield segment
    segment.close()


class TestWrite:
    def test_the_mapping_shows_what_was_written_to_the_file(self, segment: Segment) -> None:
        segment.write(100, memoryview(b"content"))
        assert bytes(segment.view[100:107]) == b"content"

    def test_a_full_disk(self, machine: Machine, segment: Segment) -> None:
        machine.files.fail("write", errno.ENOSPC)
        with pytest.raises(DiskFullError, match="a: no space for 3 more bytes at 7; free some"):
            segment.write(7, memoryview(b"abc"))

    def test_other_errors_name_the_file(self, machine: Machine, segment: Segment) -> None:
        def fail() -> None:
            raise OSError(errno.EIO, "Input/output error")  # as os.pwritev does

        machine.files.on("write", fail)
        with pytest.raises(OSError, match=f"Input/output error: '{segment.path}'"):
            segment.write(7, memoryview(b"abc"))


class TestCreate:
    def test_has_its_length_and_nothing_in_it(self, segment: Segment) -> None:
        assert segment.path.stat().st_size == SIZE
        assert not any_data(segment.view, 0, SIZE)
        assert (segment.base, segment.end) == (1000, 1000 + SIZE)
        assert (segment.wrote, segment.committed, segment.flushed) == (0, 0, 0)

    def test_has_the_first_step_allocated(self, segment: Segment) -> None:
        assert segment.allocated == PAGE_SIZE
        assert segment.path.stat().st_blocks * 512 >= PAGE_SIZE

    def test_length_and_name_are_durable(self, segment: Segment, machine: Machine) -> None:
        operations = [call.operation for call in machine.files.calls]
        assert operations[-3:] == ["sync", "give_name", "sync_folder"]

    def test_forgets_what_a_crash_left_under_its_name(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_bytes(b"rubbish" * 10_000)
        segment = Segment.create(machine.system, tmp_path / "a", 0, SIZE)
        assert not any_data(segment.view, 0, SIZE)
        segment.close()

    @pytest.mark.parametrize(
        "operation", ["open", "set_size", "allocate", "sync", "give_name", "sync_folder"]
    )
    @pytest.mark.parametrize(
        ("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, OSError)]
    )
    def test_a_failure_leaves_nothing_behind(
        self, machine: Machine, tmp_path: Path, operation: str, code: int, error: type[Exception]
    ) -> None:
        machine.files.fail(operation, code, times=1)
        with pytest.raises(error, match=str(tmp_path)):
            Segment.create(machine.system, tmp_path / "a", 0, SIZE)
        assert not machine.files.open_files
        assert not (tmp_path / "a").exists()

    def test_disk_full_names_file_and_size(self, machine: Machine, tmp_path: Path) -> None:
        machine.files.fill_disk()
        with pytest.raises(DiskFullError, match=r"a: no space for \d+ more bytes at 0; free some"):
            Segment.create(machine.system, tmp_path / "a", 0, SIZE)


class TestGrowth:
    @pytest.mark.parametrize(("wrote", "step"), [(0, 10), (10, 10), (15, 15), (40, 40), (41, 40)])
    def test_as_much_again_in_bounds(self, wrote: int, step: int) -> None:
        assert Growth(10, 40).step(wrote) == step

    def test_allocates_ahead_and_only_when_needed(self, segment: Segment, machine: Machine) -> None:
        machine.files.forget()
        segment.allocate(PAGE_SIZE)
        assert machine.files.count("allocate") == 0
        segment.allocate(PAGE_SIZE + 1)
        assert (segment.allocated, machine.files.count("allocate")) == (2 * PAGE_SIZE, 1)

    def test_a_large_need_is_met_in_one_step(self, segment: Segment) -> None:
        segment.allocate(9 * PAGE_SIZE)
        assert segment.allocated == 9 * PAGE_SIZE

    def test_space_is_never_allocated_beyond_the_file(self, segment: Segment) -> None:
        segment.allocate(15 * PAGE_SIZE)
        segment.wrote_to(15 * PAGE_SIZE)
        segment.allocate(15 * PAGE_SIZE + 1)
        assert segment.allocated == SIZE
        assert segment.path.stat().st_size == SIZE

    def test_a_full_disk_is_an_error_that_passes(self, segment: Segment, machine: Machine) -> None:
        machine.files.fill_disk()
        for _ in range(2):
            with pytest.raises(DiskFullError, match="no space for 4096 more bytes at 4096"):
                segment.allocate(PAGE_SIZE + 1)
        assert segment.allocated == PAGE_SIZE
        machine.files.heal()
        segment.allocate(PAGE_SIZE + 1)
        assert segment.allocated == 2 * PAGE_SIZE

    def test_other_failures_are_not_called_a_full_disk(
        self, segment: Segment, machine: Machine
    ) -> None:
        machine.files.fail("allocate", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            segment.allocate(SIZE)

    def test_pages_can_be_faulted_in(self, segment: Segment) -> None:
        segment.wrote_to(100)
        segment.fill_in()
        assert not any_data(segment.view, 0, SIZE)

    def test_an_appender_may_fill_the_file_meanwhile(
        self, segment: Segment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        segment.allocate(SIZE)
        positions = iter((0, SIZE, SIZE))
        monkeypatch.setattr(Segment, "wrote", property(lambda _: next(positions)))
        segment.fill_in()


class TestPositions:
    @pytest.mark.parametrize(
        ("flushed", "committed", "least_pages", "due"),
        [
            (0, 0, 0, False),
            (0, 1, 0, True),
            (100, 100, 0, False),
            (0, 4 * PAGE_SIZE - 1, 4, False),
            (0, 4 * PAGE_SIZE, 4, True),
            (PAGE_SIZE - 1, 4 * PAGE_SIZE, 4, True),  # pages are counted, not bytes
            (PAGE_SIZE, 5 * PAGE_SIZE - 1, 4, False),
            (SIZE - 1, SIZE, 4, True),  # a full file is due however little is new
            (SIZE, SIZE, 4, False),
            (SIZE, SIZE, 0, False),
        ],
    )
    def test_a_flush_waits_for_the_least_pages(
        self, segment: Segment, flushed: int, committed: int, least_pages: int, due: bool
    ) -> None:
        segment.set_position(flushed)
        segment.wrote_to(committed)
        assert segment.is_due(least_pages) is due

    def test_flush_syncs_what_is_new_and_only_once(
        self, segment: Segment, machine: Machine
    ) -> None:
        segment.wrote_to(10)
        machine.files.forget()
        segment.flush()
        segment.flush()
        assert (segment.flushed, machine.files.count("sync")) == (10, 1)

    def test_flush_covers_only_what_was_committed_before(
        self, segment: Segment, machine: Machine
    ) -> None:
        """Writes during a sync may not be on the disk."""
        segment.wrote_to(10)
        machine.files.on("sync", lambda: segment.wrote_to(20))
        segment.flush()
        assert (segment.flushed, segment.committed) == (10, 20)

    def test_a_failed_sync_moves_nothing(self, segment: Segment, machine: Machine) -> None:
        segment.wrote_to(10)
        machine.files.fail("sync", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            segment.flush()
        assert segment.flushed == 0

    def test_uncommitted_bytes_are_not_flushed(self, segment: Segment, machine: Machine) -> None:
        segment.wrote = 10
        machine.files.forget()
        segment.flush()
        assert (segment.flushed, machine.files.count("sync")) == (0, 0)


class TestMapping:
    def test_is_made_at_first_use(self, machine: Machine, segment: Segment) -> None:
        again = Segment(machine.system, segment.path, 0, SIZE)
        machine.files.forget()
        assert machine.files.tally() == {}
        assert len(again.view) == SIZE
        assert machine.files.count("map") == 1
        again.close()

    def test_is_made_once_by_many_threads(self, machine: Machine, segment: Segment) -> None:
        for _ in range(20):
            again = Segment(machine.system, segment.path, 0, SIZE)
            machine.files.forget()
            in_threads(*[lambda s=again: s.view] * 4)
            assert (machine.files.count("open"), machine.files.count("map")) == (1, 1)
            again.close()
        assert machine.files.open_files == [segment.path]

    def test_of_a_file_of_another_length_is_refused(
        self, machine: Machine, segment: Segment
    ) -> None:
        other = Segment(machine.system, segment.path, 0, SIZE * 2)
        with pytest.raises(
            SegmentSizeError, match=rf"a: the file has {SIZE} bytes instead of {SIZE * 2}"
        ):
            _ = other.view
        other.close()

    def test_read_only(self, machine: Machine, segment: Segment) -> None:
        reader = Segment(machine.system, segment.path, 0, SIZE, writable=False)
        with pytest.raises(TypeError):
            reader.view[0] = 1
        reader.close()


class TestClose:
    def test_closes_the_file_for_good(self, segment: Segment, machine: Machine) -> None:
        _ = segment.view
        segment.close()
        segment.close()
        assert not machine.files.open_files
        for use in (lambda: segment.view, lambda: segment.descriptor, segment.look, segment.sync):
            with pytest.raises(StoreClosedError, match="the file was closed"):
                use()

    def test_slices_outlive_it(self, segment: Segment) -> None:
        segment.view[0:3] = b"abc"
        held = segment.view[0:3]
        segment.close()
        assert bytes(held) == b"abc"


class TestDestroy:
    def test_at_once_if_nobody_reads(self, segment: Segment, machine: Machine) -> None:
        segment.fill_in()
        assert segment.destroy(10_000)
        assert not segment.path.exists()
        assert not machine.files.open_files

    def test_waits_for_readers(self, segment: Segment, machine: Machine) -> None:
        segment.view[0:3] = b"abc"
        held = segment.view[0:3]
        assert not segment.destroy(10_000)
        machine.clock.advance(9_000)
        assert not segment.destroy(10_000)
        assert segment.path.exists()
        assert bytes(held) == b"abc"
        del held
        assert segment.destroy(10_000)
        assert not segment.path.exists()

    def test_readers_are_waited_for_during_the_grace_time_at_most(
        self, segment: Segment, machine: Machine
    ) -> None:
        segment.view[0:3] = b"abc"
        held = segment.view[0:3]
        assert not segment.destroy(10_000)
        machine.clock.advance(10_000)
        assert segment.destroy(10_000)
        assert not segment.path.exists()
        assert not machine.files.open_files
        assert bytes(held) == b"abc"  # the memory lives as long as the slice

    def test_lets_no_new_reader_in(self, segment: Segment) -> None:
        held = segment.view[0:3]
        assert not segment.destroy(10_000)
        assert not segment.is_open
        assert segment.look() is None
        with pytest.raises(StoreClosedError, match="the file was removed"):
            _ = segment.view
        assert bytes(held) == bytes(3)

    def test_the_wall_clock_does_not_matter(self, segment: Segment, machine: Machine) -> None:
        held = segment.view[0:3]
        assert not segment.destroy(10_000)
        machine.clock.set_wall(machine.clock.ms + 10**12)
        assert not segment.destroy(10_000)
        assert bytes(held) == bytes(3)

    def test_a_file_that_is_gone_already_is_no_error(self, segment: Segment) -> None:
        segment.path.unlink()
        assert segment.destroy(0)


class TestTruncate:
    def fill(self, segment: Segment, *positions: int) -> None:
        segment.allocate(SIZE)
        for position in positions:
            segment.view[position] = 7
        segment.wrote_to(SIZE)

    def test_zeroes_what_stands_behind_and_syncs(self, segment: Segment, machine: Machine) -> None:
        self.fill(segment, 99, 100, 5 * PAGE_SIZE, SIZE - 1)
        machine.files.forget()
        assert segment.truncate(100) > 0
        assert segment.view[99] == 7
        assert not any_data(segment.view, 100, SIZE)
        assert (segment.wrote, segment.committed, segment.flushed) == (100, 100, 100)
        assert machine.files.count("sync") == 1

    def test_writes_nothing_if_the_tail_is_empty(self, segment: Segment, machine: Machine) -> None:
        self.fill(segment, 99)
        machine.files.forget()
        assert segment.truncate(100) == 0
        assert machine.files.count("write_zeros") == 0
        assert machine.files.count("sync") == 0

    def test_truncation_forgets_allocated_space(self, segment: Segment) -> None:
        """A file of the Java store has holes: the bytes before one do not tell what follows it."""
        self.fill(segment)
        segment.truncate(PAGE_SIZE)
        assert segment.allocated == PAGE_SIZE

    def test_data_size_counts_and_changes_nothing(self, segment: Segment) -> None:
        self.fill(segment, 10)
        assert segment.data_size(0) >= 11
        assert segment.data_size(11) == 0
        assert segment.view[10] == 7


@pytest.mark.parametrize("at", [0, 65535, 65536, 65537, 200_000])
def test_any_data_finds_a_single_byte(at: int) -> None:
    content = bytearray(200_001)
    assert not any_data(memoryview(content), 0, len(content))
    content[at] = 1
    assert any_data(memoryview(content), 0, len(content))
    assert not any_data(memoryview(content), at + 1, len(content))
    assert not any_data(memoryview(content), 0, at)


@pytest.mark.parametrize("unnamed", [True, False], ids=["unnamed", "named at once"])
def test_a_new_file_appears_with_its_length(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """Unless the file system has no files without a name; it is whole in the end in any case."""
    if not unnamed:
        monkeypatch.setattr(files, "_UNNAMED", 0)
    seen: list[list[str]] = []
    machine.files.on("set_size", lambda: seen.append(os.listdir(tmp_path)))
    machine.files.on("sync", lambda: seen.append(os.listdir(tmp_path)))
    segment = Segment.create(machine.system, tmp_path / "a", 0, SIZE)
    segment.close()
    assert (tmp_path / "a").stat().st_size == SIZE
    if unnamed:
        assert seen == [[], []]


def test_what_is_let_go_of_is_still_there(segment: Segment, machine: Machine) -> None:
    segment.allocate(SIZE)
    segment.view[:SIZE] = content = bytes(range(256)) * (SIZE // 256)
    segment.release_pages(SIZE)
    assert bytes(segment.view) == content
    segment.close()
    segment.release_pages(SIZE)  # nothing to do
    assert segment.path.read_bytes() == content


def test_only_what_is_mapped_is_let_go_of(
    machine: Machine, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[tuple[int, int]] = []
    monkeypatch.setattr(machine.files, "release_pages", lambda _, *part: released.append(part))
    reader = Segment(machine.system, segment.path, 1000, SIZE, writable=False)
    reader.release_pages(SIZE)
    _ = reader.view
    reader.release_pages(SIZE)  # a mapping for reading only is left as it is
    reader.close()
    assert released == []
    segment.view[:1] = b"x"
    segment.release_pages(SIZE)
    assert released == [(0, SIZE)]


class TestAFewBytes:
    def test_are_read_without_a_mapping(self, machine: Machine, segment: Segment) -> None:
        machine.system.files.write(segment.descriptor, [b"abc"], 7)
        assert segment.read(7, 3) == b"abc"
        assert (machine.files.count("map"), machine.files.count("read_at")) == (0, 1)

    def test_come_from_the_mapping_if_there_is_one(
        self, machine: Machine, segment: Segment
    ) -> None:
        segment.view[7:10] = b"abc"
        assert segment.read(7, 3) == b"abc"
        assert machine.files.count("read_at") == 0

    def test_of_a_file_that_was_cut(self, segment: Segment) -> None:
        os.truncate(segment.path, 100)
        with pytest.raises(SegmentSizeError, match=f"no longer has {SIZE} bytes"):
            segment.read(90, 20)

    def test_of_a_file_that_is_gone(self, machine: Machine, segment: Segment) -> None:
        only_read = Segment(machine.system, segment.path, 1000, SIZE, writable=False)
        segment.destroy(0)
        assert segment.peek(0, 20) is None
        assert only_read.peek(0, 20) is None


@pytest.mark.parametrize("scattered", [True, False])
def test_scattered_files_are_mapped_without_neighbours(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scattered: bool
) -> None:
    advised: list[object] = []
    monkeypatch.setattr(machine.files, "expect_scattered", advised.append)
    growth = Growth(PAGE_SIZE, PAGE_SIZE, scattered=scattered)
    segment = Segment.create(machine.system, tmp_path / "s", 0, SIZE, growth)
    assert advised == []
    assert segment.view[0] == 0
    assert advised == ([segment.mapping] if scattered else [])
    advised.clear()
    segment.close()
