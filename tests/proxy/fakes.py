"""Calls and streams without a transport, and brokers without a store, for tests of the calls."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, cast

from firetrail.auth.caller import Caller
from firetrail.broker.pop.ack_processor import PopAck
from firetrail.errors import RequestError
from firetrail.proxy.conversion.protobuf_wire import EncodedMessage
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import TelemetryCommand
from firetrail.proxy.transport.call import ProtobufMessage, StatusCode
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.heartbeats import heartbeat_of
from firetrail.proxy.upstream.interface import ClientCommands, ignored, resolved
from firetrail.remoting.messages.bodies import (
    BrokerData,
    QueueData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRouteData,
)
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

T = TypeVar("T")

METADATA = {"x-mq-client-id": "c1", "x-mq-language": "PYTHON", "x-mq-client-version": "5.1.2"}


class FakeCall:
    """A call whose end the test decides."""

    def __init__(
        self, metadata: Mapping[str, str] = METADATA, *, peer: str = "192.0.2.7:4321"
    ) -> None:
        self.metadata = metadata
        self.peer = peer
        self.caller: Caller | None = None
        self.certificate_user: str | None = None
        self.is_encrypted = True
        self.local = "127.0.0.1:8081"
        self.authority = "broker.example:8081"
        self.left_s: float | None = None
        self.too_fast = False
        self.is_accepted = False
        self._callbacks: list[Callable[[bool], None]] = []

    def is_too_fast(self, request: ProtobufMessage) -> bool:
        return self.too_fast

    def accept(self) -> None:
        self.is_accepted = True

    def remaining_s(self) -> float | None:
        return self.left_s

    def when_done(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)

    def end(self, is_written: bool) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(is_written)


class FakeStream(FakeCall):
    """A stream that keeps what is sent, and how it ended."""

    def __init__(
        self, metadata: Mapping[str, str] = METADATA, *, peer: str = "192.0.2.7:4321"
    ) -> None:
        super().__init__(metadata, peer=peer)
        self.sent: list[TelemetryCommand] = []
        self.ended: tuple[StatusCode, str] | None = None
        self.waiting_bytes = 0

    @property
    def is_open(self) -> bool:
        return self.ended is None

    def send(self, message: ProtobufMessage) -> None:
        if self.is_open:
            self.sent.append(cast(TelemetryCommand, message))

    def finish(self, code: StatusCode = StatusCode.OK, text: str = "") -> None:
        if self.is_open:
            self.ended = (code, text)


class FakeBrokers:
    """Brokers that only know what the test tells them."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        """Whether every answer is an awaitable, as those of other processes are."""
        self.reserved: Collection[str] = ()
        self.topics: dict[str, TopicConfig] = {}
        self.routes: dict[str, TopicRouteData] = {}
        self.groups: dict[str, SubscriptionGroupConfig] = {}
        self.beats: list[RemotingCommand] = []
        self.refusal: Exception | None = None
        """What a heartbeat raises."""
        self.gone: list[ProxyClient] = []
        self.on_command: ClientCommands = ignored

    def add(self, topic: str, queues: int = 1, perm: int = 6, broker_id: int = 0) -> None:
        self.topics[topic] = TopicConfig(topic, queues, queues, perm)
        self.routes[topic] = TopicRouteData(
            [QueueData("broker-a", queues, queues, perm)],
            [BrokerData("broker-a", "C", {broker_id: "127.0.0.1:10911"})],
        )

    def route(self, topic: str) -> TopicRouteData | Awaitable[TopicRouteData]:
        if topic not in self.routes:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist")
        return self._answer(self.routes[topic])

    def topic(self, topic: str) -> TopicConfig | Awaitable[TopicConfig | None] | None:
        return self._answer(self.topics.get(topic))

    def group(
        self, group: str
    ) -> SubscriptionGroupConfig | Awaitable[SubscriptionGroupConfig | None] | None:
        return self._answer(self.groups.get(group))

    def request(
        self, client: ProxyClient, broker: str, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        raise AssertionError("no broker is asked in this test")

    def withdraw(self, answer: asyncio.Future[RemotingCommand]) -> bool:
        raise AssertionError("no request is withdrawn in this test")

    def acknowledge(
        self, client: ProxyClient, broker: str, acks: Sequence[PopAck]
    ) -> Sequence[RemotingCommand | Awaitable[RemotingCommand]]:
        raise AssertionError("no message is acknowledged in this test")

    def heartbeat(self, client: ProxyClient) -> Awaitable[None] | None:
        self.beats.append(heartbeat_of(client))
        if self.waits:
            return self._beat()
        if self.refusal is not None:
            raise self.refusal
        return None

    async def _beat(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def release(self) -> None:
        pass

    def left(self, client: ProxyClient) -> None:
        self.gone.append(client)

    def _answer(self, value: T) -> T | Awaitable[T]:
        return resolved(value) if self.waits else value


def as_read(name: str, answer: Any) -> Any:
    """The response of a call as its client reads it; frames as they are."""
    if isinstance(answer, EncodedMessage):
        return getattr(messages, f"{name}Response").FromString(answer)
    return answer
