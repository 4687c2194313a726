"""The faults of a cluster in namespaces that leave a member with old, damaged or other data."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.crash.files_check import Raw, readable
from tests.torture.group.cluster import CALM_S, FLOW, LEASE_S, Cluster, Member, Unhealed
from tests.torture.process import Refused

from firetrail.store.root.watermark import read_watermark
from firetrail.system import SYSTEM

RECORD_HEAD = 12
"""The length of size, magic and checksum of a record, which the checksum of the body proves."""
BODY_AT = 88
"""The body of a record from an IPv4 address begins here."""


# -- older and copied folders -----------------------------------------------------------------


async def _copied(member: Member, target: Path) -> Path:
    """Return a copy of a member's folder, as a kill leaves it; the member is started again."""
    await member.kill()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(member.store, target)
    await member.start()
    return target


async def _restore_folder(cluster: Cluster, member: Member) -> None:
    backup = await _copied(member, cluster.folder / "store-backup")
    await cluster.settled()
    await cluster.witness.acknowledged(100)
    await member.kill()
    shutil.rmtree(member.store)
    shutil.copytree(backup, member.store)
    await cluster.moment(LEASE_S / 2)
    await member.start()


async def _restore_replica(cluster: Cluster) -> None:
    await _restore_folder(cluster, await cluster.replica())


async def _restore_master(cluster: Cluster) -> None:
    """The member is the master when it is lost, if it can be: it was restarted for the backup."""
    member = await cluster.master()
    backup = await _copied(member, cluster.folder / "store-backup")
    await cluster.settled()
    await cluster.promote(member)
    await cluster.settled()
    await cluster.witness.acknowledged(100)
    await member.kill()
    shutil.rmtree(member.store)
    shutil.copytree(backup, member.store)
    await cluster.moment(LEASE_S / 2)
    await member.start()


async def _run_twin(cluster: Cluster) -> None:
    """A copy of a member's folder is started beside it, under the same number."""
    member = await cluster.replica()
    twin = cluster.twin(member.number)
    await _copied(member, twin.store)
    await cluster.settled()
    await cluster.moment()
    await twin.start()
    await cluster.moment(LEASE_S)
    master = await cluster.master()
    await master.kill()
    await cluster.moment(2 * LEASE_S)
    await master.start()
    await cluster.moment(LEASE_S)
    await twin.kill()
    shutil.rmtree(twin.store)


# -- all members are lost -----------------------------------------------------------------------


async def _start_damaged(cluster: Cluster, damaged: Member) -> None:
    """Start all members after a kill, one of which has lost a part of its log.

    If it was elected, the others keep what it lacks, and an operator replaces it.
    """
    for member in cluster.random.sample(cluster.members, len(cluster.members)):
        await cluster.moment()
        try:
            await member.start()
        except Refused:
            if member is not damaged:
                raise
    over_at = time.monotonic() + CALM_S
    while not await cluster.is_healthy():
        said = await cluster.status()
        if "older-master" in said or not damaged.is_running:
            await cluster.replace(damaged)
            return
        if time.monotonic() > over_at:
            raise Unhealed(said)
        await asyncio.sleep(0.5)


async def _kill_all_and_restore_one(cluster: Cluster) -> None:
    member = cluster.random.choice(cluster.members)
    backup = await _copied(member, cluster.folder / "store-backup")
    await cluster.settled()
    await cluster.witness.acknowledged(100)
    for each in cluster.random.sample(cluster.members, len(cluster.members)):
        await each.kill()
    shutil.rmtree(member.store)
    shutil.copytree(backup, member.store)
    await _start_damaged(cluster, member)


async def _kill_all_and_cut_one(cluster: Cluster) -> None:
    """Zeros are left of the last records of a member, as after a power loss without syncs."""
    await cluster.witness.acknowledged(100)
    for each in cluster.random.sample(cluster.members, len(cluster.members)):
        await each.kill()
    member = cluster.random.choice(cluster.members)
    mark = read_watermark(SYSTEM, member.store)  # what comes before it is on disk
    assert mark is not None
    log = readable(member.store / "commitlog")
    records = [record for record in log if record.offset >= mark.dispatched_offset]
    for record in records[cluster.random.randrange(max(len(records), 1)) :]:
        _write(member, record.offset, bytes(record.size))
    await _start_damaged(cluster, member)


# -- damaged bytes ------------------------------------------------------------------------------


def _segment(member: Member, offset: int) -> tuple[Path, int]:
    """Return the file of a log that has an offset, and the position in it."""
    paths = sorted((member.store / "commitlog").iterdir())
    path = [each for each in paths if int(each.name) <= offset][-1]
    return path, offset - int(path.name)


