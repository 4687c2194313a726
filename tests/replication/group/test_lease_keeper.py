"""The threads that keep a lease: for a master, for a slave, and between two terms."""

import errno
import logging
import threading
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import ManualClock, eventually
from tests.replication.fake_etcd import Endpoint, FakeEtcd, fake_etcd

from firetrail import Message, PutStatus
from firetrail.errors import ElectionError
from firetrail.replication.group.election import LeaseTiming
from firetrail.replication.group.etcd import EtcdCoordinator
from firetrail.replication.group.etcd_gateway import EtcdAccess
from firetrail.replication.group.failover_errors import GroupWork
from firetrail.replication.group.group_memory import MemberFile
from firetrail.replication.group.group_status import GroupProblem
from firetrail.replication.group.group_view import GroupMember, GroupView, SetChange
from firetrail.replication.group.lease_keeper import STALLED_TTLS, LeaseKeeper
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import System

TTL_S = 30
CONFIG = StoreConfig(commit_log_file_size=1 << 20, max_message_size=1000)


@pytest.fixture
def etcd() -> Iterator[FakeEtcd]:
    with fake_etcd() as etcd:
        yield etcd


@pytest.fixture
def endpoint(etcd: FakeEtcd) -> Endpoint:
    return etcd.endpoint()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def member_file(folder: Path, clock: ManualClock) -> MemberFile:
    """The file of a store that was never a member of a group."""
    file = MemberFile(System(clock=clock), folder)
    file.create()
    return file


@pytest.fixture
def keeper(endpoint: Endpoint, clock: ManualClock, tmp_path: Path) -> Iterator[LeaseKeeper]:
    """The keeper of member 1, which may found the group."""
    keeper = LeaseKeeper(
        EtcdCoordinator(EtcdAccess((endpoint.url,)), "/g", TTL_S, clock),
        GroupMember(1, "127.0.0.1:1", "127.0.0.1:2", True, 15.0),
        LeaseTiming(TTL_S),
        System(clock=clock),
    )
    keeper.start(member_file(tmp_path / "one", clock))
    yield keeper
    keeper.detach()
    keeper.stop()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[BrokerStore]:
    """The store of a master that does not wait for replicas."""
    config = CONFIG.replace(role=BrokerRole.ASYNC_MASTER)
    with BrokerStore.open(tmp_path / "store", config, system=System(clock=clock)) as store:
        yield store


def wins(keeper: LeaseKeeper) -> None:
    eventually(lambda: keeper.status.epoch > 0)


def test_a_member_without_a_store_does_not_campaign(keeper: LeaseKeeper, etcd: FakeEtcd) -> None:
    eventually(lambda: keeper._election.view.revision > 0)
    threading.Event().wait(0.3)
    assert not etcd.leases and keeper.status.epoch == 0


def test_a_master_accepts_messages_only_while_it_holds_the_lease(
    keeper: LeaseKeeper, store: BrokerStore, endpoint: Endpoint
) -> None:
    endpoint.cut = True
    keeper.attach(store)
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.SERVICE_NOT_AVAILABLE
    endpoint.cut = False
    wins(keeper)
    assert store.embedded.try_put(Message("T", b"2")).ok
    keeper.detach()
    assert store.embedded.try_put(Message("T", b"3")).status is PutStatus.SERVICE_NOT_AVAILABLE


def test_the_lease_is_renewed_between_two_terms(
    keeper: LeaseKeeper, store: BrokerStore, clock: ManualClock
) -> None:
    keeper.attach(store)
    wins(keeper)
    epoch = keeper.status.epoch
    keeper.detach()
    clock.advance(TTL_S * 900)  # nine tenths: too late without a renewal
    eventually(lambda: keeper.status.fenced_s == 0)
    assert keeper.status.epoch == epoch


