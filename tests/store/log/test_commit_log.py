"""The log: where records go, the ends of files, a full disk, the write-buffer pool, the lock."""

import errno
import threading
from itertools import chain
from pathlib import Path

import pytest
from tests.helpers import Machine, bodies, eventually, in_threads, put_all
from tests.store.conftest import OpenStore

from firetrail import Message, PutStatus, Store
from firetrail.errors import DiskFullError, StoreError
from firetrail.format import layout
from firetrail.format.names import segment_name

EMPTY = layout.RECORD_SIZE_MIN + 1  # a record of topic T and nothing else


def segment_bytes(root: Path, base: int = 0) -> bytes:
    return (root / "commitlog" / segment_name(base)).read_bytes()


def sized(size: int) -> Message:
    """A message whose record has ``size`` bytes."""
    return Message("T", b"x" * (size - EMPTY))


class TestEndOfFile:
    @pytest.mark.parametrize("left", [8, 9, 100])
    def test_a_record_that_leaves_room_for_the_end_mark_fits(
        self, store: Store, root: Path, left: int
    ) -> None:
        store.put(sized(2000))
        assert store.put(sized(2096 - left)).physical_offset == 2000
        assert store.put(sized(200)).physical_offset == 4096
        blank = layout.BLANK.struct.pack(left, layout.MAGIC_BLANK)
        assert segment_bytes(root)[4096 - left :] == blank + bytes(left - 8)

    @pytest.mark.parametrize("left", [7, 0, -1])
    def test_one_that_does_not_goes_to_the_next_file(
        self, store: Store, root: Path, left: int
    ) -> None:
        store.put(sized(2000))
        assert store.put(sized(2096 - left)).physical_offset == 4096
        blank = layout.BLANK.struct.pack(2096, layout.MAGIC_BLANK)
        assert segment_bytes(root)[2000:] == blank + bytes(2088)

    def test_every_file_but_the_last_ends_in_a_mark(self, store: Store, root: Path) -> None:
        put_all(store, [b"x" * (n * 37 % 900) for n in range(200)])
        assert len(bodies(store)) == 200
        names = sorted(path.name for path in (root / "commitlog").iterdir())
        bases = [base for name in names if (base := int(name)) < store.log_range[1]]
        assert bases == list(range(0, 4096 * len(bases), 4096))
        for base in bases[:-1]:
            ends = [m for m in store.read("T") if base <= m.physical_offset < base + 4096]
            end = ends[-1].physical_offset + ends[-1].size - base
            size, magic = layout.BLANK.struct.unpack_from(segment_bytes(root, base), end)
            assert (size, magic) == (4096 - end, layout.MAGIC_BLANK)

    def test_files_have_their_length_from_the_start(self, store: Store, root: Path) -> None:
        store.put(Message("T", b"x"))
        assert len(segment_bytes(root)) == 4096

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_log_whose_last_file_is_full_continues(
        self, open_store: OpenStore, root: Path, clean: bool
    ) -> None:
        """A crash between the end mark and the first record of the next file."""
        store = open_store()
        put_all(store, [b"a" * 3000, b"b" * 3000])
        store.close()
        (root / "commitlog" / segment_name(4096)).unlink()
        if not clean:
            (root / "abort").touch()  # as the Java store leaves it
        for name in ("firetrail.watermark", "checkpoint"):
            (root / name).unlink()
        queue = root / "consumequeue" / "T" / "0" / segment_name(0)
        queue.write_bytes(queue.read_bytes()[:20] + bytes(180))
        again = open_store()
        assert again.put(Message("T", b"c" * 3000)).physical_offset == 4096
        assert again.wait_dispatched()
        assert bodies(again) == [b"a" * 3000, b"c" * 3000]


