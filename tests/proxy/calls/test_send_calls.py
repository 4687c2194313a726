"""SendMessage: every check with its code, what is stored, and the answer."""

from typing import Any

import pytest
from tests.proxy.fakes import FakeCall
from tests.proxy.services import Service, at, code, codes, message

from firetrail.format.layout import COMPRESSED
from firetrail.format.record import Record
from firetrail.proxy.calls import send_calls
from firetrail.proxy.calls.messaging_service import DELAY_MAX_MS
from firetrail.proxy.calls.status_codes import OK
from firetrail.proxy.schema.messages import (
    Duration,
    Encoding,
    Message,
    MessageType,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM

FIFO, DELAY, TRANSACTION = MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION
CONFLICT = "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
HOUR_MS = 3600 * 1000


def soon(ms: int = HOUR_MS) -> Any:
    return at(SYSTEM.clock.now_ms() + ms)


def other_namespace() -> Message:
    found = message()
    found.topic.resource_namespace = "other"
    return found


HOUR_OF_RECOVERY: dict[str, Any] = {
    "message_type": TRANSACTION,
    "orphaned_transaction_recovery_duration": Duration(seconds=3600, nanos=999_000_000),
}
LATE = {"delivery_timestamp": soon(DELAY_MAX_MS + HOUR_MS)}
LARGE = {"properties": {"p": "v" * 16_385}}
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("2, 4", {"topic": "a.b", "body": b""}, "ILLEGAL_TOPIC"),
    ("4, 8", {"body": b"", "tag": " "}, "MESSAGE_BODY_EMPTY"),
    ("7, 8", {"properties": {"KEYS": "v"}, "tag": " "}, "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    ("8, 9", {"tag": " ", "keys": [" "]}, "ILLEGAL_MESSAGE_TAG"),
    ("9, 10", {"keys": [" "], **LARGE}, "ILLEGAL_MESSAGE_KEY"),
    ("10, 11", {"message_id": " ", **LARGE}, "MESSAGE_PROPERTIES_TOO_LARGE"),
    ("11, 13", {"message_id": " ", **LATE}, "ILLEGAL_MESSAGE_ID"),
    ("13, 14", {"priority": -1, **LATE}, "ILLEGAL_DELIVERY_TIME"),
    ("14, 15", {"priority": -1, "message_group": " "}, "BAD_REQUEST"),
    ("15, 16", {"message_group": " ", "lite_topic": "a.b"}, "ILLEGAL_MESSAGE_GROUP"),
    ("16, 17", {"lite_topic": ".", "properties": {"__SHARDINGKEY": "g"}}, "ILLEGAL_LITE_TOPIC"),
    ("17, 18", {"topic": "R", "message_group": "g"}, CONFLICT),
]
"""Messages with two faults, named by the numbers of their checks: the first check decides."""
ROWS: list[tuple[str, list[Message], str]] = [
    ("1: no message", [], "MESSAGE_CORRUPTED"),
    ("2: no topic", [message(topic="")], "ILLEGAL_TOPIC"),
    ("2: an illegal topic", [message(topic="a.b")], "ILLEGAL_TOPIC"),
    ("2: a topic of the system", [message(topic="SCHEDULE_TOPIC_XXXX")], "ILLEGAL_TOPIC"),
    ("3: another topic", [message(), message(topic="T2")], "MESSAGE_CORRUPTED"),
    ("3: another namespace", [message(), other_namespace()], "MESSAGE_CORRUPTED"),
    ("4: no body", [message(b"")], "MESSAGE_BODY_EMPTY"),
    ("5: a large body", [message(b"x" * (4 * 1024 * 1024 + 1))], "MESSAGE_BODY_TOO_LARGE"),
    (
        "6: many properties",
        [message(properties={f"p{n}": "v" for n in range(129)})],
        "MESSAGE_PROPERTIES_TOO_LARGE",
    ),
    ("7: a reserved key", [message(properties={"KEYS": "v"})], "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    (
        "7: a key reserved since 5.4",
        [message(properties={"_SYS_MSG_PRIORITY_": "1"})],
        "ILLEGAL_MESSAGE_PROPERTY_KEY",
    ),
    ("7: a control key", [message(properties={"a\x01": "v"})], "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    ("7: a control value", [message(properties={"a": "\x9f"})], "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    *(
        (f"7: {name}", [message(properties={name: "1"})], "ILLEGAL_MESSAGE_PROPERTY_KEY")
        for name in (
            *("INNER_MULTI_DISPATCH", "INNER_NUM", "INNER_BASE", "TRANSACTION_CHECK_TIMES"),
            "CHECK_IMMUNITY_TIME_IN_SECONDS",  # it would have no limit
        )
    ),
    ("8: a blank tag", [message(tag=" ")], "ILLEGAL_MESSAGE_TAG"),
    ("8: a tag with a bar", [message(tag="a|b")], "ILLEGAL_MESSAGE_TAG"),
    ("8: a control tag", [message(tag="a\x7f")], "ILLEGAL_MESSAGE_TAG"),
    ("9: a blank key", [message(keys=["a", " "])], "ILLEGAL_MESSAGE_KEY"),
    ("9: a control key", [message(keys=["a\n"])], "ILLEGAL_MESSAGE_KEY"),
    (
        "10: large properties",
        [message(properties={"p": "é" * 8000}, tag="t" * 200, keys=["k" * 200])],
        "MESSAGE_PROPERTIES_TOO_LARGE",
    ),
    ("11: a blank id", [message(message_id=" ")], "ILLEGAL_MESSAGE_ID"),
    ("11: a control id", [message(message_id="a\x01b")], "ILLEGAL_MESSAGE_ID"),
    (
        "12: a long recovery",
        [
            message(
                message_type=TRANSACTION,
                orphaned_transaction_recovery_duration=Duration(seconds=3601),
            )
        ],
        "BAD_REQUEST",
    ),
    (
        "13: late delivery",
        [message(delivery_timestamp=soon(DELAY_MAX_MS + HOUR_MS))],
        "ILLEGAL_DELIVERY_TIME",
    ),
    ("14: a negative priority", [message(priority=-1)], "BAD_REQUEST"),
    ("15: a blank message group", [message(message_group=" ")], "ILLEGAL_MESSAGE_GROUP"),
    ("15: a long message group", [message(message_group="x" * 64)], "ILLEGAL_MESSAGE_GROUP"),
    ("15: a control message group", [message(message_group="a\r")], "ILLEGAL_MESSAGE_GROUP"),
    ("15: 64 bytes, not letters", [message(message_group="é" * 32)], "ILLEGAL_MESSAGE_GROUP"),
    ("16: a blank lite topic", [message(lite_topic=" ")], "ILLEGAL_LITE_TOPIC"),
    ("16: an illegal lite topic", [message(lite_topic="a.b")], "ILLEGAL_LITE_TOPIC"),
    ("16: a long lite topic", [message(lite_topic="x" * 65)], "ILLEGAL_LITE_TOPIC"),
    ("-: a control trace context", [message(trace_context="a\x02")], "BAD_REQUEST"),
    ("-: a control born host", [message(born_host="a\x02")], "BAD_REQUEST"),
    ("17: a group in a normal topic", [message(message_group="g")], CONFLICT),
    ("17: a sharding key", [message(properties={"__SHARDINGKEY": "g"})], CONFLICT),
    ("17: a delay in a normal topic", [message(delivery_timestamp=soon())], CONFLICT),
    ("17: a transaction in a normal topic", [message(message_type=TRANSACTION)], CONFLICT),
    ("17: a priority in a normal topic", [message(priority=1)], CONFLICT),
    ("17: a priority of 0", [message(priority=0)], CONFLICT),
    ("17: a transaction in a fifo topic", [message(topic="F", message_type=TRANSACTION)], CONFLICT),
    ("17: a group in a delay topic", [message(topic="D", message_group="g")], CONFLICT),
    ("17: a normal message in a transaction topic", [message(topic="X")], CONFLICT),
    ("17: the second message of two", [message(), message(message_group="g")], CONFLICT),
    ("17: a lite topic in a normal topic", [message(lite_topic="l")], CONFLICT),
    ("17: a normal message in a fifo topic", [message(topic="F")], CONFLICT),
    ("17: a normal message in a delay topic", [message(topic="D")], CONFLICT),
    ("17: an unknown topic", [message(topic="unknown")], "TOPIC_NOT_FOUND"),
    (
        "17: a transaction with a delivery time",
        [message(topic="M", message_type=TRANSACTION, delivery_timestamp=soon())],
        CONFLICT,
    ),
    ("18: no writable queue", [message(topic="R")], "FORBIDDEN"),
    (
        "-: large properties beside the user's",
        [message(message_id="i" * 20_000, trace_context="c" * 20_000)],
        "MESSAGE_PROPERTIES_TOO_LARGE",
    ),
    *(
        (f"the first of two faults: {name}", [message(**faults)], expected)
        for name, faults, expected in FAULTS
    ),
    ("a message", [message()], "OK"),
    ("an empty tag", [message(tag="")], "OK"),
    ("an empty key", [message(keys=["", "a"])], "OK"),
    ("an empty lite topic", [message(lite_topic="")], "OK"),
    ("128 properties", [message(properties={f"p{n}": "v" for n in range(128)})], "OK"),
    ("an hour until the first check", [message(topic="X", **HOUR_OF_RECOVERY)], "OK"),
    ("a delivery in the past", [message(topic="D", delivery_timestamp=at(1000))], "OK"),
    ("the longest delay", [message(topic="D", delivery_timestamp=soon(DELAY_MAX_MS - 1))], "OK"),
    ("a normal message in a mixed topic", [message(topic="M")], "OK"),
    ("a group in a mixed topic", [message(topic="M", message_group="g")], "OK"),
    ("a delay in a mixed topic", [message(topic="M", delivery_timestamp=soon())], "OK"),
    ("a transaction in a mixed topic", [message(topic="M", message_type=TRANSACTION)], "OK"),
    ("a FIFO message without a group", [message(message_type=FIFO)], "OK"),
    ("keys with blanks", [message(keys=["a b", "c"])], "OK"),
    ("a full name of a group", [message(topic="F", message_group="x" * 63)], "OK"),
    ("all limits", [message(b"x" * (4 << 20), properties={"p": "v" * 16_383})], "OK"),
    ("retries", [message(topic="%RETRY%CG", message_group="g")], "OK"),
    ("two messages", [message(), message()], "OK"),
]


TYPED = {"F": "FIFO", "D": "DELAY", "M": "MIXED", "X": "TRANSACTION"}
"""The topics with a type that the rows name."""


@pytest.fixture
async def topics(service: Service) -> Service:
    for name, kind in TYPED.items():
        await service.create_topic(name, kind)
    await service.create_topic("%RETRY%CG")
    await service.create_topic("R", perm=4)
    return service


async def test_every_check_has_its_code(topics: Service) -> None:
    for waits in (False, True):
        topics.brokers.waits = waits
        for name, messages, expected in ROWS:
            response = await topics.send(*messages)
            assert code(response) == expected, f"{name}: {response.status.message}"
            assert response.status.message
            assert codes(response) == (["OK"] * len(messages) if expected == "OK" else [])


async def test_a_message_is_answered_without_a_coroutine(service: Service) -> None:
    request = SendMessageRequest(messages=[message(message_id="m1")])
    response = service.sending.send(FakeCall(), service.client, request)
    assert not hasattr(response, "__await__")
    assert (
        response
        == SendMessageResponse(
            status=OK, entries=[SendResultEntry(status=OK, message_id="m1", transaction_id="m1")]
        ).SerializeToString()
    )


BROKER_ROWS = [
    (ResponseCode.FLUSH_DISK_TIMEOUT, "MASTER_PERSISTENCE_TIMEOUT", 1),
    (ResponseCode.FLUSH_SLAVE_TIMEOUT, "SLAVE_PERSISTENCE_TIMEOUT", 1),
    (ResponseCode.SLAVE_NOT_AVAILABLE, "HA_NOT_AVAILABLE", 1),
    (ResponseCode.SYSTEM_BUSY, "TOO_MANY_REQUESTS", 0),
    (ResponseCode.MESSAGE_ILLEGAL, "BAD_REQUEST", 0),
    (ResponseCode.NO_PERMISSION, "FORBIDDEN", 0),
    (ResponseCode.SERVICE_NOT_AVAILABLE, "INTERNAL_SERVER_ERROR", 0),
    (ResponseCode.SYSTEM_ERROR, "INTERNAL_SERVER_ERROR", 0),
]


@pytest.mark.parametrize(("answered", "expected", "entries"), BROKER_ROWS)
async def test_19_the_codes_of_brokers(
    service: Service, answered: int, expected: str, entries: int
) -> None:
    answer = RemotingCommand(answered, remark="the reason")
    service.brokers.replaced[RequestCode.SEND_MESSAGE_V2] = answer
    response = await service.send(message())
    assert code(response) == expected
    assert response.status.message == "the reason"
    assert codes(response) == [expected] * entries
    assert not any(entry.message_id for entry in response.entries)
    both = await service.send(message(), message())
    assert code(both) == expected
    assert codes(both) == [expected] * 2


async def test_a_batch_has_an_entry_per_message(topics: Service) -> None:
    response = await topics.send(
        message(b"1", "M", "m1"),
        message(b"2", "M", "m2", message_group="g"),
        message(b"3", "M", "m3", message_group="g"),
    )
    assert code(response) == "OK"
    assert [entry.message_id for entry in response.entries] == ["m1", "m2", "m3"]
    second, third = response.entries[1:]
    assert third.offset > second.offset  # order is kept within the group


async def test_different_results_of_a_batch(
    topics: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_once(*args: Any) -> Any:
        monkeypatch.undo()
        raise OSError("the network is down")

    monkeypatch.setattr(topics.brokers, "request", fail_once)
    response = await topics.send(message(), message())
    assert code(response) == "MULTIPLE_RESULTS"
    assert codes(response) == ["INTERNAL_SERVER_ERROR", "OK"]


async def test_the_size_of_a_batch_is_limited(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_calls, "MESSAGES_MAX", 2)
    assert code(await service.send(*[message()] * 2)) == "OK"
    assert code(await service.send(*[message()] * 3)) == "PAYLOAD_TOO_LARGE"
    half = b"x" * (2 << 20)
    assert code(await service.send(message(half), message(half + b"x"))) == "MESSAGE_BODY_TOO_LARGE"


async def stored(service: Service, sent: Message) -> Record:
    response = await service.send(sent)
    assert code(response) == "OK", response.status.message
    return service.broker.store.query(sent.topic.name, sent.system_properties.message_id)[0]


async def test_all_fields_are_stored(topics: Service) -> None:
    sent = message(
        topic="M",
        message_id="m1",
        properties={"a": "1", "empty": "", "": "nameless", "ü": "ö"},
        tag="paid",
        keys=["k1", "k2"],
        message_group="g",
        trace_context="trace",
        born_host="shop",
        born_timestamp=at(1_700_000_000_123),
        delivery_attempt=3,
        queue_id=77,
    )
    sent.topic.resource_namespace = "ignored"
    record = await stored(topics, sent)
    properties = record.properties
    for added in ("MSG_REGION", "TRACE_ON", "CLUSTER"):
        del properties[added]
    assert properties == {
        "a": "1",
        "ü": "ö",
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "m1",
        "PGROUP": "M",
        "__SHARDINGKEY": "g",
        "TRACE_CONTEXT": "trace",
        "RECONSUME_TIME": "3",
        "__BORNHOST": "shop",
        "BORN_TIMESTAMP": "1700000000123",
    }
    assert record.born_time == 1_700_000_000_123
    assert str(record.born_host) == "192.0.2.7:4321"
    assert record.reconsume_times == 0
    assert record.sys_flag == 0
    assert record.body == b"hello"


async def test_a_compressed_body_is_stored_as_it_is(service: Service) -> None:
    record = await stored(service, message(body_encoding=Encoding.GZIP, message_id="m1"))
    assert record.sys_flag & COMPRESSED
    assert record.body == b"hello"
    assert record.properties["__BORNHOST"] == "192.0.2.7:4321"


@pytest.mark.parametrize("seconds", [2**62, -(2**62)])
async def test_any_time_of_birth_is_stored(service: Service, seconds: int) -> None:
    sent = message(message_id="m1")
    sent.system_properties.born_timestamp.seconds = seconds
    assert abs((await stored(service, sent)).born_time) >= 2**63 - 1


async def test_groups_keep_their_queue(topics: Service) -> None:
    for group, queue_id in (("order-1", 3), ("order-2", 2), ("Zürich", 0)):
        for number in range(2):
            sent = message(topic="F", message_group=group, message_id=f"{group} {number}")
            sent.system_properties.message_id = f"{queue_id}{number}"
            assert (await stored(topics, sent)).queue_id == queue_id


async def test_reserved_topics_of_a_cluster_are_refused(service: Service) -> None:
    service.brokers.more_reserved = {"T"}
    assert code(await service.send(message())) == "ILLEGAL_TOPIC"


async def test_a_longer_delay_can_be_allowed(topics: Service) -> None:
    late = message(topic="D", delivery_timestamp=soon(DELAY_MAX_MS + HOUR_MS))
    response = await topics.send(late)
    assert code(response) == "ILLEGAL_DELIVERY_TIME"
    assert "maxDelayTimeMills" in response.status.message
    clock = SYSTEM.clock.now_ms
    topics.sending = send_calls.SendCalls(
        topics.brokers, topics.known, clock, DELAY_MAX_MS + HOUR_MS
    )
    assert code(await topics.send(late)) == "OK"


async def test_the_recall_handle_of_the_broker_is_passed_on(service: Service) -> None:
    fields = {"msgId": "x", "queueId": "0", "queueOffset": "7", "recallHandle": "handle"}
    service.brokers.replaced[RequestCode.SEND_MESSAGE_V2] = RemotingCommand(0, fields)
    entry = (await service.send(message())).entries[0]
    assert (entry.recall_handle, entry.offset) == ("handle", 7)
