"""Heartbeats, the end of clients, and lite topics."""

import pytest
from tests.proxy.fakes import FakeBrokers, FakeCall

from firetrail.errors import ProxyError, RequestError
from firetrail.proxy.calls.session_calls import SessionCalls
from firetrail.proxy.schema.messages import (
    ClientType,
    Code,
    HeartbeatRequest,
    NotifyClientTerminationRequest,
    Resource,
    SyncLiteSubscriptionRequest,
)
from firetrail.proxy.upstream.grpc_clients import ProxyClient, ProxyClients
from firetrail.proxy.upstream.interface import resolved
from firetrail.remoting.messages.bodies import ConsumeType, HeartbeatData, SubscriptionData
from firetrail.remoting.wire.codes import ResponseCode


@pytest.fixture(params=["at once", "later"])
def brokers(request: pytest.FixtureRequest) -> FakeBrokers:
    return FakeBrokers(waits=request.param == "later")


class Scene:
    def __init__(self, brokers: FakeBrokers) -> None:
        self.clients = ProxyClients(lambda: 0.0)
        self.calls = SessionCalls(brokers, self.clients)
        self.client = self.clients.of(FakeCall())

    async def beat(self, client_type: int, group: str | None = None) -> int:
        request = HeartbeatRequest(
            client_type=client_type, group=None if group is None else Resource(name=group)
        )
        answer = self.calls.heartbeat(FakeCall(), self.client, request)
        return (await resolved(answer)).status.code


@pytest.fixture
def scene(brokers: FakeBrokers) -> Scene:
    return Scene(brokers)


async def test_a_heartbeat_refreshes_the_registration(scene: Scene, brokers: FakeBrokers) -> None:
    scene.client.published = {"T"}
    assert await scene.beat(ClientType.PRODUCER) == Code.OK
    (beat,) = brokers.beats
    data = HeartbeatData.decode(beat.content)
    assert data.client_id == "c1"
    assert [producer.group_name for producer in data.producer_data_set] == ["T"]


@pytest.mark.parametrize(
    ("client_type", "consume_type"),
    [
        (ClientType.PUSH_CONSUMER, ConsumeType.PASSIVELY),
        (ClientType.SIMPLE_CONSUMER, ConsumeType.ACTIVELY),
    ],
)
async def test_brokers_list_consumers_by_their_type(
    scene: Scene, brokers: FakeBrokers, client_type: ClientType, consume_type: ConsumeType
) -> None:
    scene.client.subscriptions = {"G": {"T": SubscriptionData("T")}}
    assert await scene.beat(client_type, "G") == Code.OK
    (consumer,) = HeartbeatData.decode(brokers.beats[0].content).consumer_data_set
    assert (consumer.group_name, consumer.consume_type) == ("G", consume_type)
    assert [each.topic for each in consumer.subscription_data_set] == ["T"]


@pytest.mark.parametrize("client_type", [ClientType.PRODUCER, ClientType.PUSH_CONSUMER])
async def test_a_client_without_settings_may_send_heartbeats(
    scene: Scene, client_type: ClientType
) -> None:
    """As it does after a restart of the proxy; Java's answers UNRECOGNIZED_CLIENT_TYPE."""
    assert await scene.beat(client_type, "G") == Code.OK
    assert scene.client.client_type == client_type


@pytest.mark.parametrize(
    ("client_type", "group", "code"),
    [
        (ClientType.CLIENT_TYPE_UNSPECIFIED, "G", Code.UNRECOGNIZED_CLIENT_TYPE),
        (ClientType.PUSH_CONSUMER, None, Code.ILLEGAL_CONSUMER_GROUP),
        (ClientType.SIMPLE_CONSUMER, "a b", Code.ILLEGAL_CONSUMER_GROUP),
        (ClientType.LITE_PUSH_CONSUMER, "G", Code.ILLEGAL_CONSUMER_GROUP),
    ],
)
async def test_heartbeats_that_are_refused(
    scene: Scene, client_type: ClientType, group: str | None, code: Code
) -> None:
    with pytest.raises(ProxyError) as caught:
        await scene.beat(client_type, group)
    assert caught.value.code == code


async def test_a_group_may_not_exist_yet(scene: Scene, brokers: FakeBrokers) -> None:
    brokers.refusal = RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no group G")
    assert await scene.beat(ClientType.PUSH_CONSUMER, "G") == Code.OK


async def test_other_refusals_of_brokers_are_told(scene: Scene, brokers: FakeBrokers) -> None:
    brokers.refusal = RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "changing its role")
    with pytest.raises(RequestError, match="changing its role"):
        await scene.beat(ClientType.PRODUCER)


def test_a_client_may_leave_twice(scene: Scene) -> None:
    left: list[ProxyClient] = []
    scene.clients.on_left.append(left.append)
    for _ in range(2):
        request = NotifyClientTerminationRequest(group=Resource(name="G"))
        client = scene.clients.of(FakeCall())
        answer = scene.calls.terminate(FakeCall(), client, request)
        assert answer.status.code == Code.OK
        assert scene.clients.find("c1") is None
    assert len(left) == 2


def test_lite_topics_are_not_supported(scene: Scene) -> None:
    with pytest.raises(ProxyError, match="lite topics are not supported") as caught:
        scene.calls.sync_lite(FakeCall(), scene.client, SyncLiteSubscriptionRequest())
    assert caught.value.code == Code.UNSUPPORTED
