"""Automatic failover: brokers of a group elect their master, and lose nothing acknowledged."""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from tests.broker.brokers import SMALL, Talk
from tests.broker.groups import LEASE_S, QUICK, broker_group, status_of
from tests.client.clusters import until

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.hand_over import succession
from firetrail.broker.roles import failover
from firetrail.broker.roles.failover import POLL_S, Failover
from firetrail.errors import ConfigError, StoreError
from firetrail.remoting.messages.replica_bodies import ReplicaStatus
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.replication.group.in_sync_members import ABSENT_S
from firetrail.replication.group.lease_keeper import LeaseKeeper
from firetrail.store.settings.store_config import BrokerRole

OK = ResponseCode.SUCCESS


async def test_another_member_takes_over_from_a_master_that_stops(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        assert (await group.send(1, b"one")).code == OK
        epoch = status_of(group.members[1]).epoch
        await group.stop(1)
        master = await group.master()
        assert status_of(group.members[master]).epoch > epoch
        assert group.members[master].role is BrokerRole.SYNC_MASTER
        await group.has(master, b"one")
        group.clocks[master].pushed_s += ABSENT_S
        await group.in_sync(2, 3)  # the stopped member is not waited for any more
        await group.connected(master)
        assert (await group.send(master, b"two")).code == OK

        await group.start(1)
        await group.in_sync(1, 2, 3)
        assert group.members[1].role is BrokerRole.SLAVE
        await group.has(1, b"one", b"two")


async def test_a_master_without_etcd_stops_acknowledging_before_another_one_wins(
    tmp_path: Path,
) -> None:
    async with broker_group(tmp_path) as group:
        assert (await group.send(1, b"one")).code == OK
        group.cut_off(1)
        answer = await group.send(1, b"refused")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "does not hold the lease of its group" in (answer.remark or "")
        assert all(status_of(group.members[n]).epoch == 0 for n in (2, 3))
        group.end_lease()
        master = await group.master(other_than=1)
        group.clocks[master].pushed_s += ABSENT_S
        await until(lambda: status_of(group.members[master]).in_sync == {2, 3})
        await group.connected(master)
        assert (await group.send(master, b"two")).code == OK
        group.endpoints[1].cut = False
        await group.in_sync(1, 2, 3)
        assert group.members[1].role is BrokerRole.SLAVE
        await group.has(1, b"one", b"two")


async def test_an_old_master_removes_what_was_never_acknowledged(tmp_path: Path) -> None:
    async with broker_group(tmp_path, members=2) as group:
        assert (await group.send(1, b"one")).code == OK
        replica = group.members[2].replica
        assert replica is not None
        replica.follower.follow(None)
        await until(lambda: not group.members[1].broker_store.replica_acks.by_member())
        answer = await group.send(1, b"never acknowledged")
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        group.cut_off(1)
        group.end_lease()
        assert await group.master(other_than=1) == 2
        assert (await group.send(2, b"two")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        group.endpoints[1].cut = False
        await until(lambda: group.members[1].role is BrokerRole.SLAVE)
        await group.has(1, b"one", b"two")
        await group.connected(2)
        assert (await group.send(2, b"three")).code == OK


async def test_a_master_without_etcd_becomes_a_slave_and_the_master_again(tmp_path: Path) -> None:
    async with broker_group(tmp_path, members=2) as group:
        epoch = status_of(group.members[1]).epoch
        group.cut_off(1)
        group.clocks[1].pushed_s += LEASE_S
        await until(lambda: group.members[1].role is BrokerRole.SLAVE)
        await asyncio.sleep(2 * POLL_S)  # long enough to change the role again
        assert group.members[1].role is BrokerRole.SLAVE
        group.endpoints[1].cut = False
        assert await group.master() == 1
        assert status_of(group.members[1]).epoch == epoch
        await group.connected(1)
        assert (await group.send(1, b"one")).code == OK


async def test_a_member_that_lags_is_not_waited_for_and_cannot_win(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        replica = group.members[3].replica
        assert replica is not None
        replica.follower.follow(None)
        await until(lambda: 3 not in group.members[1].broker_store.replica_acks.by_member())
        sending = asyncio.ensure_future(group.send(1, b"one"))
        group.clocks[1].pushed_s += ABSENT_S
        assert (await sending).code == OK  # it has waited until member 3 has left the set
        await group.in_sync(1, 2)
        assert (await group.send(1, b"two")).code == OK
        group.cut_off(1)
        group.end_lease()
        assert await group.master(other_than=1) == 2
        await group.has(2, b"one", b"two")


async def test_a_member_whose_promotion_fails_returns_the_lease_and_retries_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "KNOWN_S", 0.1)
    async with broker_group(tmp_path, members=2) as group:
        broker = group.members[2]
        become = broker.become
        failures: list[int] = []

        async def fail_once(role: BrokerRole, broker_id: int, **more: Any) -> None:
            if failures:
                return await become(role, broker_id, **more)
            failures.append(status_of(broker).epoch)
            raise OSError("no space left on device")

        broker.become = fail_once  # type: ignore[method-assign]
        await group.stop(1)
        await until(lambda: bool(failures) and status_of(broker).epoch == 0)
        await until(lambda: status_of(broker).holder is None)
        group.clocks[2].pushed_s += LEASE_S
        assert await group.master() == 2
        assert status_of(broker).epoch > failures[0]


async def test_a_member_with_an_empty_store_cannot_take_the_place_of_the_lost_one(
    tmp_path: Path,
) -> None:
    async with broker_group(tmp_path, members=2) as group:
        assert (await group.send(1, b"one")).code == OK
        await group.stop(2)
        shutil.rmtree(tmp_path / "2")
        stranger = await group.start(2)
        await until(lambda: "another store is member 2" in status_of(stranger).obstacle)
        group.cut_off(1)
        group.end_lease()
        await asyncio.sleep(2 * POLL_S)  # long enough to win, if it could
        assert (stranger.role, status_of(stranger).epoch) == (BrokerRole.SLAVE, 0)


async def test_every_member_tells_who_holds_the_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with broker_group(tmp_path, members=2) as group:
        one = group.members[1]
        lease, epoch = status_of(one).epoch, one.epochs.number
        assert (
            f"this broker holds lease {lease} and becomes the master; epoch {epoch} of the log "
            "begins"
        ) in caplog.messages
        for number in (1, 2):
            talk = Talk(group.members[number], group.client)
            answer = await talk.ask(RequestCode.GET_REPLICA_STATUS)
            report = ReplicaStatus.decode(answer.content).group
            assert report is not None
            assert (report.holder, report.member) == (one.address, 1)
            assert (report.epoch, report.in_sync) == (status_of(one).epoch, [1, 2])
            assert (report.obstacle, report.error) == ("member 1 holds the lease", "")


@pytest.mark.parametrize("role", list(BrokerRole))
def test_every_member_needs_a_number(tmp_path: Path, role: BrokerRole) -> None:
    config = BrokerConfig(
        etcd_endpoints="127.0.0.1:2379", broker_id=int(role is BrokerRole.SLAVE), **QUICK
    )
    with pytest.raises(ConfigError, match="give each member of the group its own number"):
        Broker(tmp_path, config, SMALL.replace(role=role))


async def test_a_wrong_endpoint_is_an_error_at_the_start(tmp_path: Path) -> None:
    config = BrokerConfig(etcd_endpoints="nowhere", ha_member=1, **QUICK)
    store = SMALL.replace(store_host=SMALL.store_host._replace(port=0))
    with pytest.raises(ConfigError, match=r"etcd_endpoints.*expected HOST:PORT"):
        await Broker(tmp_path, config, store).start()


class _Keeper:
    """A keeper that holds nothing."""

    status: object = None
    on_change: object = None

    def beat(self) -> None:
        """Nothing is watched."""


@pytest.mark.parametrize("kind", [StoreError, RuntimeError])
async def test_a_change_that_fails_again_and_again_is_logged_once(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failover, "RETRY_S", 0.001)
    monkeypatch.setattr(failover, "RETRY_MAX_S", 0.01)
    attempts: list[int] = []

    async def fail(self: Failover, group: object) -> None:
        attempts.append(len(attempts))
        raise kind(f"attempt {attempts[-1]} does not work")

    monkeypatch.setattr(Failover, "_adapt", fail)
    keeper = cast(LeaseKeeper, _Keeper())
    changes = Failover(keeper, cast(Broker, None), BrokerRole.SYNC_MASTER, BrokerConfig())
    changes.start()
    await until(lambda: len(attempts) > 4)
    await changes.stop()
    assert changes._retry_s == 0.01
    assert bool(caplog.records[0].exc_info) is (kind is RuntimeError)
    assert caplog.messages == [
        "the role of this broker cannot be changed; it is tried again: attempt 0 does not work"
    ]
