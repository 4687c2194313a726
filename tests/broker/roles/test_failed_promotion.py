"""Promotions that are refused or fail: the master before continues."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SMALL, Talk, talking
from tests.broker.pairs import REFUSED, SLAVE, Group, pair, promote, refusal, send
from tests.client.clusters import until
from tests.replication.auto_switch_master import controlled_master_in
from tests.replication.masters import master_in

from firetrail.broker.broker import Broker
from firetrail.broker.replica import role_requests
from firetrail.broker.replica.hand_over import hand_over
from firetrail.broker.replica.role_requests import ask_status
from firetrail.broker.replica.slave_synchronize import SlaveSynchronize
from firetrail.broker.roles import promotion
from firetrail.broker.services.clients import Clients
from firetrail.broker.term import Term
from firetrail.errors import ReplicationError, StoreError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_bodies import ReplicaStatus
from firetrail.remoting.messages.replica_headers import HandOverHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.replication.log.epochs import Epoch
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.store.settings.store_config import BrokerRole


async def test_only_a_replica_that_follows_is_promoted_without_force(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, old, new):
        answer = await old.ask(RequestCode.PROMOTE_REPLICA)
        assert answer.code == 0
        assert not old.broker._replicas.promotion.step  # it is the master already
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


async def test_a_java_master_that_runs_is_not_replaced_by_force(tmp_path: Path) -> None:
    async with Group(tmp_path) as group, master_in(tmp_path / "java", SMALL) as java:
        java.fill(3)
        java.settings |= {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}
        new = await group.start("new", SLAVE, master_address=java.address.broker)
        replica = new.broker.replica
        assert replica is not None
        await until(lambda: replica.follower.status.state is FollowerState.FOLLOWING)
        runs = f"its master {java.address.broker} runs, and messages that it accepts would be lost"
        found = await promote(new, force="true")
        assert (found.role, found.step_error.partition(";")[0]) == ("SLAVE", runs)
        java.refusal = "access control"  # it does not tell its role, but it runs
        found = await promote(new, force="true")
        assert (found.role, found.step_error.partition(";")[0]) == ("SLAVE", runs)
        java.refusal = ""
        java.settings["brokerRole"] = "SLAVE"  # as its owner has configured it after a restart
        found = await promote(new, force="true")
        assert (found.role, found.step_error) == ("ASYNC_MASTER", "")


async def test_a_running_java_master_is_replaced_if_that_is_overridden(tmp_path: Path) -> None:
    async with Group(tmp_path) as group, master_in(tmp_path / "java", SMALL) as java:
        java.settings |= {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}
        new = await group.start("new", SLAVE, master_address=java.address.broker)
        found = await promote(new, force="true", override="true")
        assert (found.role, found.step_error) == ("ASYNC_MASTER", "")


async def test_a_learner_of_a_controller_is_not_promoted(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        async with controlled_master_in(tmp_path / "java", SMALL) as (java, _):
            java.fill(3)
            java.settings |= {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}
            told = {"master_address": java.address.broker}
            new = await group.start("new", SLAVE, **told)
            await until(lambda: new.broker.slave_mark.notes.has_controller)
            for force in ("false", "true"):
                remark = refusal(await new.ask(RequestCode.PROMOTE_REPLICA, force=force))
                assert "is a learner of a cluster in controller mode" in remark
                assert "--force does not change this. Let the controller elect a master" in remark
        await new.broker.stop()
        new = await group.start("new", SLAVE, **told)  # it has never seen this master alive
        remark = refusal(await new.ask(RequestCode.PROMOTE_REPLICA, force="true"))
        assert "set brokerRole=ASYNC_MASTER and brokerId=0 in its broker.conf" in remark
        await new.broker.stop()
        new = await group.start("new", SMALL)
        assert await send(new, b"first") == 0  # the operator has decided
        assert not new.broker.slave_mark.notes.has_controller


async def test_a_master_accepts_messages_again_if_its_successor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (_, old, new):
        monkeypatch.setattr(hand_over, "CATCH_UP_S", 0.0)
        monkeypatch.setattr(promotion.Promotion, "_check_follows", lambda self: None)
        replica = new.broker.replica
        assert replica is not None
        await replica.follower.stop()
        await send(old, b"second")
        found = await promote(new)
        assert "did not reach the end of the master's log" in found.step_error
        assert await send(old, b"third") == 2


async def test_a_promotion_during_another_change_is_told_from_a_refused_one() -> None:
    async with talking(store=SMALL) as talk:
        assert (await talk.ask(RequestCode.HAND_OVER, successor="1.2.3.4:5")).code == 0
        answer = await talk.ask(RequestCode.PROMOTE_REPLICA)
        remark = refusal(answer, ResponseCode.SYSTEM_BUSY)
        assert remark == f"{talk.broker.address} is the master, and is handing over to 1.2.3.4:5"
        talk.broker._replicas.promotion.step = "becoming a slave"
        remark = refusal(await talk.ask(RequestCode.PROMOTE_REPLICA), ResponseCode.SYSTEM_BUSY)
        assert remark == f"the role of {talk.broker.address} is being changed: becoming a slave"
        talk.broker._replicas.promotion.step = ""


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
        await until(lambda: not old.broker._replicas.promotion.step)
        assert await send(old, b"second") == 1
        await until(lambda: group.master == old.broker.address)
        # The number 2 was given to the failed promotion, and is not used again.
        assert old.broker.epochs.epochs == (Epoch(1, 0), Epoch(3, found.max_offset))


async def test_a_reason_why_tables_cannot_be_copied_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, sync_interval_ms=600_000) as (_, old, new):

        async def refuse(*_: object) -> None:
            raise StoreError("it is refused")

        monkeypatch.setattr(SlaveSynchronize, "_adopt", refuse)
        assert (await promote(new)).step_error == (
            f"the tables of {old.broker.address} could not be copied: topics, offsets, delays, "
            "groups, request modes, timer, epochs: it is refused"
        )


async def answered(client: RemotingClient, address: str, *request: Any) -> ReplicaStatus:
    """Ask until there is an answer: on a busy machine an ordinary request can time out."""
    while True:
        with suppress(TimeoutError):
            return await ask_status(client, address, *request)


def replace_requests(
    patch: pytest.MonkeyPatch, ask: Callable[..., Coroutine[None, None, ReplicaStatus]]
) -> None:
    patch.setattr(hand_over, "ask_status", ask)
    patch.setattr(role_requests, "ask_status", ask)


async def test_a_step_down_whose_answer_is_lost_is_not_taken_for_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (group, _, new):

        async def ask(client: RemotingClient, address: str, *request: Any) -> ReplicaStatus:
            status = await answered(client, address, *request)
            if RequestCode.STEP_DOWN in request:
                raise TimeoutError
            return status

        replace_requests(monkeypatch, ask)
        assert (await promote(new)).role == "ASYNC_MASTER"
        assert group.master == new.broker.address


async def test_a_master_that_does_not_get_the_request_to_step_down_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (_, old, new):
        cancel = HandOverHeader(new.broker.address, cancel=True)
        lost = [RequestCode.STEP_DOWN, cancel]  # each of them once

        async def ask(client: RemotingClient, address: str, *request: Any) -> ReplicaStatus:
            for part in request:
                if part in lost:
                    lost.remove(part)
                    raise TimeoutError
            return await answered(client, address, *request)

        replace_requests(monkeypatch, ask)
        monkeypatch.setattr(hand_over, "RESTORE_PAUSE_S", 0.01)
        found = await promote(new)
        assert (found.role, "did not step down" in found.step_error) == ("SLAVE", True)
        assert await send(old, b"second") == 1
        assert old.broker.role is BrokerRole.ASYNC_MASTER


async def test_a_master_accepts_messages_again_when_its_successor_has_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed after its request, and follows again."""
    monkeypatch.setattr(promotion, "POLL_S", 0.02)
    async with pair(tmp_path) as (_, old, new):
        await old.ask(RequestCode.HAND_OVER, successor=new.broker.address)
        await until(lambda: not old.broker.store.refusal)
        assert await send(old, b"second") == 1


