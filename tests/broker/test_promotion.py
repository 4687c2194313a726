"""A replica becomes the master: planned or in an emergency, and nothing is lost or repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.broker import halves
from tests.broker.brokers import SMALL, Field, Talk, talking
from tests.broker.pops import ack, pop
from tests.client.clusters import until
from tests.replication.masters import master_in

from firetrail.broker import promotion
from firetrail.broker.broker import Broker
from firetrail.broker.config import BrokerConfig
from firetrail.broker.replica.fencing import Fencing
from firetrail.broker.replica.role_requests import ask_status
from firetrail.broker.replica.slave_synchronize import SlaveSynchronize
from firetrail.broker.services.clients import Clients
from firetrail.broker.term import Term
from firetrail.errors import StoreError, StoreLockedError
from firetrail.namesrv import NameServerConfig
from firetrail.namesrv.routes import Registration
from firetrail.namesrv.server import NameServer
from firetrail.remoting.bodies import TopicConfigTable
from firetrail.remoting.client import RemotingClient
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.replica_bodies import EpochEntryCache, ReplicaStatus
from firetrail.remoting.replica_headers import HandOverHeader
from firetrail.replication.epochs import Epoch
from firetrail.replication.follower import FollowerState
from firetrail.replication.lease_keeper import LeaseKeeper
from firetrail.store.config import BrokerRole, StoreConfig

QUICK: dict[str, Any] = {"ha_heartbeat_ms": 50, "sync_interval_ms": 20}
SLAVE = SMALL.replace(role=BrokerRole.SLAVE)
REFUSED = ResponseCode.SERVICE_NOT_AVAILABLE


class Group:
    """A name server, and brokers of one name, each with its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name_server = NameServer(NameServerConfig(listen_port=0))
        self.namesrv = ""
        self.client = RemotingClient()
        self._stack = AsyncExitStack()

    async def start(self, name: str, config: StoreConfig = SMALL, **settings: Any) -> Talk:
        """Start a broker; a slave has id 1."""
        broker_id = int(config.role is BrokerRole.SLAVE)
        values = {"broker_id": broker_id, "namesrv": self.namesrv, **QUICK, **settings}
        broker = Broker(
            self.folder / name,
            BrokerConfig(**values),
            config.replace(store_host=config.store_host._replace(port=0)),
        )
        await broker.start()
        self._stack.push_async_callback(broker.stop)
        return Talk(broker, self.client)

    async def __aenter__(self) -> Group:
        self.namesrv = f"127.0.0.1:{await self.name_server.start()}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        await self.client.close()
        await self.name_server.stop()

    @property
    def master(self) -> str | None:
        found = self.name_server.routes.master_of("broker-a")
        return found[0] if found is not None else None


@asynccontextmanager
async def pair(folder: Path, **settings: Any) -> AsyncIterator[tuple[Group, Talk, Talk]]:
    """A master and a slave that follows it."""
    async with Group(folder) as group:
        old = await group.start("old", **settings)
        await old.send("T1", b"first")
        new = await group.start("new", SLAVE, **settings)
        await caught_up(new, old)
        yield group, old, new


async def caught_up(slave: Talk, master: Talk) -> None:
    def holds() -> bool:
        replica = slave.broker.replica
        assert replica is not None
        return replica.is_caught_up and (
            slave.broker.store.log_range[1] == master.broker.store.log_range[1]
        )

    await until(holds)


async def status(talk: Talk) -> ReplicaStatus:
    answer = await talk.ask(RequestCode.GET_REPLICA_STATUS)
    return ReplicaStatus.decode(answer.content)


async def promote(talk: Talk, **fields: Field) -> ReplicaStatus:
    """Promote a replica, and wait for the end of the change."""
    answer = await talk.ask(RequestCode.PROMOTE_REPLICA, fields)
    assert answer.code == 0, answer.remark
    await until(lambda: not talk.broker._promotion.step)
    return await status(talk)


async def emergency(group: Group, old: Talk, new: Talk) -> None:
    """Stop the master and promote the replica."""
    await old.broker.stop()
    found = await promote(new, force="true")
    assert (found.role, found.step_error) == ("ASYNC_MASTER", "")


def refusal(answer: RemotingCommand, code: int = ResponseCode.NO_PERMISSION) -> str:
    """Return why a request was refused."""
    assert answer.code == code
    return answer.remark or ""


async def send(talk: Talk, body: bytes) -> int:
    """Send a message; return its queue offset."""
    answer = await talk.send("T1", body)
    assert answer.code == 0, answer.remark
    return int(answer.fields["queueOffset"])


async def test_a_planned_change_swaps_the_roles(tmp_path: Path) -> None:
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


async def test_an_old_master_that_never_noticed_is_fenced(tmp_path: Path) -> None:
    """It lives, as after a partition, when its replica is promoted by force."""
    async with pair(tmp_path, register_interval_ms=1000) as (group, old, new):
        assert (await promote(new, force="true")).role == "ASYNC_MASTER"
        await until(lambda: "a master with epoch 2" in old.broker.store.refusal)
        assert (await old.send("T1")).code == REFUSED
        assert await send(new, b"second") == 1
        assert group.master == new.broker.address


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
        assert not Fencing(elected, term.parts).is_fenced  # the lease decides


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


