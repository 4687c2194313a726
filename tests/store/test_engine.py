"""Opening and closing: a failure leaves nothing open, and nothing outlives its process."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, Machine, bodies, eventually, put_all, small_config, tree
from tests.store.conftest import OpenStore

from firetrail import FlushMode, Message, PutStatus, Store
from firetrail.errors import (
    DiskFullError,
    FiretrailError,
    FlushFailedError,
    StoreClosedError,
    StoreReadOnlyError,
)


def firetrail_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "firetrail" in thread.name}


@pytest.mark.stepped_threads
class TestFailedOpen:
    """The n-th operation of opening a store fails, for every n."""

    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize(
        "operation",
        ["open", "map", "sync", "allocate", "write", "set_size", "sync_folder", "read", "names"],
    )
    def test_a_failed_opening_leaves_nothing_open(
        self, machine: Machine, root: Path, operation: str, clean: bool
    ) -> None:
        with Store.open(root, small_config(), system=machine.system) as store:
            put_all(store, [b"%d" % n for n in range(60)], keys=["k"])
        if not clean:
            (root / "abort").write_bytes(b"firetrail 1")
        threads = firetrail_threads()
        opened = 0
        for skip in range(100):
            machine.files.fail(operation, errno.EIO, skip=skip, times=1)
            try:
                store = Store.open(root, small_config(), system=machine.system)
            except FiretrailError as error:
                assert "Input/output error" in str(error)
                assert not machine.files.open_files
                assert firetrail_threads() == threads
            else:
                opened += 1
                machine.files.heal()
                assert len(bodies(store)) == 60
                store.close()
                if not clean:
                    (root / "abort").write_bytes(b"firetrail 1")
                if opened == 2:
                    break
            machine.files.heal()
        assert opened == 2
        with Store.open(root, small_config(), system=machine.system) as store:
            assert bodies(store) == [b"%d" % n for n in range(60)]
            assert len(store.query("T", "k", max_count=64)) == 60

    def test_a_new_store_on_a_full_disk_opens_later(self, machine: Machine, root: Path) -> None:
        machine.files.fill_disk()
        with pytest.raises(DiskFullError, match=r"data: cannot be opened.*No space left"):
            Store.open(root, small_config(), system=machine.system)
        machine.files.heal()
        with Store.open(root, small_config(), system=machine.system) as store:
            put_all(store, [b"a"])

    def test_an_interrupt_while_opening_releases_everything(
        self, machine: Machine, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        machine.files.on("write", interrupted, "data/firetrail.watermark")
        with pytest.raises(KeyboardInterrupt):
            Store.open(root, small_config(), system=machine.system)
        assert not machine.files.open_files
        assert not firetrail_threads()


class TestClose:
    def test_a_second_close_does_nothing(self, store: Store) -> None:
        put_all(store, [b"a"])
        store.close()
        store.close()

    def test_leaves_no_threads(self, store: Store) -> None:
        put_all(store, [b"a"])
        assert firetrail_threads()
        store.close()
        assert not firetrail_threads()

    @pytest.mark.stepped_threads
    def test_leaves_no_file_of_the_allocator(self, store: Store, root: Path) -> None:
        put_all(store, [b"x" * 3000])
        eventually(lambda: len(os.listdir(root / "commitlog")) == 2)
        store.close()
        assert len(os.listdir(root / "commitlog")) == 1

    def test_by_an_exception_in_the_block(self, open_store: OpenStore) -> None:
        with pytest.raises(ZeroDivisionError), open_store() as store:
            put_all(store, [b"a"])
            _ = 1 // 0
        again = open_store()
        assert again.recovery.clean
        assert bodies(again) == [b"a"]

    def test_slices_that_were_read_stay_valid(self, store: Store) -> None:
        put_all(store, [b"abc", b"def"])
        result = store.get("T")
        slices = result.buffers
        store.close()
        assert [bytes(m.body) for m in result.messages()] == [b"abc", b"def"]
        assert all(len(buffer) == 95 for buffer in slices)

    @pytest.mark.parametrize("mode", list(FlushMode))
    def test_puts_during_close_are_stored_or_refused(
        self, open_store: OpenStore, mode: FlushMode
    ) -> None:
        """Each put is either stored or refused, and nothing else happens."""
        stored: list[int] = []
        statuses: set[PutStatus] = set()

        def produce(store: Store) -> None:
            while True:
                result = store.try_put(Message("T", b"x"))
                statuses.add(result.status)
                if not result.ok:
                    return
                stored.append(result.queue_offset)

        for _ in range(3):
            store = open_store(flush=mode, log=1 << 16, units=1000)
            assert store.recovery.clean
            begin = len(stored)
            producers = [threading.Thread(target=produce, args=(store,)) for _ in range(3)]
            for producer in producers:
                producer.start()
            eventually(lambda begin: len(stored) > begin + 20, begin)
            store.close()
            for producer in producers:
                producer.join(PATIENCE_S)
        assert statuses == {PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE}
        again = open_store()
        assert again.recovery.clean
        assert sorted(stored) == list(range(again.max_offset("T")))

    def test_a_put_after_the_last_look_of_dispatch_is_dispatched(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Dispatch finds nothing to do; a message is put and the store closed before it goes on."""
        store = open_store()
        dispatcher = store._engine.dispatcher
        advance, found_nothing = dispatcher._advance, threading.Event()

        def advance_and_linger() -> bool:
            is_more = advance()
            if not is_more:
                found_nothing.set()
                eventually(lambda: dispatcher._stopping)
            return is_more

        monkeypatch.setattr(dispatcher, "_advance", advance_and_linger)
        store.put(Message("T", b"a"))
        assert found_nothing.wait(PATIENCE_S)
        store.put(Message("T", b"b"))
        store.close()
        again = open_store()
        assert again.recovery.clean
        assert bodies(again) == [b"a", b"b"]

    def test_an_interrupt_while_closing_releases_everything(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store()
        put_all(store, [b"a"])

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        machine.files.on("sync", interrupted, "consumequeue")
        with pytest.raises(KeyboardInterrupt):
            store.close()
        machine.files.heal()
        assert not machine.files.open_files
        assert not firetrail_threads()
        again = open_store()
        assert not again.recovery.clean
        assert bodies(again) == [b"a"]

    @pytest.mark.parametrize("part", ["housekeeper", "flusher", "dispatcher"])
    def test_an_interrupt_while_a_thread_is_waited_for(
        self, open_store: OpenStore, machine: Machine, part: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store()
        put_all(store, [b"a"])
        target = getattr(store._engine, part)
        stop = target.stop

        def interrupted(*_: object) -> None:
            monkeypatch.setattr(target, "stop", stop)
            raise KeyboardInterrupt

        monkeypatch.setattr(target, "stop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.close()
        assert not machine.files.open_files
        assert not firetrail_threads()
        assert bodies(open_store()) == [b"a"]


class TestUseAfterClose:
    def test_puts_are_refused(self, store: Store) -> None:
        put_all(store, [b"a"])
        store.close()
        result = store.try_put(Message("T", b"b"))
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert result.detail == store.refusal == "the store is closed"
        with pytest.raises(StoreReadOnlyError, match="the store is closed"):
            store.put_batch([Message("T", b"b")])
        with pytest.raises(StoreReadOnlyError):
            store.put(Message("new", b"b"))

    def test_reads_raise(self, store: Store, machine: Machine) -> None:
        put_all(store, [b"a"], keys=["k"])
        put_all(store, [b"a"], topic="U")
        store.get("T")
        store.close()
        for read in (
            lambda: store.get("T"),
            lambda: store.get("T", tags="A"),
            lambda: store.get("U"),
            lambda: list(store.read("T")),
            lambda: store.at(0),
            lambda: store.query("T", "k"),
            lambda: store.offset_at("T", 0, 1),
        ):
            with pytest.raises(StoreClosedError):
                read()
        for call in (
            lambda: store.get("missing"),
            lambda: store.read("missing"),
            lambda: store.query("missing", "k"),
            store.topics,
            lambda: store.queues("T"),
            lambda: store.min_offset("T"),
            lambda: store.max_offset("T"),
            store.flush,
            store.wait_dispatched,
        ):
            with pytest.raises(StoreClosedError, match=r": the store is closed; open it again$"):
                call()
        assert not machine.files.open_files

    def test_other_calls_do_no_harm(self, store: Store) -> None:
        put_all(store, [b"a"])
        end = store.log_range
        store.close()
        assert store.log_range == end
        assert store.statistics().put_messages == 1
        assert store.flushed_offset == end[1]
        assert list(store.follow("missing")) == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestKill:
    def test_a_killed_process_loses_nothing_that_was_put(self, root: Path) -> None:
        child = os.fork()
        if child == 0:  # no cover
            try:
                store = Store.open(root, small_config(log=1 << 16))
                for number in range(100):
                    store.put(Message("T", b"%d" % number, keys=["k"]))
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        with Store.open(root) as store:
            assert not store.recovery.clean
            assert bodies(store) == [b"%d" % number for number in range(100)]
            assert len(store.query("T", "k", max_count=64)) == 64


FORGETFUL = """
import sys, threading
from firetrail import Message, Store

store = Store.open(sys.argv[1])

def produce():
    while True:
        store.put(Message("T", b"x", keys=["k"]))

threading.Thread(target=produce, daemon=True).start()
for _ in range(300):
    store.put(Message("T", b"x", keys=["k"]))
"""


def test_a_program_that_ends_without_closing(root: Path) -> None:
    """Its threads are cut off somewhere; that is no crash, and the store is recovered."""
    ended = subprocess.run(
        [sys.executable, "-c", FORGETFUL, str(root)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with Store.open(root) as store:
        assert not store.recovery.clean
        assert len(bodies(store)) >= 300


def test_repeated_opening_leaks_nothing(root: Path) -> None:
    def in_use() -> tuple[int, int, int]:
        maps = Path("/proc/self/maps").read_text().count(str(root))
        return len(os.listdir("/proc/self/fd")), maps, threading.active_count()

    before = in_use()
    for number in range(15):
        with Store.open(root, small_config()) as store:
            put_all(store, [b"x" * 1000] * 3, keys=["k"])
            assert store.get("T", 0, 3 * number).count > 0
            assert store.query("T", "k")
    assert in_use() == before


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestFork:
    def in_child(self, action) -> int:  # type: ignore[no-untyped-def]
        """Exit code of a forked process that did this."""
        child = os.fork()
        if child == 0:  # no cover
            code = 1
            try:
                action()
                code = 0
            except BaseException as error:
                print(repr(error))
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)

    def test_a_child_writes_nothing(
        self, open_store: OpenStore, root: Path, machine: Machine
    ) -> None:
        store = open_store()
        put_all(store, [b"a"])
        before = tree(root)

        def use() -> None:
            result = store.try_put(Message("T", b"from the child"))
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "open it again after a fork" in result.detail
            with pytest.raises(FlushFailedError):
                store._log.flushed_offset = -1
                store.flush()
            assert bodies(store) == [b"a"], "reading is fine"
            store.close()
            store.close()

        assert self.in_child(use) == 0
        assert tree(root) == before
        assert (root / "abort").exists()
        put_all(store, [b"b"])
        store.close()
        again = open_store()
        assert again.recovery.clean
        assert bodies(again) == [b"a", b"b"]

    def test_the_lock_stays_with_the_parent(self, open_store: OpenStore, root: Path) -> None:
        from firetrail.errors import StoreLockedError

        store = open_store()
        put_all(store, [b"a"])
        parent = os.getpid()

        def take() -> None:
            with pytest.raises(StoreLockedError, match=f"process {parent} has the store open"):
                Store.open(root)

        assert self.in_child(take) == 0
        put_all(store, [b"b"])

    def test_a_child_may_have_its_own(self, open_store: OpenStore, tmp_path: Path) -> None:
        open_store()

        def use() -> None:
            with Store.open(tmp_path / "other", small_config()) as own:
                put_all(own, [b"mine"])

        assert self.in_child(use) == 0
        with Store.open(tmp_path / "other") as own:
            assert bodies(own) == [b"mine"]


class TestCost:
    """Opening a cleanly closed store costs the same however long it is."""

    def cost(self, machine: Machine, path: Path, messages: int) -> dict[str, int]:
        config = small_config(entries=7, slots=8)
        with Store.open(path, config, system=machine.system) as store:
            for number in range(messages):
                store.put(Message("T", b"x" * 1000, tags="A", keys=[f"k{number}"]))
            assert store.wait_dispatched()
        machine.files.forget()
        store = Store.open(path, config, system=machine.system)
        eventually(lambda: machine.files.count("allocate", "commitlog") > 0)  # by the allocator
        tally = machine.files.tally()
        assert store.recovery.messages_scanned == 0
        store.close()
        segments = len(list((path / "commitlog").iterdir()))
        return {"segments": segments} | {
            name: tally[name] for name in ("open", "map", "sync", "write", "allocate", "read")
        }

    def test_is_the_same_for_few_files_and_many(self, machine: Machine, tmp_path: Path) -> None:
        short = self.cost(machine, tmp_path / "short", 7)
        long = self.cost(machine, tmp_path / "long", 91)
        assert (short.pop("segments"), long.pop("segments")) == (3, 31)
        assert short == long
        assert long["map"] <= 4
