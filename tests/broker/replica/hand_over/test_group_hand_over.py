"""Planned changes of the master inside a group: at most a pause, and nothing is repeated."""

import asyncio
import errno
from pathlib import Path

import pytest
from tests.broker.brokers import Field, Talk
from tests.broker.groups import BrokerGroup, broker_group, status_of
from tests.broker.pairs import promote, status
from tests.client.clusters import until
from tests.helpers import PATIENCE_S

from firetrail.broker.broker import Broker
from firetrail.broker.replica.hand_over import group_hand_over, succession
from firetrail.broker.replica.hand_over.hand_over import HandOver
from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.broker.roles import term_changes
from firetrail.broker.roles.failover import POLL_S
from firetrail.broker.timer.timer_service import TimerService
from firetrail.errors import NotReachedError, ReplicationError
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.replication.group import in_sync_members
from firetrail.replication.group.etcd import EtcdCoordinator
from firetrail.replication.ha.replica_session import ReplicaSession
from firetrail.store.retention.disk_space import DiskSpace
from firetrail.store.settings.store_config import BrokerRole

OK = ResponseCode.SUCCESS


def talk_to(group: BrokerGroup, number: int) -> Talk:
    return Talk(group.members[number], group.client)


def is_frozen(broker: Broker) -> bool:
    return "hands over" in broker.store.refusal


async def test_a_member_takes_over_by_command(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        epoch = status_of(group.members[1]).epoch
        found = await promote(talk_to(group, 2))
        assert (found.role, found.step_error) == ("SYNC_MASTER", "")
        assert status_of(group.members[2]).epoch > epoch
        assert (await group.send(2, b"two")).code == OK
        await group.in_sync(1, 2, 3)  # the former master has joined again
        assert group.members[1].role is BrokerRole.SLAVE
        await group.has(1, b"two")
        await group.has(3, b"two")


async def test_requests_wait_during_a_hand_over_and_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_tables, frozen, may_continue = HandOver.copy_tables, asyncio.Event(), asyncio.Event()

    async def pause(self: HandOver) -> None:
        frozen.set()
        await may_continue.wait()
        await copy_tables(self)

    monkeypatch.setattr(HandOver, "copy_tables", pause)
    async with broker_group(tmp_path) as group:
        changing = asyncio.ensure_future(promote(talk_to(group, 2)))
        await frozen.wait()
        assert is_frozen(group.members[1])
        sends = [asyncio.ensure_future(group.send(1, body)) for body in (b"one", b"two")]
        commit = asyncio.ensure_future(talk_to(group, 1).commit(1))
        await until(lambda: len(group.members[1]._terms._held._held) == 3)
        may_continue.set()
        await changing
        assert [(await each).code for each in (*sends, commit)] == [OK, OK, OK]
        await group.has(2, b"one", b"two")
        assert group.members[2].offsets.get("CG", "T1", 0) == 1


async def test_the_tables_are_those_of_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def copy_nothing(self: ReplicaService, master: str) -> None:
        """As if the next copy were not due yet."""

    async with broker_group(tmp_path, members=2) as group:
        await until(lambda: group.members[2].topics.get("T1") is not None)
        monkeypatch.setattr(ReplicaService, "_copy_tables", copy_nothing)
        talk = talk_to(group, 1)
        assert (await talk.commit(1)).code == OK
        await promote(talk_to(group, 2))
        assert group.members[2].offsets.get("CG", "T1", 0) == 1


@pytest.mark.parametrize("step", ["catch_up", "copy_tables", "receive_lease"])
async def test_the_master_continues_if_a_step_fails(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_hand_over, "FROZEN_S", 0.2)

    async def fail(self: HandOver, *_: object) -> None:
        raise ReplicationError(f"{step} does not work")

    async with broker_group(tmp_path, members=2) as group:
        monkeypatch.setattr(HandOver, step, fail)
        found = await promote(talk_to(group, 2))
        assert found.step_error == f"{step} does not work"
        await until(lambda: not is_frozen(group.members[1]))
        assert (await group.send(1, b"goes on")).code == OK
        assert status_of(group.members[2]).epoch == 0


async def test_the_master_continues_if_requests_in_progress_take_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(term_changes, "FREEZE_S", 0.0)
    async with broker_group(tmp_path, members=2) as group:
        running = group.members[1]._server.running
        running[RequestCode.END_TRANSACTION] += 1
        found = await promote(talk_to(group, 2))
        assert "requests in progress were not finished" in found.step_error
        assert (await group.send(1, b"goes on")).code == OK
        running[RequestCode.END_TRANSACTION] -= 1
        assert (await promote(talk_to(group, 2))).step_error == ""


async def test_the_master_continues_if_etcd_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: EtcdCoordinator, *_: object, **__: object) -> None:
        raise NotReachedError("etcd does not answer")

    async with broker_group(tmp_path, members=3) as group:
        monkeypatch.setattr(EtcdCoordinator, "change_in_sync", fail)
        found = await promote(talk_to(group, 2))
        assert "etcd does not answer" in found.step_error
        assert (await group.send(1, b"goes on")).code == OK


