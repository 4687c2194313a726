"""RecallMessage."""

from typing import cast

import pytest
from tests.proxy.services import Service, at, code, message

from firetrail.format.recall_handle import RecallHandle
from firetrail.proxy.calls.recall_calls import RecallCalls
from firetrail.proxy.schema.messages import (
    MessageType,
    RecallMessageRequest,
    RecallMessageResponse,
    Resource,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

HANDLE = RecallHandle("D", "broker-a", 1_700_000_000_001, "m1").encode()


@pytest.fixture
async def recalling(service: Service) -> Service:
    """A service with topics for delayed messages, whose broker recalls everything."""
    for name, kind in (("D", "DELAY"), ("M", "MIXED"), ("F", "FIFO")):
        await service.create_topic(name, kind)
    answer = RemotingCommand(0, {"msgId": "m1"})
    service.brokers.replaced[RequestCode.RECALL_MESSAGE] = answer
    return service


async def recall(service: Service, topic: str = "D", handle: str = HANDLE) -> RecallMessageResponse:
    request = RecallMessageRequest(topic=Resource(name=topic), recall_handle=handle)
    calls = RecallCalls(service.brokers)
    response = await service.answer(calls.recall, RecallMessageResponse, request)
    return cast(RecallMessageResponse, response)


async def test_a_message_is_recalled(recalling: Service) -> None:
    response = await recall(recalling)
    assert (code(response), response.message_id) == ("OK", "m1")
    assert recalling.brokers.asked[-1].fields == {
        "topic": "D",
        "recallHandle": HANDLE,
        "producerGroup": "D",
    }


async def test_a_delayed_message_is_recalled_at_the_broker(service: Service) -> None:
    await service.create_topic("D", "DELAY")
    later = at(service.now_ms() + 3_600_000)
    sent = await service.send(message(topic="D", message_id="m1", delivery_timestamp=later))
    handle = sent.entries[0].recall_handle
    assert handle
    for _ in range(2):  # as often as it is asked for, as in RocketMQ
        response = await recall(service, handle=handle)
        assert (code(response), response.message_id) == ("OK", "m1")
    past = at(service.now_ms() - 1000)
    sent = await service.send(message(topic="D", message_id="m2", delivery_timestamp=past))
    assert not sent.entries[0].recall_handle
    (found,) = await service.receive(topic="D")  # at once
    assert found.system_properties.message_id == "m2"
    assert found.system_properties.message_type == MessageType.DELAY
    assert found.system_properties.delivery_timestamp == past
    expired = RecallHandle("D", "broker-a", service.now_ms() - 1000, "m2").encode()
    assert code(await recall(service, handle=expired)) == "BAD_REQUEST"


async def test_every_check_has_its_code(recalling: Service) -> None:
    other_broker = RecallHandle("D", "broker-b", 1, "m1").encode()
    rows = [
        ("a.b", HANDLE, "ILLEGAL_TOPIC"),
        ("unknown", HANDLE, "TOPIC_NOT_FOUND"),
        ("T", HANDLE, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ("F", HANDLE, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ("M", HANDLE, "BAD_REQUEST"),  # the handle is for another topic
        ("D", "", "BAD_REQUEST"),
        ("D", "garbage", "BAD_REQUEST"),
        ("D", "ü", "BAD_REQUEST"),
        ("D", HANDLE[:-8], "BAD_REQUEST"),
    ]
    for topic, handle, expected in rows:
        assert code(await recall(recalling, topic, handle)) == expected, (topic, handle)
    assert code(await recall(recalling, "D", other_broker)) != "OK"


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        (ResponseCode.ILLEGAL_OPERATION, "BAD_REQUEST"),
        (ResponseCode.TOPIC_NOT_EXIST, "TOPIC_NOT_FOUND"),
        (ResponseCode.NO_PERMISSION, "FORBIDDEN"),
        (ResponseCode.SYSTEM_ERROR, "INTERNAL_SERVER_ERROR"),
    ],
)
async def test_the_codes_of_brokers(recalling: Service, answered: int, expected: str) -> None:
    answer = RemotingCommand(answered, remark="the reason")
    recalling.brokers.replaced[RequestCode.RECALL_MESSAGE] = answer
    response = await recall(recalling)
    assert (code(response), response.status.message) == (expected, "the reason")
