"""Assignment of queues by the broker, and the mode of consumption."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk, talking

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    AssignmentBody,
    MessageModel,
    QueryAssignmentBody,
    RequestMode,
    TopicConfig,
)
from firetrail.remoting.messages.pop.pop_bodies import RequestModeBody
from firetrail.remoting.wire.codes import RequestCode, ResponseCode


async def ask(
    talk: Talk, client_id: str, topic: str = "T1", strategy: str = "AVG", **more: MessageModel
) -> list[tuple[int, RequestMode]] | None:
    """Return the ids of a client's queues, and the mode of each."""
    body = QueryAssignmentBody(topic, "CG", client_id, strategy, **more).encode(standard=True)
    answer = await talk.ask(RequestCode.QUERY_ASSIGNMENT, body=body)
    assert answer.code == 0
    found = AssignmentBody.decode(answer.content).message_queue_assignments
    if found is None:
        return None
    return [(each.message_queue.queue_id, each.mode) for each in found]


async def set_mode(talk: Talk, share: int, topic: str = "T1") -> int:
    body = RequestModeBody(topic, "CG", RequestMode.POP, share).encode(standard=True)
    return (await talk.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)).code


def ids(assigned: list[tuple[int, RequestMode]] | None) -> list[int]:
    assert assigned is not None
    return [queue_id for queue_id, _ in assigned]


async def join(talk: Talk, *names: str) -> list[RemotingClient]:
    clients = [RemotingClient() for _ in names]
    for name, client in zip(names, clients, strict=True):
        await talk.beat("CG", name, {"T1": "*"}, client)
    return clients


@pytest.mark.parametrize(
    ("strategy", "shares"), [("AVG", [[0, 1], [2, 3]]), ("AVG_BY_CIRCLE", [[0, 2], [1, 3]])]
)
async def test_queues_are_shared_by_strategy_for_pulls(
    talk: Talk, strategy: str, shares: list[list[int]]
) -> None:
    await talk.send("T1")
    clients = await join(talk, "a", "b")
    assert [ids(await ask(talk, name, strategy=strategy)) for name in "ab"] == shares
    assert await ask(talk, "stranger", strategy=strategy) == []
    for client in clients:
        await client.close()


async def test_unknown_groups_and_strategies_get_no_assignment(talk: Talk) -> None:
    assert await ask(talk, "a", "NONE") is None
    await talk.send("T1")
    assert await ask(talk, "a") is None  # no such group
    (client,) = await join(talk, "a")
    assert await ask(talk, "a", strategy="MINE") is None
    everything = await ask(talk, "a", message_model=MessageModel.BROADCASTING)
    assert ids(everything) == [0, 1, 2, 3]
    await client.close()


async def test_pops_share_queues_as_the_mode_says(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await talk.send("T1")
        clients = await join(talk, "a", "b", "c")
        assert await set_mode(talk, 0) == 0
        assert await ask(talk, "b") == [(-1, RequestMode.POP)]
        assert await set_mode(talk, 1) == 0
        assert ids(await ask(talk, "a")) == [0, 1, 2]  # its own two, and the next one's
        assert await set_mode(talk, 9) == 0
        assert ids(await ask(talk, "c")) == [3, 0, 1, 2]
        more = await join(talk, "d", "e")
        assert ids(await ask(talk, "e")) == [0]  # more consumers than queues: each still gets one
        refused = await set_mode(talk, 0, "%RETRY%CG")
        assert refused == ResponseCode.NO_PERMISSION
        for client in clients + more:
            await client.close()
    assert '"popShareQueueNum":9' in (tmp_path / "config" / "messageRequestMode.json").read_text()
    async with talking(tmp_path) as talk:
        (client,) = await join(talk, "a")
        assigned = await ask(talk, "a")
        assert assigned is not None
        assert {mode for _, mode in assigned} == {RequestMode.POP}
        await client.close()


async def test_brokers_of_a_cluster_return_the_same_assignment(talk: Talk) -> None:
    """Each learns the queues of the others from the shared name server."""
    clients = {"a": RemotingClient(), "b": RemotingClient()}
    config = BrokerConfig(name="broker-b", namesrv=talk.broker.namesrv)
    topic = TopicConfig("T1", 2, 2)
    talk.broker.topics.put([topic])
    async with Broker.running(config=config, store=SMALL) as other:
        other.topics.put([topic])
        both = (talk, Talk(other, talk.client))
        routes = other._parts.registration.routes
        while (route := await routes.route("T1")) is None or len(route.queue_datas) < 2:
            routes._routes.clear()
            await asyncio.sleep(0.01)
        for name, share in (("a", ["broker-a"] * 2), ("b", ["broker-b"] * 2)):
            for each in both:
                for member in ("a", "b"):
                    await each.beat("CG", member, {"T1": "*"}, clients[member])
                body = QueryAssignmentBody("T1", "CG", name, "AVG").encode(standard=True)
                answer = await each.ask(RequestCode.QUERY_ASSIGNMENT, body=body)
                found = AssignmentBody.decode(answer.content).message_queue_assignments
                assert found is not None
                assert [mine.message_queue.broker_name for mine in found] == share
    for client in clients.values():
        await client.close()
