"""Repairs do what was asked for, keep what they remove, and leave a store that checks clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.errors import StoreDamagedError, StoreError, StoreLockedError
from firetrail.format.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.storage.system import System
from firetrail.store.repair import Repair, repair_store

DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
MESSAGES = 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store of several files."""
    config = StoreConfig().for_files(
        commit_log_file_size=4096, consume_queue_file_size=400, index_slots=20, index_entries=64
    )
    with Store.open(tmp_path / "store", config) as store:
        for number in range(MESSAGES):
            store.put(Message("T", b"%04d" % number, tags="a", keys=["k"]))
    return tmp_path / "store"


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(content)


def repaired(root: Path, choice: Repair) -> list[str]:
    return repair_store(System(), root, choice, DELAYS)


def bodies(root: Path) -> list[bytes]:
    with Store.open(root) as store:
        return [message.body for message in store.read("T")]


def kept(root: Path) -> Path:
    (folder,) = root.glob("repair-*")
    return folder


def test_queues_and_index_are_rebuilt(root: Path) -> None:
    unit = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    flip(unit, 3)
    assert main(["fsck", str(root), "--json"]) == 1
    damaged = unit.read_bytes()
    repaired(root, Repair.REBUILD_DERIVED)
    assert main(["fsck", str(root), "--json"]) == 0
    assert (kept(root) / unit.relative_to(root)).read_bytes() == damaged
    assert bodies(root) == [b"%04d" % number for number in range(MESSAGES)]


def test_the_log_ends_before_its_first_damage(root: Path) -> None:
    log = root / "commitlog" / f"{4096:020d}"
    before = log.read_bytes()
    flip(log, 4)
    with pytest.raises(StoreDamagedError, match="no good record here"):
        repaired(root, Repair.REBUILD_DERIVED)
    done = repaired(root, Repair.TRUNCATE_LOG)
    assert any("the log now ends at 4096" in line for line in done)
    assert main(["fsck", str(root), "--json"]) == 0
    left = bodies(root)
    assert left == [b"%04d" % number for number in range(len(left))]
    assert 0 < len(left) < MESSAGES
    copies = sorted(path.name for path in (kept(root) / "commitlog").iterdir())
    assert copies[0] == f"{4096:020d}"
    assert (kept(root) / "commitlog" / copies[0]).read_bytes()[5:] == before[5:]


def test_the_damaged_part_of_a_file_is_copied(root: Path) -> None:
    log = root / "commitlog" / f"{0:020d}"
    record = int.from_bytes(log.read_bytes()[:4], "big")
    flip(log, 2 * record + 90)  # in the third message's body
    after = log.read_bytes()[2 * record :]
    repaired(root, Repair.TRUNCATE_LOG)
    assert bodies(root) == [b"0000", b"0001"]
    copy = kept(root) / "commitlog" / f"{0:020d}.from-{2 * record}"
    assert after.startswith(copy.read_bytes())


def test_a_repaired_store_goes_on(root: Path) -> None:
    flip(root / "commitlog" / f"{4096:020d}", 4)
    repaired(root, Repair.TRUNCATE_LOG)
    count = len(bodies(root))
    with Store.open(root) as store:
        assert store.put(Message("T", b"more")).queue_offset == count
    assert bodies(root)[-1] == b"more"
    assert main(["fsck", str(root), "--json"]) == 0


def test_a_good_log_is_not_cut(root: Path) -> None:
    with pytest.raises(StoreError, match="nothing to cut"):
        repaired(root, Repair.TRUNCATE_LOG)
    assert not list(root.glob("repair-*"))


def test_a_store_in_use_is_left_alone(root: Path) -> None:
    with Store.open(root), pytest.raises(StoreLockedError):
        repaired(root, Repair.REBUILD_DERIVED)


def test_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(root / "commitlog" / f"{4096:020d}", 4)
    assert main(["fsck", str(root), "--repair", "truncate-log", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and told["repaired"]


def test_a_repair_must_be_chosen(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fsck", str(root), "--repair", "everything"])
    assert "invalid Repair value" in capsys.readouterr().err
