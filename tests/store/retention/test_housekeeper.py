"""The periodic work: what a round syncs, what it notes, and how it fails."""

import errno
import mmap
import threading
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, Machine, crash_image, eventually, put_all
from tests.store.conftest import OpenStore

from firetrail import Message, PutStatus, Store
from firetrail.errors import FlushFailedError
from firetrail.store.retention import housekeeper
from firetrail.store.retention import housekeeper as housekeeper_module
from firetrail.store.retention.housekeeper import (
    FEW_QUEUES,
    FEW_QUEUES_INTERVAL_MS,
    RELEASE_INTERVAL_MS,
)
from firetrail.store.root.watermark import Watermark, read_watermark
from firetrail.system import Files


def noted(machine: Machine, root: Path) -> Watermark:
    watermark = read_watermark(machine.system, root)
    assert watermark is not None
    return watermark


def settle(store: Store) -> None:
    """Let the dispatcher have nothing to do."""
    assert store.wait_dispatched()
    eventually(lambda: store._engine.dispatcher.idle)


def test_an_open_store_notes_that_it_is_not_closed(
    store: Store, machine: Machine, root: Path
) -> None:
    assert not noted(machine, root).clean


def test_a_round_records_what_is_on_disk(store: Store, machine: Machine, root: Path) -> None:
    put_all(store, [b"a"], keys=["k"])
    settle(store)
    store._engine.housekeeper.round()
    watermark = noted(machine, root)
    assert (watermark.durable_offset, watermark.dispatched_offset) == (0, 0)
    store.flush()
    settle(store)
    store._engine.housekeeper.round()
    watermark = noted(machine, root)
    assert watermark.durable_offset == watermark.dispatched_offset == store.log_range[1]
    assert (watermark.last_record_offset, watermark.clean) == (0, False)


def test_an_idle_round_writes_nothing(store: Store, machine: Machine) -> None:
    put_all(store, [b"a"], keys=["k"])
    store.flush()
    settle(store)
    store._engine.housekeeper.round()
    machine.files.forget()
    store._engine.housekeeper.round()
    assert machine.files.count("sync") == 0
    assert machine.files.count("write") == 0


def test_a_resting_store_is_synced_completely(store: Store, machine: Machine) -> None:
    put_all(store, [b"a"], keys=["k"])
    settle(store)
    machine.files.forget()
    store._engine.housekeeper.round()
    assert machine.files.count("sync", "consumequeue") == 1
    assert machine.files.count("sync", "index") == 1
    assert not store._engine.queues.dirty


