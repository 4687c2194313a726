"""Forged proofs and addresses in gRPC calls of a user without permission."""

import asyncio
from typing import Any

import pytest
from tests.access.disjoint import Attack, Attacks, Disjoint, disjoint
from tests.client.clusters import until
from tests.proxy.services import (
    ack_request,
    at,
    change_request,
    forward_request,
    message,
    receive_request,
)

from firetrail.format.recall_handle import decode_handle
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import Broker as BrokerResource
from firetrail.proxy.schema.messages import (
    ClientType,
    Code,
    EndTransactionRequest,
    HeartbeatRequest,
    Message,
    MessageQueue,
    MessageType,
    NotifyClientTerminationRequest,
    Publishing,
    QueryRouteRequest,
    RecallMessageRequest,
    ReceiveMessageResponse,
    Resource,
    SendMessageRequest,
    Settings,
    Status,
    Subscription,
    SubscriptionEntry,
    TelemetryCommand,
    TransactionResolution,
    VerifyMessageResult,
)
from firetrail.remoting.messages.pop.receipts import Receipt
from firetrail.remoting.wire.codes import RequestCode
from firetrail.system import SYSTEM

ATTACKS = Attacks()
NAMES = [("A", "GA"), ("A", "GE"), ("E", "GA")]
"""Pairs of topic and group that eve has no permission for; for E and GE, she has."""
DENIED, OK = Code.UNAUTHORIZED, Code.OK


async def code_of(scene: Disjoint, by: str, name: str, request: object, client: str = "") -> Code:
    answer = await scene.call(by, name, request, client)
    return Code((answer[0] if isinstance(answer, list) else answer).status.code)


def sending(topic: str, **system: Any) -> SendMessageRequest:
    return SendMessageRequest(messages=[message(topic=topic, **system)])


# -- receipts ---------------------------------------------------------------------------------


async def taken(scene: Disjoint) -> str:
    """Return the receipt of a message that alice has received. Both topics have one."""
    for user, topic in (("alice", "A"), ("eve", "E")):
        assert await code_of(scene, user, "SendMessage", sending(topic)) == OK
    await scene.dispatched()
    frames = await scene.call("alice", "ReceiveMessage", receive_request(topic="A", group="GA"))
    decoded = [ReceiveMessageResponse.FromString(each.SerializeToString()) for each in frames]
    (found,) = [each.message for each in decoded if each.WhichOneof("content") == "message"]
    handle: str = found.system_properties.receipt_handle
    return handle


async def still_taken(scene: Disjoint, handle: str) -> bool:
    request = change_request(handle, 60_000, "A", "GA")
    return await code_of(scene, "alice", "ChangeInvisibleDuration", request) == OK


@ATTACKS.on("receipt handle")
async def use_a_receipt(scene: Disjoint) -> None:
    handle = await taken(scene)
    for topic, group in NAMES:
        for name, request in (
            ("AckMessage", ack_request(handle, topic=topic, group=group)),
            ("ChangeInvisibleDuration", change_request(handle, 0, topic, group)),
            ("ForwardMessageToDeadLetterQueue", forward_request(handle, topic, group)),
        ):
            assert await code_of(scene, "eve", name, request) == DENIED
    await scene.call("eve", "AckMessage", ack_request(handle, topic="E", group="GE"))
    request = change_request(handle, 0, "E", "GE")
    assert await code_of(scene, "eve", "ChangeInvisibleDuration", request) != OK
    assert await still_taken(scene, handle)


@ATTACKS.on("message id, offset in the log")
async def copy_a_record(scene: Disjoint) -> None:
    """A receipt has the offset of its record in the log, and eve can make receipts up."""
    receipt = Receipt.decode(await taken(scene))
    end = scene.broker.store.log_range[1]
    request = forward_request(receipt.encode(), "E", "GE")
    name = "ForwardMessageToDeadLetterQueue"
    assert await code_of(scene, "eve", name, request) == Code.FORBIDDEN
    assert scene.broker.store.log_range[1] == end
    queue = queue_of("A")
    for name, asked in (
        (
            "PullMessage",
            messages.PullMessageRequest(group=Resource(name="GE"), message_queue=queue),
        ),
        ("QueryOffset", messages.QueryOffsetRequest(message_queue=queue)),
    ):
        assert await code_of(scene, "eve", name, asked) == DENIED


