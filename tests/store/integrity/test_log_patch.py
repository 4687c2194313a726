"""Parts of a log that are replaced in place: only by good records, and safely in a crash."""

from pathlib import Path

import pytest
from tests.helpers import Machine
from tests.store.integrity.conftest import BODIES
from tests.stores import flip, log_file, overwrite, records

from firetrail.errors import StoreDamagedError, StoreError
from firetrail.format.layout import PROPERTY_CRC_SIZE
from firetrail.store.broker_store import BrokerStore


@pytest.mark.stepped_threads
class TestPatch:
    def test_what_is_read_can_be_written(self, store: BrokerStore, tmp_path: Path) -> None:
        """Every record and end mark of the log, in pieces of any size."""
        end = store.log.max_offset
        for size in (1, 700, 10_000):
            at = 0
            while at < end:
                content = bytes(store.log_patch.read(at, size))
                path, position = log_file(tmp_path / "store", at)
                overwrite(path, position, bytes(len(content)))
                at = store.log_patch.write(at, content)
            assert at == end
        assert [m.body for m in store.embedded.read("T")] == BODIES

    def test_other_bytes_are_refused(self, store: BrokerStore, tmp_path: Path) -> None:
        found = records(tmp_path / "store")
        good = bytes(store.log_patch.read(found[1].physical_offset, 1))
        path, _ = log_file(tmp_path / "store", 0)
        before = path.read_bytes()
        for content in (good[:-1], good + b".", bytes(8), b"", good.replace(b"0001", b"0002")):
            with pytest.raises(StoreDamagedError, match="not good records; nothing was changed"):
                store.log_patch.write(found[1].physical_offset, content)
        with pytest.raises(StoreDamagedError, match="nothing was changed"):
            store.log_patch.write(0, good)  # the record says that it belongs elsewhere
        with pytest.raises(StoreError, match="does not have bytes"):
            store.log_patch.write(store.log.max_offset, good)
        assert path.read_bytes() == before

    def test_a_damaged_record_is_not_read(self, store: BrokerStore, tmp_path: Path) -> None:
        found = records(tmp_path / "store")
        offset = found[3].physical_offset
        path, position = log_file(tmp_path / "store", offset)
        flip(path, position + 100)
        whole = store.log_patch.read(0, 4096)
        assert len(whole) == offset  # up to the damage
        with pytest.raises(StoreDamagedError, match="checksum") as caught:
            store.log_patch.read(offset, 4096)
        assert (caught.value.file, caught.value.offset) == (str(path), position)
        for nowhere in (-1, store.log.max_offset):
            with pytest.raises(StoreError, match="no record at offset"):
                store.log_patch.read(nowhere, 1)

    def test_a_torn_write_is_still_damaged_and_repaired_again(
        self, store: BrokerStore, tmp_path: Path
    ) -> None:
        """A crash in the middle of a repair leaves a part of the good bytes.

        The checksum of the whole record comes last; everything before it is good by then.
        """
        offset = records(tmp_path / "store")[3].physical_offset
        good = bytes(store.log_patch.read(offset, 1))
        path, position = log_file(tmp_path / "store", offset)
        bad = bytes(len(good))
        for torn in range(0, len(good) - PROPERTY_CRC_SIZE, 7):
            overwrite(path, position, good[:torn] + bad[torn:])
            with pytest.raises(StoreDamagedError):
                store.log_patch.read(offset, 1)
            found = store.log_scrub.examine(offset)
            assert found is not None and found.end == offset + len(good)
            store.log_patch.write(offset, good)
            assert store.log_scrub.examine(offset) is None

    def test_the_bytes_are_synced(self, store: BrokerStore, machine: Machine) -> None:
        good = bytes(store.log_patch.read(0, 1))
        before = len(machine.files.calls)
        store.log_patch.write(0, good)
        assert [call.operation for call in machine.files.calls[before:]] == ["write", "sync"]
