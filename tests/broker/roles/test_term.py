"""A running broker changes its role: its clients stay connected and nothing is lost."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, SUBSCRIPTION, SUSPEND, Talk, talking
from tests.broker.pairs import Group, caught_up
from tests.client.clusters import until
from tests.helpers import PATIENCE_S

from firetrail import Message
from firetrail.broker.broker import Broker
from firetrail.broker.replica import relay
from firetrail.broker.term import Term
from firetrail.errors import ConfigError, StoreError
from firetrail.format.properties import WAIT
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import encode_frame
from firetrail.store.settings.store_config import BrokerRole, FlushMode

MASTER, SLAVE = BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE


async def test_a_broker_changes_its_role_back_and_forth(talk: Talk) -> None:
    await talk.send("T1", b"one")
    await talk.broker.become(SLAVE, 1)
    assert talk.broker.store.config.role is SLAVE
    assert talk.broker.config.broker_id == 1
    assert (await talk.send("T1", b"refused")).code == ResponseCode.SYSTEM_BUSY
    await talk.broker.become(MASTER, 0)
    assert (await talk.send("T1", b"two")).code == ResponseCode.SUCCESS
    assert [record.body for record in await talk.pull_until("T1", 2)] == [b"one", b"two"]


@pytest.mark.parametrize("flush", FlushMode)
@pytest.mark.parametrize("service", ["schedule", "revive"])
async def test_replicas_get_what_a_service_stores_last(
    service: str, flush: FlushMode, tmp_path: Path
) -> None:
    """Delayed and redelivered messages are stored until the services stop."""
    async with Group(tmp_path) as group:
        master = await group.start("m", SMALL.replace(flush=flush))
        await master.send("T1", b"first")
        replica = await group.start("r", SMALL.replace(role=SLAVE))
        await caught_up(replica, master)
        store, part = master.broker.store, getattr(master.broker._parts, service)
        ends = []

        async def store_last() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                assert store.try_put(Message("T1", b"last", properties={WAIT: "false"})).ok
                ends.append(store.log_range[1])

        part._task.cancel()
        part._task = asyncio.ensure_future(store_last())
        await asyncio.sleep(0)
        await master.broker.stop()
        assert [replica.broker.store.log_range[1]] == ends


async def test_state_survives_a_change_of_role(talk: Talk) -> None:
    await talk.send("T1")
    await talk.pull_until("T1", 1)
    await talk.commit(1)
    await talk.broker.become(SLAVE, 1)
    await talk.broker.become(MASTER, 0)
    assert await talk.committed() == 1
    assert talk.broker.topics.get("T1") is not None


async def test_clients_are_known_after_a_change_of_role(talk: Talk) -> None:
    await talk.beat("CG")
    await talk.broker.become(SLAVE, 1)
    assert "CG" in talk.broker.clients.consumers
    await talk.broker.become(MASTER, 0)
    answer = await talk.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="CG")
    assert answer.code == ResponseCode.SUCCESS


async def test_a_held_pull_is_answered_at_a_change_of_role(talk: Talk) -> None:
    await talk.send("T1")
    await talk.pull_until("T1", 1)
    held = asyncio.ensure_future(talk.pull("T1", 1, sysFlag=SUSPEND | SUBSCRIPTION))
    await until(lambda: talk.broker._parts.state.long_polling._held)
    await talk.broker.become(SLAVE, 1)
    assert (await held).code == ResponseCode.PULL_NOT_FOUND


async def test_a_master_needs_id_0(talk: Talk) -> None:
    with pytest.raises(ConfigError, match="brokerId"):
        await talk.broker.become(MASTER, 1)
    assert (await talk.send("T1")).code == ResponseCode.SUCCESS


async def test_a_broker_that_cannot_change_continues_in_its_role(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Term.open

    def fail_once(self: Term, *args: object) -> None:
        monkeypatch.setattr(Term, "open", opened)
        raise StoreError("the store cannot be opened")

    monkeypatch.setattr(Term, "open", fail_once)
    with pytest.raises(StoreError):
        await talk.broker.become(SLAVE, 1)
    assert talk.broker.config.broker_id == 0
    assert (await talk.send("T1")).code == ResponseCode.SUCCESS


async def test_requests_during_a_change_wait_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking() as talk:
        await talk.send("T1")
        has_ended, may_begin = asyncio.Event(), asyncio.Event()
        end = Term.end

        async def end_and_wait(self: Term) -> None:
            await end(self)
            has_ended.set()
            await may_begin.wait()

        monkeypatch.setattr(Term, "end", end_and_wait)
        change = asyncio.ensure_future(talk.broker.become(SLAVE, 1))
        await has_ended.wait()
        monkeypatch.setattr(Term, "end", end)
        sending = asyncio.ensure_future(talk.send("T1"))
        asking = asyncio.ensure_future(talk.committed())
        await until(lambda: len(talk.broker._terms._held._held) == 2)
        may_begin.set()
        await change
        assert (await sending).code == ResponseCode.SYSTEM_BUSY  # the answer of a slave
        await asking


async def test_requests_that_waited_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "CHANGE_S", 0.0)
    async with talking() as talk:
        end, may_begin = Term.end, asyncio.Event()

        async def end_and_wait(self: Term) -> None:
            await end(self)
            monkeypatch.setattr(Term, "end", end)
            await may_begin.wait()

        monkeypatch.setattr(Term, "end", end_and_wait)
        change = asyncio.ensure_future(talk.broker.become(SLAVE, 1))
        await until(lambda: Term.end is end)
        refused = await talk.send("T1")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "changing its role" in (refused.remark or "")
        may_begin.set()
        await change


async def test_a_start_that_fails_answers_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that connects just before must not be told that a request is not supported."""
    broker = Broker(tmp_path, store=SMALL.replace(store_host=SMALL.store_host._replace(port=0)))
    clients: list[socket.socket] = []

    def connect_and_fail(self: Term, *args: object) -> None:
        client = socket.create_connection(split_address(broker.address), PATIENCE_S)
        client.sendall(b"".join(encode_frame(RemotingCommand(RequestCode.HEART_BEAT, {}))))
        clients.append(client)
        raise StoreError("the store cannot be opened")

    monkeypatch.setattr(Term, "open", connect_and_fail)
    with pytest.raises(StoreError, match="cannot be opened"):
        await broker.start()
    with clients[0] as client, suppress(ConnectionResetError):
        assert client.recv(1) == b""
