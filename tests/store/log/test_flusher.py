"""Durability: group commit, timeouts, and a sync that fails once and for all."""

import asyncio
import errno
import threading
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, Machine, bodies, crash_image, eventually, put_all
from tests.store.conftest import OpenStore

from firetrail import FlushMode, Message, PutResult, PutStatus, Store
from firetrail.errors import FlushFailedError, StoreClosedError, StoreReadOnlyError
from firetrail.store.log.flusher import FutureWaiter, Signal, ThreadWaiter
from firetrail.system import SYSTEM

SYNC = {"flush": FlushMode.SYNC}
LOG = "commitlog"


class Producers:
    """Threads that put one message each; their results in the order of the calls."""

    def __init__(self, store: Store, count: int) -> None:
        self.results: dict[int, PutResult] = {}
        self._threads = [
            threading.Thread(target=self._put, args=(store, number)) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _put(self, store: Store, number: int) -> None:
        self.results[number] = store.try_put(Message("T", b"%d" % number))

    def join(self) -> list[PutStatus]:
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return [self.results[number].status for number in range(len(self._threads))]


def test_a_signal_releases_one_waiter_however_often_it_is_set() -> None:
    signal = Signal(SYSTEM.threads)
    signal.set()
    signal.set()
    signal.wait()
    waiting = threading.Thread(target=signal.wait)
    waiting.start()
    waiting.join(0.02)
    assert waiting.is_alive()
    signal.set()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


class TestSync:
    def test_a_put_returns_when_it_is_on_disk(self, open_store: OpenStore) -> None:
        store = open_store(**SYNC)
        for _ in range(3):
            result = store.put(Message("T", b"x"))
            assert store.flushed_offset == result.physical_offset + result.size

    def test_consumers_see_only_synced_messages(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC)
        put_all(store, [b"a"])
        with machine.files.stalled("sync", LOG) as reached:
            producer = Producers(store, 1)
            assert reached.wait(PATIENCE_S)
            assert bodies(store) == [b"a"]
            assert store.dispatch_behind > 0
        assert producer.join() == [PutStatus.PUT_OK]
        assert store.wait_dispatched()
        assert bodies(store) == [b"a", b"0"]

    def test_waiting_puts_share_one_sync(self, open_store: OpenStore, machine: Machine) -> None:
        store = open_store(**SYNC, log=1 << 16)
        put_all(store, [b"a"])
        with machine.files.stalled("sync", LOG) as reached:
            first = Producers(store, 1)
            assert reached.wait(PATIENCE_S)
            others = Producers(store, 10)
            eventually(lambda: store.log_range[1] >= 12 * 92)
            machine.files.forget()
        assert set(first.join() + others.join()) == {PutStatus.PUT_OK}
        assert machine.files.count("sync", LOG) == 1

    def test_a_put_need_not_wait(self, open_store: OpenStore, machine: Machine) -> None:
        store = open_store(**SYNC)
        put_all(store, [b"a"])
        flushed = store.flushed_offset
        with machine.files.stalled("sync", LOG):
            assert store.put(Message("T", b"x", wait_for_flush=False)).ok
            assert store.put_batch([Message("T", b"x", wait_for_flush=False)]).ok
            assert store.flushed_offset == flushed

    def test_over_the_end_of_a_file(self, open_store: OpenStore) -> None:
        store = open_store(**SYNC)
        for _ in range(20):
            store.put(Message("T", b"x" * 1000))
        assert store.flushed_offset == store.log_range[1]
        assert store.wait_dispatched()
        assert len(bodies(store)) == 20

    def test_a_batch_waits_for_the_sync(self, open_store: OpenStore) -> None:
        store = open_store(**SYNC)
        result = store.put_batch([Message("T", b"a"), Message("T", b"b")])
        assert store.flushed_offset == result.physical_offset + result.size


class TestTimeout:
    def test_a_slow_disk_gives_a_timeout_status(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC, sync_flush_timeout_ms=20)
        size = store.put(Message("T", b"a", wait_for_flush=False)).size
        store.flush()
        with machine.files.stalled("sync", LOG):
            result = store.try_put(Message("T", b"x"))
            assert result.status is PutStatus.FLUSH_DISK_TIMEOUT
            assert (result.queue_offset, result.physical_offset, result.messages) == (1, size, 1)
            assert result.message_id is not None
            assert "has not confirmed it within 20 ms" in result.detail
            with pytest.raises(FlushFailedError, match="FLUSH_DISK_TIMEOUT"):
                store.put(Message("T", b"y"))
        # The message is stored nevertheless, and the store continues to work.
        eventually(lambda: store.flushed_offset == store.log_range[1])
        assert store.put(Message("T", b"z", wait_for_flush=False)).ok
        store.flush()
        assert store.wait_dispatched()
        assert bodies(store) == [b"a", b"x", b"y", b"z"]

    def test_a_slow_disk_times_out_in_an_event_loop(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC, sync_flush_timeout_ms=20)
        store.put(Message("T", b"a", wait_for_flush=False))
        store.flush()

        async def put() -> None:
            with pytest.raises(FlushFailedError, match="FLUSH_DISK_TIMEOUT"):
                await store.put_async(Message("T", b"x"))

        with machine.files.stalled("sync", LOG):
            asyncio.run(put())
        # The loop is closed when the sync ends: no waiter is notified, and the flusher continues.
        assert store.put(Message("T", b"y", wait_for_flush=False)).ok
        store.flush()
        assert store.flushed_offset == store.log_range[1]


class TestEventLoop:
    async def test_many_producers_share_syncs(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC, log=1 << 16, units=1000)

        machine.files.forget()
        results = await asyncio.gather(
            *[store.put_async(Message("T", b"%d" % n)) for n in range(200)]
        )
        assert sorted(result.queue_offset for result in results) == list(range(200))
        assert machine.files.count("sync", LOG) < 50
        assert store.wait_dispatched()
        assert sorted(bodies(store)) == sorted(b"%d" % n for n in range(200))

    async def test_others_run_while_the_disk_is_waited_for(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC)
        store.put(Message("T", b"a"))
        with machine.files.stalled("sync", LOG):
            put = asyncio.create_task(store.put_async(Message("T", b"x")))
            for _ in range(5):
                await asyncio.sleep(0.001)
            assert not put.done()
        await put

    async def test_a_put_without_a_sync_returns_at_once(self, store: Store) -> None:
        result = await store.put_async(Message("T", b"x"))
        assert result.queue_offset == 0

    async def test_a_cancelled_put_does_not_block_others(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC)
        store.put(Message("T", b"a"))
        with machine.files.stalled("sync", LOG):
            put = asyncio.create_task(store.put_async(Message("T", b"x")))
            await asyncio.sleep(0.005)
            put.cancel()
            with pytest.raises(asyncio.CancelledError):
                await put
        assert (await store.put_async(Message("T", b"y"))).ok
        assert store.wait_dispatched()
        assert bodies(store) == [b"a", b"x", b"y"]


class TestFailedSync:
    def fail(self, machine: Machine) -> None:
        machine.files.fail("sync", errno.EIO, LOG)

    def test_nothing_is_acknowledged_after_it(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC)
        put_all(store, [b"good"])
        self.fail(machine)
        result = store.try_put(Message("T", b"lost"))
        assert result.status is PutStatus.UNKNOWN_ERROR
        assert "Input/output error" in result.detail
        machine.files.heal()  # a second sync would succeed, and lie
        machine.files.forget()
        for _ in range(3):
            after = store.try_put(Message("T", b"after"))
            assert after.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "writing was given up" in after.detail
            assert "reopen the store to write again" in after.detail
        assert machine.files.count("sync", LOG) == 0
        with pytest.raises(StoreReadOnlyError, match="Input/output error"):
            store.put(Message("T", b"after"))
        assert "Input/output error" in store.refusal

    def test_all_waiting_producers_get_the_failure(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC)
        put_all(store, [b"good"])
        with machine.files.stalled("sync", LOG) as reached:
            producers = Producers(store, 6)
            assert reached.wait(PATIENCE_S)
            self.fail(machine)
        statuses = producers.join()
        assert PutStatus.PUT_OK not in statuses
        assert set(statuses) <= {PutStatus.UNKNOWN_ERROR, PutStatus.SERVICE_NOT_AVAILABLE}

    def test_reads_continue_after_a_failed_sync(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC)
        put_all(store, [b"good"], keys=["k"])
        self.fail(machine)
        store.try_put(Message("T", b"lost", keys=["k"]))
        assert bodies(store) == [b"good"], "a message that is not durable is not shown"
        assert len(store.query("T", "k")) == 1

    def test_close_says_so_and_the_next_open_recovers(
        self, open_store: OpenStore, machine: Machine, root: Path
    ) -> None:
        store = open_store(**SYNC)
        put_all(store, [b"good"])
        self.fail(machine)
        store.try_put(Message("T", b"in doubt"))
        with pytest.raises(FlushFailedError, match=r"closed after a failure.*Input/output"):
            store.close()
        store.close()
        assert (root / "abort").exists()
        machine.files.heal()
        again = open_store(**SYNC)
        assert not again.recovery.clean
        put_all(again, [b"new"])
        assert bodies(again)[0] == b"good"
        assert bodies(again)[-1] == b"new"

    def test_a_background_sync_fails(self, open_store: OpenStore, machine: Machine) -> None:
        store = open_store(flush_interval_ms=1, flush_least_pages=0)
        put_all(store, [b"a"])
        eventually(lambda: store.flushed_offset == store.log_range[1])
        self.fail(machine)
        store.try_put(Message("T", b"b"))
        eventually(lambda: bool(store.refusal))
        assert store.try_put(Message("T", b"c")).status is PutStatus.SERVICE_NOT_AVAILABLE
        with pytest.raises(FlushFailedError, match="Input/output error"):
            store.flush()
        with pytest.raises(FlushFailedError):
            store.close()

    def test_a_sync_that_fails_at_close_is_not_retried(
        self, open_store: OpenStore, machine: Machine, root: Path
    ) -> None:
        store = open_store()
        put_all(store, [b"a"])
        self.fail(machine)
        machine.files.forget()
        with pytest.raises(FlushFailedError):
            store.close()
        assert machine.files.count("sync", LOG) == 1
        assert (root / "abort").exists()

    @pytest.mark.parametrize("name", ["consumequeue", "index", "firetrail.watermark", "checkpoint"])
    def test_a_sync_of_the_queues_fails_at_close(
        self, open_store: OpenStore, machine: Machine, root: Path, name: str
    ) -> None:
        store = open_store()
        put_all(store, [b"a"], keys=["k"])
        machine.files.fail("sync", errno.EIO, name)
        with pytest.raises(FlushFailedError, match="Input/output error"):
            store.close()
        assert (root / "abort").exists()
        machine.files.heal()
        again = open_store()
        assert bodies(again) == [b"a"]
        assert len(again.query("T", "k")) == 1

    async def test_a_failed_sync_raises_in_an_event_loop(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC)
        put_all(store, [b"good"])
        self.fail(machine)
        with pytest.raises(FlushFailedError, match="Input/output error"):
            await store.put_async(Message("T", b"lost"))
        with pytest.raises(StoreReadOnlyError):
            await store.put_async(Message("T", b"after"))

    def test_other_failures_of_the_thread_count_as_well(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store(**SYNC)
        put_all(store, [b"good"])

        def broken(least_pages: int = 0) -> bool:
            raise RuntimeError("a bug")

        monkeypatch.setattr(store._engine.log, "flush", broken)
        assert store.try_put(Message("T", b"x")).status is PutStatus.UNKNOWN_ERROR
        assert "a bug" in store.refusal


class TestAsync:
    def test_flush_makes_all_durable(self, store: Store) -> None:
        for _ in range(3):
            put_all(store, [b"x"])
            store.flush()
            assert store.flushed_offset == store.log_range[1]
        store.flush()

    def test_the_log_is_synced_at_the_interval(self, open_store: OpenStore) -> None:
        store = open_store(flush_interval_ms=1, flush_least_pages=0)
        put_all(store, [b"x"])
        eventually(lambda: store.flushed_offset == store.log_range[1])

    def test_a_flush_waits_for_the_least_pages_or_the_thorough_interval(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(log=1 << 20, flush_thorough_interval_ms=10_000)
        flusher = store._engine.flusher
        put_all(store, [b"x"])
        store.flush()
        put_all(store, [b"x" * 100])
        assert not flusher._commit_and_flush()
        assert store.flushed_offset < store.log_range[1]
        machine.clock.advance(10_000)
        assert flusher._commit_and_flush()
        assert store.flushed_offset == store.log_range[1]
        put_all(store, [b"x" * 4 * 4096])
        assert flusher._commit_and_flush()
        assert store.flushed_offset == store.log_range[1]

    def test_power_loss_is_not_a_kill(
        self, open_store: OpenStore, root: Path, tmp_path: Path
    ) -> None:
        """Messages that were put and never synced survive a killed process."""
        store = open_store()
        put_all(store, [b"a", b"b"])
        image = crash_image(root, tmp_path / "image")
        again = open_store(image)
        assert not again.recovery.clean
        assert bodies(again) == [b"a", b"b"]


class TestAfterTheEnd:
    def test_a_flush_of_a_closed_store_is_an_error(self, store: Store) -> None:
        put_all(store, [b"x"])
        store.close()
        with pytest.raises(StoreClosedError, match="open it again"):
            store.flush()

    def test_waiters_added_after_the_end_are_notified(self, store: Store) -> None:
        put_all(store, [b"x"])
        flusher = store._engine.flusher
        store.close()
        for offset, durable in ((1, True), (10**9, False)):
            waiter = ThreadWaiter(offset, SYSTEM.threads)
            flusher.add(waiter)
            assert waiter.wait(PATIENCE_S)
            assert waiter.durable is durable

    def test_waiters_when_the_store_is_closed(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store(**SYNC)
        put_all(store, [b"a"])
        with machine.files.stalled("sync", LOG) as reached:
            producers = Producers(store, 4)
            assert reached.wait(PATIENCE_S)
            closing = threading.Thread(target=store.close)
            closing.start()
            eventually(lambda: bool(store.refusal))
        statuses = producers.join()
        closing.join(PATIENCE_S)
        assert set(statuses) <= {PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE}
        accepted = statuses.count(PutStatus.PUT_OK)
        assert len(bodies(open_store())) == 1 + accepted

    def test_a_waiter_of_a_closed_loop_is_skipped(self) -> None:
        loop = asyncio.new_event_loop()
        waiter = FutureWaiter(0, loop)
        loop.close()
        waiter.tell(True)
