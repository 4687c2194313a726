"""Following a queue: existing messages, new ones, and when to stop."""

import threading
from collections.abc import Iterator

import pytest
from tests.helpers import PATIENCE_S, Machine, eventually, put_all
from tests.store.conftest import OpenStore

from firetrail import Message, Record, Store
from firetrail.store.dispatch.arrivals import Arrivals
from firetrail.store.dispatch.derivation import Arrival
from firetrail.system import SYSTEM


class Follower:
    """A thread that collects what an iterator gives until it ends."""

    def __init__(self, messages: Iterator[Record]) -> None:
        self.seen: list[bytes] = []
        self.failure: BaseException | None = None
        self._messages = messages
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self._messages:
                self.seen.append(bytes(message.body))
        except BaseException as error:
            self.failure = error

    def join(self) -> list[bytes]:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.failure is None
        return self.seen


class TestFollow:
    def test_begins_with_existing_messages_and_waits_for_more(self, open_store: OpenStore) -> None:
        store = open_store()
        put_all(store, [b"a", b"b"])
        follower = Follower(store.follow("T"))
        eventually(lambda: follower.seen == [b"a", b"b"])
        for body in (b"c", b"d"):
            put_all(store, [body])
            eventually(lambda body: follower.seen[-1] == body, body)
        store.close()
        assert follower.join() == [b"a", b"b", b"c", b"d"]

    def test_a_queue_that_does_not_exist_yet(self, open_store: OpenStore) -> None:
        store = open_store()
        follower = Follower(store.follow("T", 3))
        put_all(store, [b"a"], queue_id=3)
        eventually(lambda: follower.seen == [b"a"])
        store.close()
        follower.join()

    def test_follow_starts_at_an_offset(self, store: Store) -> None:
        put_all(store, [b"%d" % n for n in range(5)])
        assert [bytes(m.body) for m in store.follow("T", offset=3, timeout=0)] == [b"3", b"4"]

    def test_follow_selects_by_tags(self, store: Store) -> None:
        put_all(store, [b"a"], tags="A")
        put_all(store, [b"b"], tags="B")
        put_all(store, [b"c"], tags="A")
        assert [bytes(m.body) for m in store.follow("T", tags="A", timeout=0)] == [b"a", b"c"]
        assert list(store.follow("T", tags="C", timeout=0)) == []

    def test_ends_at_the_timeout(self, store: Store) -> None:
        put_all(store, [b"a"])
        assert len(list(store.follow("T", timeout=0.01))) == 1

    def test_which_arrivals_elsewhere_do_not_put_off(self, open_store: OpenStore) -> None:
        store = open_store(log=1 << 16)
        put_all(store, [b"a"])
        stop = threading.Event()

        def keep_busy() -> None:
            while not stop.wait(0.001):
                store.put(Message("other", b"x"))

        busy = threading.Thread(target=keep_busy)
        busy.start()
        try:
            assert Follower(store.follow("T", timeout=0.05)).join() == [b"a"]
        finally:
            stop.set()
            busy.join()

    def test_every_follower_sees_all_messages(self, open_store: OpenStore) -> None:
        store = open_store(log=1 << 16)
        followers = [Follower(store.follow("T")) for _ in range(4)]
        put_all(store, [b"%d" % n for n in range(50)])
        for follower in followers:
            eventually(lambda follower: len(follower.seen) == 50, follower)
        store.close()
        assert {len(follower.join()) for follower in followers} == {50}

    def test_an_abandoned_follower_stops_watching(self, store: Store) -> None:
        put_all(store, [b"a", b"b"])
        following = store.follow("T")
        next(following)
        following.close()  # type: ignore[attr-defined]
        assert store._engine.arrivals._waiting == 0

    def test_close_ends_a_follower_at_any_moment(self, open_store: OpenStore) -> None:
        """The follower ends, and the messages that it has seen are in order."""
        for _ in range(5):
            store = open_store(log=1 << 16, units=1000)
            offset = store.max_offset("T")
            follower = Follower(store.follow("T", offset=offset))
            for number in range(100):
                store.put(Message("T", b"%d" % number))
            store.close()
            seen = follower.join()
            assert seen == [b"%d" % number for number in range(len(seen))]


class TestArrivals:
    def test_arrivals_are_not_counted_without_a_watcher(self) -> None:
        arrivals = Arrivals(SYSTEM.threads)
        arrivals.notice([Arrival("T", 0, 1, 1)])
        assert arrivals.mark == 0

    def test_an_arrival_since_the_mark_ends_the_wait(self) -> None:
        arrivals = Arrivals(SYSTEM.threads)
        with arrivals.watched():
            mark = arrivals.mark
            assert not arrivals.wait(mark, 0)
            arrivals.notice([Arrival("T", 0, 1, 1)])
            assert arrivals.wait(mark, PATIENCE_S)
            assert not arrivals.wait(arrivals.mark, 0)

    def test_a_wait_ends_when_arrivals_are_closed(self) -> None:
        arrivals = Arrivals(SYSTEM.threads)
        with arrivals.watched():
            arrivals.notice([Arrival("T", 0, 1, 1)])
            arrivals.close()
            assert arrivals.is_closed
            assert not arrivals.wait(-1, None)


class TestWaitDispatched:
    def test_returns_at_once_without_messages(self, store: Store) -> None:
        assert store.wait_dispatched(0)

    def test_records_in_no_queue_are_waited_for(self, store: Store) -> None:
        store.put(Message("T", b"half", sys_flag=4))
        assert store.wait_dispatched(PATIENCE_S)

    @pytest.mark.parametrize("close", [True, False])
    def test_times_out_or_ends_with_the_store(
        self, store: Store, machine: Machine, close: bool
    ) -> None:
        with machine.files.stalled("map", "consumequeue"):
            store.put(Message("T", b"a"))
            if close:
                store._engine.arrivals.close()
            assert not store.wait_dispatched(PATIENCE_S if close else 0.01)
