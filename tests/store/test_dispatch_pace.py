"""The lag of dispatch, in new queues and in bytes, and what a put does at its limit."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, Machine, bodies, eventually, small_config
from tests.store.conftest import OpenStore

from firetrail import FlushMode, Message, PutResult, PutStatus, Store
from firetrail.format.layout import TRANSACTION_PREPARED
from firetrail.format.properties import INNER_MULTI_DISPATCH
from firetrail.store.broker_store import BrokerStore
from firetrail.store.dispatch import dispatcher
from firetrail.store.dispatch.derivation import Arrival

BEHIND_MAX = 4


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "NEW_QUEUES_BEHIND_MAX", BEHIND_MAX)
    monkeypatch.setattr(dispatcher, "PUT_WAIT_S", PATIENCE_S)


@contextmanager
def nothing_dispatched(store: Store) -> Iterator[None]:
    with store._engine.dispatcher._stepping:
        yield


def put_new(store: Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put(Message(f"t{number}", b"x"))


def made(root: Path) -> int:
    return len(list(root.glob("consumequeue/t*/0/*")))


def test_puts_keep_pace_with_the_making_of_queues(open_store: OpenStore, root: Path) -> None:
    store = open_store(log=1 << 16)
    for number in range(0, 100, 10):
        put_new(store, number, 10)
        assert made(root) >= number + 10 - BEHIND_MAX


def test_a_put_waits_for_the_oldest_of_them(open_store: OpenStore, root: Path) -> None:
    store = open_store()
    with nothing_dispatched(store):
        put_new(store, 0, BEHIND_MAX)
        late = threading.Thread(target=put_new, args=(store, BEHIND_MAX, 1))
        late.start()
        late.join(0.05)
        assert late.is_alive()
        assert made(root) == 0
    late.join(PATIENCE_S)
    assert not late.is_alive()
    assert store.wait_dispatched(PATIENCE_S)
    assert made(root) == BEHIND_MAX + 1


@pytest.mark.parametrize("batch", [False, True])
def test_after_a_while_it_is_refused(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    monkeypatch.setattr(dispatcher, "PUT_WAIT_S", 0.01)
    store = open_store()
    store.put(Message("old", b"1"))
    assert store.wait_dispatched(PATIENCE_S)
    with nothing_dispatched(store):
        for number in range(BEHIND_MAX):
            message = Message(f"t{number}", b"x")
            if batch:
                store.put_batch([message, message])
            else:
                store.put(message)
        refused = store.try_put(Message("new", b"x"))
        assert refused.status is PutStatus.OS_PAGE_CACHE_BUSY
        assert refused.detail == f"{BEHIND_MAX} new queues wait to be created; try again"
        assert store.try_put(Message("old", b"2")).ok  # the others are not held up
    assert store.wait_dispatched(PATIENCE_S)
    assert store.try_put(Message("new", b"x")).ok
    assert bodies(store, "old") == [b"1", b"2"]
    assert "new" in store.topics()


def test_so_it_is_with_light_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "PUT_WAIT_S", 0.01)
    with Store.open(tmp_path / "store", small_config(light_queues=True, log=1 << 16)) as store:
        store.put(Message("old", b"1"))
        assert store.wait_dispatched(PATIENCE_S)
        names = ",".join(f"%LMQ%{number}" for number in range(BEHIND_MAX))
        message = Message("old", b"2", properties={INNER_MULTI_DISPATCH: names})
        with nothing_dispatched(store):
            store.put(message)
            assert store.try_put(message).status is PutStatus.OS_PAGE_CACHE_BUSY
        assert store.wait_dispatched(PATIENCE_S)
        assert store.try_put(message).ok


def test_queues_that_never_get_a_message_are_not_waited_for(open_store: OpenStore) -> None:
    store = open_store(log=1 << 16)
    for number in range(3 * BEHIND_MAX):
        store.put(Message(f"t{number}", b"x", sys_flag=TRANSACTION_PREPARED))
    eventually(lambda: store.dispatch_behind == 0)


async def test_messages_waiting_for_the_disk_delay_no_put(tmp_path: Path) -> None:
    """Otherwise an event loop would wait for syncs that it has not even requested yet."""
    machine = Machine()
    config = small_config(flush=FlushMode.SYNC, log=1 << 16)
    with BrokerStore.open(tmp_path / "store", config, system=machine.system) as store:
        begun = [
            store.writer.begin_put(Message(f"t{number}", b"x")) for number in range(3 * BEHIND_MAX)
        ]
        waiting = [put for put in begun if not isinstance(put, PutResult)]
        assert len(waiting) == len(begun)
        results = await asyncio.gather(*waiting)
        assert all(result.ok for result in results)
        assert store.embedded.wait_dispatched(PATIENCE_S)
        assert made(tmp_path / "store") == 3 * BEHIND_MAX


def test_a_listener_that_puts_is_not_held_up(open_store: OpenStore, root: Path) -> None:
    """Dispatch continues only after the listener has returned."""
    store = open_store(log=1 << 16)
    results: list[PutResult] = []

    def copy(arrivals: list[Arrival]) -> None:
        if arrivals[0].topic == "T":
            for number in range(3 * BEHIND_MAX):
                results.append(store.try_put(Message(f"t{number}", b"x")))

    store.on_arrival(copy)
    store.put(Message("T", b"x"))
    eventually(lambda: made(root) == 3 * BEHIND_MAX)
    assert all(result.ok for result in results)


class TestBytes:
    @pytest.fixture
    def store(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> Store:
        store = open_store(log=1 << 16)
        size = store.put(Message("T", b"0")).size
        assert store.wait_dispatched(PATIENCE_S)
        monkeypatch.setattr(dispatcher, "BEHIND_MAX", 2 * size)
        return store

    @pytest.mark.parametrize("batch", [False, True])
    def test_a_put_waits_until_less_is_left(self, store: Store, batch: bool) -> None:
        message = Message("T" if batch else "new", b"x")  # a single one needs more than room
        put = store.put_batch if batch else store.put
        with nothing_dispatched(store):
            for number in range(3):
                assert store.try_put(Message("T", b"%d" % number)).ok
            late = threading.Thread(target=put, args=([message] if batch else message,))
            late.start()
            late.join(0.05)
            assert late.is_alive()
        late.join(PATIENCE_S)
        assert not late.is_alive()

    def test_a_batch_waits_for_dispatch_only_for_a_while(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dispatcher, "PUT_WAIT_S", 0.01)
        with nothing_dispatched(store):
            for number in range(5):
                store.put_batch([Message("T", b"%d" % number)])
        assert bodies(store) == [b"0", b"0", b"1", b"2", b"3", b"4"]
