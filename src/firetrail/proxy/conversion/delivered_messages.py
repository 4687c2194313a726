"""Messages as they are delivered to clients, from the records that brokers store."""

import logging
from collections.abc import Iterator, Mapping
from hashlib import md5

from firetrail.errors import FormatError
from firetrail.format.compression import ZLIB, inflated, method_of
from firetrail.format.layout import COMPRESSED, RECORD_SIZE_MIN
from firetrail.format.message_types import type_of_message
from firetrail.format.properties import (
    KEY_SEPARATOR,
    KEYS,
    LITE_TOPIC,
    PRIORITY,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from firetrail.format.record import Record, decode_received
from firetrail.format.values.hosts import format_host
from firetrail.format.values.integers import INT32_MAX, number_in
from firetrail.proxy.conversion.message_properties import (
    BORN_HOST,
    HIDDEN,
    TRACE_CONTEXT,
    set_milliseconds,
)
from firetrail.proxy.schema.messages import DigestType, Encoding, Message, MessageType, Resource
from firetrail.remoting.wire.command import Payload

DELIVERED_MAX = 16 << 20
"""Maximum size of a decompressed body. A receive may deliver 32 of them."""

_GZIP_MAGIC = b"\x1f\x8b"
_TIME_MAX = 253_402_300_799_999
"""The last ms of the year 9999, the end of the times of protobuf."""

_log = logging.getLogger(__name__)


def records_in(body: Payload) -> Iterator[Record]:
    """Yield the records in the body of a response.

    Damaged records are logged and skipped. Records after one whose size is damaged are lost.
    """
    for piece in [body] if isinstance(body, bytes | memoryview) else body:
        view = memoryview(piece)
        at = 0
        while at < len(view):
            size = int.from_bytes(view[at : at + 4], "big")
            try:
                yield decode_received(view[at : at + size])
            except FormatError as error:
                _log.error("a message is damaged and not delivered: %s", error)
                if size < RECORD_SIZE_MIN:
                    break
            at += size


def delivered(
    record: Record,
    properties: Mapping[str, str],
    topic: str,
    *,
    attempt: int | None = None,
    receipt: str | None = None,
) -> Message:
    """Return the message that a client receives.

    Args:
        record: The message as it is stored.
        properties: Its properties, decoded.
        topic: The topic that the client asked for. The record may be in a retry topic.
        attempt: The number of this delivery, 1 for the first. Default: None, which takes it from
            the record.
        receipt: The receipt handle. Default: none, for messages that are not acknowledged.
    """
    message = Message(body=record.body)
    set_topic(message.topic, topic)
    user = message.user_properties
    for name, value in properties.items():
        if name not in HIDDEN:
            user[name] = value
    system = message.system_properties
    system.body_encoding = Encoding.IDENTITY
    if record.sys_flag & COMPRESSED:
        _set_body(message, record)
    digest = system.body_digest
    digest.type = DigestType.MD5
    digest.checksum = md5(message.body, usedforsecurity=False).hexdigest().upper()
    if (tag := properties.get(TAGS)) is not None:
        system.tag = tag
    if (keys := properties.get(KEYS)) is not None:
        system.keys.extend(filter(None, keys.split(KEY_SEPARATOR)))
    system.message_id = properties.get(UNIQ_KEY) or record.message_id
    system.message_type = MessageType[type_of_message(properties)]
    set_milliseconds(system.born_timestamp, record.born_time)
    system.born_host = properties.get(BORN_HOST) or format_host(record.born_host)
    set_milliseconds(system.store_timestamp, record.store_time)
    system.store_host = format_host(record.store_host)
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = attempt_after(record.reconsume_times) if attempt is None else attempt
    if receipt is not None:
        system.receipt_handle = receipt
    _set_optional(message, properties)
    return message


def attempt_after(earlier: int) -> int:
    """Return the number of a delivery, from 1 to the highest that clients can represent.

    Args:
        earlier: The number of earlier deliveries. It may be any number, because brokers store that
            of the producer.
    """
    return min(max(earlier, 0) + 1, INT32_MAX)


def _set_optional(message: Message, properties: Mapping[str, str]) -> None:
    """Set the fields that few messages have."""
    system = message.system_properties
    if (group := properties.get(SHARDING_KEY)) is not None:
        system.message_group = group
    if (lite_topic := properties.get(LITE_TOPIC)) is not None:
        system.lite_topic = lite_topic
    if (trace := properties.get(TRACE_CONTEXT)) is not None:
        system.trace_context = trace
    priority = number_in(properties.get(PRIORITY), 0, INT32_MAX)
    if priority is not None:
        system.priority = priority
    # A message that was sent with a relative delay has no other absolute time than this one.
    planned = properties.get(TIMER_DELIVER_MS) or properties.get(TIMER_OUT_MS)
    time = number_in(planned, 0, _TIME_MAX)
    if time is not None:
        set_milliseconds(system.delivery_timestamp, time)


def _set_body(message: Message, record: Record) -> None:
    """Decompress the body, unless it is in the only format that all clients decompress.

    A body that cannot be decompressed is delivered as it is stored. It is labelled GZIP only if its
    sender said so, or if it is zlib, which most clients recognize: they decompress it or report it.
    """
    encoding = Encoding.IDENTITY
    is_zlib = method_of(record.sys_flag) == ZLIB
    if is_zlib and record.body.startswith(_GZIP_MAGIC):
        encoding = Encoding.GZIP
    else:
        try:
            message.body = inflated(record.body, record.sys_flag, DELIVERED_MAX)
        except FormatError as error:
            if is_zlib:
                encoding = Encoding.GZIP
            _log.warning(
                "the body of the message in %s queue %d offset %d cannot be decompressed and is "
                "delivered as %s: %s",
                record.topic,
                record.queue_id,
                record.queue_offset,
                encoding.name,
                error.detail,
            )
    message.system_properties.body_encoding = encoding


def set_topic(resource: Resource, topic: str) -> None:
    """Set the name of a topic; ``namespace%topic`` is split."""
    namespace, separator, name = topic.partition("%")
    if separator and namespace and name:
        resource.resource_namespace, resource.name = namespace, name
    else:
        resource.name = topic
