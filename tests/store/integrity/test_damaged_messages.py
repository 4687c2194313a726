"""Damage is refused by name and changes nothing; stale bytes of Java are no damage."""

import shutil
from pathlib import Path

import pytest
from tests.helpers import START_MS, Machine, bodies, crash_image, put_all, tree
from tests.store.conftest import OpenStore
from tests.store.recoveries import (
    ABORT,
    JAVA,
    LOG,
    QUEUE,
    check_whole,
    flip,
    java_wrote,
    numbered,
    patch,
)

from firetrail import Message
from firetrail.errors import StoreDamagedError
from firetrail.format.names import segment_name

pytestmark = pytest.mark.stepped_threads


class TestDamage:
    @pytest.fixture
    def durable(self, open_store: OpenStore, root: Path, tmp_path: Path) -> tuple[Path, list[int]]:
        """The image of a killed store whose log was synced, and its messages' offsets."""
        store = open_store()
        offsets = put_all(store, numbered(30), keys=["k"])
        store.flush()
        store._engine.housekeeper.write_watermark(clean=False)
        return crash_image(root, tmp_path / "image"), offsets

    def refused(self, open_store: OpenStore, root: Path) -> StoreDamagedError:
        before = tree(root)
        for _ in range(2):
            with pytest.raises(StoreDamagedError) as caught:
                open_store(root)
            after = tree(root)
            after["lock"] = before["lock"]
            assert after == before, "nothing was changed"
        return caught.value

    def test_damage_below_the_watermark_is_refused(
        self, open_store: OpenStore, durable: tuple[Path, list[int]]
    ) -> None:
        image, offsets = durable
        flip(image / LOG, offsets[12] + 88)
        error = self.refused(open_store, image)
        assert error.file == str(image / LOG)
        assert error.offset == error.physical_offset == offsets[12]
        assert "BODY_CRC" in error.detail
        lost = offsets[29] + offsets[1] - offsets[12]
        assert f"would lose up to {lost} bytes" in error.detail
        assert "firetrail fsck" in error.remedy and "--repair" in error.remedy
        flip(image / LOG, offsets[12] + 88)  # put back, as the remedy says
        check_whole(open_store(image), numbered(30))

    def test_zeros_below_the_watermark_are_refused(
        self, open_store: OpenStore, durable: tuple[Path, list[int]]
    ) -> None:
        image, offsets = durable
        patch(image / LOG, offsets[12], bytes(4096 - offsets[12]))
        assert self.refused(open_store, image).physical_offset == offsets[12]

    def test_a_log_that_lost_its_last_file(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        store = open_store()
        put_all(store, [b"%d" % n * 1000 for n in range(9)], keys=["k"])
        store.flush()
        assert store.wait_dispatched()
        store._engine.housekeeper.flush_derived()
        store._engine.housekeeper.write_watermark(clean=False)
        image = crash_image(root, tmp_path / "image")
        last = max((image / "commitlog").iterdir())
        while int(last.name) > store.log_range[1] - 1:
            last.unlink()
            last = max((image / "commitlog").iterdir())
        last.unlink()
        assert self.refused(open_store, image).physical_offset == int(last.name)

    def test_a_closed_log_that_lost_its_last_file(self, open_store: OpenStore, root: Path) -> None:
        store = open_store()
        put_all(store, [b"%d" % n * 1000 for n in range(9)], keys=["k"])
        store.close()
        max((root / "commitlog").iterdir()).unlink()
        error = self.refused(open_store, root)
        assert "points after the last file of the log" in error.detail

    def test_a_log_that_lost_all_its_files(
        self, closed: list[int], open_store: OpenStore, root: Path
    ) -> None:
        shutil.rmtree(root / "commitlog")
        (root / "commitlog").mkdir()
        error = self.refused(open_store, root)
        assert "the log has no file, but queue T/0 has messages" in error.detail
        # To start over, everything that belongs to the log has to be removed.
        for name in ("consumequeue", "index"):
            shutil.rmtree(root / name)
        assert open_store().put(Message("T", b"x")).queue_offset == 0

    def test_a_file_missing_in_the_middle_is_refused(
        self, open_store: OpenStore, root: Path
    ) -> None:
        store = open_store()
        put_all(store, [b"%d" % n * 1000 for n in range(9)])
        store.close()
        (root / "commitlog" / segment_name(4096)).unlink()
        error = self.refused(open_store, root)
        assert f"the file {segment_name(4096)} before it is missing" in error.detail

    @pytest.mark.parametrize("by_java", [False, True])
    def test_the_last_record_of_a_closed_store(
        self, closed: list[int], open_store: OpenStore, root: Path, by_java: bool
    ) -> None:
        if by_java:
            java_wrote(root)
        flip(root / LOG, closed[-2] + 88)
        assert self.refused(open_store, root).physical_offset == closed[-2]

    def test_a_unit_that_points_nowhere_is_refused(
        self, closed: list[int], open_store: OpenStore, root: Path
    ) -> None:
        java_wrote(root)
        patch(root / QUEUE, 9 * 20, (10**12).to_bytes(8, "big"))
        error = self.refused(open_store, root)
        assert error.physical_offset == 10**12
        assert error.file.endswith("consumequeue/T/0")

    @pytest.mark.parametrize("known", [True, False])
    def test_in_a_store_that_java_was_killed_with(
        self, open_store: OpenStore, root: Path, tmp_path: Path, machine: Machine, known: bool
    ) -> None:
        """A later record that the checkpoint's time says was on disk makes it damage."""
        store = open_store()
        offsets = []
        for body in numbered(10):
            offsets += put_all(store, [body], keys=["k"])
            machine.clock.advance(1000)
        image = crash_image(root, tmp_path / "image")
        (image / ABORT).write_bytes(JAVA)
        (image / "firetrail.watermark").unlink()
        java_wrote(image, physic_timestamp=START_MS + (9000 if known else 2000))
        flip(image / LOG, offsets[4] + 88)
        if known:
            assert self.refused(open_store, image).physical_offset == offsets[4]
        else:
            check_whole(open_store(image), numbered(4))


class TestStaleTailOfJava:
    def stale(self, open_store: OpenStore, machine: Machine, root: Path) -> list[int]:
        """Return what Java's recovery leaves: two messages, a third put since, then old ones."""
        store = open_store()
        offsets = put_all(store, numbered(10), keys=["k"])
        store.close()
        old = (root / LOG).read_bytes()
        shutil.rmtree(root)
        machine.clock.advance(60_000)
        store = open_store()
        put_all(store, [*numbered(2), b"new and a bit longer"], keys=["k"])
        end = store.log_range[1]
        store.close()
        patch(root / LOG, end, old[end:])
        java_wrote(root)
        return [*offsets, end]

    def test_of_a_closed_store_is_cleared(
        self, open_store: OpenStore, machine: Machine, root: Path
    ) -> None:
        *_, end = self.stale(open_store, machine, root)
        store = open_store()
        assert (store.recovery.end, store.max_offset("T")) == (end, 3)
        assert store.recovery.bytes_truncated > 0
        assert bodies(store)[2] == b"new and a bit longer"

    def test_the_stale_tail_of_a_killed_store_is_cut_off_too(
        self, open_store: OpenStore, machine: Machine, root: Path
    ) -> None:
        *_, end = self.stale(open_store, machine, root)
        (root / ABORT).write_bytes(JAVA)
        java_wrote(root, physic_timestamp=START_MS + 10**9)
        store = open_store()
        assert (store.recovery.end, store.max_offset("T")) == (end, 3)
