"""The dispatcher: its wakeups, calls of listeners, a full disk, and garbage in the log."""

import asyncio
import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, Machine, bodies, eventually, put_all, small_config
from tests.store.conftest import OpenStore

from firetrail import FlushMode, Message, PutStatus, Store
from firetrail.errors import FlushFailedError
from firetrail.store.broker_store import BrokerStore
from firetrail.store.dispatch import dispatcher, loop_dispatch
from firetrail.store.dispatch.derivation import Arrival, DeadlineExceeded, Step
from firetrail.store.dispatch.dispatcher import Dispatcher
from firetrail.store.log.segment_scan import ROWS_PER_STEP
from firetrail.system import SYSTEM


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "DISK_FULL_PAUSE_S", 0.005)


def is_waiting(store: Store) -> bool:
    """Whether the dispatcher sleeps until it is woken: no timeout runs."""
    return store._engine.dispatcher.idle


class TestWaking:
    def test_a_put_wakes_a_dispatcher_that_waits(self, store: Store) -> None:
        for number in range(5):
            eventually(lambda: is_waiting(store))
            store.put(Message("T", b"%d" % number))
            assert store.wait_dispatched(PATIENCE_S)
        assert len(bodies(store)) == 5

    def test_a_batch_wakes_the_dispatcher(self, store: Store) -> None:
        eventually(lambda: is_waiting(store))
        store.put_batch([Message("T", b"a")])
        assert store.wait_dispatched(PATIENCE_S)

    def test_a_sync_wakes_the_dispatcher(self, open_store: OpenStore) -> None:
        store = open_store(flush=FlushMode.SYNC)
        for _ in range(3):
            eventually(lambda: is_waiting(store))
            store.put(Message("T", b"a"))
            assert store.wait_dispatched(PATIENCE_S)

    def test_a_commit_of_the_pool_wakes_the_dispatcher(self, open_store: OpenStore) -> None:
        store = open_store(write_buffer_pool=True)
        for _ in range(3):
            eventually(lambda: is_waiting(store))
            store.put(Message("T", b"a"))
            store.flush()
            assert store.wait_dispatched(PATIENCE_S)

    def test_what_arrives_while_it_falls_asleep_is_seen(self, store: Store) -> None:
        """A put between the last check and the setting of ``idle`` finds no thread to wake."""
        dispatcher = store._engine.dispatcher
        wake = dispatcher.wake
        eventually(lambda: is_waiting(store))
        done = threading.Event()

        class Sleepy(Dispatcher):
            @property
            def behind(self) -> int:
                if not done.is_set():
                    done.set()
                    dispatcher.idle = False  # as the putting thread has seen it
                    store.put(Message("T", b"in between"))
                    dispatcher.idle = True
                return super().behind

        dispatcher.__class__ = Sleepy
        wake()
        eventually(lambda: store.max_offset("T") == 1)
        dispatcher.__class__ = Dispatcher

    def test_dispatch_behind_counts_bytes(self, store: Store, machine: Machine) -> None:
        size = store.put(Message("T", b"a")).size
        assert store.wait_dispatched(PATIENCE_S)
        with machine.files.stalled("map", "consumequeue/U"):
            store.put(Message("U", b"b"))
            assert store.dispatch_behind == size
            assert not store.wait_dispatched(0.01)
        assert store.wait_dispatched(PATIENCE_S)
        assert store.dispatch_behind == 0


