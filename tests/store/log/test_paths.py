"""The folders of a log: recorded ones, refused ones, and their owners."""

import os
from pathlib import Path

import pytest
from tests.helpers import small_config

from firetrail import Message, Store, StoreConfig
from firetrail.errors import (
    ConfigError,
    NotAStoreError,
    StoreDamagedError,
    StoreError,
    StoreLockedError,
)
from firetrail.format.names import LOG_PATHS, segment_name
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.paths import LogPaths, recorded_paths
from firetrail.system import SYSTEM

BODY = bytes(1000)


def config(*folders: Path | str, read_only: tuple[Path | str, ...] = ()) -> StoreConfig:
    return small_config(
        commit_log_paths=tuple(map(str, folders)), read_only_log_paths=tuple(map(str, read_only))
    )


def put(root: Path, settings: StoreConfig, count: int = 12) -> int:
    """Put messages that fill a few files; return how many there are in all."""
    with Store.open(root, settings) as store:
        for _ in range(count):
            store.put(Message("T", BODY))
        return len(list(store.read("T", 0)))


def listed(*folders: Path) -> list[list[int]]:
    return [sorted(int(name) for name in os.listdir(folder)) for folder in folders]


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A store's folder and two folders elsewhere, none of which exists."""
    return tmp_path / "store", tmp_path / "d1", tmp_path / "d2"


def test_an_ordinary_store_records_nothing(tmp_path: Path) -> None:
    put(tmp_path / "store", small_config())
    assert not (tmp_path / "store" / LOG_PATHS).exists()
    assert recorded_paths(SYSTEM.files, tmp_path / "store") is None


def test_the_folders_are_recorded_and_used_without_settings(disks: tuple[Path, ...]) -> None:
    root, one, two = disks
    assert put(root, config(one, two)) == 12
    assert listed(one, two) == [[0, 8192], [4096, 12288]]
    assert not (root / "commitlog").exists()
    content = (root / LOG_PATHS).read_text()
    assert content == f"storePathCommitLog={one},{two}\nstore={root}\n"
    assert recorded_paths(SYSTEM.files, root) == LogPaths((one, two))
    assert put(root, small_config()) == 24
    assert listed(one, two) == [[0, 8192, 16384, 24576], [4096, 12288, 20480, 28672]]
    with StoreView.open(root) as view:
        assert view.reader.get("T", 0, 20, 100).next_offset == 24


def test_from_one_folder_to_several_and_back(disks: tuple[Path, ...]) -> None:
    root, one, two = disks
    put(root, small_config())
    one.mkdir()
    two.mkdir()
    assert put(root, config("commitlog", one, two)) == 24
    # Sorted: d1, d2, store/commitlog. File 4 goes to d2 (4 % 3 = 1), file 5 to commitlog, …
    assert listed(one, two) == [[24576], [16384, 28672]]
    assert listed(root / "commitlog") == [[0, 4096, 8192, 12288, 20480]]
    # Back to one folder, step by step: no new files in the others, then they are moved.
    assert put(root, config("commitlog", read_only=(one, two))) == 36
    assert listed(one, two) == [[24576], [16384, 28672]]
    for folder in (one, two):
        for name in os.listdir(folder):
            (folder / name).rename(root / "commitlog" / name)
    assert put(root, config("commitlog"), 1) == 37
    assert not (root / LOG_PATHS).exists()
    assert put(root, small_config(), 1) == 38


def test_a_folder_with_log_files_cannot_be_left_out(disks: tuple[Path, ...]) -> None:
    root, one, two = disks
    put(root, config(one, two))
    with pytest.raises(StoreError, match=f"{two}: has files of the log, but is not in storePath"):
        Store.open(root, config(one))
    assert put(root, config(one, read_only=(two,)), 1) == 13


def test_the_own_folder_of_a_store_cannot_be_left_out(disks: tuple[Path, ...]) -> None:
    root, one, _ = disks
    put(root, small_config())
    one.mkdir()
    with pytest.raises(StoreError, match="commitlog: has files of the log, but is not in"):
        Store.open(root, config(one))


