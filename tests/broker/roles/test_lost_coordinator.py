"""A group whose etcd has lost its data, or has gone back: nothing is cut on its word."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk
from tests.broker.groups import LAG_S, LEASE_S, BrokerGroup, broker_group, status_of
from tests.client.clusters import until
from tests.replication.fake_etcd import Backup

from firetrail.broker.replica.hand_over import succession
from firetrail.broker.roles.failover import POLL_S
from firetrail.remoting.messages.replica_bodies import GroupReport, ReplicaStatus
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.replication.group import lease_keeper
from firetrail.replication.group.group_check import StateConflict
from firetrail.store.settings.store_config import BrokerRole

OK = ResponseCode.SUCCESS


@pytest.fixture(autouse=True)
def frequent_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice soon that the fake etcd has gone back, without closing connections."""
    monkeypatch.setattr(lease_keeper, "WATCHES_PER_TTL", 10 * LEASE_S)


def doubts(group: BrokerGroup) -> dict[int, StateConflict | None]:
    """The reason why each member refuses etcd; None if it does not."""
    statuses = {number: status_of(broker) for number, broker in group.members.items()}
    return {n: status.refusal.doubt if status.refusal else None for n, status in statuses.items()}


async def report_of(group: BrokerGroup, number: int) -> GroupReport:
    answer = await Talk(group.members[number], group.client).ask(RequestCode.GET_REPLICA_STATUS)
    report = ReplicaStatus.decode(answer.content).group
    assert report is not None
    return report


def log_end(group: BrokerGroup, number: int) -> int:
    return group.members[number].broker_store.log.max_offset


async def keeps_log(group: BrokerGroup, end: int, *members: int) -> None:
    """Check that members have the log up to an offset, also after the time to cut it."""
    await until(lambda: all(b.role is BrokerRole.SLAVE for b in group.members.values()))
    await asyncio.sleep(2 * POLL_S)  # long enough to elect a master and to cut a log
    assert all(broker.role is BrokerRole.SLAVE for broker in group.members.values())
    assert [log_end(group, number) for number in members] == [end] * len(members)


async def lags(group: BrokerGroup, number: int) -> None:
    """Let a member stop following, and leave the in-sync set."""
    replica = group.members[number].replica
    assert replica is not None
    replica.follower.follow(None)
    await until(lambda: number not in group.members[1].broker_store.replica_acks.by_member())
    group.clocks[1].pushed_s += LAG_S
    await group.in_sync(*{1, 2, 3} - {number})
    await group.connected(1)


async def test_a_group_that_etcd_has_lost_is_created_again_with_a_larger_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_group(tmp_path) as group:
        assert (await group.send(1, b"one")).code == OK
        before = group.members[1].epochs.number
        group.etcd.restore(Backup())
        await until(lambda: any("etcd has lost the state" in text for text in caplog.messages))
        # The master before notices the loss later than it is logged, and is the master until then.
        await until(lambda: any(each.epochs.number > before for each in group.members.values()))
        master = await group.master()
        await group.in_sync(1, 2, 3)
        await group.connected(master)
        assert group.members[master].epochs.number > before
        assert (await group.send(master, b"two")).code == OK
        for number in (1, 2, 3):
            await group.has(number, b"one", b"two")
        assert doubts(group) == {1: None, 2: None, 3: None}
        assert "failover works again" not in caplog.text


