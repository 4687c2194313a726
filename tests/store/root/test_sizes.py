"""File sizes taken from the files of a store."""

import os
from pathlib import Path

import pytest
from tests.helpers import Machine, put_all, small_config
from tests.store.conftest import OpenStore

from firetrail import Store, StoreConfig
from firetrail.errors import SegmentSizeError
from firetrail.format.names import segment_name
from firetrail.store.root.sizes import adopt_sizes

pytestmark = pytest.mark.stepped_threads


def adopted(machine: Machine, root: Path) -> StoreConfig:
    return adopt_sizes(machine.system, root, StoreConfig())


def test_an_empty_folder_leaves_the_settings(machine: Machine, tmp_path: Path) -> None:
    config = StoreConfig()
    assert adopt_sizes(machine.system, tmp_path, config) is config
    assert adopt_sizes(machine.system, tmp_path / "missing", config) is config


def test_all_sizes_are_found(open_store: OpenStore, machine: Machine, root: Path) -> None:
    store = open_store(log=5000, units=7, slots=3, entries=11)
    put_all(store, [b"x"], keys=["k"])
    store.close()
    config = adopted(machine, root)
    assert config.commit_log_file_size == 5000
    assert config.consume_queue_file_size == 140
    assert (config.index_slots, config.index_entries) == (3, 11)
    assert config.max_message_size < 5000
    assert not machine.files.open_files


def test_a_store_keeps_its_own_sizes(open_store: OpenStore, root: Path) -> None:
    store = open_store(log=5000, units=7, slots=3, entries=11)
    put_all(store, [b"x" * 1000] * 4, keys=["k"])
    store.close()
    again = open_store(log=1 << 20, units=1000, slots=50, entries=500)
    put_all(again, [b"x" * 1000] * 20, keys=["k"])
    assert again.config.commit_log_file_size == 5000
    sizes = {path.stat().st_size for path in (root / "commitlog").iterdir()}
    assert sizes == {5000}
    assert {path.stat().st_size for path in (root / "consumequeue/T/0").iterdir()} == {140}


def test_foreign_names_do_not_count(machine: Machine, root: Path, store: Store) -> None:
    put_all(store, [b"x"], keys=["k"])
    store.close()
    for folder in ("commitlog", "consumequeue", "consumequeue/T", "consumequeue/T/0", "index"):
        (root / folder / "0-note").write_bytes(b"xyz")
    config = adopted(machine, root)
    assert config.commit_log_file_size == 4096
    assert config.consume_queue_file_size == 200
    assert config.index_slots == 16


def test_files_of_no_bytes_do_not_count(machine: Machine, root: Path) -> None:
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / segment_name(0)).touch()
    (root / "index").mkdir()
    (root / "index" / "20260101000000000").touch()
    assert adopted(machine, root) == StoreConfig()


@pytest.mark.parametrize("size", [1, 100, 255])
def test_a_log_file_too_short_for_any_store(
    open_store: OpenStore, root: Path, machine: Machine, size: int
) -> None:
    store = open_store()
    put_all(store, [b"x"])
    store.close()
    os.truncate(root / "commitlog" / segment_name(0), size)
    with pytest.raises(SegmentSizeError, match=r"no store has files of this size.*\b" + str(size)):
        Store.open(root, small_config(), system=machine.system)


def test_a_truncated_queue_file_does_not_decide(
    open_store: OpenStore, root: Path, machine: Machine
) -> None:
    store = open_store()
    put_all(store, [b"x"], topic="A")
    put_all(store, [b"x"], topic="B")
    store.close()
    os.truncate(root / "consumequeue/A/0" / segment_name(0), 33)
    assert adopted(machine, root).consume_queue_file_size == 200
    again = open_store()
    assert again.recovery.restored_queues == 1
    assert [message.body for message in again.read("A")] == [b"x"]


def test_an_index_file_without_geometry_is_skipped(
    open_store: OpenStore, root: Path, machine: Machine
) -> None:
    (root / "index").mkdir(parents=True)
    (root / "index" / "20260101000000000").write_bytes(b"rubbish")
    assert adopted(machine, root) == StoreConfig()
    assert not machine.files.open_files
