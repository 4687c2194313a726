"""The end of a log that replicas have not confirmed, over restarts and changes of role (R7)."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers import crash_image, eventually
from tests.store.checks import checked

from firetrail import FlushMode, Message
from firetrail.format.names import OFFSET_MAX
from firetrail.store.broker_store import BrokerStore
from firetrail.store.results import GetStatus
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import SYSTEM

MASTER = StoreConfig(
    commit_log_file_size=4096,
    consume_queue_file_size=60,  # three units
    max_message_size=1000,
    index_slots=10,
    index_entries=100,
    role=BrokerRole.SYNC_MASTER,
)
Restart = Callable[[BrokerStore, Path], Path]


def stopped(store: BrokerStore, folder: Path) -> Path:
    store.close()
    return folder


def killed(store: BrokerStore, folder: Path) -> Path:
    store.removal.settle()
    image = crash_image(folder, folder.with_name("image"))
    store.close()
    return image


@pytest.fixture(params=[stopped, killed])
def restart(request: pytest.FixtureRequest) -> Restart:
    found: Restart = request.param
    return found


def put(store: BrokerStore, *bodies: bytes, topic: str = "T") -> None:
    for body in bodies:
        assert store.embedded.try_put(
            Message(topic, body, keys=[body.decode()], wait_for_flush=False)
        ).ok
    store.embedded.flush()


def confirm(store: BrokerStore) -> None:
    """Let the only replica confirm everything, and wait until it is shown."""
    store.replica_acks.note("replica", store.log.max_offset)
    assert store.embedded.wait_dispatched()


def shown(store: BrokerStore, topic: str = "T") -> list[bytes]:
    return [message.body for message in store.embedded.read(topic)]


def found(store: BrokerStore, *keys: bytes) -> list[bytes]:
    return [message.body for key in keys for message in store.embedded.query("T", key.decode())]


def tailed(folder: Path, restart: Restart, config: StoreConfig = MASTER) -> Path:
    """Write a store with two confirmed messages and seven that nobody has confirmed."""
    store = BrokerStore.open(folder, config, system=SYSTEM)
    put(store, b"a", b"b")
    confirm(store)
    store.replica_acks.drop("replica")
    put(store, b"c", b"d", b"e", b"f", b"g", b"h", b"i")
    return restart(store, folder)


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_restarted_master_shows_its_tail_when_replicas_confirm_it(
    tmp_path: Path, restart: Restart, flush: FlushMode
) -> None:
    config = MASTER.replace(flush=flush)
    folder = tailed(tmp_path / "store", restart, config)
    for _ in range(2):  # a restart without a replica changes nothing
        with BrokerStore.open(folder, config, system=SYSTEM) as store:
            assert shown(store) == [b"a", b"b"]
            assert store.embedded.max_offset("T") == 2
            assert found(store, b"a", b"b", b"c", b"i") == [b"a", b"b"]
            assert store.queues.unconfirmed("T") == 7
        assert not checked(folder).problems
    with BrokerStore.open(folder, config, system=SYSTEM) as store:
        put(store, b"j")
        assert shown(store) == [b"a", b"b"]
        confirm(store)
        everything = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i", b"j"]
        assert shown(store) == found(store, *everything) == everything
        assert store.queues.unconfirmed("T") == 0
    assert not checked(folder).problems
    with BrokerStore.open(folder, config, system=SYSTEM) as store:
        assert store.embedded.recovery.clean
        assert shown(store) == everything


def test_consumers_are_told_when_the_tail_is_confirmed_after_a_restart(
    tmp_path: Path, restart: Restart
) -> None:
    with BrokerStore.open(tailed(tmp_path / "store", restart), MASTER, system=SYSTEM) as store:
        arrived: list[int] = []
        store.embedded.on_arrival(lambda arrivals: arrived.extend(one.new for one in arrivals))
        confirm(store)
        eventually(lambda: sum(arrived) == 7)


@pytest.mark.parametrize(
    "changes",
    [{"role": BrokerRole.ASYNC_MASTER}, {"in_sync_replicas": 1}, {"auto_in_sync_replicas": True}],
)
def test_a_master_that_needs_no_replica_shows_everything(
    tmp_path: Path, restart: Restart, changes: dict[str, object]
) -> None:
    folder = tailed(tmp_path / "store", restart)
    with BrokerStore.open(folder, MASTER.replace(**changes), system=SYSTEM) as store:
        assert len(shown(store)) == store.embedded.max_offset("T") == 9


def test_old_messages_stay_readable_without_replicas(tmp_path: Path, restart: Restart) -> None:
    store = BrokerStore.open(
        tmp_path / "store", MASTER.replace(role=BrokerRole.ASYNC_MASTER), system=SYSTEM
    )
    put(store, b"a", b"b", b"c")
    store.embedded.wait_dispatched()
    with BrokerStore.open(restart(store, tmp_path / "store"), MASTER, system=SYSTEM) as store:
        assert shown(store) == [b"a", b"b", b"c"]


def test_a_slave_shows_what_its_master_confirms(tmp_path: Path, restart: Restart) -> None:
    folder = tailed(tmp_path / "store", restart)
    config = MASTER.replace(role=BrokerRole.SLAVE)
    with BrokerStore.open(folder, config, system=SYSTEM) as store:
        assert shown(store) == [b"a", b"b"]
        record = store.embedded.at(store.embedded.recovery.last_record_offset)
        assert record is not None
        store.log_copy().confirm(record.physical_offset)
        eventually(lambda: len(shown(store)) == 8)
    with BrokerStore.open(folder, config, system=SYSTEM) as store:
        assert len(shown(store)) == 8
        store.log_copy().confirm(OFFSET_MAX)
        eventually(lambda: len(shown(store)) == 9)


@pytest.mark.parametrize(
    ("settings", "members"),
    [({}, {2}), ({"in_sync_replicas": 1}, {2}), ({"auto_in_sync_replicas": True}, {2})],
)
def test_an_elected_master_shows_what_all_of_the_in_sync_set_have(
    tmp_path: Path, settings: dict[str, object], members: set[int]
) -> None:
    folder = tailed(tmp_path / "store", stopped)
    config = MASTER.replace(**settings)
    with BrokerStore.open(folder, config, system=SYSTEM, in_group=True, loading=True) as store:
        assert len(shown(store)) == 9  # the broker reads its own queues to their ends
        store.withhold_unconfirmed()
        assert shown(store) == [b"a", b"b"]
        store.replica_acks.note("three", store.log.max_offset, 3)
        assert not store.embedded.wait_dispatched(0.05)
        store.replica_acks.require(frozenset(members))
        assert shown(store) == [b"a", b"b"]
        store.replica_acks.note("two", store.log.max_offset, 2)
        assert store.embedded.wait_dispatched()
        assert len(shown(store)) == 9


@pytest.mark.parametrize(
    ("role", "level", "before"),
    [
        (BrokerRole.SYNC_MASTER, logging.WARNING, "replicas have confirmed it"),
        (BrokerRole.SLAVE, logging.INFO, "this replica follows its master"),
    ],
)
def test_a_start_tells_which_messages_are_hidden(
    tmp_path: Path, role: BrokerRole, level: int, before: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The master of a slave may need no confirmations at all."""
    folder = tailed(tmp_path / "store", stopped)
    caplog.set_level(logging.INFO)
    with BrokerStore.open(folder, MASTER.replace(role=role), system=SYSTEM):
        (said,) = (record for record in caplog.records if "do not see" in record.getMessage())
    assert said.levelno == level
    assert said.getMessage().startswith(f"{folder}: consumers do not see the last ")
    assert said.getMessage().endswith(f" on, before {before}")


