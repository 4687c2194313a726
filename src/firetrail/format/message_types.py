"""The types of messages, and which of them a topic is for (RocketMQ 5.x).

The type of a message follows from its properties. The type of a topic is its attribute
``message.type``. The gRPC service refuses a message of another type than its topic's; brokers
accept it over the remoting protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from firetrail.format.names import DLQ_PREFIX, RETRY_PREFIX
from firetrail.format.properties import (
    DELAY,
    LITE_TOPIC,
    PRIORITY,
    SHARDING_KEY,
    TIMER_TIMES,
    TRAN_MSG,
    TRANSFER_FLAG,
    decode_properties,
)

TYPE_ATTRIBUTE = "message.type"
"""The attribute of a topic that has its type."""


class MessageType(StrEnum):
    """The type of a message, or the messages that a topic is for."""

    UNSPECIFIED = "UNSPECIFIED"
    """Only topics have this type. It fits no message."""
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    """Messages with a message group, which are delivered in order."""
    DELAY = "DELAY"
    """Messages with a delivery time or a delay level."""
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    """Only topics have this type. It fits every message."""
    PRIORITY = "PRIORITY"
    """Messages with a priority; those with a higher one are popped first."""
    LITE = "LITE"
    """Messages of lite topics, which Firetrail does not support."""


IN_MIXED_TOPICS = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
)
"""The types that the route of a topic of the type MIXED offers to clients."""

_PRIORITY = MessageType.PRIORITY
_TYPES: Mapping[str, MessageType] = {each.value: each for each in MessageType}
_DELAYS = frozenset({DELAY, *TIMER_TIMES})
_DECISIVE = re.compile(
    f"(?:^|\x02)(?:{'|'.join((TRAN_MSG, *_DELAYS, SHARDING_KEY, PRIORITY, LITE_TOPIC))})\x01"
)


def type_of_message(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message with these properties; as in Java, the first match decides."""
    if properties.get(TRAN_MSG) == "true":
        return MessageType.TRANSACTION
    if not _DELAYS.isdisjoint(properties):
        return MessageType.DELAY
    if SHARDING_KEY in properties:
        return MessageType.FIFO
    if PRIORITY in properties:
        return MessageType.PRIORITY
    if LITE_TOPIC in properties:
        return MessageType.LITE
    return MessageType.NORMAL


def type_in_text(properties: str) -> MessageType:
    """Return the type of a message by the text of its properties, in their stored form."""
    if _DECISIVE.search(properties) is None:
        return MessageType.NORMAL
    return type_of_message(decode_properties(properties.encode("utf-8", "replace")))


def type_of_topic(attributes: Mapping[str, str] | None) -> MessageType:
    """Return the type of a topic with these attributes: NORMAL if none says anything else.

    A type that this version does not know is UNSPECIFIED, as in Java.
    """
    value = (attributes or {}).get(TYPE_ATTRIBUTE, MessageType.NORMAL)
    return _TYPES.get(value, MessageType.UNSPECIFIED)


def fits(topic: MessageType, message: MessageType) -> bool:
    """Return whether a message of a type belongs into a topic of a type."""
    return topic in (message, MessageType.MIXED)


def queue_of_priority(properties: str, queues: int, queue_id: int) -> int:
    """Return the queue of a message: for a PRIORITY message, the one with its priority as number.

    Args:
        properties: The text of its properties, in their stored form.
        queues: The number of queues; higher priorities go to the last one.
        queue_id: The queue of any other message.
    """
    found = decode_properties(properties.encode("utf-8", "replace"))
    priority = found.get(PRIORITY, "")
    if not (priority.isascii() and priority.isdecimal()):
        return queue_id
    return min(int(priority), queues - 1) if type_of_message(found) is _PRIORITY else queue_id


def is_typed(topic: str, properties: Mapping[str, str]) -> bool:
    """Return whether the type of a message has to fit its topic.

    It does not in topics of retries and dead letters, nor for messages that were moved from
    another cluster.
    """
    return not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) and TRANSFER_FLAG not in properties