async def test_delays_continue(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.send("T1", b"late", i="DELAY\x011\x02")
        await caught_up(new, old)
        await emergency(group, old, new)
        records = await new.pull_until("T1", 2)
        assert [record.body for record in records] == [b"first", b"late"]
        await asyncio.sleep(0.1)
        assert halves.stored(new, "T1") == [b"first", b"late"]  # once


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


# -- refusals and failures --------------------------------------------------------------------


async def test_only_a_replica_that_follows_is_promoted_without_force(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, old, new):
        assert "is the master already" in refusal(await old.ask(RequestCode.PROMOTE_REPLICA))
        answer = await new.ask(RequestCode.PROMOTE_REPLICA, role="SLAVE")
        assert answer.code == ResponseCode.INVALID_PARAMETER
        await old.broker.stop()
        replica = new.broker.replica
        assert replica is not None
        await until(lambda: replica.follower.status.state is FollowerState.FAILED)
        remark = refusal(await new.ask(RequestCode.PROMOTE_REPLICA))
        assert "does not follow its master (failed: " in remark
        assert "use --force" in remark


async def test_a_java_master_cannot_hand_over(tmp_path: Path) -> None:
    async with Group(tmp_path) as group, master_in(tmp_path / "java", SMALL) as java:
        java.fill(3)
        java.settings |= {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}
        new = await group.start("new", SLAVE, master_address=java.address.broker)
        replica = new.broker.replica
        assert replica is not None
        await until(lambda: replica.follower.status.state is FollowerState.FOLLOWING)
        found = await promote(new)
        assert found.role == "SLAVE"
        assert "cannot hand over, because it is not a Firetrail broker" in found.step_error


async def test_a_master_accepts_messages_again_if_its_successor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (_, old, new):
        monkeypatch.setattr(promotion, "CATCH_UP_S", 0.0)
        monkeypatch.setattr(promotion.Promotion, "_check_follows", lambda self: None)
        replica = new.broker.replica
        assert replica is not None
        await replica.follower.stop()
        await send(old, b"second")
        found = await promote(new)
        assert "did not reach the end of the master's log" in found.step_error
        assert await send(old, b"third") == 2


async def test_a_successor_that_disappears_does_not_stop_the_master_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "HANDOVER_S", 0.2)
    async with talking(store=SMALL) as talk:
        answer = await talk.ask(RequestCode.HAND_OVER, successor="1.2.3.4:5")
        assert answer.code == 0
        assert "1.2.3.4:5 will be the master" in refusal(await talk.send("T1"), REFUSED)
        await until(lambda: not talk.broker.store.refusal)
        assert await send(talk, b"one") == 0
        answer = await talk.ask(RequestCode.STEP_DOWN, successor="1.2.3.4:5", brokerId=1)
        assert "is not handing over" in refusal(answer)


def copies_fail(patch: pytest.MonkeyPatch, new: Broker) -> None:
    """The last copy of the tables fails."""

    async def fail(self: SlaveSynchronize, master: str) -> bool:
        raise StoreError("does not work")

    patch.setattr(SlaveSynchronize, "copy", fail)


def opening_fails(patch: pytest.MonkeyPatch, new: Broker) -> None:
    """The new master cannot open its store."""
    opened = Term.open

    def fail_once(self: Term, clients: Clients | None = None) -> None:
        opened(self, clients)
        if self.plan.epoch and self.plan.env.address == new.address:
            patch.setattr(Term, "open", opened)
            self.store.close()
            raise StoreError("does not work")

    patch.setattr(Term, "open", fail_once)


@pytest.mark.parametrize("spoil", [copies_fail, opening_fails])
async def test_the_former_master_is_restored_if_the_last_step_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[pytest.MonkeyPatch, Broker], None],
) -> None:
    async with pair(tmp_path, sync_interval_ms=600_000) as (group, old, new):
        spoil(monkeypatch, new.broker)
        found = await promote(new)
        assert (found.role, found.step_error) == ("SLAVE", "does not work")
        monkeypatch.undo()
        await until(lambda: old.broker.store.config.role is BrokerRole.ASYNC_MASTER)
        await until(lambda: not old.broker._promotion.step)
        assert await send(old, b"second") == 1
        await until(lambda: group.master == old.broker.address)
        # The number 2 was given to the failed promotion, and is not used again.
        assert old.broker.epochs.epochs == (Epoch(1, 0), Epoch(3, found.max_offset))


async def test_a_step_down_whose_answer_is_lost_is_not_taken_for_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (group, _, new):
        asked = ask_status

        async def ask(*args: Any) -> ReplicaStatus:
            status = await asked(*args)
            if args[2] == RequestCode.STEP_DOWN:
                raise TimeoutError
            return status

        monkeypatch.setattr(promotion, "ask_status", ask)
        assert (await promote(new)).role == "ASYNC_MASTER"
        assert group.master == new.broker.address


async def test_a_master_that_does_not_get_the_request_to_step_down_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (_, old, new):
        asked = ask_status

        lost = {RequestCode.STEP_DOWN, RequestCode.HAND_OVER}

        async def ask(*args: Any) -> ReplicaStatus:
            if args[2] in lost and args[3] != HandOverHeader(new.broker.address):
                lost.discard(args[2])  # a later one arrives
                raise TimeoutError
            return await asked(*args)

        monkeypatch.setattr(promotion, "ask_status", ask)
        monkeypatch.setattr(promotion, "RESTORE_PAUSE_S", 0.01)
        found = await promote(new)
        assert (found.role, "did not step down" in found.step_error) == ("SLAVE", True)
        assert await send(old, b"second") == 1
        assert old.broker.role is BrokerRole.ASYNC_MASTER


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