class TestDiskFull:
    def test_a_full_disk_at_the_first_file_refuses_puts(
        self, store: Store, machine: Machine, root: Path
    ) -> None:
        machine.files.fill_disk("commitlog")
        result = store.try_put(Message("T", b"x"))
        assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert segment_name(0) in result.detail and "no space" in result.detail
        with pytest.raises(DiskFullError, match="CREATE_MAPPED_FILE_FAILED"):
            store.put(Message("T", b"x"))
        assert list((root / "commitlog").iterdir()) == []
        machine.files.heal()
        assert store.put(Message("T", b"x")).queue_offset == 0

    def test_a_full_disk_at_a_roll_refuses_puts(
        self, store: Store, machine: Machine, root: Path
    ) -> None:
        machine.files.fill_disk(segment_name(4096))
        put_all(store, [b"a" * 3000])
        before = store.log_range, segment_bytes(root)
        for _ in range(3):
            result = store.try_put(Message("T", b"b" * 3000))
            assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert (store.log_range, segment_bytes(root)) == before
        assert bodies(store) == [b"a" * 3000]
        # Messages that still fit are stored, and the others when there is space again.
        put_all(store, [b"small"])
        machine.files.heal()
        put_all(store, [b"b" * 3000])
        assert bodies(store) == [b"a" * 3000, b"small", b"b" * 3000]

    def test_a_full_disk_while_a_file_grows(self, open_store: OpenStore, machine: Machine) -> None:
        store = open_store(log=4 << 20)
        put_all(store, [b"a"])
        segment = store._engine.log.queue.segments[0]
        eventually(lambda: segment.allocated > segment.wrote)
        machine.files.fill_disk("commitlog")
        stored = 1
        while (result := store.try_put(Message("T", b"b" * 50_000))).ok:
            stored += 1
        assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert "more bytes at" in result.detail
        assert stored > 5
        machine.files.heal()
        put_all(store, [b"c"])
        assert store.max_offset("T") == stored + 1
        assert bodies(store)[-1] == b"c"

    def test_the_bytes_of_a_refused_put_are_never_seen(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store()
        machine.files.fill_disk(segment_name(4096))
        put_all(store, [b"a" * 3000])
        assert not store.try_put(Message("T", b"b" * 3000)).ok
        machine.files.heal()
        store.close()
        assert bodies(open_store()) == [b"a" * 3000]


@pytest.mark.parametrize("operation", ["open", "allocate", "set_size"])
def test_a_disk_that_fails_otherwise(store: Store, machine: Machine, operation: str) -> None:
    put_all(store, [b"a"])
    machine.files.fail(operation, errno.EIO, segment_name(4096))
    result = store.try_put(Message("T", b"b" * 3940))
    assert result.status is PutStatus.UNKNOWN_ERROR
    with pytest.raises(StoreError, match=r"nothing was stored: .*Input/output error"):
        result.require_ok()
    machine.files.heal()
    put_all(store, [b"c" * 3940])
    assert bodies(store) == [b"a", b"c" * 3940]


class TestLock:
    def test_a_put_does_not_wait_for_ever(self, open_store: OpenStore) -> None:
        store = open_store(page_cache_busy_ms=5)
        put_all(store, [b"a"])
        with store._engine.log._lock:
            result = store.try_put(Message("T", b"x"))
            batch = store.try_put_batch(_batch(b"x"))
        assert result.status is batch.status is PutStatus.OS_PAGE_CACHE_BUSY
        assert "another put has held the lock for 5 ms" in result.detail
        put_all(store, [b"b"])
        assert bodies(store) == [b"a", b"b"]

    def test_a_put_waits_briefly_for_the_lock(self, store: Store) -> None:
        put_all(store, [b"a"])
        lock = store._engine.log._lock
        lock.acquire()
        timer = threading.Timer(0.02, lock.release)
        timer.start()
        assert store.put(Message("T", b"b")).queue_offset == 1
        timer.join()


def _batch(*texts: bytes):  # type: ignore[no-untyped-def]
    from firetrail import Batch

    return Batch.of([Message("T", text) for text in texts])


class TestThreads:
    def test_nothing_is_lost_and_offsets_are_dense(self, open_store: OpenStore) -> None:
        store = open_store(log=1 << 16, units=1000)
        threads, each = 4, 300
        offsets: list[list[int]] = [[] for _ in range(threads)]

        def produce(number: int) -> None:
            for count in range(each):
                if count % 10 == 0:
                    result = store.put_batch([Message("T", b"%d:%d" % (number, count))])
                else:
                    result = store.put(Message("T", b"%d:%d" % (number, count), keys=["k"]))
                offsets[number].append(result.queue_offset)

        in_threads(*[lambda n=n: produce(n) for n in range(threads)])
        assert store.wait_dispatched()
        assert sorted(chain.from_iterable(offsets)) == list(range(threads * each))
        stored = bodies(store)
        for number in range(threads):
            assert offsets[number] == sorted(offsets[number])
            assert [stored[offset] for offset in offsets[number]] == [
                b"%d:%d" % (number, count) for count in range(each)
            ]
        physical = [m.physical_offset for m in store.read("T")]
        assert physical == sorted(set(physical))

    def test_threads_put_to_many_queues(self, open_store: OpenStore) -> None:
        store = open_store(log=1 << 16)

        def produce(number: int) -> None:
            for count in range(200):
                store.put(Message("T", b"%d" % count, queue_id=(count + number) % 7))

        in_threads(*[lambda n=n: produce(n) for n in range(3)])
        assert store.wait_dispatched()
        assert sum(len(bodies(store, "T", queue)) for queue in store.queues("T")) == 600


class TestPool:
    """The write-buffer pool: collected, committed, readable, durable."""

    @pytest.fixture
    def pooled(self, open_store: OpenStore) -> Store:
        return open_store(write_buffer_pool=True, write_buffer_count=2)

    def test_nothing_is_readable_before_the_commit(self, pooled: Store, root: Path) -> None:
        result = pooled.put(Message("T", b"abc"))
        log = pooled._engine.log
        assert (log.readable_offset, log.max_offset) == (0, result.size)
        assert pooled.at(0) is None
        assert pooled.get("T").count == 0
        assert b"abc" not in segment_bytes(root)
        pooled.flush()
        assert pooled.flushed_offset == result.size
        assert b"abc" in segment_bytes(root)
        assert pooled.wait_dispatched()
        assert bodies(pooled) == [b"abc"]

    def test_close_commits_the_rest(self, pooled: Store, open_store: OpenStore) -> None:
        for number in range(100):
            pooled.put(Message("T", b"%d" % number, keys=["k"]))
        pooled.close()
        again = open_store()
        assert again.recovery.clean
        assert bodies(again) == [b"%d" % number for number in range(100)]

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_buffered_messages_roll_over(self, open_store: OpenStore, count: int) -> None:
        store = open_store(write_buffer_pool=True, write_buffer_count=count)
        expected = [b"%d" % n * 300 for n in range(30)]
        for body in expected:
            store.put(Message("T", body))
        store.flush()
        assert store.wait_dispatched()
        assert bodies(store) == expected

    @pytest.mark.parametrize("count", [1, 2])
    def test_without_a_free_buffer_it_commits_on_the_spot(
        self, open_store: OpenStore, count: int
    ) -> None:
        store = open_store(write_buffer_pool=True, write_buffer_count=count, log=64 << 20)
        body = b"x" * (3 << 20)
        for _ in range(8):
            store.put(Message("T", body))
        assert store._engine.log.readable_offset > 0
        store.flush()
        assert store.wait_dispatched()
        assert len(bodies(store)) == 8

    def test_a_put_without_a_buffer_fails_fast(self, open_store: OpenStore) -> None:
        store = open_store(
            write_buffer_pool=True,
            write_buffer_count=1,
            fail_fast_without_buffer=True,
            log=64 << 20,
        )
        body = b"x" * (3 << 20)
        put = 0
        while (result := store.try_put(Message("T", body))).ok:
            put += 1
        assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert "all 1 write buffers are waiting for a commit" in result.detail
        assert put >= 1
        store.flush()
        assert store.put(Message("T", body)).queue_offset == put

    def test_a_batch_larger_than_a_buffer_is_stored(self, open_store: OpenStore) -> None:
        store = open_store(
            write_buffer_pool=True, write_buffer_count=1, log=64 << 20, max_message_size=16 << 20
        )
        store.put(Message("T", b"before"))
        store.put_batch([Message("T", b"x" * (3 << 20)) for _ in range(4)])
        store.put(Message("T", b"after"))
        store.flush()
        assert store.wait_dispatched()
        assert [len(body) for body in bodies(store)] == [6, *[3 << 20] * 4, 5]

    def test_a_failed_commit_at_the_roll_changes_nothing(
        self, pooled: Store, machine: Machine
    ) -> None:
        pooled.put(Message("T", b"a" * 3000))
        machine.files.fail("write", errno.EIO, "commitlog", times=1)
        result = pooled.try_put(Message("T", b"b" * 3000))
        assert result.status is PutStatus.UNKNOWN_ERROR
        with pytest.raises(StoreError, match=r"nothing was stored: .*Input/output error"):
            result.require_ok()
        assert pooled.put(Message("T", b"c" * 3000)).physical_offset == 4096
        pooled.flush()
        assert pooled.wait_dispatched()
        assert bodies(pooled) == [b"a" * 3000, b"c" * 3000]

    @pytest.mark.parametrize(
        ("thorough_ms", "expected"), [(0, [True, True]), (3_600_000, [False, False])]
    )
    def test_a_commit_waits_for_the_least_pages(
        self, open_store: OpenStore, thorough_ms: int, expected: list[bool]
    ) -> None:
        store = open_store(
            write_buffer_pool=True,
            log=1 << 20,
            commit_thorough_interval_ms=thorough_ms,
            flush_thorough_interval_ms=3_600_000,
        )
        flusher = store._engine.flusher
        store.put(Message("T", b"x"))
        store.flush()
        flusher._last_commit = flusher._clock.monotonic()
        readable = []
        for _ in range(2):
            store.put(Message("T", b"x" * 100))
            flusher._commit_and_flush()
            log = store._engine.log
            readable.append(log.readable_offset == log.max_offset)
        assert readable == expected
        store.put(Message("T", b"x" * 4 * 4096))
        flusher._commit_and_flush()
        assert store._engine.log.readable_offset == store._engine.log.max_offset

    def test_memory_that_cannot_be_locked_is_said(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        machine.files.fail("lock_memory", errno.EPERM)
        with pytest.raises(StoreError, match=r"cannot be opened.*Operation not permitted"):
            open_store(write_buffer_pool=True, lock_memory=True)


class TestFlush:
    def test_all_files_up_to_the_end(self, store: Store) -> None:
        put_all(store, [b"x" * 1000] * 10)
        assert store.flushed_offset == 0
        store.flush()
        assert store.flushed_offset == store.log_range[1]

    def test_a_flush_waits_for_the_least_pages(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(log=1 << 20)
        log = store._engine.log
        put_all(store, [b"x" * 10_000])
        machine.files.forget()
        assert not log.flush(4)
        assert machine.files.count("sync") == 0
        put_all(store, [b"x" * 10_000])
        assert log.flush(4)
        assert log.flushed_offset == log.max_offset
        assert not log.flush(0)
        assert machine.files.count("sync") == 1

    def test_a_full_file_is_due_and_the_rest_waits(self, store: Store) -> None:
        log = store._engine.log
        put_all(store, [b"x" * 3000, b"y" * 3000, b"z" * 100])
        assert log.flush(4)
        assert log.flushed_offset == 4096
        assert log.flush(0)
        assert log.flushed_offset == log.max_offset
