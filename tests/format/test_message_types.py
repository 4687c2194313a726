"""The types of messages and topics."""

import pytest

from firetrail.format.message_types import (
    MessageType,
    queue_of_priority,
    type_conflict,
    type_of_message,
    type_of_topic,
)
from firetrail.format.properties import decode_properties, encode_properties

NORMAL = MessageType.NORMAL

CASES = [
    ({}, MessageType.NORMAL),
    ({"TAGS": "A", "MY_DELAY": "1", "TRAN_MSG": "false"}, MessageType.NORMAL),
    ({"TRAN_MSG": "true", "DELAY": "1"}, MessageType.TRANSACTION),
    ({"TRAN_MSG": "True"}, MessageType.TRANSACTION),  # as Java's Boolean.parseBoolean
    ({"TRAN_MSG": "trueish"}, MessageType.NORMAL),
    ({"IS_TRAN_MSG": "true"}, MessageType.NORMAL),
    ({"DELAY": "3"}, MessageType.DELAY),
    ({"TIMER_DELAY_SEC": "3"}, MessageType.DELAY),
    ({"TIMER_DELAY_MS": "3"}, MessageType.DELAY),
    ({"TIMER_DELIVER_MS": "3", "__SHARDINGKEY": "g"}, MessageType.DELAY),
    ({"TAGS": "A", "__SHARDINGKEY": "g", "_SYS_MSG_PRIORITY_": "1"}, MessageType.FIFO),
    ({"_SYS_MSG_PRIORITY_": "1", "__LITE_TOPIC": "l"}, MessageType.PRIORITY),
    ({"__LITE_TOPIC": "l"}, MessageType.LITE),
]


@pytest.mark.parametrize(("properties", "expected"), CASES)
def test_the_first_property_that_matches_decides(
    properties: dict[str, str], expected: MessageType
) -> None:
    assert type_of_message(properties) is expected
    assert type_of_message(decode_properties(encode_properties(properties))) is expected


@pytest.mark.parametrize(
    ("properties", "queue_id"),
    [
        ({"_SYS_MSG_PRIORITY_": "0"}, 0),
        ({"_SYS_MSG_PRIORITY_": "2"}, 2),
        ({"_SYS_MSG_PRIORITY_": "9"}, 3),  # the last of four queues
        ({"_SYS_MSG_PRIORITY_": "-1"}, 1),
        ({"_SYS_MSG_PRIORITY_": "high"}, 1),
        ({"_SYS_MSG_PRIORITY_": "2", "__SHARDINGKEY": "g"}, 1),
        ({"KEYS": "_SYS_MSG_PRIORITY_"}, 1),
    ],
)
def test_the_priority_of_a_message_is_its_queue(properties: dict[str, str], queue_id: int) -> None:
    assert queue_of_priority(properties, 4, 1) == queue_id


def test_a_property_without_a_value_is_none() -> None:
    assert type_of_message(decode_properties(b"__SHARDINGKEY\x01\x02TAGS\x01A\x02")) is NORMAL


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (None, MessageType.NORMAL),
        ({"reserve.time": "1"}, MessageType.NORMAL),
        ({"message.type": "FIFO"}, MessageType.FIFO),
        ({"message.type": "NEW"}, MessageType.UNSPECIFIED),
    ],
)
def test_the_attribute_is_the_type_of_a_topic(
    attributes: dict[str, str] | None, expected: MessageType
) -> None:
    assert type_of_topic(attributes) is expected


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, MessageType.NORMAL),
        ({"__SHARDINGKEY": "g"}, MessageType.FIFO),
        ({"_SYS_MSG_PRIORITY_": "1"}, MessageType.PRIORITY),
    ],
)
def test_messages_fit_topics_of_their_type_and_mixed_ones(
    properties: dict[str, str], message: MessageType
) -> None:
    for topic in MessageType:
        conflict = type_conflict("T", {"message.type": topic.value}, properties)
        fits = topic in (message, MessageType.MIXED)
        assert conflict == (None if fits else (topic, message))


def test_retries_and_moved_messages_fit_every_topic() -> None:
    fifo = {"message.type": "FIFO"}
    assert type_conflict("T", fifo, {}) is not None
    assert type_conflict("%RETRY%G", fifo, {}) is None
    assert type_conflict("%DLQ%G", fifo, {}) is None
    assert type_conflict("T", fifo, {"TRANSFER_FLAG": "x"}) is None
