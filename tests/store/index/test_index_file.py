"""One index file: the checks of Java's own test, its space on disk, and cutting it back."""

import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import START_MS, Machine

from firetrail.errors import DiskFullError, StoreDamagedError
from firetrail.format.files.index import IndexGeometry, index_file_size
from firetrail.format.names import parse_index_name
from firetrail.store.index.index_file import IndexFile

pytestmark = pytest.mark.stepped_threads

GEOMETRY = IndexGeometry(100, 400)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def file(machine: Machine, tmp_path: Path) -> Iterator[IndexFile]:
    file = IndexFile.create(machine.system, tmp_path, GEOMETRY, None)
    yield file
    file.segment.close()


def entries(*triples: tuple[int, int, int]) -> "array[int]":
    """(key hash, physical offset, store time) as they are derived from the log."""
    return array("q", [number for triple in triples for number in triple])


def fill(file: IndexFile, count: int, first: int = 0) -> int:
    """Keys n at offset 100 n + 100, one a second; how many fitted."""
    triples = [(n, 100 * n + 100, START_MS + 1000 * n) for n in range(first, first + count)]
    return file.append(entries(*triples), 0, count)


def found(file: IndexFile, key: int, limit: int = 10) -> list[int]:
    return file.find(key, 0, 1 << 62, limit)


class TestAppend:
    def test_399_of_400_fit(self, file: IndexFile) -> None:
        assert fill(file, 1000) == 399
        assert file.is_full
        assert file.header.entry_count == 400
        assert fill(file, 1, 399) == 0
        assert [found(file, n) for n in range(399)] == [[100 * n + 100] for n in range(399)]
        assert found(file, 399) == []

    def test_the_header_covers_the_entries(self, file: IndexFile) -> None:
        fill(file, 3)
        header = file.header
        assert (header.begin_offset, header.end_offset) == (100, 300)
        assert (header.begin_timestamp, header.end_timestamp) == (START_MS, START_MS + 2000)
        assert (header.slot_count, header.next_entry) == (3, 4)

    def test_newest_first_and_limited(self, file: IndexFile) -> None:
        file.append(entries(*[(7, n, START_MS) for n in range(10, 20)]), 0, 10)
        assert found(file, 7, 3) == [19, 18, 17]
        assert found(file, 107) == []

    def test_goes_on_where_the_file_before_ends(self, machine: Machine, tmp_path: Path) -> None:
        first = IndexFile.create(machine.system, tmp_path, GEOMETRY, None)
        fill(first, 5)
        second = IndexFile.create(machine.system, tmp_path, GEOMETRY, first)
        assert second.header.end_offset == second.header.begin_offset == 500
        assert second.header.end_timestamp == START_MS + 4000
        fill(second, 1, 5)
        assert second.header.begin_offset == 600
        for file in (first, second):
            file.segment.close()


class TestName:
    def test_is_the_local_time(self, file: IndexFile) -> None:
        created = parse_index_name(file.segment.path.name)
        assert created is not None and round(created.timestamp() * 1000) == START_MS

    @pytest.mark.parametrize("step", [0, -10_000_000, +5])
    def test_the_name_sorts_after_that_of_the_previous_file(
        self, machine: Machine, tmp_path: Path, step: int
    ) -> None:
        first = IndexFile.create(machine.system, tmp_path, GEOMETRY, None)
        machine.clock.ms += step
        second = IndexFile.create(machine.system, tmp_path, GEOMETRY, first)
        assert first.segment.path.name < second.segment.path.name
        for file in (first, second):
            file.segment.close()


