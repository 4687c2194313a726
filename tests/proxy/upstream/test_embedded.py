"""The broker in the same process: its answers, its requests to clients, and changes of its role."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace

import pytest
from tests.broker.brokers import SMALL
from tests.client.clusters import until
from tests.helpers import PATIENCE_S

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import ProxyError, RequestError
from firetrail.proxy.schema.messages import Code
from firetrail.proxy.upstream.embedded import EmbeddedBroker, EmbeddedConnection
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import RegisteringBrokers, resolved
from firetrail.remoting.messages.bodies import SubscriptionData, TopicConfig
from firetrail.remoting.wire.codes import Language, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import BrokerRole, FlushMode

NAME = BrokerConfig().name


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker.running(None, None, SMALL) as broker:
        broker.topics.put([TopicConfig("T", 2, 2)])
        yield broker


@pytest.fixture
def brokers(broker: Broker) -> EmbeddedBroker:
    return EmbeddedBroker(broker)


def member(client_id: str = "c1") -> ProxyClient:
    client = ProxyClient(client_id, "192.0.2.7:4321", Language.PYTHON)
    client.published = {"T"}
    client.subscriptions = {"G": {"T": SubscriptionData("T")}}
    return client


def pop(wait_ms: int = 10_000) -> RemotingCommand:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "-1",
        "maxMsgNums": "1",
        "invisibleTime": "60000",
        "pollTime": str(wait_ms),
        "bornTime": "0",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
    }
    return RemotingCommand(RequestCode.POP_MESSAGE, fields)


def held(brokers: EmbeddedBroker) -> str:
    """Return how many pops the broker holds."""
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "-1"}
    answer = brokers.request(member(), NAME, RemotingCommand(RequestCode.POLLING_INFO, fields))
    assert isinstance(answer, RemotingCommand)
    return answer.fields["pollingNum"]


def waiting_for(
    answer: RemotingCommand | Awaitable[RemotingCommand],
) -> asyncio.Future[RemotingCommand]:
    assert not isinstance(answer, RemotingCommand)
    return asyncio.ensure_future(answer)


def sending(body: bytes = b"hello") -> RemotingCommand:
    fields = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
    fields |= {"h": "0", "i": "", "j": "0", "k": "false"}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)


def test_it_is_the_brokers_of_a_proxy(brokers: EmbeddedBroker) -> None:
    complete: RegisteringBrokers = brokers
    assert complete is brokers


async def test_topics_and_groups_are_those_of_the_broker(brokers: EmbeddedBroker) -> None:
    config = brokers.topic("T")
    assert config is not None and config.write_queue_nums == 2
    assert brokers.topic("none") is None
    assert brokers.group("none") is None
    assert brokers.reserved == {
        *("DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"),
        "rmq_sys_REVIVE_LOG_DefaultCluster",
    }


async def test_a_route_has_the_queues_of_this_broker(
    broker: Broker, brokers: EmbeddedBroker
) -> None:
    route = brokers.route("T")
    (queues,) = route.queue_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.perm) == (NAME, 2, 6)
    assert route.broker_datas[0].broker_addrs == {0: broker.address}
    with pytest.raises(RequestError, match="firetrail topic create") as caught:
        brokers.route("none")
    assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_route_follows_the_settings_of_the_topic(
    broker: Broker, brokers: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert brokers.route("T") is brokers.route("T")
    broker.topics.put([TopicConfig("T", 3, 3)])
    assert brokers.route("T").queue_datas[0].read_queue_nums == 3
    monkeypatch.setattr("firetrail.proxy.upstream.embedded.ROUTES_MAX", 1)
    broker.topics.put([TopicConfig("U", 1, 1)])
    assert brokers.route("U").queue_datas[0].read_queue_nums == 1
    assert brokers.route("T").queue_datas[0].read_queue_nums == 3


async def test_a_request_is_answered_at_once(broker: Broker, brokers: EmbeddedBroker) -> None:
    answer = brokers.request(member(), NAME, sending())
    assert isinstance(answer, RemotingCommand)
    assert answer.code == ResponseCode.SUCCESS
    await asyncio.to_thread(broker.store.wait_dispatched)
    (stored,) = broker.store.get("T", int(answer.fields["queueId"]), 0).messages()
    assert str(stored.born_host) == "192.0.2.7:4321"


async def test_another_broker_name_is_refused(brokers: EmbeddedBroker) -> None:
    with pytest.raises(ProxyError, match="no broker 'other' here, only broker-a") as caught:
        brokers.request(member(), "other", sending())
    assert caught.value.code == Code.BAD_REQUEST


async def test_a_pop_waits_for_messages(brokers: EmbeddedBroker) -> None:
    client = member()
    waiting = waiting_for(brokers.request(client, NAME, pop()))
    await asyncio.sleep(0)
    brokers.request(client, NAME, sending(b"awaited"))
    answer = await asyncio.wait_for(waiting, PATIENCE_S)
    assert answer.code == ResponseCode.SUCCESS
    assert b"awaited" in answer.content


async def test_a_cancelled_pop_takes_no_messages(brokers: EmbeddedBroker) -> None:
    client = member()
    waiting = waiting_for(brokers.request(client, NAME, pop()))
    await until(lambda: held(brokers) == "1")
    waiting.cancel()
    await until(lambda: held(brokers) == "0")
    brokers.request(client, NAME, sending(b"kept"))
    answer = await resolved(brokers.request(client, NAME, pop()))
    assert b"kept" in answer.content


async def test_the_broker_lists_clients_and_sends_them_requests(
    broker: Broker, brokers: EmbeddedBroker
) -> None:
    client, got = member(), list[RemotingCommand]()

    def commanded(
        to: ProxyClient, name: str, command: RemotingCommand
    ) -> Awaitable[RemotingCommand] | None:
        assert (to, name) == (client, NAME)
        got.append(command)
        return None if command.is_one_way else resolved(command.answer(remark="told"))

    brokers.on_command = commanded
    brokers.heartbeat(client)
    (producer,) = broker.clients.producers_of("T")
    (consumer,) = broker.clients.consumers["G"].clients.values()
    assert consumer.connection is producer.connection
    assert (consumer.client_id, consumer.language) == ("c1", Language.PYTHON)
    assert [command.code for command in got] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    asked = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO)
    answer = await consumer.connection.request(asked, PATIENCE_S)
    assert answer.remark == "told"


async def test_a_client_that_left_is_forgotten_by_the_broker(
    broker: Broker, brokers: EmbeddedBroker
) -> None:
    client = member()
    brokers.heartbeat(client)
    (consumer,) = broker.clients.consumers["G"].clients.values()
    asking = asyncio.ensure_future(
        consumer.connection.request(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO), 60)
    )
    await asyncio.sleep(0)
    brokers.left(client)
    assert not broker.clients.consumers
    assert not list(broker.clients.producers_of("T"))
    with pytest.raises(ConnectionError):
        await asking
    brokers.left(client)
    brokers.heartbeat(client)
    assert list(broker.clients.producers_of("T"))


async def test_clients_that_the_broker_closes_can_come_back(
    broker: Broker, brokers: EmbeddedBroker
) -> None:
    client = member()
    brokers.heartbeat(client)
    (producer,) = broker.clients.producers_of("T")
    producer.connection.close()
    assert not list(broker.clients.producers_of("T"))
    brokers.heartbeat(client)
    assert list(broker.clients.producers_of("T"))


async def test_a_refused_heartbeat_raises() -> None:
    config = BrokerConfig(auto_create_groups=False)
    async with Broker.running(None, config, SMALL) as broker:
        with pytest.raises(RequestError) as caught:
            EmbeddedBroker(broker).heartbeat(member())
    assert caught.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_clients_stay_during_a_change_of_role(
    broker: Broker, brokers: EmbeddedBroker
) -> None:
    client = member()
    brokers.heartbeat(client)
    brokers.request(client, NAME, sending(b"before"))
    first = await resolved(brokers.request(client, NAME, pop()))
    assert b"before" in first.content
    waiting = waiting_for(brokers.request(client, NAME, pop(60_000)))
    await until(lambda: held(brokers) == "1")
    await broker.become(BrokerRole.SLAVE, 1)
    assert (await waiting).code != ResponseCode.SUCCESS
    refused = await resolved(brokers.request(client, NAME, sending()))
    assert refused.code != ResponseCode.SUCCESS
    assert brokers.route("T").broker_datas[0].broker_addrs == {1: broker.address}
    await broker.become(BrokerRole.ASYNC_MASTER, 0)
    assert [one.client_id for one in broker.clients.producers_of("T")] == ["c1"]
    stored = await resolved(brokers.request(client, NAME, sending(b"after")))
    assert stored.code == ResponseCode.SUCCESS


async def test_a_call_that_ends_early_does_not_stop_the_broker_half_way() -> None:
    """The broker has to know every half message that it stores, so that it checks it later."""
    async with Broker.running(None, None, replace(SMALL, flush=FlushMode.SYNC)) as broker:
        broker.topics.put([TopicConfig("T", 2, 2)])
        command = sending()
        command.fields = {**command.fields, "i": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02", "f": "4"}
        answer = waiting_for(EmbeddedBroker(broker).request(member(), NAME, command))
        await asyncio.sleep(0)
        answer.cancel()
        await until(lambda: len(broker._parts.transactions._open) == 1)


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_the_broker_sees_whether_a_client_speaks_tls(
    brokers: EmbeddedBroker, is_encrypted: bool
) -> None:
    """The audit log of the broker contains it."""
    client = member()
    client.is_encrypted = is_encrypted
    assert EmbeddedConnection(brokers, client).is_encrypted == is_encrypted
