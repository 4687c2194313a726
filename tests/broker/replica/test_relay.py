"""Requests of clients that take a slave for the master."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import Talk
from tests.broker.groups import broker_group
from tests.broker.pairs import pair, promote
from tests.client.clusters import until

from firetrail.broker.replica import relay
from firetrail.broker.replica.relay import NO_MASTER, RELAYED, Relay
from firetrail.broker.roles.held_requests import HeldRequests
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.headers import ConsumerOffsetHeader
from firetrail.remoting.wire.codes import PullFlag, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM

OK = ResponseCode.SUCCESS


async def test_a_former_master_passes_commits_on(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, old, new):
        await promote(new)
        assert (await old.commit(1)).code == OK
        assert await new.committed() == 1
        assert await old.committed() == 1  # before the next copy of the table


async def test_a_former_master_passes_commits_in_pulls_on(tmp_path: Path) -> None:
    async with pair(tmp_path, slave_read=True) as (_, old, new):
        await promote(new)
        flags = PullFlag.COMMIT | PullFlag.SUBSCRIPTION
        answer = await old.pull("T1", 0, sysFlag=int(flags), commitOffset=1)
        assert answer.code == OK
        await until_committed(new, 1)


def relay_of(talk: Talk) -> Relay:
    found = talk.broker._term.relay
    assert found is not None
    return found


async def until_committed(talk: Talk, offset: int) -> None:
    await until(lambda: talk.broker.offsets.get("CG", "T1", 0) == offset)


async def test_a_commit_that_the_master_does_not_get_is_refused(tmp_path: Path) -> None:
    """It is kept as well, until the master's offsets replace it."""
    async with pair(tmp_path) as (_, old, new):
        await old.broker.stop()
        answer = await new.commit(1)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        remark = str(answer.remark)
        assert f"passed on to the master {old.broker.address}" in remark
        assert "it does not answer" in remark
        assert await new.committed() == 1


async def test_a_commit_without_a_signature_is_refused_by_a_former_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with a certificate does not sign, and the slave cannot speak for it."""
    async with pair(tmp_path) as (_, old, new):
        await promote(new)
        monkeypatch.setattr(relay_of(old), "_has_guard", True)
        answer = await old.commit(1)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "has no signature; commit it again at the master" in str(answer.remark)
        assert await new.committed() == 0


async def test_a_slave_that_knows_no_master_keeps_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (_, old, new):
        await old.broker.stop()
        monkeypatch.setattr(relay_of(new), "_master", lambda: None)
        assert (await new.commit(1)).code == OK
        assert await new.committed() == 1


async def test_a_member_passes_sends_and_commits_on_to_the_master(tmp_path: Path) -> None:
    async with broker_group(tmp_path, members=2) as group:
        assert (await group.send(2, b"passed on")).code == OK
        await group.has(1, b"passed on")
        talk = Talk(group.members[2], group.client)
        assert (await talk.commit(1)).code == OK
        assert group.members[1].offsets.get("CG", "T1", 0) == 1
        assert await talk.committed() == 1


async def test_a_request_is_passed_on_once(tmp_path: Path) -> None:
    async with broker_group(tmp_path, members=2) as group:
        header = ConsumerOffsetHeader("CG", "T1", 0, 1)
        command = RemotingCommand(
            RequestCode.UPDATE_CONSUMER_OFFSET, header.encode(), remark=RELAYED
        )
        answer = await group.client.request(group.members[2].address, command)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, NO_MASTER)


async def test_a_slave_does_not_answer_a_query_that_was_passed_on_to_it(tmp_path: Path) -> None:
    """The master may have a newer offset."""
    async with broker_group(tmp_path, members=2) as group:
        header = ConsumerOffsetHeader("CG", "T1", 0)
        command = RemotingCommand(
            RequestCode.QUERY_CONSUMER_OFFSET, header.encode(), remark=RELAYED
        )
        answer = await group.client.request(group.members[2].address, command)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, NO_MASTER)


async def test_a_commit_is_refused_while_a_group_has_no_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "CHANGE_S", 0.1)
    async with broker_group(tmp_path, members=2) as group:
        group.cut_off(1)
        group.cut_off(2)
        group.end_lease()
        replica = group.members[2].replica
        assert replica is not None
        replica.follow_elected(None)
        talk = Talk(group.members[2], group.client)
        answer = await talk.commit(1)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, NO_MASTER)
        assert group.members[2].offsets.get("CG", "T1", 0) is None


async def test_waiting_and_passing_on_share_one_time_limit() -> None:
    """A client that has given up would send the message again."""
    loop = asyncio.get_running_loop()
    request = RemotingCommand(RequestCode.SEND_MESSAGE)
    passing = Relay(None, lambda: None, SYSTEM.clock, in_group=True, has_guard=False)
    held = HeldRequests(lambda connection, request: None)
    held.hold(Connection(RemotingClient()), request)
    assert request.expires_at is not None
    assert request.expires_at <= loop.time() + relay.CHANGE_S
    request.expires_at = loop.time()  # it has waited that long
    held.release()
    assert await passing._pass_on(request) is None, "it is not passed on any more"
    assert request.expires_at <= loop.time()
    await passing.close()
