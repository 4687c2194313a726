"""Salvage: every good message of a damaged store, in a new one."""

import json
from pathlib import Path

import pytest
from tests.helpers import tree
from tests.stores import flip

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.errors import StoreError, StoreLockedError
from firetrail.format.record import Record
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.repair.salvage import Numbering, SalvageResult, salvage_store
from firetrail.system import System

pytestmark = pytest.mark.stepped_threads

DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
CONFIG = StoreConfig().for_files(
    commit_log_file_size=4096, consume_queue_file_size=400, index_slots=20, index_entries=64
)
COUNT = 120
PREPARED = 0x4


def filled(root: Path, config: StoreConfig = CONFIG) -> list[Record]:
    """Write a store of three queues; return its messages in the order of the log."""
    with Store.open(root, config) as store:
        for number in range(COUNT):
            topic, queue_id = ("A", number % 2) if number % 3 else ("B", 0)
            store.put(
                Message(topic, b"%04d" % number, queue_id=queue_id, tags="t", keys=[f"k{number}"])
            )
            if number == COUNT - 5:
                store.put(Message("A", b"half", sys_flag=PREPARED))
                store.put(Message("A", b"later", delay_level=3))
        return in_order(store)


def in_order(store: Store) -> list[Record]:
    queues = [(topic, queue_id) for topic in store.topics() for queue_id in store.queues(topic)]
    found = [message for queue in queues for message in store.read(*queue)]
    return sorted(found, key=lambda message: message.physical_offset)


def spoil(root: Path, message: Record, at: int) -> None:
    offset = message.physical_offset
    flip(root / "commitlog" / f"{offset // 4096 * 4096:020}", offset % 4096 + at)


def salvaged(root: Path, target: Path) -> SalvageResult:
    return salvage_store(System(), root, target, DELAYS)


def placeless(message: Record) -> Record:
    """Return all fields of a message except its position and the checksum that depends on it."""
    raw = message.raw_properties.partition(b"__CRC32#")[0]
    return message._replace(physical_offset=0, queue_offset=0, raw_properties=raw)


def file_sizes(root: Path) -> set[tuple[str, int]]:
    return {
        (path.relative_to(root).parts[0], path.stat().st_size)
        for name in ("commitlog", "consumequeue", "index")
        for path in (root / name).rglob("*")
        if path.is_file()
    }


def test_the_new_store_has_files_of_the_same_size(tmp_path: Path) -> None:
    """This holds even if no good record before the damage shows the sizes."""
    root, target = tmp_path / "store", tmp_path / "saved"
    stored = filled(root)
    spoil(root, stored[0], 4)
    salvaged(root, target)
    assert file_sizes(target) == file_sizes(root)


