"""The service as a whole: every call, without a client id and with one, and clients that leave."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from tests.broker.brokers import SMALL
from tests.client.clusters import until
from tests.proxy.fakes import METADATA, FakeCall, FakeStream, as_read

from firetrail.broker.broker import Broker
from firetrail.proxy.calls import messaging_service as module
from firetrail.proxy.calls.messaging_service import SERVICE, MessagingService
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import (
    Code,
    Message,
    NotifyClientTerminationRequest,
    Publishing,
    QueryRouteRequest,
    Resource,
    SendMessageRequest,
    Settings,
    SystemProperties,
    TelemetryCommand,
)
from firetrail.proxy.transport.call import ResponseStreamMethod, StreamMethod, UnaryMethod
from firetrail.proxy.upstream.embedded import EmbeddedBroker
from firetrail.proxy.upstream.grpc_clients import SILENT_S
from firetrail.proxy.upstream.interface import resolved
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.system import SYSTEM

STREAMS = {"Telemetry"}
FRAMES = {"ReceiveMessage", "PullMessage"}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker.running(None, None, SMALL) as broker:
        broker.topics.put([TopicConfig("T", 1, 1)])
        yield broker


@pytest.fixture
async def service(broker: Broker) -> AsyncIterator[MessagingService]:
    service = MessagingService(EmbeddedBroker(broker), SYSTEM.clock)
    service.start()
    yield service
    await service.stop()


async def answer_of(
    service: MessagingService, name: str, request: Any, metadata: dict[str, str] = METADATA
) -> Any:
    method = service.methods[SERVICE + name]
    assert isinstance(method, UnaryMethod | ResponseStreamMethod)
    handle: Callable[..., Any] = method.handle
    return as_read(name, await resolved(handle(FakeCall(metadata), request)))


def code_in(answer: Any) -> Code:
    first = answer[0] if isinstance(answer, Sequence) else answer
    return Code(first.status.code)


async def test_every_method_of_the_schema_is_served(service: MessagingService) -> None:
    schema = messages.POOL.FindServiceByName("apache.rocketmq.v2.MessagingService")
    kinds = {UnaryMethod: set[str](), ResponseStreamMethod: set[str](), StreamMethod: set[str]()}
    for path, method in service.methods.items():
        kinds[type(method)].add(path.removeprefix(SERVICE))
        declared = schema.methods_by_name[path.removeprefix(SERVICE)]
        assert method.request.DESCRIPTOR is declared.input_type  # type: ignore[attr-defined]
    assert kinds[StreamMethod] == STREAMS
    assert kinds[ResponseStreamMethod] == FRAMES
    assert {*schema.methods_by_name} == set().union(*kinds.values())


async def test_every_call_needs_a_client_id(service: MessagingService) -> None:
    for path, method in service.methods.items():
        if not isinstance(method, StreamMethod):
            name = path.removeprefix(SERVICE)
            answer = await answer_of(service, name, method.request(), {})
            assert code_in(answer) is Code.CLIENT_ID_REQUIRED, name


async def test_only_sends_may_be_large(service: MessagingService) -> None:
    """Each empty element of a list takes two bytes, and forty times as much memory."""
    limits = {
        path.removeprefix(SERVICE): each.request_bytes for path, each in service.methods.items()
    }
    assert limits.pop("SendMessage") is None
    assert limits.pop("Telemetry") == 4 << 20
    assert set(limits.values()) == {1 << 20}


async def test_no_call_of_an_address_that_is_too_fast_is_handled(service: MessagingService) -> None:
    for path, method in service.methods.items():
        call = FakeStream()
        call.too_fast = True
        if isinstance(method, StreamMethod):
            method.handle(call)
            assert (path, call.sent[-1].status.code) == (path, Code.TOO_MANY_REQUESTS)
        else:
            handle: Callable[..., Any] = method.handle
            answer = await resolved(handle(call, method.request()))
            assert (path, code_in(answer)) == (path, Code.TOO_MANY_REQUESTS)
    assert len(service.clients) == 0


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("QueryRoute", Code.ILLEGAL_TOPIC),
        ("QueryAssignment", Code.ILLEGAL_TOPIC),
        ("SendMessage", Code.MESSAGE_CORRUPTED),
        ("Heartbeat", Code.UNRECOGNIZED_CLIENT_TYPE),
        ("NotifyClientTermination", Code.OK),
        ("SyncLiteSubscription", Code.UNSUPPORTED),
        ("ReceiveMessage", Code.ILLEGAL_TOPIC),
        ("PullMessage", Code.ILLEGAL_CONSUMER_GROUP),
        ("EndTransaction", Code.ILLEGAL_TOPIC),
        ("RecallMessage", Code.ILLEGAL_TOPIC),
    ],
)
async def test_an_empty_request_has_a_code(
    service: MessagingService, name: str, code: Code
) -> None:
    request = getattr(messages, f"{name}Request")()
    assert code_in(await answer_of(service, name, request)) is code


async def test_messages_are_sent(service: MessagingService, broker: Broker) -> None:
    message = Message(
        topic=Resource(name="T"),
        body=b"hello",
        system_properties=SystemProperties(
            message_id="m1", message_type=messages.MessageType.NORMAL
        ),
    )
    answer = await answer_of(service, "SendMessage", SendMessageRequest(messages=[message]))
    assert code_in(answer) is Code.OK
    await asyncio.to_thread(broker.store.wait_dispatched)
    assert [record.body for record in broker.store.read("T")] == [b"hello"]


async def test_an_unknown_topic_is_not_created(service: MessagingService, broker: Broker) -> None:
    request = QueryRouteRequest(topic=Resource(name="none"))
    answer = await answer_of(service, "QueryRoute", request)
    assert code_in(answer) is Code.TOPIC_NOT_FOUND
    assert "firetrail topic create" in answer.status.message
    assert broker.topics.get("none") is None


async def joined(service: MessagingService, broker: Broker) -> FakeStream:
    stream = FakeStream()
    method = service.methods[f"{SERVICE}Telemetry"]
    assert isinstance(method, StreamMethod)
    settings = Settings(publishing=Publishing(topics=[Resource(name="T")]))
    method.handle(stream).received(TelemetryCommand(settings=settings))
    assert [one.client_id for one in broker.clients.producers_of("T")] == ["c1"]
    return stream


async def test_a_client_that_leaves_is_forgotten(service: MessagingService, broker: Broker) -> None:
    await joined(service, broker)
    request = NotifyClientTerminationRequest()
    assert code_in(await answer_of(service, "NotifyClientTermination", request)) is Code.OK
    assert not list(broker.clients.producers_of("T"))
    assert not len(service.clients)


async def test_silent_clients_are_forgotten(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0.01)
    service = MessagingService(EmbeddedBroker(broker), SYSTEM.clock)
    service.start()
    stream = await joined(service, broker)
    service.clients.of(stream).last_seen -= SILENT_S + 1
    await until(lambda: stream.ended)
    assert not list(broker.clients.producers_of("T"))
    await service.stop()


async def test_calls_that_arrive_together_are_refused_one_by_one(service: MessagingService) -> None:
    method = service.methods[f"{SERVICE}AckMessage"]
    assert isinstance(method, UnaryMethod)
    assert method.handle_all is not None
    calls = [(FakeCall(metadata), method.request()) for metadata in (METADATA, {}, METADATA)]
    answers = [await resolved(answer) for answer in method.handle_all(calls)]
    refused, unnamed = Code.ILLEGAL_TOPIC, Code.CLIENT_ID_REQUIRED
    assert [code_in(answer) for answer in answers] == [refused, unnamed, refused]