def test_an_unreachable_engine_is_reported_and_retried(
    keeper: LeaseKeeper,
    store: BrokerStore,
    endpoint: Endpoint,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keeper.attach(store)
    wins(keeper)
    endpoint.cut = True
    clock.advance(TTL_S * 1000)
    assert store.writer.refusal and keeper.status.fenced_s > 0
    eventually(lambda: keeper.status.error.startswith("etcd does not answer"))
    endpoint.cut = False
    eventually(lambda: not store.writer.refusal)
    assert "failover does not work at the moment: etcd does not answer" in caplog.text


def test_the_lease_of_a_broker_that_does_nothing_any_more_is_not_renewed(
    keeper: LeaseKeeper, store: BrokerStore, clock: ManualClock
) -> None:
    keeper.attach(store)
    wins(keeper)
    clock.advance(STALLED_TTLS * TTL_S * 1000)
    eventually(lambda: "the event loop of the broker is blocked" in keeper.status.error)
    assert store.writer.refusal
    keeper.beat()
    eventually(lambda: not store.writer.refusal)


def test_a_blocked_event_loop_stays_an_error_while_the_engine_answers(
    keeper: LeaseKeeper,
    store: BrokerStore,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    keeper.attach(store)
    wins(keeper)
    clock.advance(STALLED_TTLS * TTL_S * 1000)
    eventually(lambda: "the event loop of the broker is blocked" in keeper.status.error)
    keeper._attempt(GroupWork.WATCH, lambda: keeper._watch_once)
    assert "the event loop of the broker is blocked" in keeper.status.error
    assert "failover works again" not in caplog.text
    keeper.beat()
    eventually(lambda: not keeper.status.error)
    assert "failover works again; it did not because of: the event loop" in caplog.text


def test_an_engine_that_only_answers_reads_stays_an_error(
    keeper: LeaseKeeper,
    store: BrokerStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def refuse(*_: object) -> GroupView:
        raise ElectionError("etcd has no space")

    with monkeypatch.context() as patch:
        patch.setattr(keeper._coordinator, "campaign", refuse)
        keeper.attach(store)
        eventually(lambda: keeper.status.error == "etcd has no space")
        keeper._attempt(GroupWork.WATCH, lambda: keeper._watch_once)
        assert keeper.status.error == "etcd has no space"
        assert "failover works again" not in caplog.text
    wins(keeper)
    eventually(lambda: not keeper.status.error)


def test_a_master_whose_store_has_failed_returns_the_lease(
    keeper: LeaseKeeper, store: BrokerStore
) -> None:
    keeper.attach(store)
    wins(keeper)
    store._engine.fail(OSError("input/output error"))
    eventually(lambda: keeper.status.epoch == 0 and keeper.status.holder is None)
    threading.Event().wait(0.3)
    assert keeper.status.epoch == 0
    store._engine.failure = None  # otherwise closing the store raises it


def test_a_lease_that_was_handed_over_is_left_to_the_successor(
    keeper: LeaseKeeper, store: BrokerStore, etcd: FakeEtcd
) -> None:
    keeper.attach(store)
    wins(keeper)
    keeper.hand_over(2)
    assert keeper.status.epoch == 0 and keeper.status.holder is None
    assert keeper.status.successor == 2
    assert keeper.status.obstacle == "member 2 is about to take over"
    assert (
        store.embedded.try_put(Message("T", b"refused")).status is PutStatus.SERVICE_NOT_AVAILABLE
    )
    assert len(etcd.leases) == 1  # that of the entry of the successor


def test_a_member_that_has_left_for_a_hand_over_does_not_join_again(
    keeper: LeaseKeeper,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of the lease works meanwhile, and looks at the in-sync set at any moment."""
    with BrokerStore.open(
        tmp_path / "store",
        CONFIG.replace(role=BrokerRole.SYNC_MASTER),
        system=System(clock=clock),
        in_group=True,
    ) as store:
        keeper.attach(store)
        wins(keeper)
        for member in (2, 3):
            store.replica_acks.note(member, 0, member)
        eventually(lambda: keeper.status.in_sync == {1, 2, 3})
        change = keeper._coordinator.change_in_sync

        def change_and_look(asked: SetChange) -> GroupView:
            view = change(asked)
            keeper._observe(view, keeper._election.view.revision)
            keeper._step()
            return view

        monkeypatch.setattr(keeper._coordinator, "change_in_sync", change_and_look)
        keeper.hand_over(2)
        assert keeper.status.in_sync == {2, 3}
        keeper.detach()


def test_a_member_that_can_keep_nothing_on_its_full_disk_hands_over(
    keeper: LeaseKeeper,
    store: BrokerStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keeper.attach(store)
    wins(keeper)

    def saw(view: GroupView, known: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keeper, "_observe", saw)
        keeper.hand_over(2)
    assert keeper.status.epoch == 0
    assert "the state of the group cannot be kept on disk" in caplog.text
    eventually(lambda: keeper.status.successor == 2)


def test_the_status_tells_a_full_disk_from_an_engine_that_does_not_answer(
    keeper: LeaseKeeper, store: BrokerStore, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.attach(store)
    wins(keeper)
    assert keeper.status.problem is GroupProblem.NONE

    def saw(view: GroupView, known: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(keeper, "_observe", saw)
        eventually(lambda: keeper.status.problem is GroupProblem.FULL_DISK)
    endpoint.cut = True
    eventually(lambda: keeper.status.problem is GroupProblem.NO_COORDINATOR)
    endpoint.cut = False
    eventually(lambda: keeper.status.problem is GroupProblem.NONE)


def test_naming_a_successor_keeps_the_lease(keeper: LeaseKeeper, store: BrokerStore) -> None:
    keeper.attach(store)
    wins(keeper)
    keeper.nominate(2)
    assert keeper.status.epoch and keeper.status.successor == 2
    assert store.embedded.try_put(Message("T", b"1")).ok


def test_a_store_that_is_not_the_member_does_not_campaign(
    endpoint: Endpoint,
    clock: ManualClock,
    store: BrokerStore,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    engine = EtcdCoordinator(EtcdAccess((endpoint.url,)), "/g", TTL_S, clock)
    assert engine.claim(1, "the first store") == "the first store"
    member = GroupMember(1, "127.0.0.1:1", "127.0.0.1:2", True, 15.0)
    keeper = LeaseKeeper(engine, member, LeaseTiming(TTL_S), System(clock=clock))
    keeper.attach(store)
    keeper.start(member_file(tmp_path / "other", clock))
    eventually(lambda: "this broker cannot be a member of the group" in caplog.text)
    assert not keeper.status.is_member and keeper.status.epoch == 0
    assert keeper.status.obstacle == (
        "another store is member 1 of the group; give this broker another ha_member, or, if it "
        "replaces that store, stop it and run 'firetrail replica replace'"
    )
    keeper.detach()
    keeper.stop()


def test_an_entry_that_was_written_by_hand_is_no_master_and_does_not_stay(
    keeper: LeaseKeeper,
    etcd: FakeEtcd,
    store: BrokerStore,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keeper.attach(store)
    wins(keeper)
    epoch = keeper.status.epoch
    with etcd.changed:
        ((key, entry),) = [
            (key, entry) for key, entry in etcd.keys.items() if b64decode(key).endswith(b"/leader")
        ]
        etcd.answer("kv/txn", {"success": [{"request_put": {"key": key, "value": entry["value"]}}]})
    eventually(lambda: not keeper.status.epoch)
    assert "'leader' of the group in etcd is bound to no lease" in keeper.status.obstacle
    assert f"the members delete it after {TTL_S} s" in keeper.status.obstacle
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.SERVICE_NOT_AVAILABLE
    eventually(lambda: "it is deleted in 30 s" in caplog.text)
    assert key in etcd.keys
    clock.advance(TTL_S * 1000)
    eventually(lambda: keeper.status.epoch > epoch)
    assert keeper.status.obstacle == "member 1 holds the lease"