class TestDiskFull:
    @pytest.mark.parametrize("skip", [0, 1])
    def test_at_creation_leaves_no_file(self, machine: Machine, tmp_path: Path, skip: int) -> None:
        geometry = IndexGeometry(100_000, 400_000)  # the slots take more than one step
        machine.files.fail("allocate", 28, skip=skip)
        for _ in range(3):
            with pytest.raises(DiskFullError):
                IndexFile.create(machine.system, tmp_path, geometry, None)
            machine.clock.advance(1000)
            machine.files.heal()
            machine.files.fail("allocate", 28, skip=skip)
        assert os.listdir(tmp_path) == []
        assert not machine.files.open_files

    def test_a_full_disk_while_it_grows_appends_nothing(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        geometry = IndexGeometry(100, 40_000)
        file = IndexFile.create(machine.system, tmp_path, geometry, None)
        fill(file, 3000)
        machine.files.fill_disk()
        before = file.header
        with pytest.raises(DiskFullError):
            fill(file, 3000, 3000)
        assert file.header == before
        machine.files.heal()
        fill(file, 3000, 3000)
        assert found(file, 5999) == [600_000]
        file.segment.close()

    def test_a_file_with_holes_is_backed_before_the_first_write(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        """The Java store maps a sparse file; a full disk would kill a process that writes to it."""
        path = tmp_path / "20260101000000000"
        size = index_file_size(*GEOMETRY)
        with path.open("wb") as sparse:
            sparse.truncate(size)
        file = IndexFile.load(machine.system, path, GEOMETRY, writable=True)
        machine.files.fill_disk()
        with pytest.raises(DiskFullError):
            fill(file, 1)
        machine.files.heal()
        fill(file, 1)
        assert path.stat().st_blocks * 512 >= 40 + 4 * GEOMETRY.slots
        file.segment.close()


class TestLoad:
    def test_a_file_of_the_expected_size_is_not_read(
        self, machine: Machine, file: IndexFile
    ) -> None:
        fill(file, 5)
        machine.files.forget()
        again = IndexFile.load(machine.system, file.segment.path, GEOMETRY, writable=True)
        assert machine.files.count("map") == 0
        assert found(again, 3) == [400]
        fill(again, 1, 5)
        assert found(again, 5) == [600]
        again.segment.close()

    def test_of_another_size_is_found_out(self, machine: Machine, file: IndexFile) -> None:
        fill(file, 5)
        other = IndexGeometry(5_000_000, 20_000_000)
        again = IndexFile.load(machine.system, file.segment.path, other, writable=False)
        assert (again.slots, again.entries) == GEOMETRY
        again.segment.close()

    @pytest.mark.parametrize("content", [b"x", b"rubbish" * 5, bytes(41), b"\xff" * 4096])
    def test_a_file_that_is_not_an_index_file_is_refused(
        self, machine: Machine, tmp_path: Path, content: bytes
    ) -> None:
        path = tmp_path / "20260101000000000"
        path.write_bytes(content)
        with pytest.raises(StoreDamagedError, match="not an index file") as caught:
            IndexFile.load(machine.system, path, GEOMETRY, writable=True)
        assert caught.value.file == str(path)
        assert "rebuild-derived" in caught.value.remedy
        assert not machine.files.open_files

    def test_a_damaged_header_names_the_file(self, file: IndexFile) -> None:
        file.segment.view[0] = 0xFF
        with pytest.raises(StoreDamagedError, match="index header begin timestamp"):
            _ = file.header


class TestCut:
    def test_keeps_the_first_entries(self, file: IndexFile) -> None:
        fill(file, 50)
        file.cut(20, START_MS + 19_000)
        assert [found(file, n) for n in range(20)] == [[100 * n + 100] for n in range(20)]
        assert all(found(file, n) == [] for n in range(20, 50))
        assert (file.header.end_offset, file.header.end_timestamp) == (2000, START_MS + 19_000)
        assert (file.header.next_entry, file.header.slot_count) == (21, 20)
        fill(file, 5, 20)
        assert found(file, 24) == [2500]

    def test_heals_slots_and_links(self, file: IndexFile) -> None:
        file.append(entries(*[(7, n, START_MS) for n in range(10, 20)]), 0, 10)
        view = file.segment.view
        view[40 : 40 + 400] = b"\x7f" * 400  # every slot
        for number in range(1, 11):
            at = 40 + 400 + 20 * number + 16
            view[at : at + 4] = b"\xff" * 4  # every link
        file.cut(10, START_MS)
        assert found(file, 7, 20) == list(range(19, 9, -1))

    def test_a_cut_of_all_entries_clears_the_file(self, file: IndexFile) -> None:
        fill(file, 5)
        file.cut(0, None)
        assert file.header.next_entry == 1
        assert file.segment.path.read_bytes() == bytes(file.segment.size)
        fill(file, 2)
        assert file.header.begin_offset == 100

    @pytest.mark.parametrize(("log_end", "kept"), [(0, 0), (100, 0), (101, 1), (250, 2), (9999, 5)])
    def test_entries_before_the_log_end_are_kept(
        self, file: IndexFile, log_end: int, kept: int
    ) -> None:
        fill(file, 5)
        assert file.kept_before(log_end) == kept
