"""Segments in several folders: where new files go, and how existing ones are found."""

import errno
import os
from pathlib import Path

import pytest
from tests.helpers import Machine

from firetrail.errors import DiskFullError, StoreDamagedError
from firetrail.format.names import segment_name
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.storage.spread import Spread

SIZE = 4096


class Disks(Machine):
    """A machine on which each folder is a disk, with a used part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[str, float] = {}
        self.files.used_ratio = lambda path: self.used.get(path.name, 0.1)  # type: ignore[method-assign]


def queue_in(
    disks: Machine, below: Path, writable: str, read_only: str = "", full: float = 0.85
) -> SegmentQueue:
    spread = Spread(
        disks.files,
        tuple(below / name for name in writable),
        tuple(below / name for name in read_only),
        lambda: full,
    )
    for folder in spread.folders:
        folder.mkdir(exist_ok=True)
    return SegmentQueue(disks.system, below / "commitlog", SIZE, spread=spread)


def roll(queue: SegmentQueue, count: int = 1) -> str:
    """Create files, and return the folders that they are in."""
    made = [queue.roll() for _ in range(count)]
    for segment in made:
        segment.view[:8] = b"a record"
        segment.wrote_to(SIZE)
    return "".join(segment.path.parent.name for segment in made)


def where(queue: SegmentQueue) -> str:
    return "".join(segment.path.parent.name for segment in queue.segments)


@pytest.fixture
def disks() -> Disks:
    return Disks()


def test_files_go_to_the_sorted_folders_in_turn(disks: Disks, tmp_path: Path) -> None:
    assert roll(queue_in(disks, tmp_path, "cab"), 7) == "abcabca"


def test_the_number_of_the_file_decides_and_not_the_previous_folder(
    disks: Disks, tmp_path: Path
) -> None:
    assert roll(queue_in(disks, tmp_path, "ab"), 3) == "aba"
    again = queue_in(disks, tmp_path, "abc")
    again.load()
    assert where(again) == "aba"
    assert roll(again, 4) == "abca"  # 3 % 3, 4 % 3, …


def test_folders_are_sorted_as_text(disks: Disks, tmp_path: Path) -> None:
    """As paths, ``d/x`` would come before ``d-1``; Java compares them as text."""
    folders = (tmp_path / "d" / "x", tmp_path / "d-1")
    spread = Spread(disks.files, folders)
    assert next(spread.places(0, SIZE)).parent == tmp_path / "d-1"


def test_read_only_folders_get_no_new_files(disks: Disks, tmp_path: Path) -> None:
    assert roll(queue_in(disks, tmp_path, "abc"), 3) == "abc"
    again = queue_in(disks, tmp_path, "ab", read_only="bc")
    again.load()
    assert where(again) == "abc"
    assert roll(again, 3) == "aaa"


def test_full_disks_are_left_out_until_they_have_room(disks: Disks, tmp_path: Path) -> None:
    queue = queue_in(disks, tmp_path, "abc")
    disks.used["b"] = 0.86
    assert roll(queue, 4) == "acac"
    disks.used["b"] = 0.85
    assert roll(queue, 3) == "bca"


def test_if_all_disks_are_full_all_are_used(disks: Disks, tmp_path: Path) -> None:
    queue = queue_in(disks, tmp_path, "ab")
    disks.used = {"a": 0.99, "b": 0.99}
    assert roll(queue, 3) == "aba"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_folder_that_cannot_hold_a_file_is_skipped(
    disks: Disks, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    queue = queue_in(disks, tmp_path, "ab")
    disks.files.fail("open", code, name="a/")
    assert roll(queue, 3) == "bbb"
    assert os.listdir(tmp_path / "a") == []
    assert f"no new log file in {tmp_path / 'a' / segment_name(0)}" in caplog.text


def test_an_error_remains_if_no_folder_can_hold_a_file(disks: Disks, tmp_path: Path) -> None:
    queue = queue_in(disks, tmp_path, "ab")
    disks.files.fill_disk()
    with pytest.raises(DiskFullError, match=f"a/{segment_name(0)}: no space"):
        queue.roll()


def test_the_emptiest_writable_disk_counts(disks: Disks, tmp_path: Path) -> None:
    queue = queue_in(disks, tmp_path, "ab", read_only="c")
    disks.used = {"a": 0.9, "b": 0.7, "c": 0.0}
    assert queue.spread is not None
    assert queue.spread.used_ratio() == 0.7


def test_the_same_file_in_two_folders_is_refused(disks: Disks, tmp_path: Path) -> None:
    roll(queue_in(disks, tmp_path, "ab"), 2)
    (tmp_path / "b" / segment_name(0)).write_bytes(b"x" * SIZE)
    with pytest.raises(StoreDamagedError, match=r"a/0+ has the same name.*compare them with cmp"):
        queue_in(disks, tmp_path, "ab").load()


@pytest.mark.parametrize("unused", ["a", "b"])
def test_an_unused_second_file_is_removed(disks: Disks, tmp_path: Path, unused: str) -> None:
    """Java leaves one that it created in advance in a folder that is full since then."""
    used = "ab".replace(unused, "")
    roll(queue_in(disks, tmp_path, used), 2)
    queue_in(disks, tmp_path, "ab")
    (tmp_path / unused / segment_name(SIZE)).write_bytes(bytes(SIZE))
    again = queue_in(disks, tmp_path, "ab")
    again.load()
    assert where(again) == used * 2
    assert os.listdir(tmp_path / unused) == []


def test_a_gap_names_the_file_that_is_missing(disks: Disks, tmp_path: Path) -> None:
    roll(queue_in(disks, tmp_path, "ab"), 3)
    (tmp_path / "b" / segment_name(SIZE)).unlink()
    with pytest.raises(StoreDamagedError, match=f"{segment_name(SIZE)} before it is missing"):
        queue_in(disks, tmp_path, "ab").load()


def test_truncation_removes_files_from_all_folders(disks: Disks, tmp_path: Path) -> None:
    queue = queue_in(disks, tmp_path, "ab")
    roll(queue, 4)
    queue.truncate(SIZE + 100)
    assert where(queue) == "ab"
    assert sorted(os.listdir(tmp_path / "a") + os.listdir(tmp_path / "b")) == [
        segment_name(0),
        segment_name(SIZE),
    ]
