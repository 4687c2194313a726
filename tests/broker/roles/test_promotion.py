"""A replica becomes the master: planned or in an emergency, and nothing is lost or repeated."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from tests.broker import halves
from tests.broker.brokers import SMALL, talking
from tests.broker.pairs import (
    REFUSED,
    SLAVE,
    Group,
    caught_up,
    emergency,
    pair,
    promote,
    refusal,
    send,
    status,
)
from tests.broker.pops import ack, pop
from tests.client.clusters import until

from firetrail.broker import broker_parts
from firetrail.broker.replica.epoch_fence import EpochFence
from firetrail.broker.replica.hand_over.live_master_check import LiveMaster
from firetrail.broker.roles import promotion
from firetrail.broker.roles.promotion import Promotion
from firetrail.broker.services.registration import RegistrationService
from firetrail.broker.stored_messages import pending_destinations
from firetrail.errors import StoreLockedError
from firetrail.format.names import COMMIT_LOG
from firetrail.namesrv.routes import Registration
from firetrail.remoting.messages.bodies import TopicConfigTable
from firetrail.remoting.messages.replica_bodies import EpochEntryCache
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.replication.group.lease_keeper import LeaseKeeper
from firetrail.replication.log.epochs import Epoch
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import MasterAddress
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole


async def test_the_former_master_follows_its_successor_without_a_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told who that is, so it does not wait until name servers know it."""
    async with pair(tmp_path, sync_interval_ms=600_000) as (_, old, new):
        monkeypatch.setattr(RegistrationService, "look_for_master", lambda *_, **__: None)
        assert (await promote(new)).role == "ASYNC_MASTER"
        replica = old.broker.replica
        assert replica is not None
        await until(lambda: replica.follower.status.state is FollowerState.FOLLOWING)
        assert replica.master == MasterAddress(new.broker.address)


