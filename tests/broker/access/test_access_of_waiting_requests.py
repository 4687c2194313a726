"""Requests that wait for messages while their user loses a permission."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.access.actors import acl
from tests.access.audit.test_audit_log import events
from tests.broker.secured import Secured, secured
from tests.client.clusters import until

from firetrail.access.user_bodies import UserInfo
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

CHANGES = {
    "permissions deleted": (RequestCode.AUTH_DELETE_ACL, {"subject": "User:alice"}, None),
    "disabled": (
        RequestCode.AUTH_UPDATE_USER,
        {"username": "alice"},
        UserInfo("alice", user_status="disable"),
    ),
    "new password": (
        RequestCode.AUTH_UPDATE_USER,
        {"username": "alice"},
        UserInfo("alice", password="another long password"),
    ),
    "deleted": (RequestCode.AUTH_DELETE_USER, {"username": "alice"}, None),
}
PULL = {
    "consumerGroup": "CG",
    "topic": "T1",
    "queueId": "0",
    "queueOffset": "1",
    "maxMsgNums": "32",
    "sysFlag": "6",  # wait; the subscription is in the request
    "commitOffset": "0",
    "suspendTimeoutMillis": "60000",
    "subscription": "*",
    "subVersion": "0",
}
POP = {
    "consumerGroup": "CG",
    "topic": "T1",
    "queueId": "0",
    "maxMsgNums": "32",
    "invisibleTime": "60000",
    "pollTime": "60000",
    "bornTime": "0",
    "initMode": "1",
}
WAITING = {
    RequestCode.PULL_MESSAGE: PULL,
    RequestCode.POP_MESSAGE: POP,
    RequestCode.NOTIFICATION: POP,
}


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured(tmp_path) as made:
        await made.allow("alice", "Topic:T1 Sub", "Group:CG Sub")
        assert (await made.send("T1")).code == 0
        made.broker.groups.require("CG")
        await until(lambda: made.broker.store.max_offset("T1", 0) == 1)
        made.broker.offsets.commit("CG", "T1", 0, 1)
        yield made


async def waiting(secure: Secured, code: RequestCode) -> asyncio.Task[RemotingCommand]:
    """Return a request of alice that waits for a message."""
    held = asyncio.create_task(secure.ask(code, WAITING[code], by="alice"))
    long_polling = secure.broker._parts.state.long_polling
    await until(lambda: long_polling._count == 1 or held.done())
    assert not held.done()
    return held


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("code", WAITING)
async def test_a_waiting_request_of_a_user_without_permission_gets_no_message(
    secure: Secured, code: RequestCode, change: str
) -> None:
    held = await waiting(secure, code)
    changing, fields, body = CHANGES[change]
    content = b"" if body is None else body.encode(standard=True)
    assert (await secure.ask(changing, fields, content)).code == 0
    assert (await secure.send("T1")).code == 0
    answer = await held
    assert answer.code == 16
    assert not answer.content
    assert secure.broker.access.audit is not None
    await asyncio.to_thread(secure.broker.access.audit.stop)
    lines = events(secure.broker.access.audit.path)
    (denied,) = (line for line in lines if line["event"] == "denied")
    found = {key: denied[key] for key in ("user", "request", "topic", "code", "reason")}
    assert found == {
        "user": "alice",
        "request": code.name,
        "topic": "T1",
        "code": 16,
        "reason": answer.remark,
    }


@pytest.mark.parametrize("code", WAITING)
async def test_a_waiting_request_is_answered_after_a_change_that_allows_it(
    secure: Secured, code: RequestCode
) -> None:
    held = await waiting(secure, code)
    await secure.grant(acl("alice", "Topic:T2 Pub"))
    assert (await secure.send("T1")).code == 0
    assert (await held).code == 0
