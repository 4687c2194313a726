"""A SYNC_MASTER acknowledges, and shows to consumers, what enough replicas have confirmed."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, ManualClock, eventually

from firetrail import FlushMode, Message, PutStatus
from firetrail.errors import NotReplicatedError
from firetrail.store.broker_store import BrokerStore
from firetrail.store.log.flusher import ThreadWaiter
from firetrail.store.log.replica_acks import RETURN_S, SharedAddress
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import SYSTEM, System

MASTER = StoreConfig(
    commit_log_file_size=1 << 20, max_message_size=1000, role=BrokerRole.SYNC_MASTER
)
LONG_MS = int(PATIENCE_S * 1000)


class StillClock(ManualClock):
    """A clock on which no time passes by itself."""

    def monotonic(self) -> float:
        return self._pushed_s


@pytest.fixture(params=list(FlushMode))
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return MASTER.replace(flush=request.param, slave_timeout_ms=LONG_MS)


@pytest.fixture
def store(tmp_path: Path, config: StoreConfig) -> Iterator[BrokerStore]:
    with BrokerStore.open(tmp_path, config, system=SYSTEM) as store:
        yield store


def confirming(store: BrokerStore, replica: str = "a") -> threading.Event:
    """Let a replica confirm each put as soon as it is sent; the event says that one was."""
    sent = threading.Event()

    def confirm() -> None:
        sent.set()
        store.replica_acks.note(replica, store.log.max_offset)

    store.replica_acks.note(replica, store.log.max_offset)
    store.log.on_sendable = confirm
    return sent


def visible(store: BrokerStore) -> int:
    return store.embedded.max_offset("T")


def test_a_put_returns_when_the_replica_has_confirmed_it(store: BrokerStore) -> None:
    sent = confirming(store)
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.PUT_OK
    assert sent.is_set()
    eventually(lambda: visible(store) == 1)


async def test_an_async_put_waits_as_well(store: BrokerStore) -> None:
    confirming(store)
    assert (await store.embedded.put_async(Message("T", b"1"))).ok


def test_without_a_replica_a_message_is_stored_and_not_acknowledged(store: BrokerStore) -> None:
    result = store.embedded.try_put(Message("T", b"1"))
    assert result.status is PutStatus.SLAVE_NOT_AVAILABLE
    assert result.queue_offset == 0
    with pytest.raises(NotReplicatedError, match="0 of 1 required replicas"):
        store.embedded.put(Message("T", b"2"))


def test_a_silent_replica_leads_to_a_timeout(store: BrokerStore) -> None:
    store.configure(slave_timeout_ms=20)
    store.replica_acks.note("a", 0)
    result = store.embedded.try_put(Message("T", b"1"))
    assert result.status is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert "within 20 ms" in result.detail


def test_consumers_see_a_message_only_after_the_replica_has_it(store: BrokerStore) -> None:
    store.embedded.try_put(Message("T", b"1"))
    end = store.log.max_offset
    store.embedded.try_put(Message("T", b"2"))
    store.embedded.flush()
    store.replica_acks.note("a", end + 10)  # a part of the second message
    eventually(lambda: visible(store) == 1)
    store.replica_acks.note("a", end + 11)
    store.replica_acks.note("a", store.log.max_offset)
    eventually(lambda: visible(store) == 2)


def test_a_confirmed_message_is_shown_although_the_replica_has_left(store: BrokerStore) -> None:
    with store._engine.dispatcher._stepping:  # dispatch is late
        store.embedded.try_put(Message("T", b"1"))
        store.embedded.flush()
        store.replica_acks.note("a", store.log.max_offset)
        store.replica_acks.drop("a")
        store.embedded.try_put(Message("T", b"2"))
        store.embedded.flush()
    eventually(lambda: visible(store) == 1)
    assert store.log.dispatchable() < store.log.max_offset


def test_confirmations_of_a_lost_replica_do_not_count(store: BrokerStore) -> None:
    store.replica_acks.note("a", 1 << 40)
    store.replica_acks.drop("a")
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.SLAVE_NOT_AVAILABLE


def test_as_many_replicas_as_required_must_confirm(store: BrokerStore) -> None:
    store.configure(in_sync_replicas=3, slave_timeout_ms=20)
    store.replica_acks.note("a", 1 << 40)
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.SLAVE_NOT_AVAILABLE
    store.replica_acks.note("b", 0)
    assert store.embedded.try_put(Message("T", b"2")).status is PutStatus.FLUSH_SLAVE_TIMEOUT
    store.replica_acks.note("b", 1 << 40)
    assert store.embedded.try_put(Message("T", b"3")).ok


def test_a_replica_counts_once_however_often_it_has_connected(store: BrokerStore) -> None:
    """It was cut off and restarted, and the end of its first connection is not noticed yet."""
    store.configure(in_sync_replicas=3, slave_timeout_ms=20)
    acks = store.replica_acks
    acks.note("paused", 0, replica="one")
    acks.note("cut off", 0, replica="two")
    acks.note("again", 0, replica="two")
    assert acks.in_sync(0) == 2
    assert [acks.counts(each) for each in ("paused", "cut off", "again")] == [True, False, True]
    store.log.on_sendable = lambda: acks.note("again", store.log.max_offset, replica="two")
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.FLUSH_SLAVE_TIMEOUT
    acks.drop("paused")
    assert store.embedded.try_put(Message("T", b"2")).status is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_late_report_of_an_earlier_connection_does_not_count(store: BrokerStore) -> None:
    """It was on its way when the replica connected again."""
    store.configure(in_sync_replicas=3)
    acks = store.replica_acks
    acks.note("cut off", 0, replica="one")
    store.embedded.try_put(Message("T", b"1"))
    end = store.log.max_offset
    acks.note("again", end, replica="one")
    acks.note("cut off", end, replica="one")
    assert acks.in_sync(0) == 1
    assert not acks.have_confirmed(end)


def test_two_replicas_that_look_like_one_count_once_both_have_confirmed_a_later_message(
    store: BrokerStore,
) -> None:
    """Such as two Java slaves on one machine: only a process that runs confirms what is new."""
    store.configure(in_sync_replicas=3)
    acks = store.replica_acks
    acks.note("a", 0, replica="host")
    acks.note("b", 0, replica="host")
    assert acks.in_sync(0) == 1
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.SLAVE_NOT_AVAILABLE
    acks.note("b", store.log.max_offset, replica="host")
    acks.note("a", store.log.max_offset, replica="host")
    assert acks.in_sync(0) == 2
    assert acks.have_confirmed(store.log.max_offset)
    acks.note("c", store.log.max_offset, replica="host")
    assert acks.in_sync(0) == 1


def test_a_put_waits_until_two_slaves_of_one_address_have_shown_that_they_differ(
    store: BrokerStore,
) -> None:
    """Two Java slaves on one machine have just connected."""
    store.configure(in_sync_replicas=3)
    acks, address = store.replica_acks, SharedAddress("10.0.0.2")

    def confirm() -> None:
        for connection in ("a", "b"):
            acks.note(connection, store.log.max_offset, replica=address)

    acks.note("a", 0, replica=address)
    acks.note("b", 0, replica=address)
    assert acks.in_sync(0) == 1
    store.log.on_sendable = confirm
    assert store.embedded.try_put(Message("T", b"1")).ok


def test_one_slave_that_has_connected_twice_confirms_nothing_alone(store: BrokerStore) -> None:
    store.configure(in_sync_replicas=3, slave_timeout_ms=20)
    acks, address = store.replica_acks, SharedAddress("10.0.0.2")
    acks.note("cut off", 0, replica=address)
    acks.note("again", 0, replica=address)
    store.log.on_sendable = lambda: acks.note("again", store.log.max_offset, replica=address)
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.FLUSH_SLAVE_TIMEOUT


def test_fewer_copies_are_needed_if_two_connections_are_one_replica(store: BrokerStore) -> None:
    store.configure(in_sync_replicas=3, auto_in_sync_replicas=True, min_in_sync_replicas=1)
    store.replica_acks.note("cut off", 0, replica="one")
    store.replica_acks.note("again", 0, replica="one")
    assert store.replica_acks.needed == 2


def test_a_replica_far_behind_is_not_in_sync(store: BrokerStore) -> None:
    store.configure(max_gap_not_in_sync=10)
    store.replica_acks.note("a", 0)
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_put_does_not_wait_for_the_lock_that_reports_take(store: BrokerStore) -> None:
    acks = store.replica_acks
    acks.note("a", 100)
    store.configure(max_gap_not_in_sync=10)
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.extend(map(acks.are_enough, (109, 110))))
    with acks._guard:
        asking.start()
        asking.join(PATIENCE_S)
        assert answers == [True, False]
    acks.drop("a")
    assert not acks.are_enough(109)


def test_the_number_of_copies_may_follow_the_connected_replicas(store: BrokerStore) -> None:
    store.configure(auto_in_sync_replicas=True)
    assert store.embedded.try_put(Message("T", b"1")).ok
    store.replica_acks.note("a", 0)
    store.configure(slave_timeout_ms=20)
    assert store.embedded.try_put(Message("T", b"2")).status is PutStatus.FLUSH_SLAVE_TIMEOUT
    store.replica_acks.drop("a")
    eventually(lambda: visible(store) == 2)


def test_a_close_ends_the_wait_for_replicas(tmp_path: Path, config: StoreConfig) -> None:
    store = BrokerStore.open(tmp_path, config, system=SYSTEM)
    waiting = threading.Event()
    store.replica_acks.note("a", 0)
    store.log.on_sendable = waiting.set
    results = []
    thread = threading.Thread(
        target=lambda: results.append(store.embedded.try_put(Message("T", b"1")))
    )
    thread.start()
    assert waiting.wait(PATIENCE_S)
    store.close()
    thread.join(PATIENCE_S)
    assert results[0].status is PutStatus.FLUSH_SLAVE_TIMEOUT


async def test_a_message_that_does_not_wait_is_acknowledged_at_once(store: BrokerStore) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert (await store.embedded.put_async(Message("T", b"1", wait_for_flush=False))).ok
    assert visible(store) == 0


async def test_puts_that_timed_out_are_forgotten(store: BrokerStore) -> None:
    store.configure(slave_timeout_ms=1)
    store.replica_acks.note("a", 0)
    for _ in range(5):
        await store.writer.begin_put(Message("T", b"1"))  # type: ignore[misc]
    assert len(store.replica_acks._waiters._waiting) == 1


def test_a_put_after_the_end_does_not_wait_for_replicas(store: BrokerStore) -> None:
    store.replica_acks.note("a", 0)
    store.replica_acks.give_up()
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.FLUSH_SLAVE_TIMEOUT


def test_no_waiter_is_missed_if_replicas_report_at_the_same_time(store: BrokerStore) -> None:
    """Each report has the offset of one waiter, and two threads report."""
    acks, rounds = store.replica_acks, 2000
    waiters = [ThreadWaiter(number, SYSTEM.threads) for number in range(1, rounds + 1)]
    acks.note("a", 0)
    for waiter in waiters:
        acks.add(waiter)

    def report(replica: str) -> None:
        for number in range(1, rounds + 1):
            acks.note(replica, number)

    threads = [threading.Thread(target=report, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(waiter.wait(0) for waiter in waiters)


# -- members of a group ---------------------------------------------------------------------------


def test_all_required_members_must_confirm(store: BrokerStore) -> None:
    store.configure(slave_timeout_ms=20)
    acks = store.replica_acks
    acks.require(frozenset({2, 3}))
    acks.note("a", 1 << 40, 2)
    result = store.embedded.try_put(Message("T", b"1"))
    assert result.status is PutStatus.SLAVE_NOT_AVAILABLE
    assert "members of the in-sync set are not connected: 3; consumers get" in result.detail
    acks.note("b", 0, 3)
    assert store.embedded.try_put(Message("T", b"2")).status is PutStatus.FLUSH_SLAVE_TIMEOUT
    acks.note("b", 1 << 40, 3)
    assert store.embedded.try_put(Message("T", b"3")).ok


def test_replicas_that_are_not_required_do_not_count(store: BrokerStore) -> None:
    store.configure(slave_timeout_ms=20)
    store.replica_acks.require(frozenset({2}))
    store.replica_acks.note("a", 0, 2)
    store.replica_acks.note("b", 1 << 40)
    store.replica_acks.note("c", 1 << 40, 3)
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.FLUSH_SLAVE_TIMEOUT


def test_a_group_of_one_needs_as_many_copies_as_are_configured(store: BrokerStore) -> None:
    store.replica_acks.require(frozenset())
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.SLAVE_NOT_AVAILABLE
    store.configure(auto_in_sync_replicas=True)
    store.replica_acks.note("a", 0, 2)  # connected, but far behind, so not required
    assert store.embedded.try_put(Message("T", b"2")).ok


def test_a_member_counts_with_its_latest_connection(store: BrokerStore) -> None:
    acks = store.replica_acks
    acks.note("old", 500, 2)
    acks.note("new", 100, 2)
    acks.note("old", 600, 2)
    assert acks.by_member() == {2: 100}
    acks.drop("new")
    assert acks.by_member() == {2: 600}


def test_two_processes_with_one_number_are_as_far_as_the_one_that_is_behind(
    tmp_path: Path,
) -> None:
    with BrokerStore.open(tmp_path, MASTER, system=SYSTEM, in_group=True) as store:
        acks = store.replica_acks
        acks.require(frozenset({2}))
        ends = []
        for connection in ("first", "second"):
            acks.note(connection, 0, member=2, replica="store of 2")
        for _ in range(3):
            store.embedded.try_put(Message("T", b"x", wait_for_flush=False))
            ends.append(store.log.max_offset)
        acks.note("second", ends[2], member=2, replica="store of 2")
        assert acks.by_member() == {2: ends[2]}  # the first one may be a connection that is lost
        acks.note("first", ends[0], member=2, replica="store of 2")
        assert acks.by_member() == {2: ends[0]}
        acks.note("another store", ends[1], member=2, replica="another store")
        acks.drop("first")
        assert acks.by_member() == {2: ends[1]}


def test_a_member_is_about_to_stop_if_its_latest_connection_says_so(store: BrokerStore) -> None:
    acks = store.replica_acks
    acks.note("old", 500, 2)
    acks.leave("old")
    acks.note("old", 600, 2)
    assert acks.leaving == {2}
    assert acks.by_member() == {2: 600}
    acks.note("new", 600, 2)  # it has been started again
    assert acks.leaving == set()
    acks.leave("new")
    acks.drop("new")
    acks.leave("new")  # too late
    acks.drop("old")
    assert acks.leaving == set()


def test_an_async_master_waits_for_no_member(tmp_path: Path) -> None:
    with BrokerStore.open(
        tmp_path, MASTER.replace(role=BrokerRole.ASYNC_MASTER), system=SYSTEM
    ) as store:
        store.replica_acks.require(frozenset({2}))
        assert store.embedded.try_put(Message("T", b"1")).ok


def test_puts_of_a_group_wait_for_members_that_connect_again(tmp_path: Path) -> None:
    clock = StillClock()
    with BrokerStore.open(
        tmp_path, MASTER, system=System(clock=clock), in_group=True, loading=True
    ) as store:
        acks = store.replica_acks
        acks.require(frozenset({2, 3}))
        assert acks.are_enough(store.log.max_offset)  # a new master waits for its members
        clock.advance(int(RETURN_S * 1000))
        acks.require(frozenset({2, 3}))
        assert not acks.are_enough(store.log.max_offset)
        acks.note("connection", store.log.max_offset, member=2)
        assert not acks.are_enough(store.log.max_offset)
        acks.drop("connection")
        assert acks.are_enough(store.log.max_offset)  # it may be back soon
        clock.advance(int(RETURN_S * 1000))
        acks.require(frozenset({2, 3}))
        assert not acks.are_enough(store.log.max_offset)
