"""A member of a group gets an empty store, and no acknowledged message can be lost by that."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from tests.broker.groups import FIRST, BrokerGroup, broker_group
from tests.client.clusters import until
from tests.helpers import ManualClock

from firetrail.broker.replica.replacement import Replacement
from firetrail.errors import ConfigError, ElectionError
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.replication.group.group_view import GroupView
from firetrail.system import SYSTEM, System


def replacement_of(
    group: BrokerGroup, number: int, folder: Path, system: System = SYSTEM
) -> Replacement:
    config = group.members[1 if number != 1 else 2].config
    config = config.replace(ha_member=number, etcd_endpoints=group.endpoints[number].url)
    return Replacement(system, config, folder / str(number))


async def test_a_replaced_member_copies_everything_and_joins_again(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        await group.stop(3)
        with closing(replacement_of(group, 3, tmp_path)) as replacement:
            replacement.check()
            kept = await asyncio.to_thread(replacement.run)
        assert kept is not None and (kept / "commitlog").is_dir()
        assert not (tmp_path / "3").exists()
        assert (await group.send(1, b"without it")).code == ResponseCode.SUCCESS
        member = await group.start(3)
        await group.in_sync(1, 2, 3)
        await until(lambda: member.store.log_range == group.members[1].store.log_range)
        assert FIRST in [record.body for record in member.store.read("T1")]


async def test_a_replacement_can_be_repeated(tmp_path: Path) -> None:
    """As after an interruption: the store was moved already."""
    async with broker_group(tmp_path) as group:
        await group.stop(3)
        for _ in range(2):
            with closing(replacement_of(group, 3, tmp_path)) as replacement:
                kept = await asyncio.to_thread(replacement.run)
        assert kept is None


async def test_a_member_that_is_counted_on_keeps_its_number_and_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two members, the in-sync set cannot get smaller: each could be elected."""
    clock, look = ManualClock(), Replacement._look

    def look_for_a_minute(self: Replacement, known: int = 0, timeout_s: float = 0.0) -> GroupView:
        clock.advance(60_000)
        return look(self, known, timeout_s)

    monkeypatch.setattr(Replacement, "_look", look_for_a_minute)
    async with broker_group(tmp_path, members=2) as group:
        await group.stop(2)
        with closing(replacement_of(group, 2, tmp_path, System(clock=clock))) as replacement:
            replacement.check()
            with pytest.raises(ElectionError, match="still counts on member 2 after 105 s"):
                await asyncio.to_thread(replacement.run)
        assert (tmp_path / "2").is_dir()
        await group.start(2)
        await group.in_sync(1, 2)


async def test_a_number_is_not_freed_by_an_old_look_at_the_group(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        with closing(replacement_of(group, 3, tmp_path)) as replacement:
            old = replacement._look().in_sync
            assert old is not None
            await group.stop(3)
            await group.in_sync(1, 2)
            release = replacement._coordinator.release
            assert not await asyncio.to_thread(release, 3, old)
            now = replacement._look().in_sync
            assert now is not None
            assert await asyncio.to_thread(release, 3, now)


async def test_the_only_complete_member_is_not_replaced(tmp_path: Path) -> None:
    async with broker_group(tmp_path, members=2) as group:
        with closing(replacement_of(group, 2, tmp_path)) as replacement:
            group.edit_in_sync([2])
            with pytest.raises(ElectionError, match="member 2 is the only one of its group"):
                replacement.check()


async def test_a_broker_without_a_group_is_not_replaced(tmp_path: Path) -> None:
    async with broker_group(tmp_path, members=2) as group:
        config = group.members[1].config.replace(etcd_endpoints="")
        with pytest.raises(ConfigError, match="the broker is in no group"):
            Replacement(SYSTEM, config, tmp_path / "1")
        with closing(replacement_of(group, 2, tmp_path)) as replacement:
            replacement._coordinator._in_sync += "-of-another-group"
            with pytest.raises(ElectionError, match="etcd has no group broker-a of cluster"):
                replacement.check()