def test_the_command_does_not_warn_of_its_own_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The new store is opened before the positions of groups are adjusted."""
    root, target = tmp_path / "store", tmp_path / "saved"
    spoil(root, filled(root)[0], 4)
    offsets = {"offsetTable": {"A@g": {"0": 40, "1": 40}, "B@g": {"0": 40}}}
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    assert main(["salvage", str(root), "--into", str(target)]) == 0
    assert not [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("sealed", [False, True])
def test_only_damaged_messages_are_missing(sealed: bool, tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "saved"
    stored = filled(root, CONFIG.replace(property_crc=sealed))
    victims = (30, 31, 50, 90)
    for number, at in zip(victims, (4, 0, 95, 4), strict=True):
        spoil(root, stored[number], at)
    before = tree(root)
    saved = salvaged(root, target)
    assert tree(root) == before
    assert main(["fsck", str(target)]) == 0
    good = [message for number, message in enumerate(stored) if number not in victims]
    with Store.open(target) as store:
        found = in_order(store)
        assert list(map(placeless, found)) == list(map(placeless, good))
        assert found[:30] == good[:30]  # in their places
        assert [m.body for m in store.query("A", "k100")] == [b"0100"]
        numbering = saved.numbering
        for old, new in zip(good, found, strict=True):
            place = (old.topic, old.queue_id, old.queue_offset)
            assert numbering.new_offset(*place) == new.queue_offset
        for topic, queue_id in {(m.topic, m.queue_id) for m in good}:
            assert store.put(Message(topic, b"new", queue_id=queue_id)).queue_offset == (
                numbering.new_offset(topic, queue_id, 1 << 40)
            )
    assert (saved.kept, saved.left_out) == (len(good) - 30 + 1, 0)  # the prepared one, too
    assert not list(target.glob("repair-*"))


def test_a_store_that_lacks_a_file_is_salvaged(tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "saved"
    stored = filled(root)
    (root / "commitlog" / f"{4096:020}").unlink()
    salvaged(root, target)
    assert main(["fsck", str(target)]) == 0
    with Store.open(target) as store:
        good = [m for m in stored if m.physical_offset // 4096 != 1]
        assert list(map(placeless, in_order(store))) == list(map(placeless, good))


def test_a_good_or_open_store_is_refused(tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "saved"
    stored = filled(root)
    with pytest.raises(StoreError, match="the log is good to its end"):
        salvaged(root, target)
    spoil(root, stored[30], 4)
    with Store.open(root), pytest.raises(StoreLockedError, match="has the store open; stop it"):
        salvaged(root, target)
    with pytest.raises(StoreError, match="inside the store"):
        salvaged(root, root / "saved")
    target.mkdir()
    (target / "file").touch()
    with pytest.raises(StoreError, match="not an empty folder"):
        salvaged(root, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "store"]


def test_old_offsets_map_to_new_ones() -> None:
    numbering = Numbering()
    for old, new in ((12, 10), (13, 11), (20, 12)):
        numbering.note(("T", 0), old, new)
    wanted = {0: 0, 9: 9, 10: 10, 11: 10, 12: 10, 13: 11, 14: 12, 19: 12, 20: 12, 21: 13, 99: 13}
    assert {old: numbering.new_offset("T", 0, old) for old in wanted} == wanted
    assert numbering.new_offset("T", 1, 99) == 99
    assert numbering.is_changed("T", 0) and not numbering.is_changed("T", 1)


def test_the_salvage_command_says_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    stored = filled(root)
    spoil(root, stored[30], 4)
    assert main(["salvage", str(root), "--into", str(tmp_path / "one")]) == 0
    first, last = capsys.readouterr().out.splitlines()
    place = stored[30].physical_offset
    assert first == (
        f"{tmp_path / 'one'}: everything before the damage at {place}, and 91 messages after it"
    )
    assert f"ok: {COUNT + 1} messages" in last
    assert main(["salvage", str(root), "--into", str(tmp_path / "two"), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["damaged_at"], reported["saved"], reported["left_out"]) == (place, 91, 0)
    assert reported["check"]["ok"] and reported["positions"] == []


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("at", [4, 95])
def test_the_first_record_is_the_damaged_one(at: int, expired: bool, tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "saved"
    stored = filled(root)
    if expired:
        with Store.open(root, CONFIG) as store:
            for _ in range(2):
                store.delete_expired(forced=True)
            stored = [m for m in stored if m.physical_offset >= store.log_range[0]]
    spoil(root, stored[0], at)
    saved = salvaged(root, target)
    assert saved.cut_at == stored[0].physical_offset
    assert main(["fsck", str(target)]) == 0
    with Store.open(target) as store:
        assert list(map(placeless, in_order(store))) == list(map(placeless, stored[1:]))


def test_a_store_in_use_is_not_called_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    filled(root)
    with Store.open(root, CONFIG):
        assert main(["salvage", str(root), "--into", str(tmp_path / "saved")]) == 2
        reported = capsys.readouterr().err
        assert "has the store open; stop it first" in reported and "good to its end" not in reported
        assert main(["fsck", str(root), "--repair", "truncate-log", "--dry-run"]) == 2
        assert "has the store open; stop it first" in capsys.readouterr().err
    assert not (tmp_path / "saved").exists()
