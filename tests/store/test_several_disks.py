"""A store whose log is in several folders: everything that works on a store works on it."""

import json
import os
from pathlib import Path

import pytest
from tests.helpers import crash_image, small_config

from firetrail import Batch, Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.errors import StoreDamagedError
from firetrail.format.names import LOG_PATHS, segment_name
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.bulk import BulkAppend
from firetrail.store.inspect.view import StoreView
from firetrail.store.repair.backup import back_up
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.store.repair.truncation import LogCut, truncate_store
from firetrail.system import SYSTEM

pytestmark = pytest.mark.stepped_threads

SIZE = 4096
MESSAGES = 40
DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "d1", tmp_path / "d2"


@pytest.fixture
def settings(disks: tuple[Path, Path]) -> StoreConfig:
    return small_config(commit_log_paths=tuple(map(str, disks)))


@pytest.fixture
def root(tmp_path: Path, settings: StoreConfig) -> Path:
    """A closed store with files 0, 8192, … in one folder and 4096, 12288, … in the other."""
    with Store.open(tmp_path / "store", settings) as store:
        fill(store)
    return tmp_path / "store"


def fill(store: Store) -> None:
    for number in range(MESSAGES):
        store.put(Message("T", b"%04d" % number + bytes(500), keys=["k"], tags="a"))


def numbers(root: Path) -> list[int]:
    with Store.open(root) as store:
        return [int(bytes(message.body[:4])) for message in store.read("T")]


def where(view: StoreView) -> list[str]:
    return [segment.path.parent.name for segment in view.log.segments]


def test_files_alternate_and_checks_find_nothing_wrong(root: Path) -> None:
    with StoreView.open(root) as view:
        assert where(view) == ["d1", "d2"] * 3 + ["d1"]
        assert view.foreign() == []
    assert main(["fsck", str(root)]) == 0
    assert numbers(root) == list(range(MESSAGES))


def test_recovery_after_a_kill(
    tmp_path: Path, settings: StoreConfig, disks: tuple[Path, Path]
) -> None:
    """The copy has the log in the store: a copy elsewhere must not write the original's."""
    inside = settings.replace(commit_log_paths=("commitlog", "d2"))
    with Store.open(tmp_path / "live", inside) as store:
        fill(store)
        image = crash_image(tmp_path / "live", tmp_path / "store")
    assert numbers(image) == list(range(MESSAGES))
    assert main(["fsck", str(image)]) == 0


def test_retention_deletes_in_all_folders(root: Path, disks: tuple[Path, Path]) -> None:
    with Store.open(root) as store:
        assert store.delete_expired(forced=True) == 6
    assert [len(os.listdir(folder)) for folder in disks] == [1, 0]
    with Store.open(root) as store:  # an empty folder is fine if retention has emptied it
        assert store.log_range[0] == 6 * SIZE


def test_a_backup_has_its_log_in_one_folder(root: Path, tmp_path: Path) -> None:
    back_up(SYSTEM, root, tmp_path / "copy", StoreConfig())
    assert len(os.listdir(tmp_path / "copy" / "commitlog")) == 7
    assert not (tmp_path / "copy" / LOG_PATHS).exists()
    assert numbers(tmp_path / "copy") == list(range(MESSAGES))
    assert main(["fsck", str(tmp_path / "copy")]) == 0


def test_a_backup_of_a_store_in_use(root: Path, tmp_path: Path) -> None:
    with Store.open(root) as store:
        back_up(SYSTEM, root, tmp_path / "copy", StoreConfig())
        store.put(Message("T", b"9999"))
    assert numbers(tmp_path / "copy") == list(range(MESSAGES))