def test_a_topic_that_was_created_again_in_the_tail_begins_with_number_0(tmp_path: Path) -> None:
    with BrokerStore.open(
        tmp_path / "m", MASTER.replace(role=BrokerRole.ASYNC_MASTER), system=SYSTEM
    ) as master:
        put(master, b"old", b"older", b"oldest")
        assert master.embedded.wait_dispatched()
        middle = master.removal.settle()
        assert master.removal.remove("T", middle)
        put(master, b"new")
        end = master.log.max_offset
        content = master.log.read(0, end)
        assert content is not None
        config = MASTER.replace(role=BrokerRole.SLAVE)
        with BrokerStore.open(tmp_path / "s", config, system=SYSTEM) as slave:
            for first, last in ((0, middle), (middle, end)):
                slave.log_copy().append_copied(first, content[first:last], 1)
            slave.embedded.flush()
            slave.log_copy().confirm(middle)
            eventually(lambda: len(shown(slave)) == 3)
        content.release()
    with BrokerStore.open(tmp_path / "s", config, system=SYSTEM) as slave:
        assert b"new" not in shown(slave)
        slave.log_copy().confirm(OFFSET_MAX)
        assert slave.embedded.wait_dispatched()
        assert shown(slave) == [b"new"]


def test_a_position_in_the_tail_is_valid(tmp_path: Path) -> None:
    """A consumer may have read it before an unclean stop."""
    with BrokerStore.open(tailed(tmp_path / "store", stopped), MASTER, system=SYSTEM) as store:
        for offset in (2, 3, 9):
            result = store.embedded.get("T", 0, offset)
            assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, offset)
        result = store.embedded.get("T", 0, 10)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 2)
        assert (store.queues.numbered_end("T", 0), store.queues.numbered_end("U", 0)) == (9, 0)


def test_retention_keeps_what_nobody_has_seen(tmp_path: Path) -> None:
    with BrokerStore.open(tmp_path, MASTER, system=SYSTEM) as store:
        put(store, *(b"%03d" % number * 100 for number in range(40)))
        assert len(store.log.queue.segments) > 3
        assert store.embedded.delete_expired(forced=True) == 0
        confirm(store)
        assert store.embedded.delete_expired(forced=True) > 0


def test_waiting_for_dispatch_ends_if_nobody_can_confirm(tmp_path: Path) -> None:
    with BrokerStore.open(tmp_path, MASTER, system=SYSTEM) as store:
        put(store, b"a")
        assert not store.embedded.wait_dispatched(1 << 20)
        store.replica_acks.note("replica", 0)
        store.log.on_sendable = None
        assert not store.embedded.wait_dispatched(0.05)  # this one may confirm it
        confirm(store)
