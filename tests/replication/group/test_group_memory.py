"""The file in which a member keeps what it has seen of its group."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.crash.world.disk import PAGE, Disk, SimulatedFiles, Snapshot, every_image, write_image
from tests.crash.world.simulation import scratch
from tests.crash.world.threads import World

from firetrail.errors import StoreError
from firetrail.replication.group.group_memory import NOTHING_SEEN, GroupMemory, MemberFile
from firetrail.system import SYSTEM

SEEN = GroupMemory("ab", 3, 1001, ["a", "b"], 0, [1, 2], 7, [1, 2, 3])


def test_a_new_store_gets_an_identity_and_has_seen_nothing(tmp_path: Path) -> None:
    file = MemberFile(SYSTEM, tmp_path)
    assert (file.identity, file.memory) == ("", NOTHING_SEEN)
    file.create()
    again = MemberFile(SYSTEM, tmp_path)
    assert again.identity == file.identity != ""
    assert again.memory == NOTHING_SEEN


def test_what_was_seen_survives(tmp_path: Path) -> None:
    file = MemberFile(SYSTEM, tmp_path)
    file.create()
    file.remember(SEEN)
    again = MemberFile(SYSTEM, tmp_path)
    assert (again.identity, again.memory) == (file.identity, SEEN)


def test_the_backup_of_the_file_is_not_older(tmp_path: Path) -> None:
    file = MemberFile(SYSTEM, tmp_path)
    file.create()
    file.remember(SEEN)
    (tmp_path / "config" / "firetrailMember.json").unlink()
    assert MemberFile(SYSTEM, tmp_path).memory == SEEN


def test_a_file_of_an_earlier_release_does_not_say_what_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "config" / "firetrailMember.json"
    path.parent.mkdir()
    path.write_text('{"identity":"0123456789abcdef"}')
    file = MemberFile(SYSTEM, tmp_path)
    assert (file.identity, file.memory) == ("0123456789abcdef", None)
    file.create()
    assert file.memory is None
    file.remember(SEEN)
    assert MemberFile(SYSTEM, tmp_path).memory == SEEN


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config" / "firetrailMember.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(StoreError, match=r"firetrailMember\.json"):
        MemberFile(SYSTEM, tmp_path)


def test_power_loss_leaves_what_was_seen_before_or_after() -> None:
    """Every image at every operation of a life of the file."""
    with scratch() as below:
        root = below / "live"
        root.mkdir()
        MemberFile(SYSTEM, root).create()
        disk = Disk(root)
        files = SimulatedFiles(disk, World(1))
        snapshots: list[tuple[Snapshot, list[GroupMemory]]] = []
        allowed = [NOTHING_SEEN]
        files.hooks.append(
            lambda kind, name: snapshots.append((disk.snapshot(f"{kind} {name}"), allowed[-2:]))
        )
        file = MemberFile(files.system(), root)
        for version in (3, 4):
            allowed.append(replace(SEEN, version=version))
            file.remember(allowed[-1])
        assert len(snapshots) > 10
        for snapshot, memories in snapshots:
            for how, image in every_image(snapshot, PAGE):
                write_image(image, below / "image")
                found = MemberFile(SYSTEM, below / "image")
                assert found.memory in memories, f"before {snapshot.label}, {how}"
                assert found.identity == file.identity
                shutil.rmtree(below / "image")


def test_the_names_of_the_file_stay() -> None:
    memory = GroupMemory(may_truncate=True, decision_members=[2], was_excluded=True)
    found = memory.to_json()
    assert (found["mayCut"], found["asked"], found["leftOut"]) == (True, [2], True)
    assert GroupMemory.from_json(found) == memory