def test_damage_is_named_and_cut_off(
    root: Path, disks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = disks[1] / segment_name(SIZE)
    content = bytearray(damaged.read_bytes())
    content[90] ^= 1
    damaged.write_bytes(content)
    assert main(["fsck", str(root), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["problems"][0]["file"] == str(damaged)
    assert "'firetrail salvage" in report["advice"]
    done = repair_store(SYSTEM, root, Repair.TRUNCATE_LOG, DELAYS)
    assert any(line.startswith(f"{damaged} is now in repair-") for line in done)
    assert [len(os.listdir(folder)) for folder in disks] == [1, 0]
    (kept,) = root.glob("repair-*")
    assert len(os.listdir(kept / "commitlog")) == 6
    assert main(["fsck", str(root)]) == 0
    assert numbers(root) == list(range(6))


def test_salvage_copies_all_folders(root: Path, disks: tuple[Path, Path], tmp_path: Path) -> None:
    damaged = disks[1] / segment_name(SIZE)
    content = bytearray(damaged.read_bytes())
    content[90] ^= 1
    damaged.write_bytes(content)
    assert main(["salvage", str(root), "--into", str(tmp_path / "new")]) == 0
    assert len(numbers(tmp_path / "new")) == MESSAGES - 1


def test_the_same_file_in_two_folders(
    root: Path, disks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    twin = disks[1] / segment_name(0)
    twin.write_bytes((disks[0] / segment_name(0)).read_bytes())
    with pytest.raises(StoreDamagedError, match="has the same name"):
        Store.open(root)
    assert main(["fsck", str(root)]) == 1
    assert f"{twin}" in capsys.readouterr().out
    twin.write_bytes(bytes(SIZE))
    assert main(["fsck", str(root)]) == 0
    assert numbers(root) == list(range(MESSAGES))
    assert not twin.exists()


def test_a_gap_is_reported_by_fsck(
    root: Path, disks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (disks[1] / segment_name(SIZE)).unlink()
    with pytest.raises(StoreDamagedError, match=f"{segment_name(SIZE)} before it is missing"):
        Store.open(root)
    assert main(["fsck", str(root), "--json"]) == 1
    kinds = [problem["kind"] for problem in json.loads(capsys.readouterr().out)["problems"]]
    assert "file-missing" in kinds


def test_the_log_is_truncated_for_a_new_master(root: Path, disks: tuple[Path, Path]) -> None:
    with StoreView.open(root) as view:
        unit = view.queues.open("T", 0).unit(3)
    assert unit is not None
    truncate_store(SYSTEM, root, LogCut(unit.physical_offset, unit.physical_offset + unit.size))
    assert numbers(root) == [0, 1, 2, 3]
    assert [len(os.listdir(folder)) for folder in disks] == [1, 0]


def test_bulk_appends_use_the_folders(root: Path, disks: tuple[Path, Path]) -> None:
    before = [len(os.listdir(folder)) for folder in disks]
    items = Batch.of([Message("T", b"0000" + bytes(500))]).body
    with BulkAppend(root, StoreConfig()) as bulk:
        for _ in range(20):
            bulk.add("T", 0, items)
        bulk.commit()
    after = [len(os.listdir(folder)) for folder in disks]
    assert after[0] > before[0] and after[1] > before[1]
    assert len(numbers(root)) == MESSAGES + 20
    assert main(["fsck", str(root)]) == 0


def test_queues_are_rebuilt_from_all_folders(root: Path, tmp_path: Path) -> None:
    assert main(["rebuild", str(root), "--into", str(tmp_path / "made")]) == 0
    old = (root / "consumequeue" / "T" / "0").iterdir()
    for path in old:
        made = tmp_path / "made" / path.relative_to(root)
        assert made.read_bytes() == path.read_bytes()


def test_a_full_disk_is_left_out(
    tmp_path: Path, settings: StoreConfig, disks: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def used(path: Path) -> float:
        return 0.95 if path == disks[0] else 0.2

    monkeypatch.setattr(SYSTEM.files, "used_ratio", used)
    with Store.open(tmp_path / "store", settings) as store:
        fill(store)
        assert not store.refusal
    assert os.listdir(disks[0]) == []