def _write(member: Member, offset: int, content: bytes) -> None:
    path, at = _segment(member, offset)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def _read(member: Member, offset: int, size: int) -> bytes:
    path, at = _segment(member, offset)
    with path.open("rb") as file:
        file.seek(at)
        return file.read(size)


def _flipped(cluster: Cluster, record: Raw, content: bytes) -> bytes:
    """Return the bytes of a record with some flipped bits that its checksum proves."""
    places = [*range(RECORD_HEAD), *range(BODY_AT, BODY_AT + len(record.body))]
    flipped = bytearray(content)
    for at in cluster.random.sample(places, cluster.random.randrange(1, 4)):
        flipped[at] ^= 1 << cluster.random.randrange(8)
    return bytes(flipped)


async def _flip(cluster: Cluster, member: Member) -> dict[int, bytes]:
    """Flip bits in records of a running member; return what was there."""
    log = readable(member.store / "commitlog")
    damaged = cluster.random.sample(log[: -len(log) // 4], cluster.random.randrange(1, 6))
    good = {record.offset: _read(member, record.offset, record.size) for record in damaged}
    for record in damaged:
        _write(member, record.offset, _flipped(cluster, record, good[record.offset]))
    return good


async def _repaired(member: Member, good: dict[int, bytes]) -> None:
    over_at = time.monotonic() + CALM_S
    while bad := [at for at, content in good.items() if _read(member, at, len(content)) != content]:
        if time.monotonic() > over_at:
            raise Unhealed(f"not repaired: {bad} of member {member.number}")
        await asyncio.sleep(0.2)


async def _flip_master(cluster: Cluster) -> None:
    """Consumers read the damaged records."""
    member = await cluster.master()
    good = await _flip(cluster, member)
    await cluster.read()
    await _repaired(member, good)


async def _flip_replica(cluster: Cluster) -> None:
    """The member becomes the master, or finds the damage in the background after its start."""
    member = await cluster.replica()
    good = await _flip(cluster, member)
    if cluster.random.random() < 0.5:
        await cluster.promote(member)
        await cluster.settled()
        await cluster.read()
    else:
        await member.kill()
        await cluster.moment()
        await member.start()
    await _repaired(member, good)


# -- what an operator did -----------------------------------------------------------------------


async def _write_leader(cluster: Cluster) -> None:
    """Somebody writes the entry of the holder by hand; it is bound to no lease."""
    number = cluster.random.randrange(1, 4)
    if cluster.random.random() < 0.5:
        await (await cluster.master()).kill()
    about = {"address": "10.0.0.9:10911", "haAddress": "10.0.0.9:10912", "token": "by hand"}
    await cluster.write("leader", {"member": number} | about)
    await cluster.moment(LEASE_S)
    for member in cluster.members:
        if not member.is_running:
            await member.start()


async def _return_left_out(cluster: Cluster) -> None:
    """A member has seen more than the others, is away for a decision, and comes back."""
    gone = await cluster.master()
    others = [member for member in cluster.members if member is not gone]
    for member in others:
        cluster.bridge.drop([member.host], [cluster.etcd.host])
        cluster.bridge.drop([cluster.etcd.host], [member.host])
    await gone.kill()
    await gone.start()
    version = await cluster.version()
    while await cluster.version() <= version:  # it is elected again, which only it sees
        await asyncio.sleep(0.1)
    await cluster.moment()
    await gone.kill()
    await cluster.write_in_sync(cluster.random.choice(others).number)
    cluster.bridge.heal()
    await cluster.decide(without=gone)
    await cluster.witness.acknowledged(FLOW)
    await gone.start()
    over_at = time.monotonic() + CALM_S
    while "decided-without" not in (said := await cluster.status()):
        if time.monotonic() > over_at:
            raise Unhealed(f"member {gone.number} is not left out: {said}")
        await asyncio.sleep(0.5)
    await cluster.witness.acknowledged(FLOW)  # it stops nobody
    await cluster.replace(gone)


FOLDER_FAULTS: dict[str, Callable[[Cluster], Awaitable[None]]] = {
    "the folder of a replica is restored": _restore_replica,
    "the folder of the master is restored": _restore_master,
    "all are killed, a folder is restored": _kill_all_and_restore_one,
    "all are killed, a log lacks its end": _kill_all_and_cut_one,
    "a copy of a member runs beside it": _run_twin,
    "bytes of the master are flipped": _flip_master,
    "bytes of a replica are flipped": _flip_replica,
    "the key leader is written by hand": _write_leader,
    "a member returns after --without": _return_left_out,
}
