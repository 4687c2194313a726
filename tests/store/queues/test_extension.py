"""Extended units: written with their units, found by address, cut, expired, and never relied on."""

import os
import shutil
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, crash_image, small_config

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.format.files.extended_unit import ExtendedUnit, is_address
from firetrail.format.names import CONSUME_QUEUE_EXT, segment_name
from firetrail.format.values.bloom import BloomFilter
from firetrail.store.broker_store import BrokerStore
from firetrail.store.inspect.view import StoreView
from firetrail.store.queues.filter_bits import FilterBits
from firetrail.system import SYSTEM

pytestmark = pytest.mark.stepped_threads

EXT = 256
"""Room for twelve units of 20 bytes."""
BLOOM = BloomFilter(20, 32)


def config(**changes: int) -> StoreConfig:
    return small_config(extended_queues=True, extension_file_size=EXT, **changes)


def put(store: Store, first: int, count: int, topic: str = "T") -> None:
    for number in range(first, first + count):
        store.put(Message(topic, b"%04d" % number, tags="even" if number % 2 == 0 else "odd"))


def filled(root: Path, count: int = 30, settings: StoreConfig | None = None) -> Path:
    with Store.open(root, settings or config()) as store:
        put(store, 0, count)
    return root


def tagged(store: Store, tag: str) -> list[int]:
    return [int(bytes(message.body)) for message in store.read("T", 0, tags=tag)]


def extended(root: Path) -> list[ExtendedUnit | int]:
    with StoreView.open(root) as view:
        queue = view.queues.open("T", 0)
        units = [queue.unit(offset) for offset in range(queue.max_offset)]
        assert queue.extension is not None
        return [
            queue.extension.get(unit.tags_code) or unit.tags_code
            for unit in units
            if unit is not None
        ]


def files(root: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(root / CONSUME_QUEUE_EXT / "T" / "0"))


def test_a_store_without_the_setting_has_no_files(tmp_path: Path) -> None:
    filled(tmp_path, settings=small_config())
    assert not (tmp_path / CONSUME_QUEUE_EXT).exists()


def test_units_are_written_in_javas_layout(tmp_path: Path) -> None:
    filled(tmp_path, 14)
    folder = tmp_path / CONSUME_QUEUE_EXT / "T" / "0"
    assert files(tmp_path) == [0, EXT]
    first = (folder / segment_name(0)).read_bytes()
    assert first[:2] == b"\0\x14" and first[18:20] == b"\0\0"
    assert first[240:242] == b"\xff\xff"  # 12 units, and no room for another one and 4 bytes
    queue = (tmp_path / "consumequeue" / "T" / "0" / segment_name(0)).read_bytes()
    assert int.from_bytes(queue[12:20], "big", signed=True) == -(2**63)
    found = extended(tmp_path)
    assert all(isinstance(unit, ExtendedUnit) for unit in found)
    with Store.open(tmp_path) as store:
        for unit, message in zip(found, store.read("T", 0), strict=True):
            assert isinstance(unit, ExtendedUnit)
            assert unit.store_time == message.store_time
    assert main(["fsck", str(tmp_path)]) == 0


def test_tags_are_compared_through_the_addresses(tmp_path: Path) -> None:
    filled(tmp_path)
    with Store.open(tmp_path) as store:
        assert tagged(store, "odd") == list(range(1, 30, 2))
        result = store._engine.reader.get("T", 0, 0, 32, frozenset({12345}))
        assert result.count == 0 and result.next_offset == 10  # a file has ten units


def test_continued_without_the_setting(tmp_path: Path) -> None:
    """Existing extended units are read, new units have plain tags codes, and both match."""
    filled(tmp_path)
    with Store.open(tmp_path, small_config()) as store:
        put(store, 30, 10)
        assert tagged(store, "odd") == list(range(1, 40, 2))
    assert [isinstance(unit, int) for unit in extended(tmp_path)[28:32]] == [False] * 2 + [True] * 2
    with Store.open(tmp_path, config()) as store:
        put(store, 40, 4)
        assert tagged(store, "odd") == list(range(1, 44, 2))
    assert main(["fsck", str(tmp_path)]) == 0


def test_recovery_after_a_kill(tmp_path: Path) -> None:
    with Store.open(tmp_path / "live", config()) as store:
        put(store, 0, 20)
        store.flush()
        put(store, 20, 13)
        image = crash_image(tmp_path / "live", tmp_path / "image")
    with Store.open(image, config()) as store:
        assert tagged(store, "odd") == list(range(1, 33, 2))
        put(store, 33, 5)
    assert main(["fsck", str(image)]) == 0
    assert all(isinstance(unit, ExtendedUnit) for unit in extended(image))


