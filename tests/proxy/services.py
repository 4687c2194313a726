"""The calls that move messages, on a real broker in the same process, without a transport."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.broker.brokers import SMALL
from tests.proxy.fakes import METADATA, FakeCall

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.proxy.calls.consumption.pop_requests import PopRequests
from firetrail.proxy.calls.consumption.receipt_calls import ReceiptCalls
from firetrail.proxy.calls.consumption.receive import ReceiveCalls
from firetrail.proxy.calls.consumption.renewal import Renewals
from firetrail.proxy.calls.messaging_service import DELAY_MAX_MS
from firetrail.proxy.calls.offset_calls import OffsetCalls
from firetrail.proxy.calls.send_calls import SendCalls
from firetrail.proxy.calls.status_codes import status_of
from firetrail.proxy.calls.transaction_calls import KnownTransactions, TransactionCalls
from firetrail.proxy.schema.messages import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    Duration,
    FilterExpression,
    FilterType,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    Message,
    MessageQueue,
    MessageType,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Resource,
    SendMessageRequest,
    SendMessageResponse,
    SystemProperties,
    Timestamp,
)
from firetrail.proxy.schema.messages import Broker as BrokerResource
from firetrail.proxy.upstream.embedded import EmbeddedBroker
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import resolved
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig, TopicConfig, TopicRouteData
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import SYSTEM

BROKER = "broker-a"
GROUP = "CG"


def call_of(left_s: float | None = None, version: str = "") -> FakeCall:
    """A call with a deadline, of a client of some version."""
    call = FakeCall(METADATA | {"x-mq-client-version": version})
    call.left_s = left_s
    return call


class RecordingBroker(EmbeddedBroker):
    """A broker in the same process. Its answers can be replaced by request code."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.more_reserved: set[str] = set()
        self.replaced: dict[int, RemotingCommand] = {}
        self.asked: list[RemotingCommand] = []
        self.waits = False
        """Whether every answer is an awaitable, as those of brokers in other processes are."""

    @property
    def reserved(self) -> frozenset[str]:
        return super().reserved | self.more_reserved

    def _as_asked(self, value: Any) -> Any:
        return resolved(value) if self.waits else value

    def route(self, topic: str) -> TopicRouteData:
        waits, self.waits = self.waits, False  # the base class asks for the topic itself
        try:
            found = super().route(topic)
        finally:
            self.waits = waits
        return cast(TopicRouteData, self._as_asked(found))

    def topic(self, topic: str) -> TopicConfig | None:
        return cast(TopicConfig | None, self._as_asked(super().topic(topic)))

    def group(self, group: str) -> SubscriptionGroupConfig | None:
        return cast(SubscriptionGroupConfig | None, self._as_asked(super().group(group)))

    def request(
        self, client: ProxyClient, broker: str, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        self.asked.append(command)
        if broker == BROKER and command.code in self.replaced:
            found: Any = self.replaced[command.code]
        else:
            found = super().request(client, broker, command)
        return cast(RemotingCommand, self._as_asked(found))


class Service:
    """All calls that move messages, and a client that uses them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.brokers = RecordingBroker(broker)
        self.client = ProxyClient("c1", "192.0.2.7:4321")
        self.now_ms = SYSTEM.clock.now_ms
        self.requests = PopRequests(self.brokers)
        self.renewals = Renewals(self.requests, self.brokers, lambda: self.now_ms(), lambda: 0.0)
        self.known = KnownTransactions()
        self.sending = SendCalls(self.brokers, self.known, lambda: self.now_ms(), DELAY_MAX_MS)
        self.receiving = ReceiveCalls(
            self.brokers, self.requests, self.renewals, lambda: self.now_ms()
        )
        self.receipts = ReceiptCalls(
            self.brokers, self.requests, self.renewals, lambda: self.now_ms()
        )
        self.transactions = TransactionCalls(self.brokers, self.known)
        self.offsets = OffsetCalls(self.brokers)

    async def answer(self, handle: Callable[..., Any], kind: type[Any], request: Any) -> Any:
        """Return the response of a call; an error becomes its status, as in the real service."""
        try:
            return await resolved(handle(FakeCall(), self.client, request))
        except Exception as error:
            return kind(status=status_of(error))

    # -- setting up ---------------------------------------------------------------------------

    async def create_topic(self, name: str, kind: str = "", queues: int = 4, perm: int = 6) -> None:
        attributes = {"+message.type": kind} if kind else None
        self.broker.topics.put([TopicConfig(name, queues, queues, perm, attributes=attributes)])

    def create_group(self, name: str = GROUP, **settings: Any) -> None:
        self.broker.groups.put([SubscriptionGroupConfig(name, **settings)])

    # -- calls --------------------------------------------------------------------------------

    async def send(self, *messages: Message) -> SendMessageResponse:
        request = SendMessageRequest(messages=messages)
        found = await self.answer(self.sending.send, SendMessageResponse, request)
        await asyncio.to_thread(self.broker.store.wait_dispatched)
        return SendMessageResponse.FromString(found.SerializeToString())

    async def frames(
        self, call: FakeCall | None = None, **changes: Any
    ) -> Sequence[ReceiveMessageResponse]:
        request = receive_request(**changes)
        try:
            frames = await self.receiving.receive(call or FakeCall(), self.client, request)
        except Exception as error:
            frames = self.receiving.failed(status_of(error))
        return [ReceiveMessageResponse.FromString(each.SerializeToString()) for each in frames]

    async def receive(self, call: FakeCall | None = None, **changes: Any) -> list[Message]:
        frames = await self.frames(call, **changes)
        return [frame.message for frame in frames if frame.WhichOneof("content") == "message"]

    async def ack(self, *handles: str, topic: str = "T", group: str = GROUP) -> AckMessageResponse:
        request = ack_request(*handles, topic=topic, group=group)
        found = await self.answer(self.receipts.ack, AckMessageResponse, request)
        return AckMessageResponse.FromString(found.SerializeToString())

    async def change(
        self, handle: str, ms: int, topic: str = "T", group: str = GROUP
    ) -> ChangeInvisibleDurationResponse:
        request = change_request(handle, ms, topic, group)
        kind = ChangeInvisibleDurationResponse
        found = await self.answer(self.receipts.change, kind, request)
        return cast(ChangeInvisibleDurationResponse, found)

    async def forward(
        self, handle: str, topic: str = "T", group: str = GROUP
    ) -> ForwardMessageToDeadLetterQueueResponse:
        request = forward_request(handle, topic, group)
        kind = ForwardMessageToDeadLetterQueueResponse
        found = await self.answer(self.receipts.forward, kind, request)
        return cast(ForwardMessageToDeadLetterQueueResponse, found)


def message(
    body: bytes = b"hello", topic: str = "T", message_id: str = "", **system: Any
) -> Message:
    properties = system.pop("properties", {})
    system.setdefault("message_type", MessageType.NORMAL)
    system["message_id"] = message_id or f"01{id(body):032X}"[:34]
    return Message(
        topic=Resource(name=topic),
        user_properties=properties,
        system_properties=SystemProperties(**system),
        body=body,
    )


def receive_request(**changes: Any) -> ReceiveMessageRequest:
    """A receive of all messages of the topic T, which waits 5 s if there are none."""
    tags = changes.pop("tags", None)
    sql = changes.pop("sql", None)
    topic = changes.pop("topic", "T")
    group = changes.pop("group", GROUP)
    broker = changes.pop("broker", BROKER)
    fields: dict[str, Any] = {
        "group": Resource(name=group),
        "message_queue": MessageQueue(
            topic=Resource(name=topic), id=-1, broker=BrokerResource(name=broker)
        ),
        "filter_expression": FilterExpression(
            type=FilterType.SQL if sql is not None else FilterType.TAG,
            expression=sql if sql is not None else tags if tags is not None else "*",
        ),
        "batch_size": 32,
        "invisible_duration": Duration(seconds=30),
    }
    return ReceiveMessageRequest(**(fields | changes))


def ack_request(*handles: str, topic: str = "T", group: str = GROUP) -> AckMessageRequest:
    return AckMessageRequest(
        group=Resource(name=group),
        topic=Resource(name=topic),
        entries=[AckMessageEntry(message_id="m", receipt_handle=each) for each in handles],
    )


def change_request(
    handle: str, ms: int, topic: str = "T", group: str = GROUP
) -> ChangeInvisibleDurationRequest:
    """A change of the invisible time of a message."""
    return ChangeInvisibleDurationRequest(
        group=Resource(name=group),
        topic=Resource(name=topic),
        receipt_handle=handle,
        invisible_duration=Duration(
            seconds=int(ms / 1000), nanos=int(math.fmod(ms, 1000)) * 1_000_000
        ),
    )


def forward_request(
    handle: str, topic: str = "T", group: str = GROUP
) -> ForwardMessageToDeadLetterQueueRequest:
    return ForwardMessageToDeadLetterQueueRequest(
        group=Resource(name=group),
        topic=Resource(name=topic),
        receipt_handle=handle,
        message_id="m",
    )


def at(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def codes(response: Any) -> list[str]:
    """The names of the codes of the entries of a response."""
    return [Code(entry.status.code).name for entry in response.entries]


def code(response: Any) -> str:
    """The name of the code of a response, or of the first of some frames."""
    first = response[0] if isinstance(response, Sequence) else response
    return Code(first.status.code).name


@asynccontextmanager
async def serving(
    config: BrokerConfig | None = None, store: StoreConfig = SMALL
) -> AsyncIterator[Service]:
    async with Broker.running(None, config, store) as broker:
        service = Service(broker)
        try:
            yield service
        finally:
            await service.renewals.stop()
            await service.receiving.stop()