def queue_of(topic: str) -> MessageQueue:
    return MessageQueue(topic=Resource(name=topic), broker=BrokerResource(name="broker-a"))


# -- messages that wait -----------------------------------------------------------------------


@ATTACKS.on("recall handle")
async def recall(scene: Disjoint) -> None:
    later = sending("AD", delivery_timestamp=at(SYSTEM.clock.now_ms() + 50_000), message_id="later")
    sent = await scene.call("alice", "SendMessage", later)
    handle = sent.entries[0].recall_handle
    await scene.dispatched()
    end = scene.broker.store.log_range[1]
    for topic, forged, expected in (
        ("AD", handle, DENIED),
        ("ED", handle, Code.BAD_REQUEST),
        ("ED", swapped(handle, "ED"), Code.BAD_REQUEST),
    ):
        request = RecallMessageRequest(topic=Resource(name=topic), recall_handle=forged)
        assert await code_of(scene, "eve", "RecallMessage", request) == expected
    assert scene.broker.store.log_range[1] == end


def swapped(handle: str, topic: str) -> str:
    return decode_handle(handle)._replace(topic=topic).encode()


@ATTACKS.on("unique key")
async def cancel_a_message_with_the_same_key(scene: Disjoint) -> None:
    soon = at(SYSTEM.clock.now_ms() + 2_000)
    same: dict[str, Any] = {"delivery_timestamp": soon, "message_id": "same"}
    assert await code_of(scene, "alice", "SendMessage", sending("AD", **same)) == OK
    sent = await scene.call("eve", "SendMessage", sending("ED", **same))
    handle = sent.entries[0].recall_handle
    request = RecallMessageRequest(topic=Resource(name="ED"), recall_handle=handle)
    assert await code_of(scene, "eve", "RecallMessage", request) == OK
    forged = sending("ED", properties={"TIMER_DEL_UNIQKEY": "same"}, **same)
    assert await code_of(scene, "eve", "SendMessage", forged) == Code.ILLEGAL_MESSAGE_PROPERTY_KEY
    await until(lambda: scene.bodies("AD") == [b"hello"])


@ATTACKS.on("transaction id")
async def end_a_transaction(scene: Disjoint) -> None:
    begin = sending("AX", message_type=MessageType.TRANSACTION, message_id="tx")
    assert await code_of(scene, "alice", "SendMessage", begin) == OK
    await scene.dispatched()
    for topic, by, expected in (
        ("AX", "eve", DENIED),
        ("EX", "eve", Code.INVALID_TRANSACTION_ID),
        ("AX", "alice", OK),
    ):
        request = EndTransactionRequest(
            topic=Resource(name=topic),
            message_id="tx",
            transaction_id="tx",
            resolution=TransactionResolution.COMMIT,
        )
        assert await code_of(scene, by, "EndTransaction", request) == expected
        await scene.dispatched()
        assert len(scene.bodies("AX")) == (by == "alice")


@ATTACKS.on("producer group")
async def be_asked_about_a_transaction(scene: Disjoint) -> None:
    """The producer group of a gRPC client is its topic."""
    settings = Settings(
        client_type=ClientType.PRODUCER, publishing=Publishing(topics=[Resource(name="AX")])
    )
    stream, _ = scene.telemetry("eve", settings)
    assert stream.sent[-1].status.code == DENIED
    assert not scene.broker.clients.producers


# -- clients ----------------------------------------------------------------------------------


def route(topic: str) -> QueryRouteRequest:
    return QueryRouteRequest(topic=Resource(name=topic))


