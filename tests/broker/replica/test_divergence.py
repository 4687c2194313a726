"""A replica whose log is not its master's is not found by consumers, and serves none."""

from dataclasses import replace
from pathlib import Path

from tests.broker.brokers import Talk
from tests.broker.pairs import SLAVE, Group, caught_up, emergency, pair, send, status
from tests.client.clusters import until

from firetrail.broker.broker import Broker
from firetrail.broker.replica.rewound_files import settle_rewound
from firetrail.broker.replica.saved_role import remove_role, saved_role
from firetrail.broker.services.registration import RegistrationService
from firetrail.broker.state.slave_mark import SlaveMark
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import Master, MasterAddress
from firetrail.replication.replica.rewind import rewind
from firetrail.system import SYSTEM


def registered(group: Group) -> set[str]:
    """Return the addresses that consumers find."""
    known = group.name_server.routes.broker("broker-a")
    return set(known.broker_addrs.values()) if known is not None else set()


async def in_state(talk: Talk, state: FollowerState) -> None:
    replica = talk.broker.replica
    assert replica is not None
    await until(lambda: replica.follower.status.state is state)


async def diverged_group(group: Group, old: Talk, new: Talk) -> Talk:
    """Let the replica become the master, and the former master, which has more, a slave of it."""
    await new.broker.stop()
    await send(old, b"only the old master")
    await old.broker.stop()
    new = await group.start("new", SLAVE)
    await emergency(group, old, new)
    await send(new, b"only the new master")
    former = await group.start("old", SLAVE, broker_id=2, slave_read=True)
    await in_state(former, FollowerState.DIVERGED)
    return new


async def check_serves_nobody(group: Group, talk: Talk) -> None:
    assert talk.broker.address not in registered(group)
    answer = await talk.pull("T1", 0)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert (answer.remark or "").startswith(
        "this replica has diverged from its master, and serves no messages until it is rewound: "
        "the logs of master and replica are not the same"
    )
    assert (await status(talk)).follower.state == "diverged"  # type: ignore[union-attr]


async def test_a_diverged_replica_serves_nobody_until_it_is_rewound(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        new = await diverged_group(group, old, new)
        former = group.brokers[-1]
        await check_serves_nobody(group, former)
        await new.broker.stop()
        await in_state(former, FollowerState.DIVERGED)  # its master is lost
        await check_serves_nobody(group, former)
        await former.broker.stop()
        former = await group.start("old", SLAVE, broker_id=2, slave_read=True)
        await check_serves_nobody(group, former)  # after a restart without a master
        await former.broker.stop()
        assert saved_role(SYSTEM, tmp_path / "new") is not None
        new = await group.start("new", SLAVE)
        master = Master(group.client, MasterAddress(new.broker.address))
        await rewind(SYSTEM, tmp_path / "old", master)
        settle_rewound(SYSTEM, tmp_path / "old")
        former = await group.start("old", SLAVE, broker_id=2, slave_read=True)
        await caught_up(former, new)
        assert former.broker.address in registered(group)
        bodies = [record.body for record in await former.pull_until("T1", 2)]
        assert bodies == [b"first", b"only the new master"]


async def test_a_slave_serves_reads_after_a_restart_without_its_master(tmp_path: Path) -> None:
    async with pair(tmp_path, slave_read=True) as (group, old, new):
        assert new.broker.address in registered(group)
        await new.broker.stop()
        await old.broker.stop()
        new = await group.start("new", SLAVE, slave_read=True)
        assert registered(group) == {new.broker.address}
        assert [record.body for record in await new.pull_until("T1", 1)] == [b"first"]


async def test_a_slave_of_an_older_version_is_registered_without_its_master(tmp_path: Path) -> None:
    """Its mark does not have the name of the master, but the role, which it learnt as a copy."""
    async with pair(tmp_path, slave_read=True) as (group, old, new):
        await until(lambda: new.broker.slave_mark.notes.master_role != "")
        await new.broker.stop()
        await old.broker.stop()
        mark = SlaveMark(SYSTEM, tmp_path / "new")
        mark.save(replace(mark.notes, followed=None))
        new = await group.start("new", SLAVE, slave_read=True)
        assert registered(group) == {new.broker.address}
        await new.broker.stop()
        mark.save(replace(mark.notes, diverged="it is another log"))
        new = await group.start("new", SLAVE, slave_read=True)
        assert registered(group) == set()


async def test_a_log_that_was_never_compared_is_not_registered(tmp_path: Path) -> None:
    """The master of this name may have other messages; it does not run now."""
    async with pair(tmp_path) as (group, old, new):
        await old.broker.stop()
        await new.broker.stop()
        unknown = await group.start("old", SLAVE, broker_id=2, slave_read=True)
        assert registered(group) == set()
        await unknown.broker.stop()
        other = await group.start("new", SLAVE, name="broker-b")  # its log is that of broker-a
        assert group.name_server.routes.broker("broker-b") is None
        assert other.broker.slave_mark.notes.followed == "DefaultCluster/broker-a"


async def test_a_slave_whose_new_master_differs_is_unregistered_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.broker.stop()
        other = await group.start("other")
        await send(other, b"another history")
        await in_state(new, FollowerState.DIVERGED)
        assert registered(group) == {other.broker.address}
        assert new.broker.slave_mark.notes.diverged


async def error_with_another_history(group: Group) -> tuple[str, str]:
    """Let the store ``new`` follow a broker of another name; return its address and the error."""
    other = await group.start("other", name="broker-b")
    await send(other, b"another history")
    copy = await group.start("new", SLAVE, name="broker-b")
    await in_state(copy, FollowerState.DIVERGED)
    report = (await status(copy)).follower
    assert report is not None
    return other.broker.address, report.error


async def test_a_copy_of_another_broker_is_named(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.broker.stop()
        await new.broker.stop()
        address, error = await error_with_another_history(group)
        assert error.endswith(
            "This folder has the log of DefaultCluster/broker-a: follow that broker, or give the "
            f"broker at {address} another folder"
        )


async def test_the_store_of_a_master_of_another_name_is_named(tmp_path: Path) -> None:
    """It was a replica before, and its messages must not be removed for another broker."""
    async with pair(tmp_path) as (group, old, new):
        await emergency(group, old, new)
        await new.broker.stop()
        remove_role(SYSTEM, tmp_path / "new")
        _, error = await error_with_another_history(group)
        assert "This folder has the log of DefaultCluster/broker-a: follow" in error


async def test_a_registration_that_is_left_over_is_removed(tmp_path: Path) -> None:
    """A killed process stays registered until its name server notices that."""
    async with pair(tmp_path) as (group, old, new):
        new = await diverged_group(group, old, new)
        former = group.brokers[-1]
        service: RegistrationService = former.broker._parts.registration
        service.is_withheld = False
        await service._register_all()
        assert former.broker.address in registered(group)
        service.is_withheld = True
        await service._register_all()
        assert registered(group) == {new.broker.address}


def test_a_rewind_forgets_the_role_of_a_master_only(tmp_path: Path) -> None:
    mark = SlaveMark(SYSTEM, tmp_path)
    mark.learn_comparison("c/b", "they differ")
    roles = Broker(tmp_path).roles
    roles.save(roles.changed(SLAVE.role, 1, "", 7))
    assert settle_rewound(SYSTEM, tmp_path) == ""
    assert saved_role(SYSTEM, tmp_path) is not None
    notes = SlaveMark(SYSTEM, tmp_path).notes
    assert (notes.diverged, notes.known_epoch) == ("", 7)
