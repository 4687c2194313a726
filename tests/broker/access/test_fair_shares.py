"""One user's share of what all users share: others still get in, and so does a super user."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from tests.broker.brokers import Talk
from tests.broker.secured import Secured, secured
from tests.client.clusters import until

from firetrail.broker.pop import pop_checkpoints
from firetrail.broker.services import long_polling, memberships, rebalance_locks
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    HeartbeatData,
    LockBody,
    LockedBody,
    MessageQueue,
    ProducerData,
)
from firetrail.remoting.messages.headers import EndTransactionHeader
from firetrail.remoting.messages.pop.pop_headers import PopResponse
from firetrail.remoting.messages.pop.receipts import NORMAL, Receipt
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

MOST = 8
"""The limit for all, whatever is limited."""
MESSAGES = 12
POP = {
    "topic": "T1",
    "queueId": "0",
    "maxMsgNums": "1",
    "invisibleTime": "3600000",
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
}
PULL = {
    "consumerGroup": "CG",
    "topic": "T1",
    "queueId": "0",
    "queueOffset": str(MESSAGES),
    "maxMsgNums": "32",
    "sysFlag": "6",  # wait; the subscription is in the request
    "commitOffset": "0",
    "suspendTimeoutMillis": "60000",
    "subscription": "*",
    "subVersion": "0",
}


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured(tmp_path) as made:
        for name in ("alice", "bob"):
            await made.allow(name, "Topic:* Pub,Sub", "Group:* Sub")
        for _ in range(MESSAGES):
            assert (await made.send("T1")).code == 0
        await asyncio.to_thread(made.broker.store.wait_dispatched)
        yield made


# -- pops -------------------------------------------------------------------------------------


async def pop(secure: Secured, by: str, group: str) -> RemotingCommand:
    return await secure.ask(RequestCode.POP_MESSAGE, POP | {"consumerGroup": group}, by=by)


async def pop_all(
    secure: Secured, by: str, prefix: str = "alice"
) -> tuple[list[RemotingCommand], RemotingCommand]:
    """Pop in ever more groups; return the answers with messages, and the refusal."""
    answers: list[RemotingCommand] = []
    for number in count():
        answer = await pop(secure, by, f"{prefix}-{number}")
        if answer.code:
            return answers, answer
        answers.append(answer)
    raise AssertionError


async def test_one_user_cannot_have_all_open_pops(
    secure: Secured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pop_checkpoints, "OPEN_MAX", MOST)
    taken, refusal = await pop_all(secure, "alice")
    assert (len(taken), refusal.code) == (4, ResponseCode.POLLING_FULL)
    expected = "group alice-4 of user alice has 0 open pops, and all callers have 4 of at most 8"
    assert (refusal.remark or "").startswith(expected)
    assert expected in caplog.text
    assert (await pop(secure, "bob", "B")).code == 0
    assert (await pop(secure, "root", "R")).code == 0


async def first_pop(secure: Secured) -> dict[str, str]:
    """Let a user pop as much as it may; return the fields of requests about its first message."""
    (first, *_), _ = await pop_all(secure, "alice")
    popped = PopResponse.decode(first.fields)
    times = (popped.pop_time, popped.invisible_time, popped.revive_qid)
    receipt = Receipt(0, *times, NORMAL, secure.broker.config.name, 0, 0).encode()
    fields = {"consumerGroup": "alice-0", "topic": "T1", "queueId": "0", "offset": "0"}
    return fields | {"extraInfo": receipt}


async def test_an_acknowledgement_makes_room_for_its_user(
    secure: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_checkpoints, "OPEN_MAX", MOST)
    fields = await first_pop(secure)
    assert (await secure.ask(RequestCode.ACK_MESSAGE, fields, by="alice")).code == 0
    assert (await pop(secure, "alice", "more")).code == 0
    assert (await pop(secure, "alice", "most")).code == ResponseCode.POLLING_FULL


async def test_a_longer_invisible_time_stays_with_its_user(
    secure: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_checkpoints, "OPEN_MAX", MOST)
    fields = await first_pop(secure)
    change = fields | {"invisibleTime": "7200000"}
    changing = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    assert (await secure.ask(changing, change, by="alice")).code == 0
    assert (await pop(secure, "alice", "more")).code == ResponseCode.POLLING_FULL
    assert (await pop(secure, "bob", "B")).code == 0


async def test_open_pops_leave_room_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_checkpoints, "OPEN_MAX", MOST)
    async with secured(tmp_path) as first:
        await first.allow("alice", "Topic:* Pub,Sub", "Group:* Sub")
        await first.allow("bob", "Topic:* Pub,Sub", "Group:* Sub")
        assert (await first.send("T1")).code == 0
        await asyncio.to_thread(first.broker.store.wait_dispatched)
        await pop_all(first, "alice")
    async with secured(tmp_path) as second:
        again, _ = await pop_all(second, "alice", "other")
        assert len(again) == 2  # who has popped before is not recorded
        assert (await pop(second, "bob", "B")).code == 0
        assert (await pop(second, "root", "R")).code == 0


# -- transactions -----------------------------------------------------------------------------


async def begin(secure: Secured, by: str, group: str) -> RemotingCommand:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02UNIQ_KEY\x01{by}{group}"
    return await secure.send("T2", by=by, a=group, f="4", i=properties)


async def test_one_user_cannot_have_all_open_transactions(
    secure: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    changed = await secure.ask(
        RequestCode.UPDATE_BROKER_CONFIG, body=b"open_transactions_max=%d" % MOST
    )
    assert changed.code == 0, changed.remark
    begun = [await begin(secure, "alice", f"P{number}") for number in range(5)]
    assert [each.code for each in begun] == [0, 0, 0, 0, ResponseCode.SYSTEM_BUSY]
    expected = "group P4 of user alice has 0 open transactions, and all callers have 4 of at most 8"
    assert expected in (begun[-1].remark or "")
    assert expected in caplog.text
    assert (await begin(secure, "bob", "P0")).code == 0
    assert (await begin(secure, "root", "P0")).code == 0
    assert (await end(secure, begun[0], "P0")).code == 0
    assert (await end(secure, begun[1], "P1")).code == 0
    assert (await begin(secure, "alice", "P5")).code == 0


async def end(secure: Secured, begun: RemotingCommand, group: str) -> RemotingCommand:
    """Roll a transaction of alice back."""
    header = EndTransactionHeader(
        producer_group=group,
        tran_state_table_offset=int(begun.fields["queueOffset"]),
        commit_log_offset=int(begun.fields["msgId"][-16:], 16),
        commit_or_rollback=12,
    )
    return await secure.ask(RequestCode.END_TRANSACTION, dict(header.encode()), by="alice")


# -- requests that wait -----------------------------------------------------------------------


async def test_one_user_cannot_have_all_waiting_requests(
    secure: Secured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(long_polling, "HELD_BYTES", (MOST + 1) * long_polling.HELD_LEAST)
    polling = secure.broker._parts.state.long_polling
    waiting = [
        asyncio.create_task(secure.ask(RequestCode.PULL_MESSAGE, PULL, by="alice"))
        for _ in range(MOST)
    ]
    await until(lambda: sum(each.done() for each in waiting) == MOST - 4)
    assert polling._count == 4
    assert "user alice has 10736 bytes of pulls and pops that wait" in caplog.text
    wait = POP | {"consumerGroup": "CG", "queueId": "3", "pollTime": "60000"}
    full = await secure.ask(RequestCode.POP_MESSAGE, wait, by="alice")
    assert full.code == ResponseCode.POLLING_FULL
    assert (full.remark or "").startswith("user alice has 10736 bytes")
    for by in ("bob", "root"):
        waiting.append(asyncio.create_task(secure.ask(RequestCode.POP_MESSAGE, wait, by=by)))
    await until(lambda: polling._count == 4 + 2)
    await secure._client.close()
    await until(lambda: polling._count == 0)
    assert (polling._shares.total, len(polling._shares)) == (0, 0)
    await asyncio.gather(*waiting, return_exceptions=True)


# -- groups of clients, and locks -------------------------------------------------------------


async def test_one_user_cannot_have_all_groups_of_clients(
    secure: Secured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The name of a producer group needs no permission."""
    monkeypatch.setattr(memberships, "TOTAL_MAX", MOST)

    async def join(by: str, count: int) -> RemotingCommand:
        beat = HeartbeatData(by, [ProducerData(f"{by}-{number}") for number in range(count)], [])
        return await own[by].ask(RequestCode.HEART_BEAT, body=beat.encode(standard=True), by=by)

    clients = {by: RemotingClient() for by in ("alice", "bob", "root")}
    own = {by: Secured(Talk(secure.broker, client)) for by, client in clients.items()}
    answers = [await join("alice", count) for count in (4, 5, 4)]
    assert [each.code for each in answers] == [0, ResponseCode.SYSTEM_BUSY, 0]
    expected = "user alice has 4 groups of clients, and all callers have 4 of at most 8"
    assert (answers[1].remark or "").startswith(expected)
    assert expected in caplog.text
    assert (await join("bob", 2)).code == 0
    assert (await join("root", 2)).code == 0
    for client in clients.values():
        await client.close()