def test_a_busy_one_by_pages_until_it_is_time(
    open_store: OpenStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(units=1000, log=1 << 16)
    put_all(store, [b"a"])
    settle(store)
    housekeeper = store._engine.housekeeper
    monkeypatch.setattr(store._engine.dispatcher, "idle", False)
    machine.files.forget()
    housekeeper.round()
    assert machine.files.count("sync", "consumequeue") == 0
    machine.clock.advance(FEW_QUEUES_INTERVAL_MS)
    housekeeper.round()
    assert machine.files.count("sync", "consumequeue") == 1


def test_very_many_new_queues_do_not_wait(
    open_store: OpenStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop would have to sync all of them in two seconds."""
    monkeypatch.setattr(housekeeper_module, "NEW_QUEUES", 10)
    store = open_store(log=1 << 16, consume_queue_flush_thorough_interval_ms=60_000)
    for queue in range(FEW_QUEUES + 1):
        store.put(Message("T", b"x", queue_id=queue))
    settle(store)
    monkeypatch.setattr(store._engine.dispatcher, "idle", False)
    machine.files.forget()
    store._engine.housekeeper.round()
    assert machine.files.count("sync", "consumequeue") == FEW_QUEUES + 1 - 10
    assert store._engine.queues._new_files.count == 10


def test_many_queues_wait_for_the_thorough_interval(
    open_store: OpenStore, machine: Machine
) -> None:
    store = open_store(log=1 << 16, consume_queue_flush_thorough_interval_ms=60_000)
    for queue in range(FEW_QUEUES + 1):
        store.put(Message("T", b"x", queue_id=queue))
    settle(store)
    housekeeper = store._engine.housekeeper
    machine.clock.advance(FEW_QUEUES_INTERVAL_MS)
    machine.files.forget()
    housekeeper.round()
    assert machine.files.count("sync", "consumequeue") == 0
    machine.clock.advance(60_000)
    housekeeper.round()
    assert machine.files.count("sync", "consumequeue") == FEW_QUEUES + 1


def test_the_watermark_never_says_more_than_what_is_synced(
    store: Store, machine: Machine, root: Path
) -> None:
    """Messages that are dispatched while the queues are being synced are not covered."""
    put_all(store, [b"a"])
    store.flush()
    settle(store)
    covered = store.log_range[1]
    arrived: list[int] = []

    def more() -> None:
        if not arrived:
            arrived.append(1)
            put_all(store, [b"b"])

    machine.files.on("sync", more, "consumequeue")
    store._engine.housekeeper.round()
    machine.files.heal()
    assert noted(machine, root).dispatched_offset == covered < store.log_range[1]


@pytest.mark.parametrize("name", ["consumequeue", "index", "data/firetrail.watermark"])
def test_a_failed_sync_ends_writing(
    open_store: OpenStore, machine: Machine, root: Path, name: str
) -> None:
    store = open_store(consume_queue_flush_interval_ms=1)
    put_all(store, [b"a"], keys=["k"])
    machine.files.fail("sync", errno.EIO, name)
    put_all(store, [b"b"], keys=["k"])
    eventually(lambda: bool(store.refusal))
    assert "Input/output error" in store.refusal
    assert store.try_put(Message("T", b"c")).status is PutStatus.SERVICE_NOT_AVAILABLE
    machine.files.forget()
    store._engine.housekeeper.round()
    assert machine.files.count("sync", name) == 0, "it is never tried again"
    with pytest.raises(FlushFailedError, match="Input/output error"):
        store.close()
    assert (root / "abort").exists()


def test_no_space_for_the_watermark_is_tried_again(
    store: Store, machine: Machine, root: Path
) -> None:
    put_all(store, [b"a"])
    store.flush()
    settle(store)
    machine.files.fail("write", errno.ENOSPC, "data/firetrail.watermark")
    for _ in range(3):
        store._engine.housekeeper.round()
        put_all(store, [b"b"])
    assert not store.refusal
    assert noted(machine, root).durable_offset == 0
    machine.files.heal()
    store.flush()
    settle(store)
    store._engine.housekeeper.round()
    assert noted(machine, root).durable_offset == store.log_range[1]


def test_puts_are_refused_after_any_other_failure_as_well(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(consume_queue_flush_interval_ms=1)

    def broken(least_pages: int = 0, is_over: object = None) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(store._engine.queues, "flush", broken)
    eventually(lambda: "a bug" in store.refusal)


def test_recovery_starts_at_the_watermark(
    open_store: OpenStore, root: Path, tmp_path: Path
) -> None:
    store = open_store(log=1 << 16)
    put_all(store, [b"%d" % n for n in range(50)], keys=["k"])
    store.flush()
    settle(store)
    store._engine.housekeeper.round()
    covered = store.log_range[1]
    put_all(store, [b"late"], keys=["k"])
    again = open_store(crash_image(root, tmp_path / "image"))
    assert again.recovery.scanned_from == covered
    assert again.recovery.messages_scanned == 1
    assert again.max_offset("T") == 51
    assert len(again.query("T", "k", max_count=64)) == 51


def test_the_log_before_its_newest_part_is_let_go_of(
    store: Store, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process does not grow with its log; what is let go of can be read all the same."""
    monkeypatch.setattr(housekeeper, "NEWEST_KEPT", 1000)
    gone: list[int] = []

    def release_pages(mapping: mmap.mmap, offset: int, length: int) -> None:
        gone.append(length)
        Files.release_pages(machine.files, mapping, offset, length)

    monkeypatch.setattr(machine.files, "release_pages", release_pages)
    bodies = [b"%d" % number * 100 for number in range(100)]
    put_all(store, bodies, keys=["k"])
    store.flush()
    store._engine.housekeeper.round()
    assert not gone
    machine.clock.advance(RELEASE_INTERVAL_MS)
    store._engine.housekeeper.round()
    index = store._engine.index
    assert index is not None
    indexes = sum(file.segment.size for file in index.files)
    assert sum(gone) == store.log_range[1] - 1000 + indexes
    assert [bytes(message.body) for message in store.read("T", 0)] == bodies
    assert len(store.query("T", "k")) > 1


def test_a_stop_does_not_wait_for_a_round_that_syncs_many_queues(
    open_store: OpenStore, machine: Machine, root: Path
) -> None:
    """The round gives up and notes nothing; the stop syncs the rest in the time that it has."""
    store = open_store(log=1 << 16)
    for number in range(FEW_QUEUES):
        store.put(Message(f"t{number}", b"x"))
    store.flush()
    settle(store)
    engine = store._engine
    machine.clock.advance(engine.config.consume_queue_flush_thorough_interval_ms)
    machine.files.forget()
    with machine.files.stalled("sync", "consumequeue") as reached:
        round_ = threading.Thread(target=engine.housekeeper.round)
        round_.start()
        assert reached.wait(PATIENCE_S)
        engine.housekeeper._stop.set()
    round_.join()
    assert machine.files.count("sync") < FEW_QUEUES
    assert noted(machine, root).dispatched_offset == 0
    store.close()
    assert noted(machine, root).clean
    assert noted(machine, root).dispatched_offset == noted(machine, root).durable_offset > 0