class TestArrivals:
    def test_listeners_hear_of_each_queue(self, store: Store) -> None:
        heard: list[Arrival] = []
        store.on_arrival(heard.extend)
        put_all(store, [b"a", b"b"])
        put_all(store, [b"c"], queue_id=2)
        put_all(store, [b"d"], topic="U")
        eventually(lambda: heard[-1].topic == "U")
        last = {(arrival.topic, arrival.queue_id): arrival.max_offset for arrival in heard}
        new = Counter[tuple[str, int]]()
        for arrival in heard:
            new[arrival.topic, arrival.queue_id] += arrival.new
        assert new == last
        assert last == {("T", 0): 2, ("T", 2): 1, ("U", 0): 1}

    def test_messages_are_readable_when_listeners_are_called(self, store: Store) -> None:
        seen: list[tuple[int, int]] = []

        def listen(arrivals: list[Arrival]) -> None:
            for arrival in arrivals:
                found = store.get(arrival.topic, arrival.queue_id, arrival.max_offset - 1)
                seen.append((arrival.max_offset, found.count))

        store.on_arrival(listen)
        put_all(store, [b"%d" % n for n in range(30)])
        eventually(lambda: seen[-1] == (30, 1))
        assert all(count for _, count in seen)

    def test_a_failing_listener_does_not_stop_dispatch(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard: list[Arrival] = []

        def broken(arrivals: list[Arrival]) -> None:
            raise RuntimeError("not my day")

        store.on_arrival(broken)
        store.on_arrival(heard.extend)
        put_all(store, [b"a"])
        put_all(store, [b"b"])
        eventually(
            lambda: [(a.topic, a.queue_id, a.max_offset) for a in heard[-1:]] == [("T", 0, 2)]
        )
        assert not store.refusal
        assert "a listener for arriving messages failed" in caplog.text

    def test_prepared_messages_arrive_nowhere(self, store: Store) -> None:
        heard: list[Arrival] = []
        store.on_arrival(heard.extend)
        put_all(store, [b"a"], sys_flag=4)
        assert heard == []


class TestSteps:
    def test_a_backlog_is_dispatched_in_several_steps(self, open_store: OpenStore) -> None:
        store = open_store(log=1 << 18, units=10_000, entries=50_000, slots=100)
        count = 2 * ROWS_PER_STEP + 10
        for start in range(0, count, 100):
            batch = [Message("T", b"%d" % n, keys=[f"k{n}"]) for n in range(start, start + 100)]
            store.put_batch(batch)
        assert store.wait_dispatched(PATIENCE_S)
        found = bodies(store)
        assert found == [b"%d" % n for n in range(len(found))]
        assert len(found) >= count
        assert [m.queue_offset for m in store.query("T", f"k{ROWS_PER_STEP}")] == [ROWS_PER_STEP]

    def test_every_key_of_a_message_with_very_many_keys_is_found(
        self, open_store: OpenStore
    ) -> None:
        store = open_store(log=1 << 16, entries=100_000, slots=1000)
        keys = [f"{n:x}" for n in range(6000)]
        put_all(store, [b"x"], keys=keys)
        put_all(store, [b"y"], keys=["last"])
        assert len(store.query("T", keys[0])) == len(store.query("T", keys[-1])) == 1
        assert len(store.query("T", "last")) == 1


class TestDiskFull:
    @pytest.mark.parametrize("kind", ["consumequeue", "index"])
    def test_dispatch_resumes_when_there_is_space(
        self, open_store: OpenStore, machine: Machine, root: Path, kind: str
    ) -> None:
        store = open_store(log=1 << 16, units=10, entries=11, slots=4)
        heard: list[Arrival] = []
        store.on_arrival(heard.extend)
        put_all(store, [b"%d" % n for n in range(8)], keys=["k"])
        machine.files.fill_disk(kind)
        put = 8
        while put < 60 and store.try_put(Message("T", b"%d" % put, keys=["k"])).ok:
            put += 1
            store.wait_dispatched(0.02)
        result = store.try_put(Message("T", b"refused"))
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert f"/{kind}/" in result.detail and "no space for" in result.detail
        assert store.refusal == result.detail
        # Reads continue, and no files are piled up.
        assert bodies(store)[:8] == [b"%d" % n for n in range(8)]
        assert len(store.query("T", "k")) >= 8
        files = len(os.listdir(root / "index"))
        eventually(lambda: machine.files.count("allocate", kind) > 8)
        assert len(os.listdir(root / "index")) == files
        machine.files.heal()
        assert store.wait_dispatched(PATIENCE_S)
        eventually(lambda: not store.refusal)
        put_all(store, [b"%d" % put], keys=["k"])
        assert bodies(store) == [b"%d" % n for n in range(put + 1)]
        assert len(store.query("T", "k", max_count=64)) == min(put + 1, 64)
        eventually(lambda: heard[-1][:3] == ("T", 0, put + 1))

    @pytest.mark.parametrize("kind", ["consumequeue", "index"])
    def test_no_arrival_is_lost(self, open_store: OpenStore, machine: Machine, kind: str) -> None:
        store = open_store(log=1 << 16)
        arrivals: list[Arrival] = []
        store.on_arrival(arrivals.extend)
        put_all(store, [b"a"], topic="A", keys=["k"])
        machine.files.fill_disk("consumequeue/C" if kind == "consumequeue" else kind)
        dispatcher = store._engine.dispatcher
        with machine.files.stalled("begin_folder", "consumequeue/B"):
            store.put(Message("B", b"b"))
            for topic in "ABC":
                for _ in range(70 if kind == "index" else 1):
                    store.put(Message(topic, b"c", keys=["k"]))
        eventually(lambda: bool(dispatcher.starved))
        machine.files.heal()
        assert store.wait_dispatched(PATIENCE_S)
        expected = {topic: store.max_offset(topic) for topic in "ABC"}
        eventually(lambda: {heard.topic: heard.max_offset for heard in arrivals} == expected)

    @pytest.mark.parametrize("kind", ["consumequeue", "index"])
    def test_a_store_closed_on_a_full_disk_is_derived_later(
        self, open_store: OpenStore, machine: Machine, root: Path, kind: str
    ) -> None:
        """The log is whole; the rest is derived when the store is opened again."""
        store = open_store()
        put_all(store, [b"a"])
        machine.files.fill_disk(kind)
        for number in range(20):
            store.try_put(Message("T", b"%d" % number, keys=["k"]))
        eventually(lambda: bool(store.refusal))
        put = store.log_range[1]
        store.close()
        assert (root / "abort").exists()
        machine.files.heal()
        again = open_store()
        assert again.log_range[1] == put
        stored = bodies(again)
        assert stored[0] == b"a"
        assert len(again.query("T", "k", max_count=64)) == len(stored) - 1

    def test_an_open_that_finds_no_space_can_be_repeated(
        self, open_store: OpenStore, machine: Machine, root: Path, tmp_path: Path
    ) -> None:
        from firetrail.errors import DiskFullError

        store = open_store()
        put_all(store, [b"%d" % n for n in range(30)], keys=["k"])
        store.flush()
        store.close()
        (root / "abort").write_bytes(b"firetrail 1")
        for file in (root / "consumequeue" / "T" / "0").iterdir():
            file.unlink()
        (root / "firetrail.watermark").unlink()
        machine.files.fill_disk("consumequeue")
        for _ in range(2):
            with pytest.raises(DiskFullError):
                open_store()
            assert not machine.files.open_files
        machine.files.heal()
        assert bodies(open_store()) == [b"%d" % n for n in range(30)]

    @pytest.mark.parametrize("kind", ["consumequeue", "index"])
    def test_dispatch_waits_for_space_for_a_folder(
        self, store: Store, machine: Machine, kind: str
    ) -> None:
        put_all(store, [b"first"])
        machine.files.fail("begin_folder", errno.ENOSPC, kind)
        store.put(Message("U", b"waits", keys=["k"]))
        eventually(lambda: f"/{kind}/" in store.try_put(Message("T", b"x")).detail)
        machine.files.heal()
        assert store.wait_dispatched(PATIENCE_S)
        assert [message.body for message in store.query("U", "k")] == [b"waits"]
        eventually(lambda: store.try_put(Message("T", b"last")).ok)


class TestFailure:
    def test_another_error_ends_writing_and_says_so(self, store: Store, machine: Machine) -> None:
        put_all(store, [b"a"])
        machine.files.fail("open", errno.EIO, "consumequeue/U")
        store.put(Message("U", b"b"))
        eventually(lambda: bool(store.refusal))
        assert "Input/output error" in store.refusal
        assert store.try_put(Message("T", b"c")).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert bodies(store) == [b"a"]
        assert not store.wait_dispatched(0.01)
        with pytest.raises(FlushFailedError, match="Input/output error"):
            store.close()

    def test_garbage_in_the_log_stops_dispatch(self, store: Store) -> None:
        put_all(store, [b"a"])
        segment = store._engine.log.queue.segments[0]
        with store._engine.log._lock:
            segment.view[segment.wrote : segment.wrote + 8] = b"\0\0\0\x64oops"
            segment.wrote_to(segment.wrote + 100)
        store._engine.dispatcher.wake()
        eventually(lambda: bool(store.refusal))
        assert "no record at 93 (MAGIC)" in store.refusal
        assert "firetrail fsck" in store.refusal


async def test_the_thread_leaves_the_log_to_a_loop_that_dispatches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It checks the log if another thread appends to it, and not once per millisecond."""
    monkeypatch.setattr("firetrail.store.dispatch.dispatcher.RELIEVED_S", 1000.0)
    with BrokerStore.open(tmp_path / "store", small_config(), system=SYSTEM) as store:
        store.dispatch_in(asyncio.get_running_loop())
        store.writer.begin_put(Message("T", b"0"))
        await asyncio.sleep(0)
        assert store.embedded.max_offset("T") == 1
        thread = threading.Thread(target=store.writer.begin_put, args=[Message("T", b"1")])
        thread.start()
        thread.join(PATIENCE_S)
        eventually(lambda: store.embedded.max_offset("T") == 2)
        eventually(lambda: store.dispatch.dispatcher.idle)
        assert store.dispatch.dispatcher._quiet_rounds == 0


def test_a_call_before_a_rest_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop that runs out of time may call the thread just before it begins to rest."""
    monkeypatch.setattr("firetrail.store.dispatch.dispatcher.RELIEVED_S", 1000.0)
    wait = Dispatcher._wait
    rests: list[None] = []

    def called_before(self: Dispatcher) -> None:
        rests.append(None)
        self._relieved_at = time.monotonic()
        if len(rests) == 1:
            self.wake()
        wait(self)

    monkeypatch.setattr(Dispatcher, "_wait", called_before)
    with BrokerStore.open(tmp_path / "store", small_config(), system=SYSTEM):
        eventually(lambda: len(rests) >= 2)


class TestHelp:
    @pytest.fixture
    def served(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerStore]:
        """A store whose dispatcher does nothing by itself."""

        def sleep_on(self: dispatcher.Dispatcher) -> None:
            self._wake.wait(0.01)

        monkeypatch.setattr(dispatcher, "HELP_S", PATIENCE_S)
        monkeypatch.setattr(dispatcher.Dispatcher, "_wait", sleep_on)
        advance = dispatcher.Dispatcher._advance
        monkeypatch.setattr(
            dispatcher.Dispatcher, "_advance", lambda self: self._stopping and advance(self)
        )
        with BrokerStore.open(tmp_path / "store", small_config(), system=SYSTEM) as store:
            yield store

    def test_a_get_at_the_end_dispatches_what_was_put(self, served: BrokerStore) -> None:
        for number in range(200):
            served.writer.begin_put(Message("T", b"%d" % number))
        assert served.embedded.max_offset("T") == 0
        result = served.reads.get_hashed("T", 0, 199)
        assert [message.body for message in result.messages()] == [b"199"]

    async def test_puts_of_one_iteration_of_a_loop_are_dispatched_together(
        self, served: BrokerStore
    ) -> None:
        served.dispatch_in(asyncio.get_running_loop())
        arrived: list[list[Arrival]] = []
        served.embedded.on_arrival(arrived.append)
        for _ in range(2):
            for number in range(3):
                served.writer.begin_put(Message("T", b"%d" % number))
            await asyncio.sleep(0)
        assert [[each.max_offset for each in arrivals] for arrivals in arrived] == [[3], [6]]

    async def test_messages_that_are_not_urgent_are_dispatched_with_others(
        self, served: BrokerStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        served.dispatch_in(asyncio.get_running_loop())
        monkeypatch.setattr(loop_dispatch, "LATER_S", 1000.0)
        served.writer.begin_put(Message("T", b"0"), is_urgent=False)
        await asyncio.sleep(0)
        assert served.embedded.max_offset("T") == 0
        served.writer.begin_put(Message("T", b"1"))
        await asyncio.sleep(0)
        assert served.embedded.max_offset("T") == 2

    async def test_messages_that_are_not_urgent_do_not_wait_for_long(
        self, served: BrokerStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        served.dispatch_in(asyncio.get_running_loop())
        monkeypatch.setattr(loop_dispatch, "LATER_S", 0.0)
        served.writer.begin_put(Message("T", b"0"), is_urgent=False)
        async with asyncio.timeout(PATIENCE_S):
            while served.embedded.max_offset("T") == 0:
                await asyncio.sleep(0)

    async def test_puts_of_other_threads_do_not_use_the_loop(self, served: BrokerStore) -> None:
        served.dispatch_in(asyncio.get_running_loop())
        thread = threading.Thread(target=served.writer.begin_put, args=[Message("T", b"0")])
        thread.start()
        thread.join(PATIENCE_S)
        await asyncio.sleep(0)
        assert served.embedded.max_offset("T") == 0  # the dispatcher has to do it

    def test_not_while_the_dispatcher_is_at_it(self, served: BrokerStore) -> None:
        with served.dispatch.dispatcher._stepping:
            served.writer.begin_put(Message("T", b"x"))
            assert served.reads.get_hashed("T", 0, 0).count == 0
        assert served.reads.get_hashed("T", 0, 0).count == 1

    def test_running_out_of_time_within_a_step_is_not_a_failure(
        self, served: BrokerStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def is_late(*parts: object, **options: object) -> None:
            raise DeadlineExceeded

        dispatcher = served.dispatch.dispatcher
        with monkeypatch.context() as patch:
            patch.setattr(Step, "apply", is_late)
            served.writer.begin_put(Message("T", b"x"))
            dispatcher._wake.clear()
            dispatcher.help()
        assert dispatcher._wake.is_set() and not served.writer.refusal
        assert not caplog.records
        assert served.reads.get_hashed("T", 0, 0).count == 1

    def test_long_work_is_left_to_the_dispatcher(
        self, served: BrokerStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("firetrail.store.dispatch.dispatcher.HELP_S", -1.0)
        dispatcher = served.dispatch.dispatcher
        served.writer.begin_put(Message("T", b"x"))
        dispatcher._wake.clear()
        dispatcher.help()
        assert served.embedded.max_offset("T") == 0
        assert dispatcher._wake.is_set() and not served.writer.refusal


class TestInALoop:
    async def test_a_wait_for_dispatch_blocks_the_loop_only_for_a_moment(
        self, tmp_path: Path
    ) -> None:
        with BrokerStore.open(tmp_path / "store", small_config(), system=SYSTEM) as store:
            store.dispatch_in(asyncio.get_running_loop())
            store.writer.begin_put(Message("T", b"x"))
            assert store.embedded.wait_dispatched(PATIENCE_S)

    async def test_a_store_may_be_closed_before_its_puts_are_dispatched(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with BrokerStore.open(tmp_path / "store", small_config(), system=SYSTEM) as store:
            store.dispatch_in(asyncio.get_running_loop())
            store.writer.begin_put(Message("T", b"x"))
        await asyncio.sleep(0)
        assert not caplog.records
        with BrokerStore.open(tmp_path / "store", small_config(), system=SYSTEM) as store:
            assert store.embedded.max_offset("T") == 1