async def test_one_user_cannot_have_all_locks(
    secure: Secured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rebalance_locks, "LOCKS_MAX", MOST)
    name = secure.broker.config.name
    queues = [MessageQueue("T1", name, number) for number in range(4)]

    async def change(code: int, by: str, group: str) -> RemotingCommand:
        body = LockBody(group, by, queues).encode(standard=True)
        answer = await secure.ask(code, body=body, by=by)
        assert answer.code == 0, answer.remark
        return answer

    async def lock(by: str, group: str) -> int:
        answer = await change(RequestCode.LOCK_BATCH_MQ, by, group)
        return len(LockedBody.decode(answer.content).locked)

    assert [await lock("alice", f"A{number}") for number in (0, 1, 2, 0)] == [3, 1, 0, 3]
    assert "group A2 of user alice has 0 locked queues, and all callers have 4 of" in caplog.text
    assert await lock("bob", "B") == 2
    assert await lock("root", "R") == 1
    await change(RequestCode.UNLOCK_BATCH_MQ, "alice", "A0")
    assert await lock("alice", "A2") == 1
    for by, group in (("alice", "A1"), ("alice", "A2"), ("bob", "B"), ("root", "R")):
        await change(RequestCode.UNLOCK_BATCH_MQ, by, group)
    shares = secure.broker._parts.locks._shares
    assert (shares.total, len(shares)) == (0, 0)
