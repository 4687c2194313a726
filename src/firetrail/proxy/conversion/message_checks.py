"""The checks of a message that a client sends, in the order of RocketMQ's proxy.

The first check that fails determines the code of the answer.
"""

import re

from firetrail.errors import ProxyError
from firetrail.format.layout import MAX_PROPERTIES
from firetrail.proxy.conversion.message_properties import RESERVED, milliseconds
from firetrail.proxy.schema.messages import Code, Message, MessageType, SystemProperties

BODY_MAX = 4 << 20
"""Maximum size of a body in bytes, as it is sent."""
PROPERTIES_MAX = 128
"""Maximum number of the user's properties."""
PROPERTIES_SIZE_MAX = 16 << 10
"""Maximum size of the user's properties, the tag and the keys in bytes."""
STORED_SIZE_MAX = MAX_PROPERTIES - 1024
"""Maximum size of all properties in bytes; brokers need the rest for their own."""
RECOVERY_MAX_S = 3600
"""Maximum time before the first check of a transaction that a client may ask for."""
MESSAGE_GROUP_MAX = 63
"""Maximum size of the name of a message group in bytes."""
LITE_TOPIC_MAX = 64
"""Maximum size of the name of a lite topic in bytes."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]").search
_LITE_TOPIC = re.compile("[a-zA-Z0-9_-]+").fullmatch


def check_message(message: Message, now_ms: int, delay_max_ms: int) -> None:
    """Raise ProxyError if a message cannot be sent.

    Args:
        message: The message.
        now_ms: The time.
        delay_max_ms: The longest time until its delivery.
    """
    system = message.system_properties
    size = len(message.body)
    if not size:
        raise ProxyError(Code.MESSAGE_BODY_EMPTY, "the body of the message is empty")
    if size > BODY_MAX:
        raise ProxyError(
            Code.MESSAGE_BODY_TOO_LARGE, f"the body has {size} bytes, the limit is {BODY_MAX}"
        )
    _check_names(message)
    message_id, group = system.message_id, system.message_group
    if not message_id.strip() or _CONTROL(message_id):
        raise ProxyError(
            Code.ILLEGAL_MESSAGE_ID, "the id of the message is blank or has a control character"
        )
    _check_times(system, now_ms, delay_max_ms)
    if system.priority < 0:
        raise ProxyError(Code.BAD_REQUEST, f"the priority {system.priority} is negative")
    if group:
        _check_message_group(group)
    if system.lite_topic:
        _check_lite_topic(system.lite_topic)
    for what, text in (("trace context", system.trace_context), ("born host", system.born_host)):
        if text and _CONTROL(text):
            raise ProxyError(Code.BAD_REQUEST, f"the {what} has a control character")


def _check_names(message: Message) -> None:
    """Check the user's properties, the tag and the keys."""
    system, properties = message.system_properties, message.user_properties
    tag, size = system.tag, 0
    if len(properties) > PROPERTIES_MAX:
        raise ProxyError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(properties)} properties, the limit is {PROPERTIES_MAX}",
        )
    for name, value in properties.items():
        _check_property(name, value)
        size += _size(name) + _size(value)
    if tag:
        if not tag.strip() or "|" in tag or _CONTROL(tag):
            raise ProxyError(
                Code.ILLEGAL_MESSAGE_TAG,
                f"the tag {tag!r:.80} is blank, or has a | or a control character",
            )
        size += _size(tag)
    for key in system.keys:
        if (key and not key.strip()) or _CONTROL(key):
            raise ProxyError(
                Code.ILLEGAL_MESSAGE_KEY, f"the key {key!r:.80} is blank or has a control character"
            )
        size += _size(key)
    if size > PROPERTIES_SIZE_MAX:
        raise ProxyError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size} bytes, the limit is {PROPERTIES_SIZE_MAX}",
        )


def _check_property(name: str, value: str) -> None:
    if name in RESERVED:
        raise ProxyError(
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the property {name} is reserved for the system"
        )
    if _CONTROL(name) or _CONTROL(value):
        raise ProxyError(
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
            f"the name or the value of property {name!r:.80} has a control character",
        )


def _check_times(system: SystemProperties, now_ms: int, delay_max_ms: int) -> None:
    is_transaction = system.message_type == MessageType.TRANSACTION
    if is_transaction:
        recovery_s = milliseconds(system.orphaned_transaction_recovery_duration) // 1000
        if recovery_s > RECOVERY_MAX_S:
            raise ProxyError(
                Code.BAD_REQUEST,
                f"the recovery duration of the transaction is {recovery_s} s, the limit is "
                f"{RECOVERY_MAX_S} s",
            )
    if system.HasField("delivery_timestamp"):
        delay_ms = milliseconds(system.delivery_timestamp) - now_ms
        if delay_ms > delay_max_ms:
            raise ProxyError(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the delivery time is {delay_ms} ms from now, the limit is {delay_max_ms} ms "
                "(maxDelayTimeMills)",
            )
        if is_transaction:
            raise ProxyError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transactional message cannot have a delivery time",
            )


def _check_message_group(group: str) -> None:
    if not group.strip() or _CONTROL(group) or _size(group) > MESSAGE_GROUP_MAX:
        raise ProxyError(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"the message group {group!r:.80} is blank, has a control character, or has more than "
            f"{MESSAGE_GROUP_MAX} bytes",
        )


def _check_lite_topic(name: str) -> None:
    if not _LITE_TOPIC(name) or len(name) > LITE_TOPIC_MAX:
        raise ProxyError(
            Code.ILLEGAL_LITE_TOPIC,
            f"lite topic {name!r:.80}: 1 to {LITE_TOPIC_MAX} letters, digits and _ - are allowed",
        )


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