async def test_the_group_elects_a_master_if_the_successor_does_not_take_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_hand_over, "LEASE_S", 0.2)
    async with broker_group(tmp_path) as group:
        receive_lease = HandOver.receive_lease

        async def lose(self: HandOver, member: int) -> None:
            group.endpoints[2].cut = True
            await receive_lease(self, member)

        monkeypatch.setattr(HandOver, "receive_lease", lose)
        found = await promote(talk_to(group, 2))
        assert "did not become the master" in found.step_error
        taken = "member 2 is about to take over"
        await until(lambda: status_of(group.members[3]).obstacle == taken)
        group.end_lease()  # the entry of the successor vanishes
        assert await group.master(other_than=2) == 3  # member 1 has left the in-sync set
        assert (await group.send(3, b"goes on")).code == OK


async def test_who_cannot_take_over(tmp_path: Path) -> None:
    async with broker_group(tmp_path, members=2) as group:
        for option in ({"force": "true"}, {"role": "ASYNC_MASTER"}):
            answer = await talk_to(group, 2).ask(RequestCode.PROMOTE_REPLICA, option)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "is a member of a group" in (answer.remark or "")
        assert (await promote(talk_to(group, 1))).role == "SYNC_MASTER"  # it is the master already
        stranger: dict[str, Field] = {"successor": "127.0.0.1:1", "member": 3}
        answer = await talk_to(group, 1).ask(RequestCode.HAND_OVER, stranger)
        assert "member 3 is not connected, or not in the in-sync set" in (answer.remark or "")
        answer = await talk_to(group, 2).ask(RequestCode.HAND_OVER, stranger)
        assert "is not the master" in (answer.remark or "")
        found = await status(talk_to(group, 1))
        assert found.refusal == ""


