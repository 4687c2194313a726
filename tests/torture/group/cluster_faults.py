"""The faults of a cluster in namespaces, by name.

Each fault is a coroutine that does it, with random timing, and undoes it. Afterwards the group must
recover without an operator, unless the fault itself calls one.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from errno import ENOSPC
from pathlib import Path

from tests.torture.group.cluster import (
    CLIENT,
    ETCD,
    HA_PORT,
    LEASE_S,
    MEMBERS,
    NAMESRV,
    TWIN,
    Cluster,
    Member,
)
from tests.torture.group.folder_faults import FOLDER_FAULTS

Fault = Callable[[Cluster], Awaitable[None]]
EVERYBODY = (*MEMBERS, TWIN, ETCD, NAMESRV, CLIENT)
BALLAST = "ballast"
"""The file that fills a disk."""


# -- processes --------------------------------------------------------------------------------


async def _restart(cluster: Cluster, *members: Member) -> None:
    for member in cluster.random.sample(members, len(members)):
        await member.kill()
    await asyncio.sleep(cluster.span())
    for member in cluster.random.sample(members, len(members)):
        await member.start()


async def _kill_master(cluster: Cluster) -> None:
    await _restart(cluster, await cluster.master())


async def _kill_replica(cluster: Cluster) -> None:
    await _restart(cluster, await cluster.replica())


async def _kill_all(cluster: Cluster) -> None:
    await _restart(cluster, *cluster.members)


async def _kill_successor(cluster: Cluster) -> None:
    master = await cluster.master()
    await master.kill()
    while (successor := await cluster.master()) is master:
        await asyncio.sleep(0.01)
    await cluster.moment(4.0)
    await successor.kill()
    for member in cluster.random.sample([master, successor], 2):
        await cluster.moment()
        await member.start()


async def _pause(cluster: Cluster, *members: Member) -> None:
    for member in members:
        member.signal(signal.SIGSTOP)
    await asyncio.sleep(cluster.span())
    for member in members:
        member.signal(signal.SIGCONT)


async def _pause_master(cluster: Cluster) -> None:
    await _pause(cluster, await cluster.master())


async def _pause_replica(cluster: Cluster) -> None:
    await _pause(cluster, await cluster.replica())


async def _pause_all(cluster: Cluster) -> None:
    await _pause(cluster, *cluster.members)


# -- the network ------------------------------------------------------------------------------


async def _cut(
    cluster: Cluster,
    member: Member,
    others: Sequence[int],
    way: str = "both",
    port: int | None = None,
) -> None:
    there = [cluster.nodes[number].host for number in others]
    if way != "out":
        cluster.bridge.drop(there, [member.host], port)
    if way != "in":
        cluster.bridge.drop([member.host], there, port)
    await asyncio.sleep(cluster.span())
    cluster.bridge.heal()


async def _cut_off(cluster: Cluster, member: Member) -> None:
    await _cut(cluster, member, EVERYBODY)


async def _deafen(cluster: Cluster, member: Member) -> None:
    await _cut(cluster, member, EVERYBODY, "in")


async def _mute(cluster: Cluster, member: Member) -> None:
    await _cut(cluster, member, EVERYBODY, "out")


async def _cut_from_members(cluster: Cluster, member: Member) -> None:
    await _cut(cluster, member, MEMBERS)


async def _cut_from_etcd(cluster: Cluster, member: Member) -> None:
    await _cut(cluster, member, [ETCD])


async def _cut_ha(cluster: Cluster, member: Member) -> None:
    await _cut(cluster, member, MEMBERS, port=HA_PORT)


CUTS = (_cut_off, _deafen, _mute, _cut_from_members, _cut_from_etcd, _cut_ha)


def _of_master(cut: Callable[[Cluster, Member], Awaitable[None]]) -> Fault:
    async def fault(cluster: Cluster) -> None:
        await cut(cluster, await cluster.master())

    return fault


async def _cut_replica(cluster: Cluster) -> None:
    await cluster.random.choice(CUTS)(cluster, await cluster.replica())


# -- etcd -------------------------------------------------------------------------------------


async def _lose_etcd(cluster: Cluster) -> None:
    await cluster.etcd.kill()
    await asyncio.sleep(cluster.span())
    await cluster.etcd.start()


async def _replace_etcd(cluster: Cluster, data: Path | None) -> None:
    await cluster.etcd.kill()
    cluster.etcd.replace(data)
    await cluster.moment(LEASE_S)
    await cluster.etcd.start()


async def _empty_etcd(cluster: Cluster) -> None:
    await _replace_etcd(cluster, None)


async def _empty_etcd_without_master(cluster: Cluster) -> None:
    """The founder creates groups: it is the master that is down, if it can be."""
    master = await cluster.master()
    await master.kill()
    await cluster.moment(3 * LEASE_S)
    await _replace_etcd(cluster, None)
    await cluster.moment(LEASE_S)
    await master.start()


async def _restore_etcd(cluster: Cluster) -> None:
    """Nothing but messages has changed since the backup."""
    backup = await cluster.etcd.backed_up()
    await cluster.settled()
    await cluster.witness.acknowledged(50)
    await _replace_etcd(cluster, backup)


async def _restore_etcd_after_changes(cluster: Cluster) -> None:
    """Members have left and joined the in-sync set since the backup."""
    backup = await cluster.etcd.backed_up()
    member = cluster.random.choice(cluster.members)
    await member.kill()
    await cluster.left(member.number)
    await cluster.witness.acknowledged(20)
    await member.start()
    await cluster.settled()
    await cluster.witness.acknowledged(20)
    await _replace_etcd(cluster, backup)
    await cluster.moment(LEASE_S)
    await cluster.decide()


async def _restore_etcd_with_member_behind(cluster: Cluster) -> None:
    """The backup counts on a member that lacks acknowledged messages, and the master is down."""
    backup = await cluster.etcd.backed_up()
    await cluster.settled()
    behind = await cluster.replica()
    others = [cluster.nodes[number].host for number in MEMBERS if number != behind.number]
    cluster.bridge.drop(others, [behind.host])
    cluster.bridge.drop([behind.host], others)
    await cluster.left(behind.number)
    await cluster.witness.acknowledged(100)
    master = await cluster.master()
    await master.kill()
    await _replace_etcd(cluster, backup)
    cluster.bridge.heal()
    await cluster.moment(2 * LEASE_S)
    await master.start()
    await cluster.moment(LEASE_S)
    await cluster.decide()


# -- disks -----------------------------------------------------------------------------------


async def _fill_disk(cluster: Cluster, member: Member) -> None:
    path = member.folder / BALLAST
    room = os.statvfs(member.folder)
    size, step = 0, room.f_bavail * room.f_frsize
    with path.open("wb") as ballast:
        while step >= room.f_frsize:
            try:
                os.posix_fallocate(ballast.fileno(), size, step)
                size += step
            except OSError as error:
                if error.errno != ENOSPC:
                    raise
                step //= 2  # the member took some of it in between
    await asyncio.sleep(2 * cluster.span())
    path.unlink()


async def _fill_master(cluster: Cluster) -> None:
    await _fill_disk(cluster, await cluster.master())


async def _fill_replica(cluster: Cluster) -> None:
    await _fill_disk(cluster, await cluster.replica())


FAULTS: dict[str, Fault] = {
    "the master is killed": _kill_master,
    "a replica is killed": _kill_replica,
    "the master and its successor are killed": _kill_successor,
    "all members are killed": _kill_all,
    "the master is paused": _pause_master,
    "a replica is paused": _pause_replica,
    "all members are paused": _pause_all,
    "the master is cut off from everything": _of_master(_cut_off),
    "nothing reaches the master": _of_master(_deafen),
    "nothing leaves the master": _of_master(_mute),
    "the master is cut off from the members": _of_master(_cut_from_members),
    "the master is cut off from etcd": _of_master(_cut_from_etcd),
    "the HA port of the master is cut off": _of_master(_cut_ha),
    "a replica is cut off in any of these ways": _cut_replica,
    "etcd is away": _lose_etcd,
    "etcd is emptied": _empty_etcd,
    "etcd is emptied, the master is down": _empty_etcd_without_master,
    "etcd is restored, nothing has changed": _restore_etcd,
    "etcd is restored, the set has changed": _restore_etcd_after_changes,
    "etcd is restored, a member is behind": _restore_etcd_with_member_behind,
    **FOLDER_FAULTS,
    "the disk of the master is full": _fill_master,
    "the disk of a replica is full": _fill_replica,
}
