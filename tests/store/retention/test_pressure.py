"""Retention while the disk is nearly full: unexpired files go, but no more than necessary."""

from pathlib import Path

import pytest
from tests.helpers import Machine
from tests.store.conftest import OpenStore
from tests.store.retention.test_retention import HOUR_MS, age, filled, round_of, segments

from firetrail.store.store import Store


@pytest.fixture
def full(open_store: OpenStore) -> Store:
    """A store with eight log files, all of it on disk; not the hour of deletion."""
    return filled(open_store)


class Disk:
    """A small disk with the log and files of others, instead of that of the test machine.

    Files that a thread creates in advance are not on it: nobody knows when it does so.
    """

    def __init__(self, store: Store, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = store._engine.log.queue
        self._log = queue.folder
        self._last = queue.segments[-1].base
        self.capacity = 10 * 4096
        self.others = 0
        self.removed_but_used = 0
        monkeypatch.setattr(machine.files, "used_ratio", lambda path: self.used / self.capacity)
        monkeypatch.setattr(machine.files, "disk_space", lambda path: (self.capacity, 0))

    @property
    def used(self) -> int:
        files = (path for path in self._log.iterdir() if path.name.isdigit())
        log = sum(path.stat().st_size for path in files if int(path.name) <= self._last)
        return log + self.others + self.removed_but_used

    def fill(self, ratio: float) -> None:
        self.others = round(ratio * self.capacity) - self.used + self.others


@pytest.fixture
def disk(full: Store, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk of which each log file takes a tenth."""
    return Disk(full, machine, monkeypatch)


class TestPressure:
    """While the disk is nearly full, unexpired files go, but no more than necessary."""

    def test_no_more_files_go_than_necessary(self, full: Store, disk: Disk, root: Path) -> None:
        disk.fill(0.99)
        assert round_of(full) == 2
        assert segments(root)[0] == 2
        assert disk.used / disk.capacity == pytest.approx(0.79, abs=0.001)
        assert not full.refusal, "puts are accepted at once, not after the next round"
        assert round_of(full) == 0

    def test_one_file_goes_if_that_is_enough(self, full: Store, disk: Disk) -> None:
        disk.fill(0.86)
        assert round_of(full) == 1

    def test_space_that_readers_keep_counts_as_free(
        self, full: Store, disk: Disk, machine: Machine
    ) -> None:
        held = full._engine.log.queue.segments[0].view[:10]
        disk.fill(0.88)
        assert round_of(full) == 1
        assert round_of(full) == 0, "the file is deleted when its reader is done"
        assert disk.used / disk.capacity == pytest.approx(0.88, abs=0.001)
        held.release()
        assert round_of(full) == 0
        assert disk.used / disk.capacity == pytest.approx(0.78, abs=0.001)

    def test_space_that_the_file_system_frees_late(
        self, full: Store, disk: Disk, machine: Machine
    ) -> None:
        disk.fill(0.88)
        before = len(full._engine.log.queue.segments)
        remove = machine.files.remove

        def removed_later(path: Path) -> None:
            remove(path)
            disk.removed_but_used += 4096 if path.parent.name == "commitlog" else 0

        machine.files.remove = removed_later  # type: ignore[method-assign]
        assert round_of(full) == 1
        machine.clock.advance(30_000)
        assert round_of(full) == 0
        disk.removed_but_used = 0
        assert round_of(full) == 0
        assert len(full._engine.log.queue.segments) == before - 1

    def test_space_that_never_comes_is_not_counted_on_for_long(
        self, full: Store, disk: Disk, machine: Machine
    ) -> None:
        """Another process has the file open, or the disk fills as fast as it is cleaned."""
        held = full._engine.log.queue.segments[0].view[:10]
        disk.fill(0.88)
        assert round_of(full) == 1
        machine.clock.advance(120_000)  # then the file goes although it has a reader
        disk.others += 4096
        assert round_of(full) == 0
        machine.clock.advance(60_000)
        assert round_of(full) == 1
        held.release()

    def test_expired_files_that_a_replica_needs_stay_when_there_is_room_again(
        self, full: Store, disk: Disk, root: Path
    ) -> None:
        age(full, *[80 * HOUR_MS] * 8)
        full._engine.acks.note("a", 0)
        disk.fill(0.90)
        assert round_of(full) == 1
        assert segments(root)[0] == 1
