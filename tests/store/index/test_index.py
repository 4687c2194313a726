"""The index as a whole: rolling, queries over files, cutting it back, expiry, flushing."""

import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import START_MS, Machine

from firetrail.errors import DiskFullError, StoreDamagedError
from firetrail.format.files.index import IndexGeometry
from firetrail.format.kernels.single import KeyQuestion
from firetrail.format.values.javahash import index_key_hash
from firetrail.store.index.index import Index

pytestmark = pytest.mark.stepped_threads

GEOMETRY = IndexGeometry(4, 6)  # five keys a file


@pytest.fixture
def machine() -> Machine:
    return Machine()


class Bench:
    def __init__(self, machine: Machine, root: Path) -> None:
        self.machine = machine
        self.root = root
        self.made: list[Index] = []
        self.index = self.load()

    @property
    def folder(self) -> Path:
        return self.root / "index"

    def load(self, *, writable: bool = True) -> Index:
        index = Index(self.machine.system, self.root, GEOMETRY, writable=writable)
        self.made.append(index)
        index.load()
        return index

    def put(self, first: int, last: int, key: str = "k") -> None:
        """Messages at offsets 100, 200, ..., one a second, each with this key."""
        key_hash = index_key_hash("T", key)
        triples = [(key_hash, 100 * n, START_MS + 1000 * n) for n in range(first, last)]
        entries = array("q", [number for triple in triples for number in triple])
        at = 0
        while at < len(triples):
            at = self.index.append(entries, at, len(triples))

    def query(self, begin: int = 0, end: int = 1 << 62, limit: int = 99) -> list[int]:
        return self.index.query(KeyQuestion("T", "k", begin, end), limit)


