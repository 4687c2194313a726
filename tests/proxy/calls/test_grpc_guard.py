"""The guard of the gRPC service: signatures, permissions, and clients of other users."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.access.actors import SECURE, Users, acl, credentials, info, user_store
from tests.access.audit.test_audit_log import events
from tests.broker.brokers import SMALL
from tests.client.clusters import until
from tests.proxy.fakes import METADATA, FakeCall, FakeStream
from tests.proxy.services import receive_request
from tests.remoting.clocks import Clock

from firetrail.access.audit.audit_log import AuditLog
from firetrail.access.guard import AccessPolicy, Guard
from firetrail.access.implied_permissions import NOT_YOURS
from firetrail.access.user_bodies import UserInfo
from firetrail.access.user_limits import UserLimits
from firetrail.access.user_store import UserStore
from firetrail.auth.policies import User
from firetrail.auth.signature import Signer
from firetrail.broker.broker import Broker
from firetrail.errors import ProxyError
from firetrail.format.kernels.draft import Message
from firetrail.proxy.calls.grpc_guard import CALL_NEEDS, GrpcGuard
from firetrail.proxy.calls.messaging_service import SERVICE, MessagingService
from firetrail.proxy.proxy import Proxy
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import (
    ClientType,
    Code,
    MessageQueue,
    Publishing,
    Resource,
    Settings,
    Subscription,
    SubscriptionEntry,
    TelemetryCommand,
)
from firetrail.proxy.transport.call import StatusCode
from firetrail.proxy.upstream.embedded import EmbeddedBroker
from firetrail.proxy.upstream.interface import resolved
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.servers.addresses import source_of
from firetrail.settings.audit_settings import AuditSettings
from firetrail.settings.server_limits import ServerLimitSettings
from firetrail.system import SYSTEM

NOW = datetime.now(UTC)


def signed_by(name: str, *, age: timedelta = timedelta(), client: str = "c1") -> dict[str, str]:
    date = (NOW - age).strftime("%Y%m%dT%H%M%SZ")
    return {
        **METADATA,
        "x-mq-client-id": client,
        "x-mq-date-time": date,
        "authorization": Signer(credentials(name)).grpc_authorization(date),
    }


class Secured:
    """The service of a broker, with users."""

    def __init__(
        self,
        broker: Broker,
        users: UserStore,
        policy: AccessPolicy,
        audit: AuditLog | None = None,
        limits: UserLimits | None = None,
    ) -> None:
        known = Guard(users, policy, SYSTEM.clock, audit, limits=limits)
        guard = GrpcGuard(known, lambda: int(NOW.timestamp() * 1000))
        self.broker = broker
        self.users = users
        self.service = MessagingService(EmbeddedBroker(broker), SYSTEM.clock, guard=guard)

    async def call(self, name: str, metadata: dict[str, str], request: Any = None) -> Any:
        """Return the status of the last response."""
        method: Any = self.service.methods[SERVICE + name]
        asked = request if request is not None else getattr(messages, f"{name}Request")()
        answer: Any = await resolved(method.handle(FakeCall(metadata), asked))
        return answer.status if not isinstance(answer, list) else answer[0].status

    def telemetry(self, metadata: dict[str, str], settings: Settings | None = None) -> FakeStream:
        stream = FakeStream(metadata)
        method: Any = self.service.methods[f"{SERVICE}Telemetry"]
        handler = method.handle(stream)
        if settings is not None:
            handler.received(TelemetryCommand(settings=settings))
        return stream


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    async with Broker.running(tmp_path / "store", store=SMALL) as broker:
        users = await user_store(tmp_path / "users", alice=["Topic:T1 Pub"], bob=[])
        secure = Secured(broker, users, AccessPolicy())
        yield secure
        await secure.service.stop()


def route(topic: str) -> Any:
    return messages.QueryRouteRequest(topic=Resource(name=topic))


async def test_a_call_needs_a_signature_of_a_known_user(secured: Secured) -> None:
    good = signed_by("alice")
    assert (await secured.call("QueryRoute", good, route("T1"))).code != Code.UNAUTHORIZED
    for metadata, text in (
        (METADATA, "username cannot be null."),
        ({**good, "authorization": "x"}, "username cannot be null."),
        (signed_by("eve"), "User:eve is not found."),
        ({**good, "x-mq-date-time": "20200101T000000Z"}, "check signature failed."),
        ({**signed_by("eve"), "x-mq-authorization-ak": "alice"}, "User:eve is not found."),
    ):
        status = await secured.call("QueryRoute", dict(metadata), route("T1"))
        assert (status.code, status.message) == (Code.UNAUTHORIZED, text)


async def test_only_the_sender_of_an_allowed_call_is_no_stranger(secured: Secured) -> None:
    method: Any = secured.service.methods[f"{SERVICE}QueryRoute"]
    calls = [FakeCall(dict(each)) for each in (METADATA, signed_by("bob"), signed_by("alice"))]
    for call in calls:
        await resolved(method.handle(call, route("T1")))
    assert [call.is_accepted for call in calls] == [False, False, True]
    streams = [secured.telemetry(dict(METADATA)), secured.telemetry(signed_by("alice"))]
    assert [stream.is_accepted for stream in streams] == [False, False]
    settings = Settings(publishing=Publishing(topics=[Resource(name="T1")]))
    assert secured.telemetry(signed_by("alice"), settings).is_accepted


async def test_logins_and_denied_calls_are_in_the_audit_log(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path, AuditSettings(), SYSTEM)
    audit.start()
    async with Broker.running(tmp_path / "store", store=SMALL) as broker:
        users = await user_store(tmp_path / "users", alice=["Topic:T1 Pub"], bob=[])
        secure = Secured(broker, users, AccessPolicy(), audit)
        for metadata in (signed_by("alice"), signed_by("alice"), METADATA, signed_by("eve")):
            await secure.call("QueryRoute", dict(metadata), route("T1"))
        await secure.call("QueryRoute", signed_by("bob", client="c2"), route("T1"))
        await secure.call("Heartbeat", signed_by("bob"))
        certified = FakeCall(dict(METADATA))
        certified.certificate_user = "mallory"
        method: Any = secure.service.methods[f"{SERVICE}QueryRoute"]
        await resolved(method.handle(certified, route("T1")))
        await secure.service.stop()
    await asyncio.to_thread(audit.stop)
    keys = ("event", "user", "claimed_user", "request", "client", "topic")
    found = [
        tuple(event.get(key) for key in keys)
        for event in [*events(audit.path)[1:-1], *events(audit.strangers_path)]
    ]
    assert found == [
        ("login", "alice", None, None, "c1", None),
        ("denied", "bob", None, "QueryRoute", None, "T1"),
        ("denied", "bob", None, None, None, None),  # the client id of another user
        ("denied", None, None, "QueryRoute", None, "T1"),
        ("denied", None, "eve", "QueryRoute", None, "T1"),
        ("denied", None, "mallory", "QueryRoute", None, "T1"),
    ]
    every = [*events(audit.path)[1:-1], *events(audit.strangers_path)]
    assert {event["tls"] for event in every} == {True}
    assert {event["peer"] for event in every} == {FakeCall({}).peer}
    assert [event.get("code") for event in every] == [None, *[Code.UNAUTHORIZED] * 5]


@pytest.mark.parametrize("name", ["ReceiveMessage", "PullMessage"])
async def test_the_refusal_of_a_call_that_waited_is_in_the_audit_log(
    tmp_path: Path, name: str
) -> None:
    async with Broker.running(tmp_path, SECURE, SMALL) as broker:
        users, audit = broker.access.users, broker.access.audit
        assert users is not None
        await users.create(info("alice"))
        await users.merge_acl(acl("alice", "Topic:T1 Sub", "Group:CG Sub"))
        broker.topics.put([TopicConfig("T1", 1, 1)])
        broker.groups.require("CG")
        secure = Secured(broker, users, AccessPolicy(), audit)
        request: Any = receive_request(topic="T1", group="CG", broker=broker.config.name)
        if name == "PullMessage":
            request = messages.PullMessageRequest(
                group=request.group, message_queue=request.message_queue, batch_size=1
            )
            request.message_queue.id = 0
        request.long_polling_timeout.seconds = 20
        held = asyncio.ensure_future(secure.call(name, signed_by("alice"), request))
        await until(lambda: broker._parts.state.long_polling._count == 1)
        await users.delete_acl("User:alice")
        broker.store.put(Message("T1", b"not for alice any more"))
        assert (await held).code == Code.UNAUTHORIZED
        await secure.service.stop()
    denied = [e for e in events(tmp_path / "audit" / "audit.log") if e["event"] == "denied"]
    found = [(e["user"], e["request"], e["topic"], e["code"], e["tls"]) for e in denied]
    assert found == [("alice", name, "T1", Code.UNAUTHORIZED, True)]


async def test_calls_beyond_the_rate_of_a_user_are_too_many(tmp_path: Path) -> None:
    clock = Clock()
    settings = ServerLimitSettings(request_rate_per_user=1, byte_rate_per_user=10_000)
    async with Broker.running(tmp_path / "store", store=SMALL) as broker:
        users = await user_store(tmp_path / "users", alice=["Topic:T1 Pub"], bob=["Topic:T1 Pub"])
        secure = Secured(broker, users, AccessPolicy(), None, UserLimits(settings, clock))
        for _ in range(3):
            status = await secure.call("QueryRoute", signed_by("alice"), route("T1"))
            assert status.code != Code.TOO_MANY_REQUESTS
        status = await secure.call("QueryRoute", signed_by("alice"), route("T1"))
        assert status.code == Code.TOO_MANY_REQUESTS
        assert status.message.startswith("user alice sends more than request_rate_per_user")
        status = await secure.call("QueryRoute", signed_by("bob", client="c2"), route("T1"))
        assert status.code != Code.TOO_MANY_REQUESTS
        clock.now += 2
        status = await secure.call("QueryRoute", signed_by("alice"), route("T1"))
        assert status.code != Code.TOO_MANY_REQUESTS
        await secure.service.stop()


async def test_a_user_has_a_limited_number_of_clients(tmp_path: Path) -> None:
    limits = UserLimits(ServerLimitSettings(connections_per_user=1), Clock())
    async with Broker.running(tmp_path / "store", store=SMALL) as broker:
        users = await user_store(tmp_path / "users", alice=["Topic:T1 Pub"])
        secure = Secured(broker, users, AccessPolicy(), None, limits)
        for _ in range(2):
            status = await secure.call("Heartbeat", signed_by("alice"))
            assert status.code != Code.TOO_MANY_REQUESTS
        status = await secure.call("Heartbeat", signed_by("alice", client="c2"))
        assert status.code == Code.TOO_MANY_REQUESTS
        assert len(secure.service.clients) == 1  # what is refused is not kept
        secure.service.clients.leave(secure.service.clients.all()[0])
        status = await secure.call("Heartbeat", signed_by("alice", client="c2"))
        assert status.code != Code.TOO_MANY_REQUESTS
        await secure.service.stop()


async def test_a_certificate_takes_the_place_of_a_signature(secured: Secured) -> None:
    method: Any = secured.service.methods[f"{SERVICE}QueryRoute"]
    for user, is_allowed in (("alice", True), ("bob", False), ("eve", False), (None, False)):
        call = FakeCall({**METADATA, "x-mq-client-id": f"c{user}"})
        call.certificate_user = user
        answer = await resolved(method.handle(call, route("T1")))
        assert (user, answer.status.code != Code.UNAUTHORIZED) == (user, is_allowed)


async def test_an_old_header_is_refused_and_local_time_is_accepted(secured: Secured) -> None:
    for hours in (-14, 14):
        metadata = signed_by("alice", age=timedelta(hours=hours))
        assert (await secured.call("QueryRoute", metadata, route("T1"))).code != Code.UNAUTHORIZED
    for hours in (-16, 16):
        metadata = signed_by("alice", age=timedelta(hours=hours))
        status = await secured.call("QueryRoute", metadata, route("T1"))
        assert (status.code, "too far" in status.message) == (Code.UNAUTHORIZED, True)


async def test_every_call_has_a_rule_and_is_refused_without_a_permission(secured: Secured) -> None:
    names = {path.removeprefix(SERVICE) for path in secured.service.methods}
    assert names == set(CALL_NEEDS)
    queue = MessageQueue(topic=Resource(name="T1"))
    for name in sorted(names - {"Telemetry"}):
        request = getattr(messages, f"{name}Request")()
        fields = {field.name for field in request.DESCRIPTOR.fields}
        for field, value in (
            ("topic", Resource(name="T1")),
            ("group", Resource(name="CG")),
            ("message_queue", queue),
        ):
            if field in fields:
                getattr(request, field).CopyFrom(value)
        if "messages" in fields:
            request.messages.add().topic.name = "T1"
        assert (await secured.call(name, dict(METADATA), request)).code == Code.UNAUTHORIZED
        denied = await secured.call(name, signed_by("bob", client="c2"), request)
        assert (name, denied.code) == (name, Code.UNAUTHORIZED)
        assert "User:bob has no permission" in denied.message


async def test_all_topics_of_a_send_are_checked(secured: Secured) -> None:
    request = messages.SendMessageRequest()
    request.messages.add().topic.name = "T1"
    request.messages.add().topic.name = "T2"
    status = await secured.call("SendMessage", signed_by("alice"), request)
    assert (status.code, "Topic:T2" in status.message) == (Code.UNAUTHORIZED, True)


async def test_settings_need_a_permission_for_every_name(secured: Secured) -> None:
    def producer(*topics: str) -> Settings:
        named = [Resource(name=topic) for topic in topics]
        return Settings(client_type=ClientType.PRODUCER, publishing=Publishing(topics=named))

    consumer = Settings(
        client_type=ClientType.PUSH_CONSUMER,
        subscription=Subscription(
            group=Resource(name="CG"), subscriptions=[SubscriptionEntry(topic=Resource(name="T1"))]
        ),
    )
    allowed = secured.telemetry(signed_by("alice"), producer("T1"))
    assert allowed.is_open
    assert allowed.sent[-1].status.code == Code.OK
    for metadata, settings in (
        (signed_by("alice"), producer("T1", "T2")),
        (signed_by("alice"), consumer),
        (signed_by("alice"), Settings()),
        (dict(METADATA), producer("T1")),
    ):
        refused = secured.telemetry(metadata, settings)
        assert refused.ended == (StatusCode.OK, "")
        assert refused.sent[-1].status.code == Code.UNAUTHORIZED
        # The client for Go shows only how the stream ends.
        refused = secured.telemetry({**metadata, "x-mq-language": "GO"}, settings)
        (frame,) = refused.sent
        assert frame.status.code == Code.UNAUTHORIZED
        assert refused.ended == (StatusCode.PERMISSION_DENIED, frame.status.message)


async def test_a_disabled_user_cannot_continue_on_its_stream(secured: Secured) -> None:
    stream = secured.telemetry(signed_by("alice"))
    method: Any = secured.service.methods[f"{SERVICE}Telemetry"]
    handler = method.handle(stream)
    await secured.users.update(UserInfo("alice", None, None, "disable"))
    settings = Settings(publishing=Publishing(topics=[Resource(name="T1")]))
    handler.received(TelemetryCommand(settings=settings))
    assert stream.sent[-1].status.message == "User:alice is disabled."


async def test_changes_of_a_user_count_on_its_open_streams(secured: Secured) -> None:
    method: Any = secured.service.methods[f"{SERVICE}Telemetry"]
    settings = Settings(publishing=Publishing(topics=[Resource(name="T1")]))
    streams = [FakeStream(signed_by("alice")) for _ in range(2)]
    handlers = [method.handle(stream) for stream in streams]
    handlers[0].received(TelemetryCommand(settings=settings))
    assert streams[0].sent[-1].status.code == Code.OK

    await secured.users.delete_acl("User:alice")
    handlers[0].received(TelemetryCommand(settings=settings))
    assert "User:alice has no permission" in streams[0].sent[-1].status.message

    await secured.users.merge_acl(acl("alice", "Topic:T1 Pub"))
    await secured.users.update(UserInfo("alice", "another-long-password"))
    handlers[1].received(TelemetryCommand(settings=settings))
    assert streams[1].sent[-1].status.message == "check signature failed."


async def test_a_client_id_belongs_to_the_user_who_used_it_first(secured: Secured) -> None:
    await secured.users.merge_acl(acl("bob", "* All"))
    assert (await secured.call("QueryRoute", signed_by("alice"), route("T1"))).code
    status = await secured.call("QueryRoute", signed_by("bob"), route("T1"))
    assert status.code == Code.UNAUTHORIZED
    assert status.message.startswith("client c1 belongs to another user; use another client id")


def forwarding(topic: str, group: str) -> Any:
    """Return a request with a forged receipt of the first record of the log."""
    return messages.ForwardMessageToDeadLetterQueueRequest(
        group=Resource(name=group),
        topic=Resource(name=topic),
        receipt_handle=f"0 {SYSTEM.clock.now_ms()} 60000 0 0 broker-a 0 0 0",
        message_id="x",
    )


async def test_a_record_of_another_topic_does_not_become_a_dead_letter(secured: Secured) -> None:
    """A receipt names the record by its place in the log, which a client can forge."""
    secured.broker.store.put(Message("T1", b"not for carol"))
    secured.broker.groups.require("CG")
    await secured.users.create(info("carol"))
    await secured.users.merge_acl(acl("carol", "Topic:T2 All", "Group:CG All"))
    request = forwarding("T2", "CG")
    end = secured.broker.store.log_range[1]
    status = await secured.call("ForwardMessageToDeadLetterQueue", signed_by("carol"), request)
    assert (status.code, status.message) == (Code.FORBIDDEN, NOT_YOURS)
    assert secured.broker.store.log_range[1] == end


async def test_a_call_of_the_white_list_does_not_loosen_others_of_its_client(
    tmp_path: Path,
) -> None:
    words = frozenset({"apache.rocketmq.v2.QueryRouteRequest"})
    async with Broker.running(tmp_path / "store", store=SMALL) as broker:
        users = await user_store(tmp_path / "users", carol=["Topic:T2 All", "Group:CG All"])
        secure = Secured(broker, users, AccessPolicy(unauthorized=words))
        broker.store.put(Message("T1", b"not for carol"))
        broker.groups.require("CG")
        method: Any = secure.service.methods[f"{SERVICE}ForwardMessageToDeadLetterQueue"]
        begun = method.handle(FakeCall(signed_by("carol")), forwarding("T2", "CG"))
        await secure.call("QueryRoute", signed_by("carol"), route("T1"))
        status = (await begun).status
        assert (status.code, status.message) == (Code.FORBIDDEN, NOT_YOURS)
        await secure.service.stop()


@pytest.mark.parametrize("metadata", [METADATA, signed_by("eve"), signed_by("alice")])
async def test_a_waiting_call_loses_the_trust_of_its_address(metadata: dict[str, str]) -> None:
    call = FakeCall(metadata)
    white = {source_of(call.peer)}
    users = Users(User("alice", credentials("alice").secret_key))
    policy = AccessPolicy(trusts=lambda source, name: source in white)
    known = Guard(users, policy, SYSTEM.clock)
    guard = GrpcGuard(known, lambda: int(NOW.timestamp() * 1000))
    request = receive_request()
    call.caller = guard.caller("ReceiveMessage", call, request)
    await guard.check_again("ReceiveMessage", call, request)
    white.clear()
    with pytest.raises(ProxyError) as refused:
        await guard.check_again("ReceiveMessage", call, request)
    assert refused.value.code is Code.UNAUTHORIZED


async def test_white_lists_name_messages(tmp_path: Path) -> None:
    words = frozenset({"apache.rocketmq.v2.QueryRouteRequest"})
    async with Broker.running(tmp_path / "store", store=SMALL) as broker:
        users = await user_store(tmp_path / "users")
        secure = Secured(broker, users, AccessPolicy(unauthenticated=words, unauthorized=words))
        status = await secure.call("QueryRoute", dict(METADATA), route("T1"))
        assert status.code != Code.UNAUTHORIZED
        status = await secure.call("SendMessage", dict(METADATA))
        assert status.code == Code.UNAUTHORIZED
        await secure.service.stop()


async def test_a_signed_client_may_make_calls_of_the_white_list(tmp_path: Path) -> None:
    words = frozenset({"apache.rocketmq.v2.HeartbeatRequest"})
    async with Broker.running(tmp_path / "store", store=SMALL) as broker:
        users = await user_store(tmp_path / "users", alice=["Topic:T1 Pub"])
        secure = Secured(broker, users, AccessPolicy(unauthenticated=words, unauthorized=words))
        assert (await secure.call("QueryRoute", signed_by("alice"), route("T1"))).code
        status = await secure.call("Heartbeat", signed_by("alice"))
        assert status.code != Code.UNAUTHORIZED
        # The client id is no proof of being alice.
        status = await secure.call("Heartbeat", {**METADATA, "x-mq-client-id": "c1"})
        assert status.message.startswith("client c1 belongs to another user")
        await secure.service.stop()


async def test_the_proxy_of_a_broker_has_its_users(tmp_path: Path) -> None:
    async with Broker.running(tmp_path, SECURE) as broker:
        assert Proxy.of_broker(broker)._guard is broker.access.guard


@pytest.mark.parametrize("change", ["none", "deleted", "permission deleted"])
async def test_a_receive_that_waits_ends_with_the_permission(tmp_path: Path, change: str) -> None:
    async with Broker.running(tmp_path, SECURE, store=SMALL) as broker:
        guard = broker.access.guard
        assert guard is not None
        users: Any = guard.users
        await users.create(info("alice"))
        await users.merge_acl(acl("alice", "Topic:T1 Sub", "Group:CG Sub"))
        broker.groups.require("CG")
        broker.topics.ensure("T1", 1)
        known = GrpcGuard(guard, lambda: int(NOW.timestamp() * 1000))
        service = MessagingService(EmbeddedBroker(broker), SYSTEM.clock, guard=known)
        service.clients.of(FakeCall(signed_by("alice")))
        method: Any = service.methods[f"{SERVICE}ReceiveMessage"]
        request = receive_request(topic="T1", group="CG", broker=broker.config.name)
        request.long_polling_timeout.seconds = 60
        received = method.handle(FakeCall(signed_by("alice")), request)
        held = asyncio.ensure_future(resolved(received))
        await until(lambda: broker._parts.state.long_polling._count == 1)
        if change == "deleted":
            await users.delete("alice")
        elif change == "permission deleted":
            await users.delete_acl("User:alice")
        broker.store.put(Message("T1", b"for alice"))
        frames = [
            messages.ReceiveMessageResponse.FromString(f.SerializeToString()) for f in await held
        ]
        found = [f.message.body for f in frames if f.WhichOneof("content") == "message"]
        codes = [f.status.code for f in frames if f.WhichOneof("content") == "status"]
        assert (found, codes) == (
            ([b"for alice"], [Code.OK]) if change == "none" else ([], [Code.UNAUTHORIZED])
        )
        await service.stop()