async def test_a_member_of_a_lost_group_waits_for_all_others_and_says_so(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        assert (await group.send(1, b"one")).code == OK
        await group.stop(3)
        group.etcd.restore(Backup())
        await until(lambda: doubts(group) == {1: StateConflict.LOST, 2: StateConflict.LOST})
        await until(lambda: group.members[1].role is BrokerRole.SLAVE)
        await until(lambda: "seen; missing: 3." in status_of(group.members[2]).obstacle)
        report = await report_of(group, 2)
        assert (report.member, report.holder, report.doubt) == (0, "", "coordinator-lost")
        assert report.refusal == report.obstacle
        assert report.seen is not None and report.seen.members == [1, 2, 3]

        await group.start(3)
        master = await group.master()
        await group.connected(master)
        assert (await group.send(master, b"two")).code == OK
        for number in (1, 2, 3):
            await group.has(number, b"one", b"two")


async def test_a_configured_master_that_was_away_does_not_create_a_lost_group(
    tmp_path: Path,
) -> None:
    async with broker_group(tmp_path) as group:
        await group.stop(1)
        master = await group.master()
        group.clocks[master].pushed_s += LAG_S
        await group.in_sync(2, 3)
        await group.connected(master)
        assert (await group.send(master, b"while 1 is away")).code == OK
        for number in (2, 3):
            await group.stop(number)
        group.etcd.restore(Backup())
        one = await group.start(1)
        await until(lambda: doubts(group) == {1: StateConflict.LOST})
        await asyncio.sleep(2 * POLL_S)  # long enough to create the group, if it did
        assert one.role is BrokerRole.SLAVE
        for number in (2, 3):
            await group.start(number)
        assert await group.master() != 1
        for number in (1, 2, 3):
            await group.has(number, b"while 1 is away")


async def test_an_etcd_from_an_older_backup_is_refused_and_no_log_is_cut(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        backup = group.etcd.backup()
        await lags(group, 3)
        assert (await group.send(1, b"not on 3")).code == OK
        end = log_end(group, 1)
        group.etcd.restore(backup)
        group.end_lease()
        await until(
            lambda: (
                doubts(group)
                == {1: StateConflict.OLDER, 2: StateConflict.OLDER, 3: StateConflict.OLDER}
            )
        )
        await keeps_log(group, end, 1, 2)
        report = await report_of(group, 1)
        assert report.doubt == "coordinator-older" and report.holder == ""
        assert "etcd was restored from an older backup; 'firetrail replica" in report.refusal


async def test_a_member_that_does_not_know_better_hears_it_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "FAREWELL_S", 0.0)  # it does not see that it leaves the set
    async with broker_group(tmp_path) as group:
        backup = group.etcd.backup()
        await group.stop(3)
        group.clocks[1].pushed_s += LAG_S
        await group.in_sync(1, 2)
        await group.connected(1)
        assert (await group.send(1, b"not on 3")).code == OK
        end = log_end(group, 1)
        group.etcd.restore(backup)
        group.end_lease()
        await until(lambda: doubts(group) == {1: StateConflict.OLDER, 2: StateConflict.OLDER})
        await until(lambda: {"reports/1", "reports/2"} <= group.keys())
        await group.start(3)
        await until(lambda: doubts(group)[3] is not None)
        reason = status_of(group.members[3]).refusal
        assert reason is not None and "than what member 1 has seen" in reason.reason
        await keeps_log(group, end, 1, 2)


async def test_an_in_sync_set_that_was_edited_by_hand_is_refused(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        await lags(group, 3)
        assert (await group.send(1, b"not on 3")).code == OK
        end = log_end(group, 1)
        group.edit_in_sync([1, 2, 3])
        await until(lambda: set(doubts(group).values()) == {StateConflict.EDITED})
        await keeps_log(group, end, 1, 2)
        assert "was changed by hand" in (await report_of(group, 3)).refusal


async def test_the_state_of_another_group_is_refused(tmp_path: Path) -> None:
    alone = SMALL.replace(in_sync_replicas=1)
    async with broker_group(tmp_path / "other", members=1, store=alone) as other:
        foreign = other.etcd.backup()
        async with broker_group(tmp_path, members=2) as group:
            end = log_end(group, 1)
            group.etcd.restore(foreign)
            group.end_lease()
            await until(lambda: set(doubts(group).values()) == {StateConflict.OTHER_GROUP})
            await keeps_log(group, end, 1, 2)
