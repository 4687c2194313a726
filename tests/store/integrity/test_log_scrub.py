"""A scrub reads the whole log in small steps, and notes what is damaged."""

from pathlib import Path

import pytest
from tests.stores import flip, log_file, overwrite, records

from firetrail import Message
from firetrail.errors import StoreDamagedError, StoreError
from firetrail.store.broker_store import BrokerStore
from firetrail.store.integrity import damage_ledger


def scrub(store: BrokerStore, size: int = 1 << 20) -> int:
    """Do one pass; return the bytes that it has read."""
    total = 0
    while read := store.log_scrub.step(size):
        total += read
    return total


def size_of(store: BrokerStore) -> int:
    return sum(message.size for message in store.embedded.read("T"))


def damaged(store: BrokerStore) -> list[int]:
    return [place.physical_offset for place in store.damage]


@pytest.mark.stepped_threads
class TestScrub:
    @pytest.mark.parametrize("size", [1, 500, 1 << 20])
    def test_a_pass_reads_the_log_once(self, store: BrokerStore, size: int) -> None:
        whole = size_of(store)
        for number in range(1, 3):
            assert scrub(store, size) == whole
            assert store.log_scrub.position == store.log.max_offset
            assert (store.log_scrub.passes, store.damage.found) == (number, 0)

    def test_a_step_reads_little_more_than_it_should(self, store: BrokerStore) -> None:
        read = store.log_scrub.step(100)
        assert 100 <= read <= 16 * 300 and store.log_scrub.position < store.log.max_offset

    def test_all_damage_is_noted_with_its_place(self, store: BrokerStore, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = records(root)
        hit = [stored[number] for number in (0, 13, 14, 30, 57)]
        for record, at in zip(hit, (90, 4, 90, 0, 100), strict=True):
            path, position = log_file(root, record.physical_offset)
            flip(path, position + at)
        scrub(store)
        assert damaged(store) == [r.physical_offset for r in hit if r is not hit[2]]
        assert store.damage.found == 4  # number 14 is part of the range that begins with 13
        for place in store.damage:
            path, position = log_file(root, place.physical_offset)
            assert (place.error.file, place.error.offset) == (str(path), position)
        scrub(store)
        assert store.damage.found == 4

    def test_the_part_that_is_not_on_disk_is_left_out(self, store: BrokerStore) -> None:
        end, whole = store.log.max_offset, size_of(store)
        store.embedded.put(Message("T", b"new"))
        assert scrub(store) == whole
        with pytest.raises(StoreError, match="not on disk"):
            store.log_scrub.examine(end)

    def test_files_that_retention_deletes_meanwhile_are_no_damage(self, store: BrokerStore) -> None:
        store.log_scrub.step(1)
        while store.embedded.delete_expired(forced=True):
            pass
        assert store.log.min_offset > 0
        scrub(store)
        assert store.damage.found == 0
        assert scrub(store) == size_of(store)
        assert store.log_scrub.examine(0) is None

    def test_nothing_is_read_after_the_end(self, store: BrokerStore) -> None:
        store.log_scrub.step(1)
        store.log_scrub.close()
        assert store.log_scrub.step(1) == 0

    def test_a_range_ends_at_the_next_good_record(self, store: BrokerStore, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = records(root)
        first, last, after = stored[20], stored[24], stored[25]
        for record in stored[20:25]:
            path, position = log_file(root, record.physical_offset)
            overwrite(path, position, bytes(record.size))
        found = store.log_scrub.examine(first.physical_offset)
        assert found is not None
        assert (found.begin, found.end) == (first.physical_offset, after.physical_offset)
        assert last.physical_offset < found.end and len(found.next_record) == after.size
        assert store.log_scrub.examine(after.physical_offset) is None

    def test_without_a_good_record_after_it_nothing_can_be_said(
        self, store: BrokerStore, tmp_path: Path
    ) -> None:
        last = records(tmp_path / "store")[-1]
        path, position = log_file(tmp_path / "store", last.physical_offset)
        flip(path, position + 100)
        with pytest.raises(StoreDamagedError, match="when a good record follows it"):
            store.log_scrub.examine(last.physical_offset)

    def test_the_ledger_is_limited(
        self, store: BrokerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Further places are counted, and found again after repairs."""
        monkeypatch.setattr(damage_ledger, "PLACES_MAX", 2)
        for record in records(tmp_path / "store")[:6:2]:
            path, position = log_file(tmp_path / "store", record.physical_offset)
            flip(path, position + 100)
        scrub(store)
        assert (len(store.damage), store.damage.found) == (2, 3)
