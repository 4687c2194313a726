"""A proxy in front of brokers of other processes: the same calls, over sockets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.access.actors import ROOT, SECURE, user_store
from tests.broker.brokers import SMALL
from tests.client.clusters import until
from tests.helpers import PATIENCE_S
from tests.proxy.calls.test_grpc_guard import signed_by
from tests.proxy.fakes import FakeCall, FakeStream, as_read

from firetrail import Message as StoredMessage
from firetrail.access.file_access import FileAccess
from firetrail.access.guard import AccessPolicy
from firetrail.access.user_store import UserStore
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import NotReachedError, ProxyError
from firetrail.proxy.calls.grpc_guard import GrpcGuard
from firetrail.proxy.calls.messaging_service import SERVICE, MessagingService
from firetrail.proxy.schema.messages import (
    AckMessageEntry,
    AckMessageRequest,
    Code,
    Duration,
    EndTransactionRequest,
    ForwardMessageToDeadLetterQueueRequest,
    Message,
    MessageQueue,
    MessageType,
    Publishing,
    PullMessageRequest,
    QueryRouteRequest,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Resource,
    SendMessageRequest,
    Settings,
    Subscription,
    SystemProperties,
    TelemetryCommand,
    TransactionResolution,
    TransactionSource,
)
from firetrail.proxy.schema.messages import Broker as BrokerResource
from firetrail.proxy.transport.call import (
    ResponseMessage,
    ResponseStreamMethod,
    StreamMethod,
    UnaryMethod,
)
from firetrail.proxy.upstream import remote_brokers as module
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import RegisteringBrokers, resolved
from firetrail.proxy.upstream.remote_brokers import ABSENT_S, KNOWN_S, ClusterBrokers, KnownSettings
from firetrail.remoting.connections.access import Access
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig, TopicConfig
from firetrail.remoting.messages.pop.receipts import Receipt
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.audit_settings import AuditSettings
from firetrail.system import SYSTEM

CONFIG = BrokerConfig(transaction_timeout_ms=1, auto_create_groups=False)
TOPIC = Resource(name="T")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker.running(None, CONFIG, SMALL) as broker:
        broker.topics.put(
            [
                TopicConfig("T", 1, 1),
                TopicConfig("X", 1, 1, attributes={"+message.type": "TRANSACTION"}),
            ]
        )
        broker.groups.put([SubscriptionGroupConfig("G", retry_max_times=4)])
        yield broker


@pytest.fixture
async def brokers(broker: Broker) -> AsyncIterator[ClusterBrokers]:
    brokers = ClusterBrokers(broker.namesrv)
    await brokers.open()
    yield brokers
    await brokers.close()


@pytest.fixture
async def service(brokers: ClusterBrokers) -> AsyncIterator[MessagingService]:
    complete: RegisteringBrokers = brokers
    service = MessagingService(complete, SYSTEM.clock)
    yield service
    await service.stop()


async def answer_of(service: MessagingService, name: str, request: Any) -> Any:
    method = service.methods[SERVICE + name]
    assert isinstance(method, UnaryMethod | ResponseStreamMethod)
    handle: Any = method.handle
    answer = await asyncio.wait_for(resolved(handle(FakeCall(), request)), PATIENCE_S)
    return as_read(name, answer)


async def joined(service: MessagingService, settings: Settings) -> FakeStream:
    """Open a telemetry stream, and wait for the answer to the settings."""
    stream = FakeStream()
    method = service.methods[f"{SERVICE}Telemetry"]
    assert isinstance(method, StreamMethod)
    method.handle(stream).received(TelemetryCommand(settings=settings))
    await until(lambda: stream.sent)
    assert stream.sent[0].status.code == Code.OK
    return stream


def sending(topic: str, kind: MessageType, message_id: str = "m1") -> SendMessageRequest:
    system = SystemProperties(message_id=message_id, message_type=kind)
    message = Message(topic=Resource(name=topic), body=b"hello", system_properties=system)
    return SendMessageRequest(messages=[message])


def receiving(topic: str, broker: str) -> ReceiveMessageRequest:
    return ReceiveMessageRequest(
        group=Resource(name="G"),
        message_queue=MessageQueue(
            topic=Resource(name=topic), id=-1, broker=BrokerResource(name=broker)
        ),
        batch_size=1,
        invisible_duration=Duration(seconds=30),
    )


class Guarded:
    """A proxy with users of its own, in front of a broker with access control.

    Attributes:
        users: What another process sees of the file of users, which the proxy reads only when it
            has to.
    """

    def __init__(self, service: MessagingService, broker: Broker, users: UserStore) -> None:
        self.service = service
        self.broker = broker
        self.users = users

    async def call(self, name: str, by: str, request: Any) -> Any:
        method: Any = self.service.methods[SERVICE + name]
        call = FakeCall(signed_by(by, client=f"client of {by}"))
        answer = await asyncio.wait_for(resolved(method.handle(call, request)), PATIENCE_S)
        return as_read(name, answer)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    (tmp_path / "proxy").mkdir()
    users = await user_store(
        tmp_path / "proxy", alice=["Topic:T Pub,Sub", "Group:G Sub"], eve=["Topic:E Pub"]
    )
    async with Broker.running(tmp_path / "store", SECURE, SMALL) as broker:
        broker.topics.put([TopicConfig("T", 1, 1), TopicConfig("E", 1, 1)])
        broker.groups.put([SubscriptionGroupConfig("G", retry_max_times=4)])
        brokers = ClusterBrokers(broker.namesrv, Access(ROOT))
        await brokers.open()
        access = FileAccess(tmp_path / "proxy", AccessPolicy(), AuditSettings(), SYSTEM)
        access.open()
        guard = GrpcGuard(access.guard, SYSTEM.clock.now_ms)
        service = MessagingService(brokers, SYSTEM.clock, guard=guard)
        yield Guarded(service, broker, users)
        await service.stop()
        await brokers.close()
        access.close()


async def test_a_proxy_checks_calls_and_signs_its_own_requests(guarded: Guarded) -> None:
    request = sending("T", MessageType.NORMAL)
    assert (await guarded.call("SendMessage", "alice", request)).status.code == Code.OK
    await asyncio.to_thread(guarded.broker.store.wait_dispatched)
    await until(lambda: guarded.broker.store.max_offset("T", 0) == 1)
    for user in ("eve", "nobody"):
        refused = await guarded.call("SendMessage", user, request)
        assert refused.status.code == Code.UNAUTHORIZED
    await until(lambda: guarded.broker.store.max_offset("T", 0) == 1)


@pytest.mark.parametrize("change", ["none", "deleted", "permission deleted"])
async def test_a_receive_that_waits_at_a_proxy_ends_with_the_permission(
    guarded: Guarded, change: str
) -> None:
    request = receiving("T", guarded.broker.config.name)
    request.long_polling_timeout.seconds = 20
    held = asyncio.ensure_future(guarded.call("ReceiveMessage", "alice", request))
    await until(lambda: guarded.broker._parts.state.long_polling._count == 1)
    if change == "deleted":
        await guarded.users.delete("alice")
    elif change == "permission deleted":
        await guarded.users.delete_acl("User:alice")
    guarded.broker.store.put(StoredMessage("T", b"for alice"))
    frames = await held
    if change == "none":
        assert message_in(frames).body == b"for alice"
        return
    decoded = [ReceiveMessageResponse.FromString(each.SerializeToString()) for each in frames]
    assert decoded[0].status.code == Code.UNAUTHORIZED
    assert not any(frame.WhichOneof("content") == "message" for frame in decoded)


@pytest.mark.parametrize("change", ["none", "permission deleted"])
async def test_a_pull_that_waits_at_a_proxy_ends_with_the_permission(
    guarded: Guarded, change: str
) -> None:
    queue = MessageQueue(topic=TOPIC, broker=BrokerResource(name=guarded.broker.config.name))
    request = PullMessageRequest(group=Resource(name="G"), message_queue=queue, batch_size=1)
    request.long_polling_timeout.seconds = 20
    held = asyncio.ensure_future(guarded.call("PullMessage", "alice", request))
    await until(lambda: guarded.broker._parts.state.long_polling._count == 1)
    if change != "none":
        await guarded.users.delete_acl("User:alice")
    guarded.broker.store.put(StoredMessage("T", b"for alice"))
    codes = [each.status.code for each in await held if each.WhichOneof("content") == "status"]
    assert codes == [Code.OK if change == "none" else Code.UNAUTHORIZED]


def message_in(frames: Sequence[ResponseMessage]) -> Message:
    decoded = [ReceiveMessageResponse.FromString(each.SerializeToString()) for each in frames]
    (message,) = [frame.message for frame in decoded if frame.WhichOneof("content") == "message"]
    return message


async def test_a_made_up_receipt_does_not_copy_a_foreign_record(guarded: Guarded) -> None:
    for topic, user in (("T", "alice"), ("E", "eve")):
        sent = await guarded.call("SendMessage", user, sending(topic, MessageType.NORMAL))
        assert sent.status.code == Code.OK
    name = guarded.broker.config.name
    frames = await guarded.call("ReceiveMessage", "alice", receiving("T", name))
    message = message_in(frames)
    receipt = Receipt.decode(message.system_properties.receipt_handle)
    await asyncio.to_thread(guarded.broker.store.wait_dispatched)
    (foreign,) = guarded.broker.store.get("E", 0, 0).messages()
    for offset, code in ((foreign.physical_offset, Code.FORBIDDEN), (None, Code.OK)):
        changed = receipt if offset is None else receipt._replace(log_offset=offset)
        request = ForwardMessageToDeadLetterQueueRequest(
            group=Resource(name="G"),
            topic=TOPIC,
            receipt_handle=changed.encode(),
            message_id=message.system_properties.message_id,
        )
        forwarded = await guarded.call("ForwardMessageToDeadLetterQueue", "alice", request)
        assert forwarded.status.code == code
    await asyncio.to_thread(guarded.broker.store.wait_dispatched)
    await until(lambda: guarded.broker.store.max_offset("%DLQ%G", 0) == 1)


async def test_a_message_is_sent_received_and_acknowledged(service: MessagingService) -> None:
    route = await answer_of(service, "QueryRoute", QueryRouteRequest(topic=TOPIC))
    (queue,) = route.message_queues
    assert route.status.code == Code.OK
    assert list(queue.accept_message_types) == [MessageType.NORMAL]
    sent = await answer_of(service, "SendMessage", sending("T", MessageType.NORMAL))
    assert sent.status.code == Code.OK
    frames = await answer_of(service, "ReceiveMessage", receiving("T", queue.broker.name))
    message = message_in(frames)
    assert message.body == b"hello"
    handle = message.system_properties.receipt_handle
    request = AckMessageRequest(
        group=Resource(name="G"),
        topic=TOPIC,
        entries=[AckMessageEntry(message_id="m1", receipt_handle=handle)],
    )
    assert (await answer_of(service, "AckMessage", request)).status.code == Code.OK


async def test_unknown_topics_and_groups(
    service: MessagingService, brokers: ClusterBrokers
) -> None:
    request = QueryRouteRequest(topic=Resource(name="none"))
    route = await answer_of(service, "QueryRoute", request)
    assert route.status.code == Code.TOPIC_NOT_FOUND
    assert await brokers.topic("none") is None
    assert await brokers.group("none") is None


async def test_brokers_are_asked_once_for_a_group_that_does_not_exist(
    brokers: ClusterBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = brokers._session.ask

    async def counted(address: str, code: int, *more: Any) -> RemotingCommand:
        asked.append(code)
        return await ask(address, code, *more)

    monkeypatch.setattr(brokers._session, "ask", counted)
    for _ in range(10):
        assert await brokers.group("none") is None
    assert asked.count(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == 1


async def test_a_group_decides_the_settings_of_its_consumers(service: MessagingService) -> None:
    settings = Settings(subscription=Subscription(group=Resource(name="G")))
    stream = await joined(service, settings)
    assert stream.sent[0].settings.backoff_policy.max_attempts == 5


async def test_another_broker_name_is_refused(brokers: ClusterBrokers) -> None:
    with pytest.raises(ProxyError, match="no broker 'other' is registered") as caught:
        await brokers.request(ProxyClient("c"), "other", RemotingCommand(1))
    assert caught.value.code == Code.BAD_REQUEST


async def test_a_broker_of_an_unknown_topic_can_be_asked(
    broker: Broker, brokers: ClusterBrokers
) -> None:
    """After a restart of the proxy, an acknowledgement may come before any route is known."""
    command = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
    answer = await brokers.request(ProxyClient("c"), broker.config.name, command)
    assert answer.code == 0


async def test_a_producer_is_asked_for_its_transaction(
    service: MessagingService, broker: Broker
) -> None:
    settings = Settings(publishing=Publishing(topics=[Resource(name="X")]))
    stream = await joined(service, settings)
    sent = await answer_of(service, "SendMessage", sending("X", MessageType.TRANSACTION))
    assert sent.status.code == Code.OK
    stream.sent.clear()
    while not stream.sent:
        await broker.check_transactions()
        await asyncio.sleep(0.01)
    question = stream.sent[0].recover_orphaned_transaction_command
    assert (question.message.body, question.transaction_id) == (b"hello", "m1")
    request = EndTransactionRequest(
        topic=Resource(name="X"),
        message_id="m1",
        transaction_id=question.transaction_id,
        resolution=TransactionResolution.COMMIT,
        source=TransactionSource.SOURCE_SERVER_CHECK,
    )
    assert (await answer_of(service, "EndTransaction", request)).status.code == Code.OK
    await until(lambda: broker.store.max_offset("X", 0) == 1)


async def test_brokers_know_what_clients_publish_to(
    service: MessagingService, broker: Broker
) -> None:
    def registered() -> set[str]:
        return {topic for topic in ("T", "X") if list(broker.clients.producers_of(topic))}

    stream = await joined(service, Settings(publishing=Publishing(topics=[TOPIC])))
    assert registered() == {"T"}
    other = Settings(publishing=Publishing(topics=[Resource(name="X")]))
    await joined(service, other)
    await until(lambda: registered() == {"X"})
    service.clients.leave(service.clients.of(stream))
    await until(lambda: registered() == set())


async def test_a_question_without_a_producer_is_dropped(
    service: MessagingService, brokers: ClusterBrokers, broker: Broker
) -> None:
    settings = Settings(publishing=Publishing(topics=[Resource(name="X")]))
    stream = await joined(service, settings)
    await answer_of(service, "SendMessage", sending("X", MessageType.TRANSACTION))
    stream.finish()
    stream.sent.clear()
    await asyncio.sleep(0.01)
    await broker.check_transactions()
    assert brokers._reachable_producer("X") is None
    assert not stream.sent


async def test_without_a_name_server_the_start_fails() -> None:
    brokers = ClusterBrokers("127.0.0.1:1")
    with pytest.raises(NotReachedError, match="no name server answers"):
        await brokers.open()


def test_settings_are_known_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    known = KnownSettings[str](lambda: now)
    known.add("a", "settings")
    known.add("none", None)
    assert known.get("a") == ("settings", KNOWN_S)
    assert known.get("none") == (None, ABSENT_S)
    assert known.get("b") is None
    now = ABSENT_S
    assert known.get("none") is None
    now = KNOWN_S
    assert known.get("a") is None
    monkeypatch.setattr(module, "KNOWN_MAX", 1)
    known.add("b", "others")
    assert known.get("b") == ("others", 2 * KNOWN_S)
    assert len(known._known) == 1
