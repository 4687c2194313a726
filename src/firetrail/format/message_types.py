"""The types of messages, and which of them a topic is for (RocketMQ 5.x).

The type of a message follows from its properties. The type of a topic is its attribute
``message.type``. The gRPC service refuses a message of another type than its topic's; brokers
accept it over the remoting protocol.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from firetrail.format.names import DLQ_PREFIX, RETRY_PREFIX
from firetrail.format.properties import (
    DELAY,
    LITE_TOPIC,
    PRIORITY,
    SHARDING_KEY,
    TIMER_OUT_MS,
    TIMER_TIMES,
    TRAN_MSG,
    TRANSFER_FLAG,
    WAIT,
)
from firetrail.format.values.delay import level_in
from firetrail.format.values.integers import INT32_MAX, number_in
from firetrail.format.values.truths import is_true

TYPE_ATTRIBUTE = "message.type"
"""The attribute of a topic that has its type."""


class MessageType(StrEnum):
    """The type of a message, or the messages that a topic is for."""

    UNSPECIFIED = "UNSPECIFIED"
    """A type of topics only, which fits no message."""
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    """Messages with a message group, which are delivered in order."""
    DELAY = "DELAY"
    """Messages with a delivery time or a delay level."""
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    """A type of topics only, which fits every message."""
    PRIORITY = "PRIORITY"
    """Messages with a priority; those with a higher one are popped first."""
    LITE = "LITE"
    """Messages of lite topics, which Firetrail does not support."""


IN_MIXED_TOPICS = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
"""The types that the route of a topic of the type MIXED offers to clients."""

_PRIORITY = MessageType.PRIORITY
_TYPES: Mapping[str, MessageType] = {each.value: each for each in MessageType}
LOST_BY_DEAD_LETTERS = (DELAY,)
"""Properties that a message loses when it becomes a dead letter, which is never delayed. Like
RocketMQ, brokers keep a delivery time, but do not look at it."""
_TIMES = frozenset(TIMER_TIMES)
_DELAYS = _TIMES | {DELAY}
_DELAY_MARKS = (b"DELAY", b"TIMER_DELIVER")
"""Each name in _DELAYS contains one of them."""


def is_transactional(properties: Mapping[str, str]) -> bool:
    """Return whether a message with these properties is of a transaction."""
    return is_true(properties.get(TRAN_MSG, ""))


def begins_transaction(properties: Mapping[str, str], reconsume_times: int) -> bool:
    """Return whether a message that a client sends is stored as a half message.

    A message that was consumed before is not: consumers before RocketMQ 4.6.1 send it back with all
    of its properties, although its transaction was committed long ago.
    """
    return not reconsume_times and TRAN_MSG in properties and is_transactional(properties)


def has_delivery_time(properties: Mapping[str, str]) -> bool:
    """Return whether a message with these properties asks for delivery at a time."""
    return not _TIMES.isdisjoint(properties)


def is_delayed(properties: Mapping[str, str]) -> bool:
    """Return whether a message with these properties is delivered later than it is stored.

    One that a timer has delivered before is not delayed again.
    """
    if level_in(properties.get(DELAY)):
        return True
    return has_delivery_time(properties) and TIMER_OUT_MS not in properties


def may_be_delayed(raw: bytes) -> bool:
    """Return False if no property in these bytes requests a delay, so that they need no
    decoding."""
    return any(mark in raw for mark in _DELAY_MARKS)


def waits_for_disk(properties: Mapping[str, str]) -> bool:
    """Return whether the producer of a message waits until it is on disk: unless WAIT is false."""
    return is_true(properties.get(WAIT, "true"))


def type_of_message(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message with these properties; as in Java, the first match decides."""
    if is_transactional(properties):
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


def type_of_topic(attributes: Mapping[str, str] | None) -> MessageType:
    """Return the type of a topic with these attributes; NORMAL is the default.

    A type that this version does not know is UNSPECIFIED, as in Java.
    """
    value = (attributes or {}).get(TYPE_ATTRIBUTE, MessageType.NORMAL)
    return _TYPES.get(value, MessageType.UNSPECIFIED)


class TypeConflict(NamedTuple):
    """The type of a topic, and that of a message that does not fit it."""

    wanted: MessageType
    found: MessageType


def type_conflict(
    topic: str, attributes: Mapping[str, str] | None, properties: Mapping[str, str]
) -> TypeConflict | None:
    """Return the conflict of a message with these properties with its topic; None if it fits.

    It fits every topic of retries and dead letters, and always if it was moved from another
    cluster.
    """
    wanted, found = type_of_topic(attributes), type_of_message(properties)
    if wanted in (found, MessageType.MIXED):
        return None
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or TRANSFER_FLAG in properties:
        return None
    return TypeConflict(wanted, found)


def queue_of_priority(properties: Mapping[str, str], queues: int, queue_id: int) -> int:
    """Return the queue of a message: for a PRIORITY message, the one with its priority as number.

    Args:
        properties: Its properties.
        queues: The number of queues; higher priorities go to the last one.
        queue_id: The queue of any other message.
    """
    priority = number_in(properties.get(PRIORITY), 0, INT32_MAX)
    if priority is None or type_of_message(properties) is not _PRIORITY:
        return queue_id
    return min(priority, queues - 1)
