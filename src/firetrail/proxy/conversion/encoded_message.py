"""The encoder of the common message of a receive, several times as fast as protobuf's objects.

The bytes mean the same as those of
:func:`~firetrail.proxy.conversion.delivered_messages.delivered`. Messages with fields that few have
are left to that function.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import md5

from firetrail.format.layout import COMPRESSED
from firetrail.format.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    LITE_TOPIC,
    PRIORITY,
    SHARDING_KEY,
    TAGS,
    TIMER_OUT_MS,
    TIMER_TIMES,
    TRAN_MSG,
    UNIQ_KEY,
)
from firetrail.format.record import Record
from firetrail.format.values.hosts import Host, format_host
from firetrail.proxy.conversion.delivered_messages import set_topic
from firetrail.proxy.conversion.message_properties import (
    BORN_HOST,
    HIDDEN,
    TRACE_CONTEXT,
    set_milliseconds,
)
from firetrail.proxy.conversion.protobuf_wire import EncodedMessage, field, int64, key_of, varint
from firetrail.proxy.schema.messages import (
    Digest,
    DigestType,
    Encoding,
    Message,
    MessageType,
    ReceiveMessageResponse,
    Resource,
    SystemProperties,
    Timestamp,
)

_RARE = frozenset(
    {
        *(TRAN_MSG, DELAY, *TIMER_TIMES, TIMER_OUT_MS),
        *(SHARDING_KEY, PRIORITY, LITE_TOPIC, TRACE_CONTEXT),
    }
)
"""Properties that a message of the type NORMAL without further fields does not have."""
_REMEMBERED = 4096
"""Maximum number of cached encodings of hosts and times, most of which occur in many messages."""


_FRAME = key_of(ReceiveMessageResponse, "message")
_TOPIC, _USER = key_of(Message, "topic"), key_of(Message, "user_properties")
_SYSTEM, _BODY = key_of(Message, "system_properties"), key_of(Message, "body")
_TAG, _KEY = key_of(SystemProperties, "tag"), key_of(SystemProperties, "keys")
_MESSAGE_ID, _RECEIPT = (
    key_of(SystemProperties, name) for name in ("message_id", "receipt_handle")
)
_BORN_TIME, _STORE_TIME = (
    key_of(SystemProperties, name) for name in ("born_timestamp", "store_timestamp")
)
_BORN_HOST, _STORE_HOST = (key_of(SystemProperties, name) for name in ("born_host", "store_host"))
_QUEUE_ID, _QUEUE_OFFSET, _ATTEMPT = (
    key_of(SystemProperties, name) for name in ("queue_id", "queue_offset", "delivery_attempt")
)
_NAME, _VALUE = b"\x0a", b"\x12"  # the keys of the two fields of every entry of a map
_NO_DIGEST = b"0" * 32
_BEFORE_DIGEST, _AFTER_DIGEST = (
    SystemProperties(
        body_digest=Digest(type=DigestType.MD5, checksum=_NO_DIGEST.decode()),
        body_encoding=Encoding.IDENTITY,
        message_type=MessageType.NORMAL,
    )
    .SerializeToString()
    .split(_NO_DIGEST)
)


def encoded_delivery(
    record: Record, properties: Mapping[str, str], topic: bytes, attempt: int, receipt: str
) -> EncodedMessage | None:
    """Return the frame of a receive with a message; None if it has fields that few have.

    Args:
        record: The message as it is stored.
        properties: Its properties, decoded.
        topic: The topic that the client asked for, as :func:`encoded_topic` returns it.
        attempt: The number of this delivery, 1 for the first.
        receipt: The receipt handle.
    """
    if record.sys_flag & COMPRESSED or not _RARE.isdisjoint(properties):
        return None
    parts = [topic]
    for name, value in properties.items():
        if name not in HIDDEN:
            entry = field(_NAME, name.encode()) + field(_VALUE, value.encode())
            parts.append(field(_USER, entry))
    system = _system_properties(record, properties, attempt, receipt)
    body = record.body
    parts += (_SYSTEM, varint(len(system)), system, _BODY, varint(len(body)), body)
    message = b"".join(parts)
    return EncodedMessage(b"".join((_FRAME, varint(len(message)), message)))


@lru_cache(maxsize=_REMEMBERED)
def encoded_topic(topic: str) -> bytes:
    """Return the field ``topic`` of a message, for :func:`encoded_delivery`."""
    resource = Resource()
    set_topic(resource, topic)
    return field(_TOPIC, resource.SerializeToString())


def _system_properties(
    record: Record, properties: Mapping[str, str], attempt: int, receipt: str
) -> bytes:
    tag, keys = properties.get(TAGS), properties.get(KEYS)
    message_id = properties.get(UNIQ_KEY) or record.message_id
    born_host = properties.get(BORN_HOST)
    return b"".join(
        (
            b"" if tag is None else field(_TAG, tag.encode()),
            b"" if keys is None else _keys(keys),
            field(_MESSAGE_ID, message_id.encode()),
            _BEFORE_DIGEST,
            md5(record.body, usedforsecurity=False).hexdigest().upper().encode(),
            _AFTER_DIGEST,
            _time(_BORN_TIME, record.born_time),
            field(_BORN_HOST, _host(record.born_host) if born_host is None else born_host.encode()),
            _time(_STORE_TIME, record.store_time),
            field(_STORE_HOST, _host(record.store_host)),
            field(_RECEIPT, receipt.encode()),
            _QUEUE_ID,
            varint(record.queue_id),
            _QUEUE_OFFSET,
            int64(record.queue_offset),
            _ATTEMPT,
            varint(attempt),
        )
    )


def _keys(text: str) -> bytes:
    return b"".join(field(_KEY, key.encode()) for key in text.split(KEY_SEPARATOR) if key)


@lru_cache(maxsize=_REMEMBERED)
def _host(host: Host) -> bytes:
    return format_host(host).encode()


@lru_cache(maxsize=_REMEMBERED)
def _time(key: bytes, ms: int) -> bytes:
    time = Timestamp()
    set_milliseconds(time, ms)
    return field(key, time.SerializeToString())