@ATTACKS.on("client id")
async def take_over_a_client(scene: Disjoint) -> None:
    assert await code_of(scene, "alice", "QueryRoute", route("A"), "c1") == OK
    group = Resource(name="GE")
    for name, request in (
        ("QueryRoute", route("E")),
        ("Heartbeat", HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER, group=group)),
        ("NotifyClientTermination", NotifyClientTerminationRequest(group=group)),
        ("AckMessage", ack_request("x", topic="E", group="GE")),
    ):
        assert await code_of(scene, "eve", name, request, "c1") == DENIED
    stream, _ = scene.telemetry("eve", client_id="c1")
    assert stream.sent[-1].status.code == DENIED
    answer = await scene.beat("eve", "c1", producer="PE")  # over remoting
    assert answer.code == 16


@ATTACKS.on("client id")
async def wait_until_a_client_is_lost(scene: Disjoint) -> None:
    assert await code_of(scene, "alice", "QueryRoute", route("A"), "c1") == OK
    (client,) = scene.service.clients.all()
    scene.service.clients.leave(client)  # as one that was silent for too long
    assert await code_of(scene, "eve", "QueryRoute", route("E"), "c1") == DENIED
    assert len(scene.service.clients) == 0
    assert await code_of(scene, "alice", "QueryRoute", route("A"), "c1") == OK
    end = NotifyClientTerminationRequest()
    assert await code_of(scene, "alice", "NotifyClientTermination", end, "c1") == OK
    assert await code_of(scene, "eve", "QueryRoute", route("E"), "c1") == OK


@ATTACKS.on("reply address")
async def receive_a_reply(scene: Disjoint) -> None:
    """Replies are pushed to producers of the remoting protocol by their client id."""
    assert (await scene.beat("alice", "c1", producer="PA")).code == 0
    settings = Settings(
        client_type=ClientType.PRODUCER, publishing=Publishing(topics=[Resource(name="E")])
    )
    stream, _ = scene.telemetry("eve", settings, client_id="c1")
    assert stream.sent[-1].status.code == DENIED
    properties = {"REPLY_TO_CLIENT": "c1", "CORRELATION_ID": "42"}
    for name, value in properties.items():
        request = sending("E", properties={name: value})
        found = await code_of(scene, "eve", "SendMessage", request)
        assert found == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


@ATTACKS.on("answer to a question")
async def answer_for_another_client(scene: Disjoint) -> None:
    """Administrators can have a message verified by a client, which answers with a nonce."""
    subscription = Subscription(
        group=Resource(name="GA"), subscriptions=[SubscriptionEntry(topic=Resource(name="A"))]
    )
    settings = Settings(client_type=ClientType.PUSH_CONSUMER, subscription=subscription)
    alice, receive = scene.telemetry("alice", settings, client_id="a1")
    _, forge = scene.telemetry("eve", client_id="e1")
    sent = await scene.send("alice", "A")
    asked = asyncio.ensure_future(
        scene.ask(
            "root",
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup="GA",
            clientId="a1",
            msgId=sent.fields["msgId"],
        )
    )
    await until(lambda: len(alice.sent) > 1)
    nonce = alice.sent[-1].verify_message_command.nonce
    for answer, code in ((forge, Code.FAILED_TO_CONSUME_MESSAGE), (receive, OK)):
        result = VerifyMessageResult(nonce=nonce)
        answer(TelemetryCommand(status=Status(code=code), verify_message_result=result))
    assert b"CR_SUCCESS" in (await asked).content


# -- groups and their offsets -----------------------------------------------------------------