def test_files_expire_with_the_log(tmp_path: Path) -> None:
    filled(tmp_path, 200)
    before = files(tmp_path)
    with Store.open(tmp_path, config()) as store:
        store.delete_expired(forced=True)
        assert tagged(store, "odd")[-1] == 199
    after = files(tmp_path)
    assert 1 <= len(after) < len(before) and after[0] > 0
    assert main(["fsck", str(tmp_path)]) == 0


def test_a_new_life_of_a_queue_begins_without_units(tmp_path: Path) -> None:
    """A reader that still has a unit of the former life finds no extended unit."""
    filled(tmp_path)
    with Store.open(tmp_path, config()) as store:
        queue = store._engine.queues.open("T", 0)
        unit, extension = queue.unit(3), queue.extension
        assert unit is not None and extension is not None
        assert extension.get(unit.tags_code) is not None
        queue.begin_generation()
        assert extension.get(unit.tags_code) is None
        assert files(tmp_path) == []


def test_a_removed_topic_has_no_files(tmp_path: Path) -> None:
    filled(tmp_path)
    with BrokerStore.open(tmp_path, config(), system=SYSTEM) as store:
        assert store.removal.remove("T", store.removal.settle())
    assert not (tmp_path / CONSUME_QUEUE_EXT / "T").exists()


@pytest.mark.parametrize("damage", ["folder", "first", "last", "size", "content"])
def test_damage_never_hides_a_message(tmp_path: Path, damage: str) -> None:
    """Without an extended unit every filter matches; new units do not reuse old addresses."""
    filled(tmp_path)
    folder = tmp_path / CONSUME_QUEUE_EXT / "T" / "0"
    if damage == "folder":
        shutil.rmtree(folder)
    elif damage == "size":
        os.truncate(folder / segment_name(EXT), 100)
    elif damage == "content":
        (folder / segment_name(2 * EXT)).write_bytes(bytes(EXT))
    else:
        (folder / segment_name(0 if damage == "first" else 2 * EXT)).unlink()
    with Store.open(tmp_path, config()) as store:
        assert set(tagged(store, "odd")) >= set(range(1, 30, 2))
        put(store, 30, 20)
        assert store.wait_dispatched(PATIENCE_S)
        queue = store._engine.queues.open("T", 0)
        addresses = [
            unit.tags_code
            for offset in range(50)
            if (unit := queue.unit(offset)) is not None and is_address(unit.tags_code)
        ]
        assert len(set(addresses)) == len(addresses) == 50
    with Store.open(tmp_path, config()) as store:
        assert set(tagged(store, "odd")) >= set(range(1, 50, 2))


def test_repair_rebuilds_without_addresses(tmp_path: Path) -> None:
    filled(tmp_path)
    folder = tmp_path / CONSUME_QUEUE_EXT / "T" / "0"
    content = bytearray((folder / segment_name(0)).read_bytes())
    content[5] ^= 1  # the tags code of the first message
    (folder / segment_name(0)).write_bytes(content)
    assert main(["fsck", str(tmp_path)]) == 1
    assert main(["fsck", str(tmp_path), "--repair", "rebuild-derived"]) == 0
    assert not (tmp_path / CONSUME_QUEUE_EXT).exists()
    with Store.open(tmp_path, config()) as store:
        put(store, 30, 4)
        assert tagged(store, "odd") == list(range(1, 34, 2))
    assert main(["fsck", str(tmp_path)]) == 0


def test_bitmaps_rule_messages_out(tmp_path: Path) -> None:
    mine = BLOOM.bitmap(BLOOM.positions("G#T"))
    bits = FilterBits(BLOOM.positions("G#T"), BLOOM.bits, since=0)
    with BrokerStore.open(
        tmp_path, config(max_transfer_count_in_memory=100), system=SYSTEM
    ) as store:
        put(store.embedded, 0, 3)
        assert store.embedded.wait_dispatched(PATIENCE_S)
        store.description.bitmap_of = lambda topic, record: (
            mine if b"tens" in bytes(record) else bytes(14)
        )
        for number in range(20):
            store.embedded.put(Message("T", b"tens" if number % 10 == 0 else b"other"))
        assert store.embedded.wait_dispatched(PATIENCE_S)

        def found(bits: FilterBits | None) -> list[bytes]:
            offset, seen = 0, []
            while (
                result := store.reads.get_hashed("T", 0, offset, 32, None, bits)
            ).next_offset > offset:
                seen += [bytes(message.body) for message in result.messages()]
                offset = result.next_offset
            return seen

        # Those before the filter have no bitmap, and match.
        assert found(bits) == [b"0000", b"0001", b"0002", b"tens", b"tens"]
        assert len(found(None)) == 23
        assert len(found(bits._replace(bits=216))) == 23  # bitmaps of other settings prove nothing
        assert len(found(bits._replace(since=2**62))) == 23  # nor those before the filter