def test_a_folder_that_is_missing_is_not_created(disks: tuple[Path, ...]) -> None:
    root, one, two = disks
    put(root, config(one, two), 1)
    two.rename(two.with_name("gone"))
    for settings in (config(one, two), small_config()):
        with pytest.raises(StoreDamagedError, match=r"d2.*does not exist.*mount its volume"):
            Store.open(root, settings)
    assert not two.exists()


def test_an_unmounted_disk_is_noticed(disks: tuple[Path, ...]) -> None:
    """Its folder is there but empty: in the middle of the log, or at its beginning."""
    root, one, two = disks
    put(root, config(one, two), 6)
    assert listed(one, two) == [[0], [4096]]
    for folder in (one, two):
        folder.rename(folder.with_name("elsewhere"))
        folder.mkdir()
        with pytest.raises(StoreDamagedError, match=r"d1.*folder of it is empty|4096 is missing"):
            Store.open(root, config(one, two))
        folder.rmdir()
        folder.with_name("elsewhere").rename(folder)
    assert put(root, config(one, two), 1) == 7


def test_new_files_need_a_folder(disks: tuple[Path, ...]) -> None:
    root, one, _ = disks
    with pytest.raises(ConfigError, match="leaves no folder of storePathCommitLog for new files"):
        Store.open(root, config(one, read_only=(one,)))


def test_one_folder_under_two_names_is_refused(disks: tuple[Path, ...], tmp_path: Path) -> None:
    root, one, _ = disks
    one.mkdir()
    (tmp_path / "link").symlink_to(one)
    with pytest.raises(ConfigError, match="names one folder twice"):
        Store.open(root, config(one, tmp_path / "link"))


def test_two_stores_cannot_share_a_folder(disks: tuple[Path, ...], tmp_path: Path) -> None:
    root, one, two = disks
    with Store.open(root, config(one, two)):
        with pytest.raises(StoreLockedError, match=f"{two}: another store has this folder"):
            Store.open(tmp_path / "other", config(two))
        assert os.listdir(two) == []
    Store.open(tmp_path / "third", config(two)).close()


def test_the_log_of_another_store_is_refused(disks: tuple[Path, ...], tmp_path: Path) -> None:
    root, _, _ = disks
    put(root, small_config())
    with pytest.raises(StoreError, match=f"belongs to the store {root}, not to"):
        Store.open(tmp_path / "other", config(root / "commitlog"))


def test_a_copied_store_does_not_write_the_log_of_the_original(
    disks: tuple[Path, ...], tmp_path: Path
) -> None:
    root, one, two = disks
    put(root, config(one, two))
    root.rename(tmp_path / "copy")
    with pytest.raises(StoreError, match=f"{one} belongs to the store {root}.*'firetrail backup'"):
        Store.open(tmp_path / "copy", config(one, two))
    file = tmp_path / "copy" / LOG_PATHS
    file.write_text(file.read_text().partition("store=")[0])
    assert put(tmp_path / "copy", small_config(), 1) == 13


def test_folders_below_the_configured_root_move_with_the_store() -> None:
    lines = "storePathCommitLog=/data/store/commitlog, /d2/log,\nreadOnlyCommitLogStorePaths=/old"
    loaded = StoreConfig.from_properties(f"storePathRootDir=/data/store\n{lines}")
    assert loaded.config.commit_log_paths == ("commitlog", "/d2/log")
    assert loaded.config.read_only_log_paths == ("/old",)
    assert [remark.key for remark in loaded.remarks] == ["storePathRootDir"]


def test_a_damaged_record_of_the_folders_is_refused(disks: tuple[Path, ...]) -> None:
    root, one, two = disks
    put(root, config(one, two), 1)
    for content in (b"", b"\xff\xfe", b"storePathCommit"):
        (root / LOG_PATHS).write_bytes(content)
        with pytest.raises(StoreError, match=f"{LOG_PATHS}: damaged: it has no storePathCommitLog"):
            Store.open(root)


def test_a_folder_without_a_log_says_how_to_name_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    with pytest.raises(NotAStoreError, match=f"storePathCommitLog=… to .*{LOG_PATHS}"):
        StoreView.open(tmp_path)


def test_a_log_in_one_other_folder(disks: tuple[Path, ...]) -> None:
    root, one, _ = disks
    assert put(root, config(one)) == 12
    assert listed(one) == [[0, 4096, 8192, 12288]]
    assert (one / segment_name(0)).stat().st_size == 4096
