"""Recovery: where the log ends, what is torn, what is damage, and that it can be repeated."""

import os
import shutil
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import START_MS, Machine, bodies, crash_image, put_all, tree
from tests.store.conftest import OpenStore
from tests.store.recoveries import (
    ABORT,
    JAVA,
    LOG,
    OURS,
    check_whole,
    flip,
    java_wrote,
    numbered,
    patch,
)

from firetrail import FlushMode, Message
from firetrail.format.files.unit import ConsumeQueueUnit, encode_unit
from firetrail.format.names import segment_name
from firetrail.store.dispatch.derivation import Deriver, Step
from firetrail.store.root import sizes

JUNK = ConsumeQueueUnit(7, 7, 0)
"""A unit that points into the middle of a record."""
pytestmark = pytest.mark.stepped_threads


class TestClean:
    def test_nothing_is_scanned(self, closed: list[int], open_store: OpenStore) -> None:
        store = open_store()
        report = store.recovery
        assert report.clean
        assert report.messages_scanned == report.bytes_truncated == 0
        assert report.scanned_from == report.end == closed[-1]
        assert report.last_record_offset == closed[-2]
        check_whole(store, numbered(10))

    def test_no_folder_of_a_queue_is_listed(
        self, open_store: OpenStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The inventory says which files there are, so one unit of each queue is read."""
        monkeypatch.setattr(sizes, "QUEUES_SEEN", 1)
        store = open_store(log=1 << 16)
        for queue in range(5):
            put_all(store, numbered(12), queue_id=queue)  # two files
        store.close()
        machine.files.forget()
        again = open_store(log=1 << 16)
        for queue in range(1, 5):
            made = [call for call in machine.files.calls if call.path.match(f"T/{queue}/*")]
            assert [call.operation for call in made] == ["size", "open", "read_at", "close"]
            listed = [call for call in machine.files.calls if call.path.match(f"T/{queue}")]
            assert listed == []
        assert again._engine.queues.loaded == {}

    @pytest.mark.parametrize("file", [0, 200])
    @pytest.mark.parametrize("left", [None, 0, 100])
    def test_a_file_that_is_missing_or_short_is_derived_again(
        self, open_store: OpenStore, root: Path, file: int, left: int | None
    ) -> None:
        store = open_store(log=1 << 16)
        put_all(store, numbered(12))
        store.close()
        path = root / "consumequeue" / "T" / "0" / segment_name(file)
        if left is None:
            path.unlink()
        else:
            os.truncate(path, left)
        again = open_store(log=1 << 16)
        assert again.recovery.restored_queues == 1
        assert bodies(again) == numbered(12)

    def test_nothing_is_changed(self, closed: list[int], open_store: OpenStore, root: Path) -> None:
        def content() -> dict[str, bytes]:
            files = tree(root)
            del files["firetrail.watermark"]
            return files

        before = content()
        for _ in range(3):
            open_store().close()
            assert content() == before

    def test_without_a_watermark_the_queues_tell(
        self, closed: list[int], open_store: OpenStore, root: Path
    ) -> None:
        (root / "firetrail.watermark").unlink()
        store = open_store()
        assert store.recovery.scanned_from == closed[-2]
        assert store.recovery.messages_scanned == 1
        assert store.recovery.end == closed[-1]
        check_whole(store, numbered(10))

    def test_a_watermark_that_another_store_has_outdated(
        self, closed: list[int], open_store: OpenStore, root: Path
    ) -> None:
        java_wrote(root)
        store = open_store()
        assert store.recovery.messages_scanned == 1
        check_whole(store, numbered(10))
        put_all(store, numbered(1, 10), keys=["k"])
        check_whole(store, numbered(11))

    @pytest.mark.parametrize("java", [False, True])
    @pytest.mark.parametrize("steps", range(4))
    def test_stopped_while_removed_queues_are_derived_again(
        self,
        open_store: OpenStore,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        steps: int,
        java: bool,
    ) -> None:
        """Neither queues nor index are taken for complete by the next opening."""
        store = open_store()
        put_all(store, numbered(60), keys=["k"])
        store.close()
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
        if java:
            (root / "firetrail.watermark").unlink()

        class Killed(BaseException):
            pass

        def dies(self: Deriver, *arguments: Any) -> Iterator[Step]:
            yield from islice(derive(self, *arguments), steps)
            raise Killed

        derive = Deriver.steps
        monkeypatch.setattr("firetrail.store.dispatch.derivation.ROWS_PER_STEP", 8)
        monkeypatch.setattr(Deriver, "steps", dies)
        with pytest.raises(Killed):
            open_store()
        monkeypatch.setattr(Deriver, "steps", derive)
        store = open_store()
        assert not store.recovery.clean
        check_whole(store, numbered(60))
        assert len(store.query("T", "k", max_count=64)) == 60

    def test_an_empty_store_opens_clean(self, open_store: OpenStore) -> None:
        open_store().close()
        store = open_store()
        assert store.recovery.clean
        assert store.recovery.end == 0
        assert store.put(Message("T", b"x")).physical_offset == 0

    def test_messages_without_units_at_the_end(self, open_store: OpenStore, root: Path) -> None:
        store = open_store()
        put_all(store, numbered(2), keys=["k"])
        put_all(store, [b"half"], sys_flag=4)
        end = store.log_range[1]
        store.close()
        for name in ("firetrail.watermark", "checkpoint"):
            (root / name).unlink()
            again = open_store()
            assert again.recovery.end == end
            again.close()

    def test_a_file_that_was_allocated_ahead(
        self, closed: list[int], open_store: OpenStore, root: Path
    ) -> None:
        (root / "commitlog" / segment_name(4096)).write_bytes(bytes(4096))
        check_whole(open_store(), numbered(10))


class TestUnclean:
    @pytest.mark.parametrize("abort", [OURS, JAVA, b"4711"])
    @pytest.mark.parametrize("count", [0, 1, 10, 130])
    def test_every_message_is_back(
        self, open_store: OpenStore, root: Path, tmp_path: Path, abort: bytes, count: int
    ) -> None:
        store = open_store()
        put_all(store, numbered(count), keys=["k"])
        image = crash_image(root, tmp_path / "image")
        (image / ABORT).write_bytes(abort)
        again = open_store(image)
        assert not again.recovery.clean
        check_whole(again, numbered(count))
        put_all(again, numbered(1, count), keys=["k"])
        check_whole(again, numbered(count + 1))

    @pytest.mark.parametrize("mode", list(FlushMode))
    def test_everything_is_recovered_after_several_watermarks(
        self, open_store: OpenStore, root: Path, tmp_path: Path, mode: FlushMode
    ) -> None:
        store = open_store(flush=mode)
        for number in range(3):
            put_all(store, numbered(10, 10 * number), keys=["k"])
            store.flush()
            store._engine.housekeeper.flush_derived()
            store._engine.housekeeper.write_watermark(clean=False)
        put_all(store, numbered(5, 30), keys=["k"])
        image = crash_image(root, tmp_path / "image")
        again = open_store(image)
        assert again.recovery.messages_scanned == 5
        check_whole(again, numbered(35))

    def test_queues_that_never_reached_the_disk_are_derived_again(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        store = open_store()
        put_all(store, numbered(30), keys=["k"])
        image = crash_image(root, tmp_path / "image")
        shutil.rmtree(image / "consumequeue")
        shutil.rmtree(image / "index")
        check_whole(open_store(image), numbered(30))

    def test_queues_that_are_ahead_of_the_log(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        """The log's last page was lost, the queue's was not."""
        store = open_store()
        offsets = put_all(store, numbered(30), keys=["k"])
        image = crash_image(root, tmp_path / "image")
        patch(image / LOG, offsets[20], bytes(4096 - offsets[20]))
        again = open_store(image)
        assert again.recovery.end == offsets[20]
        check_whole(again, numbered(20))
        put_all(again, numbered(1, 20), keys=["k"])
        check_whole(again, numbered(21))

    def test_an_index_with_part_of_a_record_is_completed(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        store = open_store()
        for number in range(5):
            store.put(Message("T", b"%04d" % number, keys=["k", f"a{number}", f"b{number}"]))
        assert store.wait_dispatched()
        image = crash_image(root, tmp_path / "image")
        (index,) = (image / "index").iterdir()
        header = bytearray(index.read_bytes()[:40])
        (entries,) = struct.unpack_from(">i", header, 36)
        patch(index, 40 + 4 * 16 + 20 * (entries - 1), bytes(20))  # the last key never arrived
        (image / ABORT).write_bytes(JAVA)
        again = open_store(image)
        check_whole(again, numbered(5))
        assert len(again.query("T", "b4")) == len(again.query("T", "a4")) == 1

    def test_a_repeated_recovery_ends_the_same(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        store = open_store()
        offsets = put_all(store, numbered(30), keys=["k"])
        image = crash_image(root, tmp_path / "image")
        flip(image / LOG, offsets[20] + 88)
        results = []
        for number in range(3):
            copy = crash_image(image, tmp_path / f"copy{number}")
            for attempt in range(number):  # killed again right after recovery
                again = open_store(copy)
                copy = crash_image(copy, tmp_path / f"copy{number}-{attempt}")
                again.close()
            recovered = open_store(copy)
            check_whole(recovered, numbered(20))
            recovered.close()
            files = tree(copy)
            for name in ("firetrail.watermark", "checkpoint"):
                del files[name]
            results.append(files)
        assert results[0] == results[1] == results[2]

    def test_transactions_and_delays(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        store = open_store()
        put_all(store, numbered(2), keys=["k"])
        put_all(store, [b"half"], sys_flag=4)
        put_all(store, [b"late"], delay_level=3)
        put_all(store, [b"back"], sys_flag=12)
        put_all(store, numbered(1, 2), keys=["k"])
        image = crash_image(root, tmp_path / "image")
        shutil.rmtree(image / "consumequeue")
        again = open_store(image)
        check_whole(again, numbered(3))
        assert bodies(again, "SCHEDULE_TOPIC_XXXX", 2) == [b"late"]
        units = [s._engine.queues.open("SCHEDULE_TOPIC_XXXX", 2).unit(0) for s in (store, again)]
        assert units[0] == units[1]


class TestTornTail:
    @pytest.mark.parametrize("sealed", [True, False])
    @pytest.mark.parametrize("lost", [1, 2, 11, 12, 60, 100, 130])
    def test_is_cut_zeroed_and_forgotten(
        self, open_store: OpenStore, root: Path, tmp_path: Path, lost: int, sealed: bool
    ) -> None:
        store = open_store(property_crc=sealed)
        offsets = put_all(store, numbered(10), keys=["k"])
        size, end = offsets[1], store.log_range[1]
        image = crash_image(root, tmp_path / "image")
        patch(image / LOG, end - lost, b"\xee" * lost)
        again = open_store(image, property_crc=sealed)
        log = (image / LOG).read_bytes()
        assert not any(log[again.log_range[1] :])
        if lost < 11 and not sealed:
            # The end of the properties: no checksum covers it, the record still has its form.
            assert again.recovery.end == end
            return
        kept = 10 - -(-lost // size)
        assert again.recovery.end == offsets[kept]
        assert again.recovery.bytes_truncated > 0
        check_whole(again, numbered(kept))

    def test_is_synced_before_the_first_write(
        self, open_store: OpenStore, root: Path, tmp_path: Path, machine: Machine
    ) -> None:
        store = open_store()
        put_all(store, numbered(3), keys=["k"])
        image = crash_image(root, tmp_path / "image")
        patch(image / LOG, store.log_range[1], b"rubbish")
        machine.files.forget()
        open_store(image)
        calls = [c.operation for c in machine.files.calls if "commitlog" in str(c.path)]
        zeroed = calls.index("write_zeros")
        assert "sync" in calls[zeroed:]

    def test_cut_records_do_not_come_back(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        """The stale-tail bug of the Java store, step by step (reference/store.md 5.5)."""
        store = open_store()
        offsets = put_all(store, numbered(10), keys=["k"])
        first = crash_image(root, tmp_path / "first")
        flip(first / LOG, offsets[2] + 88)  # in the body
        again = open_store(first)
        assert again.recovery.end == offsets[2]
        put_all(again, [b"new!"], keys=["k"])  # as long as the one that was torn
        assert again.log_range[1] == offsets[3]
        second = crash_image(first, tmp_path / "second")
        last = open_store(second)
        assert bodies(last) == [*numbered(2), b"new!"]

    def test_over_the_end_of_a_file(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        store = open_store()
        put_all(store, [b"a" * 3000, b"b" * 3000, b"c" * 3000], keys=["k"])
        image = crash_image(root, tmp_path / "image")
        flip(image / "commitlog" / segment_name(4096), 100)
        again = open_store(image)
        assert bodies(again) == [b"a" * 3000]
        assert not (image / "commitlog" / segment_name(8192)).exists()
        put_all(again, [b"d" * 3000], keys=["k"])
        assert bodies(again) == [b"a" * 3000, b"d" * 3000]

    @pytest.mark.parametrize("java_was_here", [True, False])
    def test_a_record_without_the_checksum_that_all_others_have(
        self, open_store: OpenStore, root: Path, tmp_path: Path, java_was_here: bool
    ) -> None:
        """Torn, unless the Java store was started since and has put messages of its own."""
        other = open_store(tmp_path / "other")
        size = other.put(Message("T", b"unsealed")).size
        record = bytearray((tmp_path / "other" / LOG).read_bytes()[:size])
        store = open_store(property_crc=True)
        put_all(store, numbered(3))
        store.flush()
        store._engine.housekeeper.flush_derived()
        store._engine.housekeeper.write_watermark(clean=False)
        image = crash_image(root, tmp_path / "image")
        end = store.log_range[1]
        record[20:36] = struct.pack(">qq", 3, end)  # its queue offset and its place
        patch(image / LOG, end, record)
        if java_was_here:
            (image / "lock").write_bytes(b"lock")
        again = open_store(image, property_crc=True)
        assert again.max_offset("T") == (4 if java_was_here else 3)

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_record_whose_end_is_a_hole(
        self, open_store: OpenStore, root: Path, tmp_path: Path, whole: bool
    ) -> None:
        """A copy of a store may have holes for pages of zeros; what ends in one may be whole."""
        store = open_store(log=1 << 16)
        put_all(store, numbered(3), keys=["k"])
        start = store.log_range[1]
        # The length of the properties, zero, is on a page of its own.
        body = b"x" * (8192 - start - 88 - 2)
        result = store.put(Message("T", body))
        assert result.physical_offset + result.size == 8194
        assert store.wait_dispatched()
        image = crash_image(root, tmp_path / "image")
        with (image / LOG).open("r+b") as log:
            log.truncate(8192 if whole else 4096)
            log.truncate(1 << 16)
        again = open_store(image)
        assert again.max_offset("T") == (4 if whole else 3)

    def test_without_checksums_only_the_form_counts(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        store = open_store()
        offsets = put_all(store, numbered(3), keys=["k"])
        image = crash_image(root, tmp_path / "image")
        flip(image / LOG, offsets[1] + 88)
        copy = crash_image(image, tmp_path / "copy")
        assert open_store(image).max_offset("T") == 1
        assert open_store(copy, check_crc_on_recover=False).max_offset("T") == 3


class TestManyQueues:
    """After an unclean stop, the work depends on the queues that were used since the watermark."""

    @pytest.fixture
    def image(self, open_store: OpenStore, root: Path, tmp_path: Path) -> Path:
        """A killed store: queue 2 of 0..4 got a second message after the watermark."""
        store = open_store(log=1 << 16)
        for queue in range(5):
            put_all(store, [b"old"], queue_id=queue)
        store.flush()
        store._engine.housekeeper.flush_derived()
        store._engine.housekeeper.write_watermark(clean=False)
        put_all(store, [b"new"], queue_id=2)
        return crash_image(root, tmp_path / "image")

    def test_the_others_are_not_opened(
        self, image: Path, open_store: OpenStore, machine: Machine
    ) -> None:
        machine.files.forget()
        again = open_store(image, log=1 << 16)
        queues = [call for call in machine.files.calls if "consumequeue" in call.path.parts]
        for operation in ("sync", "sync_folder"):
            named = {call.path for call in queues if call.operation == operation}
            folders = {path.relative_to(image).parts[2] for path in named if "T" in path.parts[:-1]}
            assert folders == {"2"}, operation
        assert list(again._engine.queues.loaded) == [("T", 2)]
        assert again._engine.inventory.noted.queues == {
            ("T", queue): (0, 2 if queue == 2 else 1) for queue in range(5)
        }

    def test_they_continue(self, image: Path, open_store: OpenStore, machine: Machine) -> None:
        again = open_store(image, log=1 << 16)
        machine.files.forget()
        for queue in range(5):
            put = again.put(Message("T", b"x", queue_id=queue))
            assert put.queue_offset == (2 if queue == 2 else 1)
            read = [bytes(record.body) for record in again.read("T", queue)]
            assert read == ([b"old", b"new", b"x"] if queue == 2 else [b"old", b"x"])

    @pytest.mark.parametrize(
        ("at", "garbage"),
        [(20, b"\1"), (100, b"\1"), (8, b"\0\0\0\7"), (0, bytes(8)), (20, encode_unit(JUNK))],
        ids=["right after", "later", "a wrong size", "a wrong position", "a unit of no record"],
    )
    def test_garbage_at_the_end_is_removed(
        self, image: Path, open_store: OpenStore, at: int, garbage: bytes
    ) -> None:
        patch(image / "consumequeue" / "T" / "4" / segment_name(0), at, garbage)
        again = open_store(image, log=1 << 16)
        assert again.put(Message("T", b"x", queue_id=4)).queue_offset == 1
        read = [bytes(record.body) for record in again.read("T", 4)]
        assert read == [b"old", b"x"]

    def test_files_that_are_missing_are_derived_again(
        self, image: Path, open_store: OpenStore
    ) -> None:
        shutil.rmtree(image / "consumequeue" / "T" / "3")
        again = open_store(image, log=1 << 16)
        assert [bytes(record.body) for record in again.read("T", 3)] == [b"old"]


class TestNumbering:
    def test_a_store_time_that_was_ahead(
        self, open_store: OpenStore, root: Path, tmp_path: Path, machine: Machine
    ) -> None:
        store = open_store()
        put_all(store, numbered(3), keys=["k"])
        image = crash_image(root, tmp_path / "image")
        machine.clock.ms -= 5000
        assert open_store(image).put(Message("T", b"x")).store_time == START_MS

    def test_queue_offsets_continue_after_a_crash(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        store = open_store()
        for topic in "AB":
            for queue in range(3):
                put_all(store, numbered(queue + 1), topic=topic, queue_id=queue)
        image = crash_image(root, tmp_path / "image")
        again = open_store(image)
        for topic in "AB":
            for queue in range(3):
                put = again.put(Message(topic, b"x", queue_id=queue))
                assert put.queue_offset == queue + 1
