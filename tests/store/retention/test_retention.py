"""Retention: which files expire when, which never do, and what readers see of it."""

import logging
import os
import threading
from datetime import datetime
from pathlib import Path

import pytest
from tests.helpers import START_MS, Machine, bodies, put_all, small_config
from tests.store.conftest import OpenStore

from firetrail import GetStatus, Message, PutStatus, Store
from firetrail.format.names import segment_name

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HOUR_NOW = datetime.fromtimestamp(START_MS / 1000).hour
OTHER_HOUR = (HOUR_NOW + 5) % 24


@pytest.fixture
def full(open_store: OpenStore) -> Store:
    """A store with eight log files, all of it on disk; not the hour of deletion."""
    return filled(open_store)


def filled(open_store: OpenStore, **settings: object) -> Store:
    store = open_store(delete_when=(OTHER_HOUR,), entries=8, slots=4, **settings)
    put_all(store, [b"%d" % n + b"." * 1000 for n in range(24)], keys=["k"])
    store.flush()
    return store


def segments(root: Path) -> list[int]:
    return sorted(int(name) // 4096 for name in os.listdir(root / "commitlog"))


def age(store: Store, *ages_ms: int) -> None:
    """Let the oldest files have been changed so long ago."""
    for segment, age_ms in zip(store._engine.log.queue.segments, ages_ms, strict=False):
        changed = (store._engine.system.clock.now_ms() - age_ms) / 1000
        os.utime(segment.path, (changed, changed))


def hour(store: Store, machine: Machine) -> None:
    """Let it become the hour of deletion."""
    machine.clock.advance(((OTHER_HOUR - HOUR_NOW) % 24) * HOUR_MS)


def round_of(store: Store) -> int:
    return store._engine.retention.round()


class TestByAge:
    def test_deletes_only_at_the_hour(self, full: Store, machine: Machine, root: Path) -> None:
        age(full, 80 * HOUR_MS, 80 * HOUR_MS, 10 * HOUR_MS)
        assert round_of(full) == 0
        hour(full, machine)
        assert round_of(full) == 2
        assert segments(root)[0] == 2
        assert round_of(full) == 0

    @pytest.mark.parametrize(("age_ms", "expired"), [(72 * HOUR_MS, 1), (72 * HOUR_MS - 1000, 0)])
    def test_deletes_at_the_configured_age(self, full: Store, age_ms: int, expired: int) -> None:
        age(full, age_ms, 0)
        assert full.delete_expired() == expired

    def test_not_past_a_file_that_stays(self, full: Store, root: Path) -> None:
        age(full, 0, 80 * HOUR_MS, 80 * HOUR_MS)
        assert full.delete_expired() == 0

    def test_a_round_deletes_at_most_a_batch_with_pauses(
        self, open_store: OpenStore, machine: Machine, root: Path
    ) -> None:
        store = filled(open_store, delete_batch_max=3, delete_interval_ms=77)
        age(store, *[80 * HOUR_MS] * 8)
        assert store.delete_expired() == 3
        assert machine.clock.pauses.count(77) == 2
        assert store.delete_expired() == 3

    def test_the_active_file_is_never_deleted(self, full: Store, root: Path) -> None:
        age(full, *[80 * HOUR_MS] * 9)
        active = full.log_range[1] // 4096
        assert full.delete_expired() == active
        assert full.delete_expired() == 0
        assert active in segments(root)
        assert bodies(full)[-1].startswith(b"23.")


class TestReplicas:
    """A replica that is connected keeps expired files that it still needs, within limits."""

    def test_expired_files_stay_until_all_replicas_have_them(self, full: Store, root: Path) -> None:
        acks = full._engine.acks
        age(full, *[80 * HOUR_MS] * 8)
        acks.note("a", 3 * 4096)
        acks.note("b", 4096 + 1)
        assert full.delete_expired() == 1
        acks.note("b", 5 * 4096)
        assert full.delete_expired() == 2
        acks.drop("a")
        assert full.delete_expired() == 2
        assert segments(root)[0] == 5

    def test_a_replica_too_far_behind_is_left_behind(self, full: Store, root: Path) -> None:
        age(full, *[80 * HOUR_MS] * 8)
        full._engine.acks.note("a", 0)
        assert full.delete_expired() == 0
        end = full.log_range[1]
        full._engine.configure(full.config.replace(replica_retention_bytes=end - 3 * 4096))
        assert full.delete_expired() == 3

    def test_a_nearly_full_disk_is_cleaned_nevertheless(
        self, full: Store, machine: Machine
    ) -> None:
        full._engine.acks.note("a", 0)
        machine.files.used = 0.86
        assert round_of(full) == 7


class TestByDisk:
    def test_deletes_expired_files_at_any_hour(self, full: Store, machine: Machine) -> None:
        age(full, 80 * HOUR_MS, 0)
        machine.files.used = 0.75
        assert round_of(full) == 0
        machine.files.used = 0.76
        assert round_of(full) == 1
        assert round_of(full) == 0, "the others have not expired"

    def test_any_file_when_it_is_nearly_full(self, full: Store, machine: Machine) -> None:
        machine.files.used = 0.86
        assert round_of(full) == full.log_range[1] // 4096
        assert len(full._engine.log.queue.segments) == 1
        assert not full.refusal

    def test_unexpired_files_stay_if_clean_forcibly_is_off(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = filled(open_store, clean_forcibly=False)
        machine.files.used = 0.95
        assert round_of(store) == 0
        assert store.refusal

    def test_puts_are_refused_above_the_warning_level(self, full: Store, machine: Machine) -> None:
        machine.files.used = 0.91
        round_of(full)
        result = full.try_put(Message("T", b"x"))
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert result.detail == "the disk is nearly full: 91% of the file system is used"
        assert full.get("T", 0, full.max_offset("T") - 1).status is GetStatus.FOUND
        # Between the two levels it stays as it was; below, puts are taken again.
        machine.files.used = 0.88
        round_of(full)
        assert full.refusal
        machine.files.used = 0.85
        round_of(full)
        assert not full.refusal
        put_all(full, [b"again"])
        machine.files.used = 0.88
        round_of(full)
        assert not full.refusal

    def test_configured_disk_ratios_are_used(self, open_store: OpenStore, machine: Machine) -> None:
        store = filled(
            open_store,
            disk_max_used_ratio=0.2,
            disk_clean_forcibly_ratio=0.4,
            disk_warning_ratio=0.5,
        )
        machine.files.used = 0.45
        assert round_of(store) > 0
        machine.files.used = 0.51
        round_of(store)
        assert "51%" in store.refusal


class TestLog:
    """Every deletion is logged."""

    def test_the_removal_of_expired_files_is_logged(
        self, full: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        age(full, 80 * HOUR_MS, 0)
        path = full._engine.log.queue.segments[0].path
        full.delete_expired()
        (record,) = (r for r in caplog.records if "retention removes" in r.getMessage())
        assert record.levelname == "INFO"
        assert record.getMessage() == (
            f"retention removes {path}: 4.0 KiB of messages (log offsets 0 to 4096), last changed "
            "80.0 h ago, because files are kept for 72 h"
        )

    def test_files_that_go_before_their_time(
        self, full: Store, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        age(full, *[HOUR_MS] * 8)
        machine.files.used = 0.86
        removed = round_of(full)
        warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert len(warnings) == removed > 1
        assert warnings[0].endswith(
            "last changed 1.0 h ago, because 86% of the file system is used, more than 85% "
            "(diskSpaceCleanForciblyRatio)"
        )

    def test_a_forced_deletion_is_logged(
        self, full: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        age(full, *[HOUR_MS] * 8)
        full.delete_expired(forced=True)
        assert "because deletion was requested regardless of age" in caplog.text


class TestNever:
    def test_files_that_are_not_dispatched_stay(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = filled(open_store)
        with machine.files.stalled("open", "consumequeue/U"):
            store.put(Message("U", b"x"))
            for _ in range(10):
                store.put(Message("T", b"x" * 1000))
            store.flush()
            behind = store._engine.dispatcher.position
            store.delete_expired(forced=True)
            assert store.log_range[0] <= behind
        assert store.wait_dispatched()
        assert store.max_offset("U") == 1

    def test_unsynced_files_are_not_deleted(self, open_store: OpenStore, machine: Machine) -> None:
        store = open_store()
        put_all(store, [b"x" * 1000] * 12)
        assert store.flushed_offset == 0
        assert store.delete_expired(forced=True) == 0
        store.flush()
        assert store.delete_expired(forced=True) > 0
        store.flush()

    def test_two_rounds_at_once_keep_the_active_file(self, open_store: OpenStore) -> None:
        """The housekeeper's round and a call from outside do not add up to the active file."""
        store = filled(open_store, delete_interval_ms=0)
        threads = [
            threading.Thread(target=store.delete_expired, kwargs={"forced": True}) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store._engine.log.queue.segments) == 1
        put_all(store, [b"more"])
        assert bodies(store)[-1] == b"more"

    def test_while_others_put_and_read(self, open_store: OpenStore) -> None:
        store = filled(open_store, delete_interval_ms=0, flush_interval_ms=1, flush_least_pages=0)
        stop = threading.Event()
        failures: list[BaseException] = []

        def guarded(action) -> threading.Thread:  # type: ignore[no-untyped-def]
            def run() -> None:
                try:
                    while not stop.is_set():
                        action()
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def read() -> None:
            result = store.get("T", 0, store.min_offset("T"))
            for message in result.messages():
                assert message.crc_ok
            list(store.read("T", offset=0))
            store.query("T", "k")
            store.offset_at("T", 0, START_MS)
            store.at(store.log_range[0])

        threads = [
            guarded(lambda: store.put(Message("T", b"x" * 500, keys=["k"]))),
            guarded(lambda: store.delete_expired(forced=True)),
            guarded(read),
        ]
        stop.wait(1.0)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert not store.refusal
        assert store.wait_dispatched()
        offsets = [message.queue_offset for message in store.read("T")]
        assert offsets == list(range(store.min_offset("T"), store.max_offset("T")))


class TestWhatFollows:
    def test_queues_and_index_begin_where_the_log_does(self, full: Store, root: Path) -> None:
        full.delete_expired(forced=True)
        first = full.log_range[0]
        low = full.min_offset("T")
        assert low > 10
        assert sorted(os.listdir(root / "consumequeue/T/0"))[0] == segment_name(low // 10 * 200)
        units = [full._engine.queues.open("T", 0).unit(n) for n in range(low, 24)]
        assert all(unit is not None and unit.physical_offset >= first for unit in units)
        assert [m.queue_offset for m in full.query("T", "k")] == list(range(23, low - 1, -1))
        index = full._engine.index
        assert index is not None and index.files[0].header.end_offset >= first

    def test_reads_of_deleted_messages(self, full: Store) -> None:
        offset = full.put(Message("T", b"x")).physical_offset
        gone = full.at(0)
        assert gone is not None
        full.flush()
        full.delete_expired(forced=True)
        low = full.min_offset("T")
        result = full.get("T", 0, 0)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
        assert full.at(0) is None
        assert full.by_id(gone.message_id) is None
        assert full.at(offset) is not None
        assert full.offset_at("T", 0, 0) == low

    def test_a_queue_that_has_lost_all_its_messages(self, open_store: OpenStore) -> None:
        store = open_store()
        put_all(store, [b"a", b"b"], topic="old")
        put_all(store, [b"x" * 1000] * 12)
        store.flush()
        store.delete_expired(forced=True)
        assert (store.min_offset("old"), store.max_offset("old")) == (2, 2)
        assert store.get("old", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
        assert store.get("old", 0, 2).status is GetStatus.OFFSET_OVERFLOW_ONE
        store.close()
        again = open_store()
        assert again.put(Message("old", b"c")).queue_offset == 2
        assert again.wait_dispatched()
        assert bodies(again, "old") == [b"c"]

    def test_a_restart_brings_nothing_back(self, full: Store, open_store: OpenStore) -> None:
        full.delete_expired(forced=True)
        left = bodies(full)
        full.close()
        again = open_store()
        assert again.recovery.clean
        assert bodies(again) == left
        put_all(again, [b"more"])
        assert again.max_offset("T") == 25

    @pytest.mark.parametrize("kind", ["watermark", "java"])
    def test_a_crash_brings_nothing_back(
        self, full: Store, open_store: OpenStore, root: Path, kind: str
    ) -> None:
        full.delete_expired(forced=True)
        left = bodies(full)
        full.close()
        (root / "abort").write_bytes(b"firetrail 1" if kind == "watermark" else b"")
        again = open_store()
        assert not again.recovery.clean
        assert bodies(again) == left
        assert len(again.query("T", "k")) == len(left)


class TestReaders:
    def test_readers_keep_the_slices_they_hold(
        self, open_store: OpenStore, machine: Machine, root: Path
    ) -> None:
        store = filled(open_store, destroy_forcibly_after_ms=60_000)
        held = store.get("T", 0, 0, 2)
        slices = held.buffers
        assert held.count == 2
        store.delete_expired(forced=True)
        assert store.get("T", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
        assert segments(root)[0] == 0, "the file is still there"
        assert [bytes(m.body)[:2] for m in held.messages()] == [b"0.", b"1."]
        machine.clock.advance(60_000)
        round_of(store)
        assert segments(root)[0] > 0
        assert [bytes(m.body)[:2] for m in held.messages()] == [b"0.", b"1."]
        del held, slices

    def test_readers_release_the_files_they_have_read(self, full: Store, root: Path) -> None:
        """The store itself must not keep the space of deleted files in use."""
        for number in range(24):
            assert full.get("T", 0, number, 1).count == 1
        full.get("T", 0, 0, 1)
        full.delete_expired(forced=True)
        assert segments(root)[0] == full.log_range[0] // 4096 > 0
        there = {path.stat().st_ino for path in (root / "commitlog").iterdir()}
        mapped = {
            int(line.split()[4])
            for line in Path("/proc/self/maps").read_text().splitlines()
            if str(root / "commitlog") in line
        }
        assert mapped <= there


class TestClock:
    def test_a_clock_that_jumps_ahead_expires_nothing(self, full: Store, machine: Machine) -> None:
        """The files were changed just now, whatever the clock says a moment later."""
        age(full, *[0] * 8)
        machine.clock.set_wall(START_MS + 10 * 365 * DAY_MS)
        assert full.delete_expired() == 0

    def test_a_jump_back_keeps_things_longer(self, full: Store, machine: Machine) -> None:
        age(full, *[80 * HOUR_MS] * 8)
        machine.clock.set_wall(START_MS - 10 * 365 * DAY_MS)
        assert full.delete_expired() == 0

    def test_time_that_really_passes_counts(self, full: Store, machine: Machine) -> None:
        age(full, *[0] * 8)
        machine.clock.advance(73 * HOUR_MS)
        assert full.delete_expired() > 0


class TestHousekeeper:
    def test_the_housekeeper_runs_retention(self, machine: Machine, tmp_path: Path) -> None:
        from tests.helpers import eventually

        config = small_config(
            consume_queue_flush_interval_ms=1,
            clean_interval_ms=1,
            flush_interval_ms=1,
            flush_least_pages=0,
            delete_interval_ms=0,
        )
        with Store.open(tmp_path / "data", config, system=machine.system) as store:
            put_all(store, [b"x" * 1000] * 12)
            machine.files.used = 0.88
            eventually(lambda: len(store._engine.log.queue.segments) == 1)
            machine.files.used = 0.95
            eventually(lambda: bool(store.refusal))
            machine.files.used = 0.1
            eventually(lambda: not store.refusal)

    def test_a_put_without_space_lets_it_look_at_the_disk(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        from tests.helpers import eventually

        config = small_config(consume_queue_flush_interval_ms=1, clean_interval_ms=HOUR_MS)
        with Store.open(tmp_path / "data", config, system=machine.system) as store:
            put_all(store, [b"x" * 1000] * 2)
            machine.files.used = 0.95
            machine.files.fill_disk("commitlog")
            full = PutStatus.CREATE_MAPPED_FILE_FAILED  # after the file that was created ahead
            assert full in [store.try_put(Message("T", b"x" * 3000)).status for _ in range(3)]
            eventually(lambda: bool(store.refusal))
            machine.files.heal()