@ATTACKS.on("membership of a group")
async def join_a_group(scene: Disjoint) -> None:
    for topic, group in NAMES:
        entries = [SubscriptionEntry(topic=Resource(name=topic))]
        settings = Settings(
            client_type=ClientType.PUSH_CONSUMER,
            subscription=Subscription(group=Resource(name=group), subscriptions=entries),
        )
        stream, _ = scene.telemetry("eve", settings)
        assert stream.sent[-1].status.code == DENIED
        asked = messages.QueryAssignmentRequest(
            topic=Resource(name=topic), group=Resource(name=group)
        )
        assert await code_of(scene, "eve", "QueryAssignment", asked) == DENIED
        received = receive_request(topic=topic, group=group)
        assert await code_of(scene, "eve", "ReceiveMessage", received) == DENIED
    beat = HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER, group=Resource(name="GA"))
    assert await code_of(scene, "eve", "Heartbeat", beat) == DENIED
    end = NotifyClientTerminationRequest(group=Resource(name="GA"))
    assert await code_of(scene, "eve", "NotifyClientTermination", end) == DENIED
    assert not scene.broker.clients.consumers


@ATTACKS.on("offset of a group")
async def change_offsets(scene: Disjoint) -> None:
    await scene.send("alice", "A")
    for topic, group in NAMES:
        where: dict[str, Any] = {"group": Resource(name=group), "message_queue": queue_of(topic)}
        for name, request in (
            ("UpdateOffset", messages.UpdateOffsetRequest(offset=1, **where)),
            ("GetOffset", messages.GetOffsetRequest(**where)),
            ("PullMessage", messages.PullMessageRequest(**where)),
        ):
            assert await code_of(scene, "eve", name, request) == DENIED
    assert scene.broker.offsets.get("GA", "A", 0) is None


@ATTACKS.on("attempt id")
async def repeat_an_attempt(scene: Disjoint) -> None:
    """An attempt id lets a client get messages again that it has received in order."""
    await scene.send("alice", "A")
    for topic, group in NAMES:
        request = receive_request(topic=topic, group=group, attempt_id="attempt")
        assert await code_of(scene, "eve", "ReceiveMessage", request) == DENIED


# -- names ------------------------------------------------------------------------------------


@ATTACKS.on("light queue, internal topic")
async def use_names_of_the_broker(scene: Disjoint) -> None:
    end = scene.broker.store.log_range[1]
    for name in ("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "REAL_TOPIC", "RETRY_TOPIC"):
        request = sending("E", properties={name: "%LMQ%A"})
        found = await code_of(scene, "eve", "SendMessage", request)
        assert found == Code.ILLEGAL_MESSAGE_PROPERTY_KEY
    for topic in (
        *("%LMQ%A", "%RETRY%GA", "%DLQ%GA", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"),
        *("SCHEDULE_TOPIC_XXXX", "rmq_sys_REVIVE_LOG_DefaultCluster", "TBW102"),
    ):
        assert await code_of(scene, "eve", "SendMessage", sending(topic)) == DENIED
        received = receive_request(topic=topic, group="GE")
        assert await code_of(scene, "eve", "ReceiveMessage", received) == DENIED
    lite: Message = message(topic="E", lite_topic="A")
    found = await code_of(scene, "eve", "SendMessage", SendMessageRequest(messages=[lite]))
    assert found == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert scene.broker.store.log_range[1] == end


THROUGH_A_PROXY = [row for row in ATTACKS.rows if row[0] != "answer to a question"]
"""A proxy in front of brokers passes only questions about transactions on, which have no answer."""


@pytest.mark.parametrize(
    ("claim", "attack"), ATTACKS.rows, ids=[f"{c}: {a.__name__}" for c, a in ATTACKS.rows]
)
async def test_a_forged_claim_has_no_effect(claim: str, attack: Attack) -> None:
    async with disjoint() as scene:
        await attack(scene)


@pytest.mark.parametrize(
    ("claim", "attack"), THROUGH_A_PROXY, ids=[f"{c}: {a.__name__}" for c, a in THROUGH_A_PROXY]
)
async def test_a_forged_claim_has_no_effect_through_a_proxy(claim: str, attack: Attack) -> None:
    async with disjoint(is_cluster=True) as scene:
        await attack(scene)
