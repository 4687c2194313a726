"""A broker with two users who share no permission, and attacks of one on the other.

Each claim that a client can present, such as a receipt or a client id, has attacks over remoting
and over gRPC. The page ``docs/design/threat-model.md`` lists the claims.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.access.actors import ROOT, SECURE, acl, info, signed
from tests.broker.brokers import SMALL, text
from tests.broker.secured import SEND
from tests.helpers import PATIENCE_S
from tests.proxy.calls.test_grpc_guard import signed_by
from tests.proxy.fakes import FakeCall, FakeStream, as_read

from firetrail.broker.broker import Broker
from firetrail.proxy.calls.grpc_guard import GrpcGuard
from firetrail.proxy.calls.messaging_service import SERVICE, MessagingService
from firetrail.proxy.schema.messages import Settings, TelemetryCommand
from firetrail.proxy.upstream.embedded import EmbeddedBroker
from firetrail.proxy.upstream.interface import RegisteringBrokers, resolved
from firetrail.proxy.upstream.remote_brokers import ClusterBrokers
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
USERS = {
    "alice": ["Topic:A* Pub,Sub", "Group:GA Sub", f"Topic:{REPLY_TOPIC} Pub"],
    "eve": ["Topic:E* Pub,Sub", "Group:GE Sub", f"Topic:{REPLY_TOPIC} Pub"],
}
"""Their permissions are disjoint, except that both may reply to requests."""


class Disjoint:
    """The broker, its gRPC service, and what both users send to them."""

    def __init__(self, broker: Broker, service: MessagingService, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.service = service
        self._stack = stack
        self._default = self.connect()

    def connect(self, handlers: Mapping[int, Handler] | None = None) -> RemotingClient:
        client = RemotingClient(handlers)
        self._stack.push_async_callback(client.close)
        return client

    async def ask(
        self,
        by: str,
        code: int,
        body: bytes = b"",
        client: RemotingClient | None = None,
        **fields: Any,
    ) -> RemotingCommand:
        """Return the answer to a request that a user has signed."""
        texts = {name: text(value) for name, value in fields.items() if value is not None}
        command = signed(code, texts, body, by=by)
        sender = client or self._default
        return await sender.request(self.broker.address, command, PATIENCE_S)

    async def denied(self, code: int, body: bytes = b"", **fields: Any) -> None:
        """Check that eve may not send a request."""
        answer = await self.ask("eve", code, body, **fields)
        assert answer.code == 16, f"{code} {fields}: {answer.code} {answer.remark}"

    async def send(self, by: str, topic: str, body: bytes = b"x", **more: Any) -> RemotingCommand:
        """SEND_MESSAGE_V2, and wait until the message is readable."""
        fields: dict[str, Any] = {**SEND, "b": topic, **more}
        answer = await self.ask(by, RequestCode.SEND_MESSAGE_V2, body, **fields)
        await self.dispatched()
        return answer

    async def dispatched(self) -> None:
        """Wait until all stored messages are readable."""
        await asyncio.to_thread(self.broker.store.wait_dispatched)

    def bodies(self, topic: str) -> list[bytes]:
        return [record.body for record in self.broker.store.read(topic)]

    async def beat(
        self,
        by: str,
        client_id: str,
        *,
        client: RemotingClient | None = None,
        producer: str = "",
        group: str = "",
        topics: tuple[str, ...] = (),
    ) -> RemotingCommand:
        wanted = [SubscriptionData(topic) for topic in topics]
        beat = HeartbeatData(
            client_id,
            [ProducerData(producer)] if producer else [],
            [ConsumerData(group, subscription_data_set=wanted)] if group else [],
        )
        body = beat.encode(standard=True)
        return await self.ask(by, RequestCode.HEART_BEAT, body, client)

    async def call(self, by: str, name: str, request: Any, client_id: str = "") -> Any:
        """Return the response to a gRPC call, or a list of the frames."""
        method: Any = self.service.methods[SERVICE + name]
        call = FakeCall(signed_by(by, client=client_id or f"client of {by}"))
        answer = await asyncio.wait_for(resolved(method.handle(call, request)), PATIENCE_S)
        return as_read(name, answer)

    def telemetry(
        self, by: str, settings: Settings | None = None, client_id: str = ""
    ) -> tuple[FakeStream, Callable[[TelemetryCommand], None]]:
        """Open a telemetry stream; return it, and what receives the frames of the client."""
        stream = FakeStream(signed_by(by, client=client_id or f"client of {by}"))
        method: Any = self.service.methods[f"{SERVICE}Telemetry"]
        handler = method.handle(stream)
        if settings is not None:
            handler.received(TelemetryCommand(settings=settings))
        return stream, handler.received


@asynccontextmanager
async def disjoint(*, is_cluster: bool = False) -> AsyncIterator[Disjoint]:
    """Run a broker with both users, their topics and their groups.

    Args:
        is_cluster: Whether the gRPC service is a proxy in front of the broker, which knows only the
            user of the proxy. Otherwise it is part of the broker. Default: False.
    """
    async with Broker.running(None, SECURE, SMALL) as broker, AsyncExitStack() as stack:
        users = broker.access.users
        assert users is not None and broker.access.guard is not None
        for name, grants in USERS.items():
            await users.create(info(name))
            await users.merge_acl(acl(name, *grants))
        for owner in "AE":
            kinds = {owner: "NORMAL", f"{owner}D": "DELAY", f"{owner}X": "TRANSACTION"}
            broker.topics.put(
                TopicConfig(name, 1, 1, attributes={"+message.type": kind})
                for name, kind in kinds.items()
            )
            broker.groups.put([SubscriptionGroupConfig(f"G{owner}")])
        guard = GrpcGuard(broker.access.guard, SYSTEM.clock.now_ms)
        brokers: RegisteringBrokers = EmbeddedBroker(broker)
        if is_cluster:
            brokers = cluster = ClusterBrokers(broker.namesrv, Access(ROOT))
            await cluster.open()
            stack.push_async_callback(cluster.close)
        service = MessagingService(brokers, SYSTEM.clock, guard=guard)
        stack.push_async_callback(service.stop)
        yield Disjoint(broker, service, stack)


Attack = Callable[[Disjoint], Awaitable[None]]


class Attacks:
    """The attacks over one protocol, by the claim that is forged."""

    def __init__(self) -> None:
        self.by_claim: dict[str, list[Attack]] = defaultdict(list)

    def on(self, claim: str) -> Callable[[Attack], Attack]:
        """Register an attack on a claim."""

        def register(attack: Attack) -> Attack:
            self.by_claim[claim].append(attack)
            return attack

        return register

    @property
    def rows(self) -> list[tuple[str, Attack]]:
        return [(claim, each) for claim, found in self.by_claim.items() for each in found]