async def test_a_master_that_stops_hands_over(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        assert (await talk_to(group, 1).commit(1)).code == OK
        await group.stop(1)
        await group.in_sync(2, 3)  # it has left the set, so nobody waits for it
        master = await group.master()
        assert (await group.send(master, b"goes on")).code == OK
        assert group.members[master].offsets.get("CG", "T1", 0) == 1


async def test_a_master_that_stops_passes_on_the_requests_that_have_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_tables, frozen, may_continue = HandOver.copy_tables, asyncio.Event(), asyncio.Event()

    async def pause(self: HandOver) -> None:
        frozen.set()
        await may_continue.wait()
        await copy_tables(self)

    monkeypatch.setattr(HandOver, "copy_tables", pause)
    async with broker_group(tmp_path) as group:
        stopping = asyncio.ensure_future(group.members[1].stop())
        await frozen.wait()
        sends = [asyncio.ensure_future(group.send(1, body)) for body in (b"one", b"two")]
        await until(lambda: len(group.members[1]._terms._held._held) == 2)
        may_continue.set()
        await stopping
        assert [(await each).code for each in sends] == [OK, OK]
        del group.members[1]
        await group.has(await group.master(), b"one", b"two")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas wait for long until they have left the in-sync set, and masters until they are gone.

    A test that does not wait that long shows that nobody has waited.
    """
    monkeypatch.setattr(succession, "FAREWELL_S", PATIENCE_S)
    monkeypatch.setattr(in_sync_members, "ABSENT_S", PATIENCE_S)


@pytest.mark.usefixtures("patient")
async def test_nobody_waits_for_a_replica_that_stops(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        await group.stop(3)
        assert (await group.send(1, b"one")).code == OK
        await group.in_sync(1, 2)
        await group.start(3)
        await group.in_sync(1, 2, 3)
        assert not group.members[1].broker_store.replica_acks.leaving
        await group.has(3, b"one")


@pytest.mark.usefixtures("patient")
async def test_a_replica_that_must_stay_in_the_set_stops_at_once(tmp_path: Path) -> None:
    """If all members stop in order, either of the last two can be elected later."""
    async with broker_group(tmp_path) as group:
        await group.stop(3)
        await group.in_sync(1, 2)
        await group.stop(2)
        await group.in_sync(1, 2)


@pytest.mark.usefixtures("patient")
async def test_a_replica_whose_master_is_gone_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplicaSession, "farewell", lambda session: b"")  # it gets lost
    async with broker_group(tmp_path) as group:
        ha, keeper = group.members[1]._term.ha, group.members[3]._replicas.keeper
        assert ha is not None and keeper is not None
        stopping = asyncio.ensure_future(group.members[3].stop())
        await until(lambda: keeper._is_retired)
        assert not stopping.done()
        ha.stop()
        await stopping
        del group.members[3]


async def test_a_lost_farewell_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "FAREWELL_S", 0.1)
    monkeypatch.setattr(ReplicaSession, "farewell", lambda session: b"")
    async with broker_group(tmp_path) as group:
        await group.stop(3)
        assert status_of(group.members[1]).in_sync == {1, 2, 3}
        await group.in_sync(1, 2)
        assert (await group.send(1, b"one")).code == OK


@pytest.mark.usefixtures("patient")
async def test_a_replica_that_has_said_farewell_is_not_elected(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        keeper = group.members[2]._replicas.keeper
        assert keeper is not None
        keeper.retire()
        group.cut_off(1)
        group.end_lease()
        assert await group.master(other_than=1) == 3


@pytest.mark.usefixtures("patient")
async def test_all_members_stop_at_the_same_time(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        stopping = [broker.stop() for broker in group.members.values()]
        group.members.clear()
        await asyncio.gather(*stopping)
        for number in (1, 2, 3):
            await group.start(number)
        await group.in_sync(1, 2, 3)
        assert (await group.send(await group.master(), b"goes on")).code == OK


async def test_a_master_without_a_member_in_sync_stops_at_once(tmp_path: Path) -> None:
    async with broker_group(tmp_path, members=2) as group:
        await group.stop(2)
        await until(lambda: not group.members[1].broker_store.replica_acks.by_member())
        await group.stop(1)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The numbers of members whose disks are nearly full."""
    members: set[str] = set()

    def is_full(space: DiskSpace) -> bool:
        return space._root.name in members

    monkeypatch.setattr(DiskSpace, "is_full", property(is_full))
    monkeypatch.setattr(DiskSpace, "is_ample", property(lambda space: not is_full(space)))
    return members


async def test_a_master_with_a_full_disk_hands_over_to_a_member_with_room(
    tmp_path: Path, full: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "TRY_S", 1.0)
    async with broker_group(tmp_path) as group:
        full |= {"1", "2"}
        assert await group.master(other_than=1) == 3


async def test_a_master_that_cannot_save_its_timer_for_lack_of_space_hands_over(
    tmp_path: Path, full: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor continues as after a failover: it looks up what was delivered."""

    async def save(timer: TimerService) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with broker_group(tmp_path) as group:
        monkeypatch.setattr(TimerService, "save", save)
        full.add("1")
        master = await group.master(other_than=1)
        assert (await group.send(master, b"goes on")).code == OK


async def test_members_with_full_disks_do_not_hand_over_to_each_other(
    tmp_path: Path, full: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "TRY_S", 0.1)
    monkeypatch.setattr(succession, "FULL_S", 0.0)
    async with broker_group(tmp_path, members=2) as group:
        epoch = status_of(group.members[1]).epoch
        full |= {"1", "2"}
        await until(lambda: status_of(group.members[2]).successor == 2)
        await asyncio.sleep(2 * POLL_S)  # long enough to take over, if it would
        assert status_of(group.members[1]).epoch == epoch
        full.discard("2")
        assert await group.master(other_than=1) == 2
