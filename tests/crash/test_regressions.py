"""Bugs that the surveys have found, each in the fewest steps that show it."""

import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.files_check import UNIT
from tests.crash.oracle import History
from tests.crash.world.disk import NEW, PAGE, SECTOR, Disk, Image
from tests.crash.world.simulation import SLOTS, Checker, Process, scratch, tiny_config

from firetrail import Message, PutStatus
from firetrail.format.files.index import IndexGeometry, find_geometry
from firetrail.system import Files, SyncError

LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/orders/0/00000000000000000000"


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch() as path:
        yield path


def opened(folder: Path, mode: str = "sync", **settings: Any) -> Process:
    (folder / "live").mkdir()
    config = tiny_config(mode, **settings)
    process = Process(Disk(folder / "live"), config, History(), seed=1)
    process.open()
    return process


def killed(process: Process) -> Image:
    """Return the files after a kill, everything in them durable."""
    process.kill()
    snapshot = process.disk.snapshot()
    return snapshot.image(PAGE, snapshot.pending(PAGE))


def text(image: Image, name: str) -> bytes:
    content = image[name]
    assert content is not None
    return content


def test_a_new_file_has_its_length_before_its_name(folder: Path) -> None:
    """Names were durable before lengths: two files of no bytes stopped the next open."""
    process = opened(folder)
    operations: list[str] = []
    process.files.hooks.append(lambda kind, name: operations.append(f"{kind} {name}"))
    process.put(Message("orders", b"1"))
    process.kill()
    first = operations.index(f"sync {LOG}{NEW}")
    assert first < operations.index(f"give_name {LOG}") < operations.index("sync_folder commitlog")


def test_names_made_just_before_a_kill_are_synced(folder: Path) -> None:
    """The next process relied on them; a power loss then took the queue's file."""
    process = opened(folder)

    def stop_at_the_name(kind: str, name: str) -> None:
        if kind == "sync_folder" and name == "consumequeue/orders/0":
            process.world.pause(3600)

    process.files.hooks.append(stop_at_the_name)
    process.put(Message("orders", b"1"))
    process.world.pause(1)
    process.kill()
    again = Process(process.disk, process.config, process.history, seed=2)
    again.open()
    again.world.pause(5)
    again.kill()
    image = process.disk.snapshot().image(PAGE, ())
    assert QUEUE in image
    assert Checker(folder, process.config).check(image, process.history, 1) == 1


