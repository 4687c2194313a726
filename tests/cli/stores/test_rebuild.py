"""``firetrail rebuild``: queues and index of a store, somewhere else."""

from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail
from tests.stores import CLEAN, CRASHED, copy_of, flip, records, state

from firetrail.format.names import CONSUME_QUEUE, INDEX


@pytest.mark.parametrize("name", CLEAN)
def test_files_equal_those_of_java(name: str, tmp_path: Path, firetrail: Firetrail) -> None:
    root = copy_of(name, tmp_path)
    before = state(root)
    result = firetrail("rebuild", root, "--into", tmp_path / "new", "--json")
    assert result.code == 0
    assert result.json["messages"] == len(records(root))
    for queue in (root / CONSUME_QUEUE).rglob("0*"):
        if queue.is_file() and any(queue.read_bytes()):
            assert (tmp_path / "new" / queue.relative_to(root)).read_bytes() == queue.read_bytes()
    made = [path.read_bytes() for path in sorted((tmp_path / "new" / INDEX).iterdir())]
    assert made == [path.read_bytes() for path in sorted((root / INDEX).iterdir())]
    assert state(root) == before


@pytest.mark.parametrize("name", CRASHED)
def test_a_crashed_store_is_rebuilt_from_every_record(
    name: str, tmp_path: Path, firetrail: Firetrail
) -> None:
    root = copy_of(name, tmp_path)
    result = firetrail("rebuild", root, "--into", tmp_path / "new", "--json")
    assert result.code == 0
    assert result.json["messages"] == len(records(root))


def test_the_summary_counts_queues_files_and_messages(tmp_path: Path, firetrail: Firetrail) -> None:
    root = copy_of("v4-clean", tmp_path)
    result = firetrail("rebuild", root, "--into", tmp_path / "new")
    assert result.out == f"{tmp_path / 'new'}: 7 queues and 1 index file of 21 messages\n"


@pytest.mark.parametrize("damage", ["record", "file", "short"])
def test_a_damaged_log(damage: str, tmp_path: Path, firetrail: Firetrail) -> None:
    root = copy_of("v4-rolled", tmp_path)
    second = root / "commitlog" / f"{8192:020}"
    if damage == "record":
        flip(second, 4)
    elif damage == "file":
        second.unlink()
    else:
        second.write_bytes(second.read_bytes()[:1000])
    result = firetrail("rebuild", root, "--into", tmp_path / "new")
    assert result.code == 1
    assert "no good record here" in result.err and "firetrail fsck" in result.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("inside", ["", "new", "consumequeue"])
def test_a_target_inside_the_store_is_refused(
    inside: str, tmp_path: Path, firetrail: Firetrail
) -> None:
    root = copy_of("v4-clean", tmp_path)
    before = state(root)
    result = firetrail("rebuild", root, "--into", root / inside)
    assert result.code == 2
    assert "inside the store" in result.err
    assert state(root) == before


def test_a_folder_without_a_log_is_refused(tmp_path: Path, firetrail: Firetrail) -> None:
    assert firetrail("rebuild", tmp_path, "--into", tmp_path.parent / "other").code == 2
