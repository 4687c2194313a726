"""A flipped bit in any field of a record: no way of reading serves the record, if it can be seen.

RocketMQ's format has a checksum for the body only. The unit of a record says what its queue, its
topic and its queue offset are. Fields without either are listed here; the checksum of
``property_crc`` covers them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine
from tests.stores import flip, log_file, records

from firetrail import Message, StoreConfig
from firetrail.errors import StoreDamagedError
from firetrail.format.record import Record
from firetrail.store.broker_store import BrokerStore
from firetrail.store.reads.reader import tag_hashes

CONFIG = StoreConfig().for_files(
    commit_log_file_size=8192, consume_queue_file_size=400, index_slots=20, index_entries=64
)
COUNT = 40
FIELDS = (
    *(("size", 4), ("magic", 4), ("body CRC", 4), ("queue id", 4), ("flag", 4)),
    *(("queue offset", 8), ("physical offset", 8), ("system flag", 4), ("born time", 8)),
    *(("born host", 8), ("store time", 8), ("store host", 8), ("reconsume times", 4)),
    *(("prepared offset", 8), ("body length", 4), ("body", 200), ("topic length", 1)),
    *(("topic", 1), ("properties length", 2), ("properties", 0)),
)
UNSEEN = {
    *("flag", "system flag", "born time", "born host", "store time"),
    *("store host", "reconsume times", "prepared offset", "properties"),
}
"""Fields that only the checksum of ``property_crc`` covers."""
PLACE = {"queue id", "queue offset", "topic"}
"""Fields that contradict the unit of the record, if no checksum covers them."""


def places() -> Iterator[tuple[str, int]]:
    """Yield each field, and the position of its last byte."""
    at = 0
    for name, size in FIELDS:
        yield name, at + max(size - 1, 0)
        at += size


def found_by_get(store: BrokerStore, tags: frozenset[int] | None) -> list[int]:
    """Return the numbers of all messages that consumers get."""
    found: list[int] = []
    offset = 0
    while offset < COUNT:
        result = store.reads.get_hashed("T", 0, offset, 32, tags)
        found += [int(bytes(b[88:92])) for b in result.buffers]
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def found_at(store: BrokerStore, record: Record) -> bool:
    try:
        return store.reads.buffer_at(record.physical_offset) is not None
    except StoreDamagedError:
        return False


@pytest.mark.stepped_threads
@pytest.mark.parametrize("number", [3, COUNT - 2], ids=["old segment", "new segment"])
@pytest.mark.parametrize("sealed", [True, False])
def test_no_altered_field_is_served(
    tmp_path: Path, machine: Machine, sealed: bool, number: int
) -> None:
    config = CONFIG.replace(property_crc=sealed)
    with BrokerStore.open(tmp_path / "store", config, system=machine.system) as store:
        for each in range(COUNT):
            store.embedded.put(Message("T", b"%04d" % each * 50, tags="a", keys=["k"]))
        store.embedded.flush()
        assert store.embedded.wait_dispatched()
        record = records(tmp_path / "store")[number]
        path, position = log_file(tmp_path / "store", record.physical_offset)
        others = [each for each in range(COUNT) if each != number]
        for name, at in places():
            flip(path, position + at, bit=1)
            is_seen = sealed or name not in UNSEEN
            is_summed = sealed or name not in UNSEEN | PLACE
            for tags in (None, tag_hashes("a")):
                found = found_by_get(store, tags)
                assert found == (others if is_seen else list(range(COUNT))), name
            if is_summed or name == "queue offset":
                assert found_at(store, record) is not is_seen, name
            by_key = store.reads.query_buffers("T", "k", max_count=COUNT).buffers
            if is_seen and name != "queue id":
                assert len(by_key) == COUNT - 1, name
            assert [p.physical_offset for p in store.damage] == (
                [record.physical_offset] if is_seen else []
            ), name
            for place in store.damage:
                store.damage.settle(place, is_repaired=True)
            while store.log_scrub.step(1 << 20):
                pass
            assert [p.physical_offset for p in store.damage] == (
                [record.physical_offset] if is_summed else []
            ), name
            flip(path, position + at, bit=1)
            for place in store.damage:
                store.damage.settle(place, is_repaired=True)
        assert found_by_get(store, None) == list(range(COUNT))


@pytest.mark.stepped_threads
def test_checksums_can_be_left_out(tmp_path: Path, machine: Machine) -> None:
    """Then only records that cannot be told apart from others are left out, as they have to be."""
    config = CONFIG.replace(verify_reads=False)
    with BrokerStore.open(tmp_path / "store", config, system=machine.system) as store:
        for each in range(COUNT):
            store.embedded.put(Message("T", b"%04d" % each * 50))
        store.embedded.flush()
        assert store.embedded.wait_dispatched()
        stored = records(tmp_path / "store")
        for number, at in ((3, 200), (5, 0)):
            path, position = log_file(tmp_path / "store", stored[number].physical_offset)
            flip(path, position + at)
        assert found_by_get(store, None) == [each for each in range(COUNT) if each != 5]
        assert found_at(store, stored[3])
        store.configure(verify_reads=True)
        assert found_by_get(store, None) == [n for n in range(COUNT) if n not in (3, 5)]
        assert not found_at(store, stored[3])