def test_recovery_creates_no_second_file_after_a_name_that_can_vanish(folder: Path) -> None:
    """A killed process had created the first file of a queue; the next process continued it."""
    process = opened(folder, "async")
    process.put(Message("orders", b"first"))
    process.world.settle()
    process.store._engine.dispatcher._advance = lambda: False  # type: ignore[method-assign]
    for number in range(process.config.consume_queue_file_size // UNIT.size):
        process.put(Message("orders", b"%d" % number))
    process.flush()
    process.kill()
    again = Process(process.disk, process.config, process.history, seed=2)
    again.record()
    again.open()
    again.kill()
    first, second = QUEUE, f"consumequeue/orders/0/{process.config.consume_queue_file_size:020}"
    checker = Checker(folder, process.config)
    moments = [moment.snapshot for moment in again.moments if second in moment.snapshot.after]
    assert moments
    for snapshot in moments:
        kept = [item for item in snapshot.pending(PAGE) if item.path != first]
        count = len(process.history.messages)
        assert checker.check(snapshot.image(PAGE, kept), process.history, count) == count


def test_store_times_go_on_after_a_kill(folder: Path) -> None:
    """With everything flushed nothing is scanned, and the last store time was not known."""
    process = opened(folder)
    process.world.now = 50.0
    process.put(Message("orders", b"1"))
    process.world.pause(5)
    process.kill()
    again = Process(process.disk, process.config, process.history, seed=2, now=20.0)
    again.open()
    again.put(Message("orders", b"2"))
    first, second = again.history.messages
    assert second.store_time >= first.store_time
    again.close()


@pytest.mark.parametrize("sealed", [True, False])
def test_a_record_without_its_last_bytes(folder: Path, sealed: bool) -> None:
    """Without its end the record has no checksum either, but a sealed record must have one."""
    process = opened(folder, "async", property_crc=sealed)
    process.put(Message("orders", b"1"))
    process.put(Message("orders", b"2", properties={"a": "x" * 600}))
    image = killed(process)
    last = process.history.messages[1]
    cut = last.end - 40
    image[LOG] = text(image, LOG)[:cut].ljust(8192, b"\0")
    checker = Checker(folder, process.config)
    assert checker.check(image, process.history, 0) == (1 if sealed else -1)


def test_a_record_without_its_topic_ends_the_log(folder: Path) -> None:
    """It stopped the store from opening: zeros are no name of a folder."""
    process = opened(folder, "async")
    process.put(Message("orders", b"1"))
    process.put(Message("orders", b"2"))
    image = killed(process)
    topic_at = process.history.messages[1].end - len("orders") - 2
    image[LOG] = text(image, LOG)[:topic_at].ljust(8192, b"\0")
    assert Checker(folder, process.config).check(image, process.history, 1) == 1


def test_garbage_that_looks_like_a_unit_is_cut_off(folder: Path) -> None:
    """Garbage after the last unit was kept if it pointed into the log."""
    process = opened(folder, "async")
    process.put(Message("orders", b"1"))
    process.flush()
    process.world.pause(5)
    image = killed(process)
    units = text(image, QUEUE)
    image[QUEUE] = units[:20] + UNIT.pack(17, 30, 5) * 3 + units[80:]
    assert Checker(folder, process.config).check(image, process.history, 1) == 1


@pytest.mark.parametrize("garbage", [b"\xff" * 40, b"\x01" * 40])
def test_a_torn_index_header_does_not_prevent_opening(folder: Path, garbage: bytes) -> None:
    """It stopped the store from opening, although nothing in the file had been synced."""
    process = opened(folder, "async")
    process.put(Message("orders", b"1", keys=["k1"]))
    process.world.pause(0.1)
    image = killed(process)
    (name,) = (path for path in image if path.startswith("index/"))
    image[name] = garbage + text(image, name)[40:]
    assert Checker(folder, process.config).check(image, process.history, 1) == 1


def test_geometry_of_a_file_that_begins_with_the_log(folder: Path) -> None:
    """Log offset 0 was found in the zeros of slots and entries: another geometry agreed, too."""
    process = opened(folder, "async")
    for keys in ("k1 n5 k3", "k1 n9", "n10 k1", "k3", "n21", "k1 k3", "n24 k2 k3"):
        process.put(Message("orders", b"", keys=keys.split()))
    process.close()
    (path,) = (process.disk.root / "index").iterdir()
    assert find_geometry(path.read_bytes()) == IndexGeometry(SLOTS, 24)


def test_an_end_mark_written_during_a_sync_is_not_taken_for_synced(folder: Path) -> None:
    """The file after it was synced: a power loss then cut off acknowledged messages."""
    process = opened(folder, "async")
    process.put(Message("orders", b"1"))
    log = process.store._engine.log
    full = log.queue.segments[0]
    following = log._allocator.next_segment()

    def roll(kind: str, name: str) -> None:
        if kind == "sync" and name == LOG and not full.is_full:
            log._fill_up(full)
            log._activate(following)
            process.put(Message("orders", b"2"))

    process.files.hooks.append(roll)
    log.flush()
    assert full.is_full and following.wrote
    assert log.flushed_offset == process.history.messages[0].end
    process.kill()


def test_a_folder_whose_sync_failed_is_not_there(tmp_path: Path) -> None:
    """The next attempt took it for durable."""

    class Failing(Files):
        def sync_folder(self, path: Path) -> None:
            raise OSError(errno.EIO, "failed")

    with pytest.raises(SyncError, match=str(tmp_path)):
        Failing().make_folder(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_failed_sync_of_a_new_file_stops_the_puts(folder: Path) -> None:
    """It was tried again with another file."""
    process = opened(folder)

    def fail(kind: str, name: str) -> None:
        if kind == "sync" and name == LOG + NEW:
            raise OSError(errno.EIO, "failed", name)

    process.files.hooks.append(fail)
    assert process.put(Message("orders", b"1")).status is PutStatus.UNKNOWN_ERROR
    process.files.hooks.remove(fail)
    assert process.put(Message("orders", b"1")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "writing was given up" in process.store.refusal
    process.kill()


def test_nothing_is_deleted_that_the_queues_do_not_have_on_disk(folder: Path) -> None:
    """After a power loss the queue did not know how many of its messages there had been."""
    process = opened(folder, "async")
    for topic in ("orders", "t"):
        for number in range(12):
            process.put(Message(topic, b"%d" % number + bytes(900)))
    process.flush()
    process.store.wait_dispatched()
    assert process.expire() > 0
    image = process.disk.snapshot().image(SECTOR, ())
    process.kill()
    assert process.history.log_min > process.history.messages[11].physical_offset
    assert Checker(folder, process.config).check(image, process.history, 24) == 24


def test_deleting_all_but_what_is_not_durable(folder: Path) -> None:
    """An empty log began at 0 again, and so did the queues."""
    process = opened(folder, "async", flush_interval_ms=3_600_000)
    source = random.Random(1)
    while len(process.store._engine.log.queue.segments) < 2:
        process.put(Message("orders", source.randbytes(900)))
    process.store.wait_dispatched()
    assert process.expire() == 0
    process.close()


def test_garbage_that_looks_like_the_unit_of_a_deleted_record(folder: Path) -> None:
    """It was kept, and the message whose unit belonged there was not seen."""
    process = opened(folder, "async")
    process.put(Message("orders", b"1"))
    for number in range(12):
        process.put(Message("t", b"%d" % number + bytes(900)))
    process.flush()
    process.world.pause(5)
    assert process.expire() > 0
    process.put(Message("orders", b"2"))
    process.flush()
    process.store.wait_dispatched()
    image = killed(process)
    first, *_, last = process.history.messages
    assert first.end < process.history.log_min < last.physical_offset
    units = text(image, QUEUE)
    assert UNIT.unpack_from(units, UNIT.size)[0] == last.physical_offset
    garbage = UNIT.pack(first.end + 7, 100, 5)
    image[QUEUE] = units[: UNIT.size] + garbage + units[2 * UNIT.size :]
    assert Checker(folder, process.config).check(image, process.history, 14) == 14