async def test_a_master_accepts_messages_again_when_its_successor_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "POLL_S", 0.02)
    monkeypatch.setattr(role_requests, "GONE_S", 0.1)
    async with pair(tmp_path) as (_, old, new):
        await new.broker.stop()
        await old.ask(RequestCode.HAND_OVER, successor=new.broker.address)
        await until(lambda: not old.broker.store.refusal)


async def test_a_master_that_is_gone_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_requests, "GONE_S", 0.1)
    async with pair(tmp_path) as (_, old, new):
        await old.broker.stop()
        steps = hand_over.HandOver(new.broker, old.broker.address, new.broker.address, print)
        with pytest.raises(ReplicationError, match="no longer runs"):
            await steps.step_down(2)
        await steps.close()


async def catching_up(old: Talk, new: Talk) -> str:
    """Let a replica wait for a log that its master does not have; return how that failed."""
    steps = hand_over.HandOver(new.broker, old.broker.address, new.broker.address, print)
    try:
        with pytest.raises(ReplicationError) as raised:
            await steps.catch_up(old.broker.store.log_range[1] + 1)
    finally:
        await steps.close()
    return str(raised.value)


async def test_a_master_that_dies_is_not_waited_for_by_a_replica_that_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_requests, "GONE_S", 0.1)
    async with pair(tmp_path) as (_, old, new):
        catching = asyncio.ensure_future(catching_up(old, new))
        await asyncio.sleep(0)
        await old.broker.stop()
        said = await catching
        assert said.startswith(f"the master at {old.broker.address} no longer runs; this")
        assert "promote the replica with --force, which loses the rest" in said


async def test_a_master_that_is_silent_is_not_waited_for_by_a_replica_that_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object, **__: object) -> None:
        return None

    async with pair(tmp_path) as (_, old, new):
        monkeypatch.setattr(hand_over, "SILENT_S", 0.1)
        monkeypatch.setattr(hand_over, "try_ask_status", silent)
        said = await catching_up(old, new)
        assert said.startswith(f"the master at {old.broker.address} has been silent for 0.1 sec")