@pytest.fixture
def bench(machine: Machine, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(machine, tmp_path)
    yield bench
    machine.files.heal()
    for index in bench.made:
        index.close()
    assert not machine.files.open_files


def real(offset: int) -> bool:
    return True


def times(offset: int) -> int:
    return START_MS + 10 * offset


class TestFiles:
    def test_there_is_no_file_before_the_first_key(self, bench: Bench) -> None:
        assert bench.index.end == (0, 0)
        assert bench.query() == []
        assert not bench.folder.exists()

    def test_full_files_roll_over(self, bench: Bench) -> None:
        bench.put(1, 13)
        assert len(bench.index.files) == len(os.listdir(bench.folder)) == 3
        assert bench.query() == [100 * n for n in range(12, 0, -1)]
        assert bench.index.end_offset == 1200
        assert bench.index.end[0] == START_MS + 12_000

    def test_files_are_loaded_and_continued(self, bench: Bench) -> None:
        bench.put(1, 13)
        bench.index = bench.load()
        assert bench.query() == [100 * n for n in range(12, 0, -1)]
        bench.put(13, 15)
        assert bench.query(limit=3) == [1400, 1300, 1200]

    def test_only_the_newest_is_looked_into(self, bench: Bench, machine: Machine) -> None:
        bench.put(1, 30)
        machine.files.forget()
        bench.load()
        assert machine.files.count("open") == 1

    def test_foreign_names_are_left_alone(self, bench: Bench) -> None:
        bench.put(1, 3)
        for name in ("readme", "2026", "20269999999999999", "x" * 17):
            (bench.folder / name).write_bytes(b"x")
        assert len(bench.load().files) == 1

    @pytest.mark.parametrize("writable", [True, False])
    def test_a_writable_index_removes_an_empty_file(self, bench: Bench, writable: bool) -> None:
        bench.put(1, 3)
        empty = bench.folder / "29990101000000000"
        empty.touch()
        assert len(bench.load(writable=writable).files) == 1
        assert empty.exists() is not writable

    def test_a_bad_file_is_refused_and_nothing_stays_open(
        self, bench: Bench, machine: Machine
    ) -> None:
        bench.put(1, 13)
        bad = bench.folder / "29990101000000000"
        bad.write_bytes(b"rubbish")
        with pytest.raises(StoreDamagedError, match=r"29990101000000000.*not an index file"):
            bench.load()
        opened = [path for path in machine.files.open_files if path == bad]
        assert not opened
        bad.unlink()


class TestQuery:
    def test_a_time_range_may_span_files(self, bench: Bench) -> None:
        bench.put(1, 20)
        at = START_MS + 1000 * 7
        assert bench.query(at, at) == [700]
        assert bench.query(at, at + 3000) == [1000, 900, 800, 700]
        assert bench.query(0, START_MS + 2999) == [200, 100]
        assert bench.query(START_MS + 10**6) == []

    def test_stops_at_the_limit(self, bench: Bench, machine: Machine) -> None:
        bench.put(1, 20)
        assert bench.query(limit=2) == [1900, 1800]

    def test_a_query_sees_what_is_left_while_files_expire(self, bench: Bench) -> None:
        """A query that began before sees what is left."""
        bench.put(1, 13)
        files = bench.index.files
        bench.index.delete_expired(1100, 0)
        bench.index.files = files
        assert bench.query() == [1200, 1100]
        bench.index.files = files[2:]

    def test_an_unknown_key_or_topic_finds_nothing(self, bench: Bench) -> None:
        bench.put(1, 5)
        assert bench.index.query(KeyQuestion("T", "other", 0, 1 << 62), 9) == []
        assert bench.index.query(KeyQuestion("U", "k", 0, 1 << 62), 9) == []


class TestDiskFull:
    def test_a_full_disk_at_a_roll_leaves_no_files(self, bench: Bench, machine: Machine) -> None:
        bench.put(1, 6)
        machine.files.fill_disk()
        for _ in range(5):
            with pytest.raises(DiskFullError):
                bench.put(6, 7)
            machine.clock.advance(1000)
        assert len(os.listdir(bench.folder)) == 1, "no files are piled up"
        machine.files.heal()
        bench.put(6, 7)
        assert bench.query() == [600, 500, 400, 300, 200, 100]


class TestFlush:
    def test_a_flush_syncs_the_newest_file_and_those_filled_since(
        self, bench: Bench, machine: Machine
    ) -> None:
        bench.put(1, 13)
        machine.files.forget()
        bench.index.flush()
        assert machine.files.count("sync") == 3
        machine.files.forget()
        bench.index.flush()
        assert machine.files.count("sync") == 1

    def test_a_file_that_expired_before_the_flush_is_skipped(self, bench: Bench) -> None:
        bench.put(1, 13)
        bench.index.delete_expired(10**9, 0)
        bench.index.flush()
        assert len(bench.index.files) == 1

    def test_filled_covers_only_full_files(self, bench: Bench) -> None:
        assert bench.index.filled == (0, 0)
        bench.put(1, 4)
        assert bench.index.filled == (0, 0)
        bench.put(4, 8)
        assert bench.index.filled == (START_MS + 5000, 500)


class TestExpiry:
    def test_files_that_point_before_the_log(self, bench: Bench) -> None:
        bench.put(1, 18)
        assert bench.index.delete_expired(500, 0) == 0
        assert bench.index.delete_expired(501, 0) == 1
        assert bench.index.delete_expired(10**9, 0) == 2, "never the last"
        assert bench.query() == [1700, 1600]
        assert len(os.listdir(bench.folder)) == 1

    def test_expired_files_wait_for_readers(self, bench: Bench) -> None:
        bench.put(1, 13)
        held = bench.index.files[0].segment.view[:40]
        assert bench.index.delete_expired(600, 60_000) == 1
        assert len(os.listdir(bench.folder)) == 3
        assert held[0] == 0
        del held
        bench.index.delete_expired(600, 60_000)
        assert len(os.listdir(bench.folder)) == 2

    def test_close_removes_them_at_last(self, bench: Bench) -> None:
        bench.put(1, 13)
        held = bench.index.files[0].segment.view[:40]
        bench.index.delete_expired(600, 60_000)
        bench.index.close()
        assert len(os.listdir(bench.folder)) == 2
        assert held[0] == 0


class TestCut:
    def cut(self, bench: Bench, log_end: int, *, trusted: bool) -> int:
        plan = bench.index.plan_cut(log_end, trusted, real)
        bench.index.cut(plan, times)
        return plan.resume

    def test_planning_changes_nothing(self, bench: Bench) -> None:
        bench.put(1, 13)
        bench.index.plan_cut(600, False, real)
        assert len(bench.query()) == 12
        assert len(bench.index.files) == 3

    @pytest.mark.parametrize(
        ("log_end", "files", "kept"), [(1250, 3, 12), (1150, 3, 11), (1100, 2, 10), (350, 1, 3)]
    )
    def test_a_trusted_cut_keeps_what_was_synced(
        self, bench: Bench, log_end: int, files: int, kept: int
    ) -> None:
        bench.put(1, 13)
        assert self.cut(bench, log_end, trusted=True) == log_end
        assert len(bench.index.files) == len(os.listdir(bench.folder)) == files
        assert bench.query() == [100 * n for n in range(kept, 0, -1)]
        assert bench.index.end_offset == 100 * kept
        assert bench.index.end[0] == START_MS + 1000 * kept
        bench.put(kept + 1, 14)
        assert bench.query() == [100 * n for n in range(13, 0, -1)]

    @pytest.mark.parametrize(("log_end", "resume"), [(1 << 62, 1200), (1250, 1200), (1050, 1000)])
    def test_an_untrusted_cut_drops_the_last_record(
        self, bench: Bench, log_end: int, resume: int
    ) -> None:
        """Some of its keys may be missing; it is indexed again, once."""
        bench.put(1, 13)
        assert self.cut(bench, log_end, trusted=False) == resume
        bench.put(resume // 100, 13)
        assert bench.query() == [100 * n for n in range(12, 0, -1)]

    def test_entries_without_a_record_are_cut(self, bench: Bench) -> None:
        bench.put(1, 5)
        plan = bench.index.plan_cut(1 << 62, True, lambda offset: offset < 300)
        assert (plan.files, plan.keep) == (1, 2)

    @pytest.mark.parametrize("trusted", [True, False])
    def test_a_cut_before_all_entries_keeps_one_file(self, bench: Bench, trusted: bool) -> None:
        bench.put(1, 13)
        assert self.cut(bench, 50, trusted=trusted) == (50 if trusted else 0)
        assert bench.query() == []
        assert len(os.listdir(bench.folder)) == 1
        bench.put(1, 3)
        assert bench.query() == [200, 100]

    def test_a_cut_of_an_empty_index(self, bench: Bench) -> None:
        assert self.cut(bench, 1000, trusted=True) == 1000
        assert self.cut(bench, 1000, trusted=False) == 0
