"""A log in several folders: Java and Firetrail continue each other's, and place files alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from interop import commands, ours
from interop.messages import STORE_V4, plain, stored_by
from interop.peer import SMALL, Java
from interop.test_feature_handovers import OWNERS, sizes_of
from interop.views import java_queues, queues_of

from firetrail import Store
from firetrail.format.names import LOG_PATHS, segment_name

COUNT = 60
"""Messages that fill about three files."""


def files(*folders: Path) -> list[list[int]]:
    """Return the numbers of the files in each folder."""
    return [sorted(int(name) // SMALL.log for name in os.listdir(folder)) for folder in folders]


def in_turn(folders: int, count: int) -> list[list[int]]:
    """Return the numbers that each folder has if files are created in them in turn."""
    return [list(range(folder, count, folders)) for folder in range(folders)]


def some(first: int, count: int = COUNT) -> list[dict[str, object]]:
    return stored_by(STORE_V4, [plain(number) for number in range(first, first + count)])


def check(root: Path, messages: int) -> None:
    """Check what Firetrail finds, without changing the store."""
    commands.check_clean(root, messages)
    with Store.open(root) as store:
        found = sizes_of(queues_of(store))
    assert sum(found.values()) == messages


@pytest.mark.parametrize(("line", "killed"), OWNERS)
def test_files_are_handed_over_in_both_directions(line: str, killed: bool, tmp_path: Path) -> None:
    root, disks = tmp_path / "store", [tmp_path / "d1", tmp_path / "d2", tmp_path / "d3"]
    java = Java(line)
    options = ["--log-paths", ",".join(map(str, disks))]
    java.session(root, some(0), sizes=SMALL, options=options, kill=killed)
    made = sum(map(len, files(*disks)))
    assert files(*disks) == in_turn(3, made) and made >= 3
    assert not (root / "commitlog").exists()

    (root / LOG_PATHS).write_text(f"storePathCommitLog={','.join(map(str, disks))}\n")
    check(root, COUNT)
    ours.write(root, some(COUNT), sizes=SMALL, kill=killed)
    made = sum(map(len, files(*disks)))
    assert files(*disks) == in_turn(3, made)

    before, _, after = java.session(
        root, "read", some(2 * COUNT), "read", sizes=SMALL, options=options, kill=killed
    )
    assert sum(sizes_of(java_queues(before)).values()) == 2 * COUNT
    assert sum(sizes_of(java_queues(after)).values()) == 3 * COUNT
    made = sum(map(len, files(*disks)))
    assert files(*disks) == in_turn(3, made)
    check(root, 3 * COUNT)


@pytest.mark.parametrize(("line", "killed"), OWNERS[:2])
def test_from_one_folder_to_several_and_back(line: str, killed: bool, tmp_path: Path) -> None:
    """Java begins with one folder, Firetrail adds one, Java stops using the first one."""
    root, more, java = tmp_path / "store", tmp_path / "more", Java(line)
    own = root / "commitlog"
    more.mkdir()
    java.session(root, some(0), sizes=SMALL, kill=killed)
    (root / LOG_PATHS).write_text(f"storePathCommitLog=commitlog,{more}\n")
    ours.write(root, some(COUNT), sizes=SMALL, kill=killed)
    assert files(more)[0]

    # Java reads read-only folders only if storePathCommitLog has a comma.
    options = ["--log-paths", f"{own},{more}", "--read-only-paths", str(own)]
    before, _, after = java.session(
        root, "read", some(2 * COUNT), "read", sizes=SMALL, options=options, kill=killed
    )
    assert sum(sizes_of(java_queues(before)).values()) == 2 * COUNT
    assert sum(sizes_of(java_queues(after)).values()) == 3 * COUNT
    for number in files(own)[0]:
        name = segment_name(number * SMALL.log)
        (own / name).rename(more / name)
    (root / LOG_PATHS).write_text(f"storePathCommitLog={more}\n")
    check(root, 3 * COUNT)
    (answers,) = java.session(
        root, "read", sizes=SMALL, options=["--log-paths", str(more)], kill=killed
    )
    assert sum(sizes_of(java_queues(answers)).values()) == 3 * COUNT
