"""Files whose names are made durable later."""

import errno
import threading
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, Machine

from firetrail.storage.new_files import NewFiles
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.system import SyncError

SIZE = 4096


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def new(machine: Machine) -> NewFiles:
    return NewFiles(machine.system)


def queue(machine: Machine, new: NewFiles, folder: Path) -> SegmentQueue:
    return SegmentQueue(machine.system, folder, SIZE, new_files=new)


def synced(machine: Machine) -> list[Path]:
    """Return what was synced since the last call, in order."""
    found = [call.path for call in machine.files.calls if call.operation.startswith("sync")]
    machine.files.forget()
    return found


def test_nothing_is_synced_before_it_is_asked_for(
    machine: Machine, new: NewFiles, tmp_path: Path
) -> None:
    made = [queue(machine, new, tmp_path / "t" / name) for name in "ab"]
    first = [files.roll() for files in made]
    assert synced(machine) == []
    new.sync()
    done = synced(machine)
    paths = {segment.path for segment in first}
    assert set(done[:2]) == paths  # the lengths before the names
    assert sorted(done[2:]) == [tmp_path, tmp_path / "t", tmp_path / "t/a", tmp_path / "t/b"]
    new.sync()
    assert synced(machine) == []


def test_the_oldest_are_synced_first(machine: Machine, new: NewFiles, tmp_path: Path) -> None:
    """So that a stop finds few that are left, however many were created."""
    made = [queue(machine, new, tmp_path / "cq" / "t" / name).roll() for name in "abc"]
    new.sync_oldest(2)
    done = synced(machine)
    assert done[:2] == [segment.path for segment in made[:2]]  # the lengths before the names
    topic = tmp_path / "cq" / "t"
    assert sorted(done[2:]) == [tmp_path / "cq", topic, topic / "a", topic / "b"]
    new.sync()
    assert synced(machine) == [made[2].path, tmp_path, topic / "c"]


def test_the_oldest_stay_if_the_time_is_over(
    machine: Machine, new: NewFiles, tmp_path: Path
) -> None:
    segment = queue(machine, new, tmp_path / "a").roll()
    assert not new.sync_oldest(2, lambda: True)
    assert synced(machine) == []
    assert new.sync_oldest(2)
    assert synced(machine)[0] == segment.path


def test_a_file_that_was_synced_meanwhile_is_not_synced_again(
    machine: Machine, new: NewFiles, tmp_path: Path
) -> None:
    segment = queue(machine, new, tmp_path).roll()
    segment.view[:1] = b"x"
    segment.wrote_to(1)
    segment.flush()
    synced(machine)
    new.sync()
    assert synced(machine) == [tmp_path]


def test_the_second_file_is_made_behind_a_durable_first(
    machine: Machine, new: NewFiles, tmp_path: Path
) -> None:
    files = queue(machine, new, tmp_path / "q")
    first = files.roll()
    first.wrote_to(SIZE)
    second = files.roll()
    assert synced(machine) == [first.path, first.path.parent, second.path, second.path.parent]
    new.sync()
    assert synced(machine) == [tmp_path]


def test_what_was_removed_meanwhile_is_left_out(
    machine: Machine, new: NewFiles, tmp_path: Path
) -> None:
    files = queue(machine, new, tmp_path / "q")
    files.roll()
    files.destroy()
    synced(machine)
    new.sync()
    assert synced(machine) == [tmp_path, tmp_path / "q"]


def test_a_failed_sync_names_the_folder(machine: Machine, new: NewFiles, tmp_path: Path) -> None:
    queue(machine, new, tmp_path / "q").roll()
    machine.files.fail("sync_folder", errno.EIO)
    with pytest.raises(SyncError, match=str(tmp_path)):
        new.sync()


def test_without_a_descriptor_all_of_it_is_synced_the_next_time(
    machine: Machine, new: NewFiles, tmp_path: Path
) -> None:
    queue(machine, new, tmp_path / "q").roll().wrote_to(1)
    machine.files.fail("sync_folder", errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        new.sync()
    machine.files.heal()
    synced(machine)
    new.sync()
    assert sorted(synced(machine)) == [tmp_path, tmp_path / "q"]


def test_a_file_that_is_being_settled_is_waited_for(
    machine: Machine, new: NewFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that had synced the rest took its name for durable, too."""
    files = queue(machine, new, tmp_path / "q")
    files.roll().wrote_to(SIZE)
    begun, go_on = threading.Event(), threading.Event()
    sync_folder = machine.files.sync_folder

    def slow(path: Path) -> None:
        if path == tmp_path / "q":
            begun.set()
            assert go_on.wait(PATIENCE_S)
        sync_folder(path)

    monkeypatch.setattr(machine.files, "sync_folder", slow)
    rolling, syncing = threading.Thread(target=files.roll), threading.Thread(target=new.sync)
    rolling.start()
    assert begun.wait(PATIENCE_S)
    syncing.start()
    syncing.join(0.1)
    assert syncing.is_alive()
    go_on.set()
    for thread in (rolling, syncing):
        thread.join()
    assert len(files.segments) == 2
