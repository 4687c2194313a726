"""A record in the middle of a master's log is damaged (T11): both repairs of the guide.

The replica has the record, so no acknowledged message is lost, and replication continues.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk
from tests.broker.pairs import Group, caught_up, emergency, send
from tests.client.clusters import until
from tests.replication.logs import log_content
from tests.stores import flip, log_file, records

from firetrail.cli.main import main
from firetrail.format.names import COMMIT_LOG
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.store.settings.store_config import BrokerRole

STORE = SMALL.replace(commit_log_file_size=4096, max_message_size=1000)
REPLICA = STORE.replace(role=BrokerRole.SLAVE)
BODIES = [b"%04d" % number * 100 for number in range(30)]
"""They fill some log files."""
HIT = 15
"""The message that is damaged: neither in the first log file nor in the last one."""
BODY = 88
"""Where the body of a record begins."""


@asynccontextmanager
async def damaged(folder: Path) -> AsyncIterator[tuple[Group, Talk, Talk, int]]:
    """Yield a pair whose master was stopped and damaged, and the offset of the damaged record."""
    async with Group(folder) as group:
        master = await group.start("master", STORE)
        for body in BODIES:
            await send(master, body)
        replica = await group.start("replica", REPLICA)
        await caught_up(replica, master)
        await master.broker.stop()
        (hit,) = (each for each in records(folder / "master") if each.body == BODIES[HIT])
        path, at = log_file(folder / "master", hit.physical_offset)
        assert path not in (files := log_files(folder / "master"))[:1] + files[-1:]
        flip(path, at + BODY)
        assert main(["fsck", str(folder / "master")]) == 1
        yield group, master, replica, hit.physical_offset


def log_files(root: Path) -> list[Path]:
    return sorted((root / COMMIT_LOG).iterdir())


async def check(master: Talk, *replicas: Talk) -> None:
    """Check that the master accepts messages, and that all brokers have the same sound log."""
    await send(master, b"new")
    for replica in replicas:
        await caught_up(replica, master)
    found = await master.pull_until("T1", len(BODIES) + 1)
    assert [record.body for record in found] == [*BODIES, b"new"]
    for talk in (*replicas, master):
        await talk.broker.stop()
    roots = [talk.broker._folder for talk in (master, *replicas)]
    assert all(main(["fsck", str(root)]) == 0 for root in roots)
    assert len({log_content(root) for root in roots}) == 1


async def test_the_damaged_file_is_replaced_by_the_one_of_the_replica(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with damaged(tmp_path) as (group, _, replica, offset):
        assert f"{offset}" in capsys.readouterr().out
        master = await group.start("master", STORE)  # a damaged body does not prevent it
        late = await group.start("late", REPLICA, broker_id=2)
        assert late.broker.replica is not None
        follower = late.broker.replica.follower
        await until(lambda: follower.status.state is FollowerState.FAILED)
        assert late.broker.store.log_range[1] <= offset  # it does not store the damage
        await master.broker.stop()
        path, _ = log_file(tmp_path / "master", offset)
        shutil.copyfile(tmp_path / "replica" / COMMIT_LOG / path.name, path)
        assert main(["fsck", str(tmp_path / "master")]) == 0
        master = await group.start("master", STORE)
        await check(master, replica, late)


async def test_the_replica_is_promoted_and_the_master_begins_with_an_empty_folder(
    tmp_path: Path,
) -> None:
    async with damaged(tmp_path) as (group, master, replica, _):
        await emergency(group, master, replica)
        (tmp_path / "master").rename(tmp_path / "moved away")
        former = await group.start("master", REPLICA)
        await check(replica, former)
