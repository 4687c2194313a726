"""Connected clients: heartbeats, id lists, notifications, and how clients leave."""

import asyncio

from tests.broker.brokers import Fields, Talk, talking
from tests.client.clusters import WAIT_S, until

from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    CheckClientBody,
    ConsumerIdList,
    LockBody,
    LockedBody,
    MessageQueue,
    SubscriptionData,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

CPP_HEARTBEAT = b"""{"clientID":"10.0.0.1@7","consumerDataSet":[{"consumeFromWhere":0,
"consumeType":1,"groupName":"CG","messageModel":1,"subscriptionDataSet":[{"subString":"*",
"subVersion":"1600000000000","topic":"T1"}]}],"producerDataSet":[{"groupName":"PG"}]}
"""


async def ids(talk: Talk, group: str = "CG") -> list[str]:
    answer = await talk.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    return ConsumerIdList.decode(answer.content).consumer_id_list if answer.code == 0 else []


class Notices:
    """A client that records the notifications of the broker."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.client = RemotingClient({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._take})

    def _take(self, connection: Connection, request: RemotingCommand) -> None:
        self.groups.append(request.fields["consumerGroup"])


async def test_a_heartbeat_registers_a_consumer(talk: Talk) -> None:
    answer = await talk.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="CG")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (await talk.beat("CG", "c1")).code == 0
    assert await ids(talk) == ["c1"]
    assert talk.broker.topics.require("%RETRY%CG").read_queue_nums == 1


async def test_a_heartbeat_of_the_cpp_client_is_accepted(talk: Talk) -> None:
    assert (await talk.ask(RequestCode.HEART_BEAT, body=CPP_HEARTBEAT)).code == 0
    assert await ids(talk) == ["10.0.0.1@7"]
    subscription = talk.broker.clients.subscription("CG", "T1")
    assert subscription is not None
    assert (subscription.sub_string, subscription.sub_version) == ("*", 1600000000000)
    assert [c.client_id for c in talk.broker.clients.producers_of("PG")] == ["10.0.0.1@7"]


async def test_invalid_heartbeats_are_refused(talk: Talk) -> None:
    for body in (b"", b"{", b"[]", b'{"clientID":5}', b"[" * 100_000):
        assert (await talk.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SYSTEM_ERROR
    assert (await talk.beat("no/group")).code == ResponseCode.SYSTEM_ERROR
    assert (await talk.beat(producer="no/group")).code == ResponseCode.SYSTEM_ERROR


async def test_members_are_notified_when_others_join_and_leave(talk: Talk) -> None:
    first, second = Notices(), Notices()
    await talk.beat("CG", "c1", client=first.client)
    await talk.beat("CG", "c2", client=second.client)
    assert sorted(await ids(talk)) == ["c1", "c2"]
    await talk.beat("CG", "c2", client=second.client)  # nothing new
    await until(lambda: len(first.groups) >= 2 and second.groups)
    await asyncio.sleep(0.02)
    assert (first.groups, second.groups) == (["CG", "CG"], ["CG"])
    await second.client.close()
    await until(lambda: len(first.groups) >= 3)
    assert await ids(talk) == ["c1"]
    assert first.groups == ["CG", "CG", "CG"]
    await talk.beat("CG", "c1", {"T1": "A"}, client=first.client)
    await until(lambda: len(first.groups) >= 4)  # its subscription has changed
    await first.client.close()


async def test_a_client_that_unregisters_is_removed(talk: Talk) -> None:
    await talk.beat("CG", "c1")
    await talk.beat(producer="PG")
    gone: Fields = {"clientID": "c1", "consumerGroup": "CG", "producerGroup": "PG"}
    assert (await talk.ask(RequestCode.UNREGISTER_CLIENT, gone)).code == 0
    assert await ids(talk) == []
    assert not list(talk.broker.clients.producers_of("PG"))
    assert (await talk.ask(RequestCode.UNREGISTER_CLIENT, gone)).code == 0


async def test_a_client_without_heartbeats_is_removed() -> None:
    async with talking(config=BrokerConfig(client_expiry_ms=100)) as talk:
        silent = RemotingClient()
        await talk.beat("CG", "c1", client=silent)
        async with asyncio.timeout(WAIT_S):
            while await ids(talk) != ["c2"]:
                await talk.beat("CG", "c2")
                talk.broker.clients.expire()
                await asyncio.sleep(0.01)
        await silent.close()


async def test_two_connections_with_one_client_id_count_once(talk: Talk) -> None:
    other = RemotingClient()
    await talk.beat("CG", "same")
    await talk.beat("CG", "same", client=other)
    assert await ids(talk) == ["same"]
    await other.close()
    await asyncio.sleep(0.05)
    assert await ids(talk) == ["same"]


async def check(talk: Talk, text: str, kind: str) -> int:
    body = CheckClientBody("c1", "CG", SubscriptionData("T1", text, kind))
    return (await talk.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())).code


async def test_a_filter_is_checked_before_it_is_used(talk: Talk) -> None:
    assert await check(talk, "a > 1", "SQL92") == 0
    assert await check(talk, "A || B", "TAG") == 0
    assert await check(talk, "a >", "SQL92") == ResponseCode.SUBSCRIPTION_PARSE_FAILED


class TestLocks:
    QUEUES = tuple(MessageQueue("T1", "broker-a", n) for n in range(3))

    async def lock(self, talk: Talk, client_id: str, *queues: MessageQueue) -> list[MessageQueue]:
        body = LockBody("CG", client_id, list(queues)).encode()
        return LockedBody.decode(
            (await talk.ask(RequestCode.LOCK_BATCH_MQ, body=body)).content
        ).locked

    async def test_a_queue_is_locked_by_one_client(self, talk: Talk) -> None:
        first, second, third = self.QUEUES
        await talk.send("T1")
        assert await self.lock(talk, "c1", first, second) == [first, second]
        assert await self.lock(talk, "c2", second, third) == [third]
        assert await self.lock(talk, "c1", second) == [second]
        body = LockBody("CG", "c1", [second, third]).encode()
        assert (await talk.ask(RequestCode.UNLOCK_BATCH_MQ, body=body)).code == 0
        assert await self.lock(talk, "c2", first, second) == [second]
        assert await self.lock(talk, "c1", third) == []  # only the owner can unlock it