async def test_a_planned_change_swaps_the_roles(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (group, old, new):
        assert await send(old, b"second") == 1
        found = await promote(new)
        assert (found.role, found.broker_id, found.step_error) == ("ASYNC_MASTER", 0, "")
        assert found.epoch == 2
        assert await send(new, b"third") == 2
        assert group.master == new.broker.address
        assert old.broker.store.config.role is BrokerRole.SLAVE
        assert (await old.send("T1")).code == ResponseCode.SYSTEM_BUSY
        await caught_up(old, new)
        records = await new.pull_until("T1", 3)
        assert [record.body for record in records] == [b"first", b"second", b"third"]
        await promote(old)  # and back again
        assert await send(old, b"fourth") == 3
        await caught_up(new, old)
        begins = [record.physical_offset for record in await old.pull_until("T1", 4)]
        assert old.broker.epochs.epochs == (Epoch(1, 0), Epoch(2, begins[2]), Epoch(3, begins[3]))
        await until(lambda: new.broker.epochs.epochs == old.broker.epochs.epochs)
        assert "clients find only the one that registered last" not in caplog.text
        assert "is a slave itself" not in caplog.text  # at a level below warnings
        changes = [line for line in caplog.messages if line.startswith("this broker is now")]
        assert changes == [
            f"this broker is now a replica of {new.broker.address}",
            "this broker is now the master (ASYNC_MASTER), epoch 2",
            f"this broker is now a replica of {old.broker.address}",
            "this broker is now the master (ASYNC_MASTER), epoch 3",
        ]


async def test_an_offset_that_was_just_committed_does_not_go_back(tmp_path: Path) -> None:
    async with pair(tmp_path, sync_interval_ms=600_000) as (_, old, new):
        await send(old, b"second")
        await old.commit(2)
        await promote(new)
        assert await new.committed() == 2


async def test_a_promoted_sync_master_stays_one(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, _, new):
        assert (await promote(new, role="SYNC_MASTER")).role == "SYNC_MASTER"


async def test_an_emergency_promotion_and_the_return_of_the_old_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await emergency(group, old, new)
        assert await send(new, b"second") == 1
        old = await group.start("old")
        remark = refusal(await old.send("T1", b"lost"), REFUSED)
        assert "a master with epoch 2 has registered, and this broker has epoch 1" in remark
        assert "firetrail replica rewind" in remark
        assert group.master == new.broker.address
        assert (await status(old)).refusal.startswith("the broker must not act as the master")
        assert [r.body for r in await old.pull_until("T1", 1)] == [b"first"]  # reads go on


async def test_a_replica_that_lacks_old_messages_is_promoted_by_force_only(tmp_path: Path) -> None:
    size = 16 << 10
    tiny = SMALL.replace(commit_log_file_size=size, max_message_size=12 << 10)
    tiny_slave = tiny.replace(role=BrokerRole.SLAVE)
    async with Group(tmp_path) as group:
        old = await group.start("old", tiny)
        for _ in range(4):
            await send(old, b"x" * (size // 2))
        new = await group.start("new", tiny_slave)
        await caught_up(new, old)
        await new.broker.stop()
        min((tmp_path / "new" / COMMIT_LOG).iterdir()).unlink()
        new = await group.start("new", tiny_slave)
        await caught_up(new, old)
        report = (await status(new)).follower
        assert report is not None
        assert (report.master_min_offset, report.missing) == (0, size)
        said = refusal(await new.ask(RequestCode.PROMOTE_REPLICA))
        assert said.startswith(
            f"the replica has deleted {size} bytes of messages that its master still has: its log "
            f"begins at {size}, that of the master at 0. Consumers could no longer read them."
        )
        assert said.endswith("to promote it without them, stop the master and use --force")
        await emergency(group, old, new)


async def test_an_old_master_that_never_noticed_is_fenced(tmp_path: Path) -> None:
    """It lives, as after a partition, when its replica is promoted by force."""
    async with pair(tmp_path, register_interval_ms=1000) as (group, old, new):
        found = await promote(new, force="true")
        assert found.role == "SLAVE"
        assert found.step_error == (
            f"its master {old.broker.address} runs and accepts messages, which would be lost; a "
            "planned promotion needs no --force. If producers cannot reach this master, use "
            "--force --override"
        )
        assert (await promote(new, force="true", override="true")).role == "ASYNC_MASTER"
        await until(lambda: "a master with epoch 2" in old.broker.store.refusal)
        assert (await old.send("T1")).code == REFUSED
        assert await send(new, b"second") == 1
        assert group.master == new.broker.address


async def test_an_epoch_may_become_known_during_a_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that has just been started hears of the epoch of its master at any moment."""
    async with pair(tmp_path) as (_, _, new):
        await until(lambda: new.broker.epochs.number == 1)
        monkeypatch.setattr(promotion, "newest_epoch", lambda _: 0)
        monkeypatch.setattr(Promotion, "_present_master", AsyncMock(return_value=LiveMaster()))
        assert (await promote(new, force="true", override="true")).role == "ASYNC_MASTER"
        assert new.broker.epochs.number == 2


async def test_the_old_master_is_fenced_even_after_the_new_one_has_left(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await emergency(group, old, new)
        await new.broker.stop()
        old = await group.start("old")
        assert (await old.send("T1")).code == REFUSED
        found = await promote(old, force="true")  # the operator decides
        assert (found.role, found.epoch, found.refusal) == ("ASYNC_MASTER", 3, "")
        assert await send(old, b"second") == 1


async def test_a_name_server_of_java_only_tells_the_address_of_the_new_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (group, old, new):
        registered = group.name_server.routes.register

        def register(who: Registration, topics: TopicConfigTable, *args: Any) -> str | None:
            """Register as RocketMQ 4.x does: the last one counts, whatever its version."""
            version = replace(topics.data_version, state_version=None)
            return registered(who, replace(topics, data_version=version), *args)

        monkeypatch.setattr(group.name_server.routes, "register", register)
        await emergency(group, old, new)
        old = await group.start("old")
        assert (await old.send("T1")).code == REFUSED
        assert group.master == new.broker.address


async def test_a_master_of_a_group_waits_for_a_name_server(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await until(lambda: old.broker.epochs.epochs)
        await old.broker.stop()
        await new.broker.stop()
        await group.name_server.stop()
        old = await group.start("old")
        assert "no name server has answered" in refusal(await old.send("T1"), REFUSED)
        term = old.broker._term
        elected = replace(term.plan.env, keeper=cast(LeaseKeeper, object()))
        assert not EpochFence(elected, term.parts).is_fenced  # the lease decides


async def test_a_restart_keeps_the_role(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await promote(new)
        await old.broker.stop()
        await new.broker.stop()
        new = await group.start("new", SLAVE)
        old = await group.start("old")
        assert (await status(new)).role == "ASYNC_MASTER"
        assert (await status(old)).role == "SLAVE"
        assert await send(new, b"second") == 1
        await caught_up(old, new)


async def test_changed_settings_replace_the_saved_role(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (group, old, new):
        await emergency(group, old, new)
        await new.broker.stop()
        new = await group.start("new", SLAVE, broker_id=2)
        assert (await status(new)).role == "SLAVE"
        assert "firetrailRole.json is removed" in caplog.text
        await new.broker.stop()
        new = await group.start("new", SLAVE)
        assert (await status(new)).role == "SLAVE"


async def test_a_broker_whose_saved_role_was_discarded_can_be_promoted(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await emergency(group, old, new)
        await new.broker.stop()
        new = await group.start("new", SLAVE, broker_id=2)
        found = await promote(new, force="true")
        assert (found.role, found.step_error) == ("ASYNC_MASTER", "")


async def test_a_start_that_finds_the_store_in_use_leaves_the_saved_role(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await emergency(group, old, new)
        saved = tmp_path / "new" / "config" / "firetrailRole.json"
        before = saved.read_bytes()
        with pytest.raises(StoreLockedError):
            await group.start("new", SLAVE, broker_id=2)
        assert saved.read_bytes() == before


async def test_without_name_servers_the_old_master_follows_its_successor(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        group.namesrv = ""
        old = await group.start("old")
        await send(old, b"first")
        new = await group.start("new", SLAVE, master_address=old.broker.address)
        await caught_up(new, old)
        await promote(new)
        await send(new, b"second")
        await caught_up(old, new)


# -- what continues ---------------------------------------------------------------------------


async def test_transactions_continue(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        committed, rolled_back = await halves.begin(old), await halves.begin(old)
        await caught_up(new, old)
        await emergency(group, old, new)
        assert await halves.end(new, committed, halves.COMMIT) == 0
        assert await halves.end(new, rolled_back, halves.ROLLBACK) == 0
        assert halves.stored(new, "T1", 2) == [b"body"]
        assert not new.broker._parts.transactions._open


async def test_a_promotion_looks_for_topics_in_messages_after_the_last_copy_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take longer with every delayed message of the past."""
    found: list[list[str]] = []

    def noted(store: BrokerStore, since_ms: int) -> Iterator[tuple[str, int]]:
        destinations = list(pending_destinations(store, since_ms))
        found.append([topic for topic, _ in destinations])
        return iter(destinations)

    monkeypatch.setattr(broker_parts, "pending_destinations", noted)
    async with pair(tmp_path) as (group, old, new):
        for topic in ("T2", "T3", "T4"):
            await old.send(topic, b"late", i="DELAY\x018\x02")
            await asyncio.sleep(0.01)  # another store time
        await caught_up(new, old)
        assert new.broker.replica is not None
        tables, dispatcher = new.broker.replica.tables, new.broker.broker_store.dispatch.dispatcher
        await until(lambda: tables.status.topics_known_ms == dispatcher.last_store_time)
        monkeypatch.setattr(tables, "copy", AsyncMock(return_value=False))
        await old.send("T5", b"late", i="DELAY\x018\x02")
        await caught_up(new, old)
        await emergency(group, old, new)
        assert found == [["T4", "T5"]]
        assert new.broker.topics.get("T5") is not None


async def test_delays_continue(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.send("T1", b"late", i="DELAY\x011\x02")
        await caught_up(new, old)
        await emergency(group, old, new)
        records = await new.pull_until("T1", 2)
        assert [record.body for record in records] == [b"first", b"late"]
        await asyncio.sleep(0.1)
        assert halves.stored(new, "T1") == [b"first", b"late"]  # once


@pytest.mark.parametrize("is_planned", [True, False])
async def test_only_an_emergency_repeats_delays_that_came_after_the_last_copy(
    tmp_path: Path, is_planned: bool
) -> None:
    async with pair(tmp_path, sync_interval_ms=600_000) as (group, old, new):
        await old.send("T1", b"late", i="DELAY\x011\x02")
        await until(lambda: halves.stored(old, "T1") == [b"first", b"late"])
        await caught_up(new, old)
        if is_planned:
            await promote(new)
            assert new.broker._parts.schedule.content().offset_table[1] == 1
            assert halves.stored(new, "T1") == [b"first", b"late"]
        else:
            await emergency(group, old, new)
            await until(lambda: halves.stored(new, "T1") == [b"first", b"late", b"late"])


async def test_pops_continue(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.beat("CG")
        await send(old, b"second")
        await asyncio.to_thread(old.broker.store.wait_dispatched)
        first, _ = await pop(old, invisibleTime=1000)
        assert (await ack(old, first)).code == 0
        await caught_up(new, old)
        await emergency(group, old, new)
        found: list[bytes] = []
        while b"second" not in found:  # after its invisible time
            found += [popped.body for popped in await pop(new, invisibleTime=60_000)]
        assert found == [b"second"]


async def test_the_epochs_are_told_as_rocketmq_tells_them(tmp_path: Path) -> None:
    async with talking(tmp_path, store=SMALL) as talk:
        await send(talk, b"one")
        answer = await talk.ask(RequestCode.GET_BROKER_EPOCH_CACHE)
        assert not EpochEntryCache.decode(answer.content).epoch_list
        answer = await talk.ask(RequestCode.GET_BROKER_EPOCH_CACHE, replica="true")
        end = talk.broker.store.log_range[1]
        found = EpochEntryCache.decode(answer.content)
        assert (found.broker_name, found.broker_id, found.max_offset) == ("broker-a", 0, end)
        (entry,) = found.epoch_list
        assert (entry.epoch, entry.start_offset, entry.end_offset) == (1, 0, end)


async def test_a_promoted_replica_registers_with_the_name_servers_of_its_master(
    tmp_path: Path,
) -> None:
    """As a replica it had not registered, because an id may be taken in a production cluster."""
    async with Group(tmp_path) as group:
        old = await group.start("old")
        await old.send("T1", b"first")
        told = {"namesrv": "", "master_address": old.broker.address}
        new = await group.start("new", SLAVE, promoted_namesrv=group.namesrv, **told)
        await caught_up(new, old)
        known = group.name_server.routes.broker("broker-a")
        assert known is not None and list(known.broker_addrs.values()) == [old.broker.address]
        found = await promote(new)
        assert (found.role, found.name_servers) == ("ASYNC_MASTER", [group.namesrv])
        await until(lambda: group.master == new.broker.address)
        await caught_up(old, new)
