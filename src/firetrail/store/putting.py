"""From a message to a draft: the checks of the Java store, delay levels, hosts and flags.

All of it happens before the append lock is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from firetrail.errors import FormatError, IllegalMessageError
from firetrail.format import layout
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.hosts import Host, encode_host
from firetrail.format.kernels.encode import measure_batch, record_size, with_crc_room
from firetrail.format.names import RETRY_PREFIX, SCHEDULE_TOPIC, check_topic
from firetrail.format.properties import DELAY, REAL_QID, REAL_TOPIC, encode_properties
from firetrail.store.commitlog import BatchDraft, Draft
from firetrail.store.config import StoreConfig
from firetrail.store.message import Message

_DELAY = re.compile(rb"(?:^|\x02)" + DELAY.encode() + rb"\x01([0-9]{1,9})(?:\x02|$)")
_DELAY_NAME = DELAY.encode()
_HOST_FLAGS = layout.BORN_HOST_V6 | layout.STORE_HOST_V6
INT32_MAX = 2**31 - 1


class PropertiesTooLongError(IllegalMessageError):
    """The properties do not fit into a record."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages for one topic and queue, stored in one piece, as a client sends them.

    ``body`` is the client's encoding (``format.batch``), ``shared_properties`` are appended to
    those of each message.
    """

    topic: str
    body: bytes
    queue_id: int = 0
    sys_flag: int = 0
    born_time: int | None = None
    born_host: Host | None = None
    reconsume_times: int = 0
    shared_properties: bytes = b""
    wait_for_flush: bool = True

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Self:
        """The batch of these messages, which must agree on what a batch has only once."""
        if not messages:
            raise IllegalMessageError("batch", "it holds no message")
        first = messages[0]
        for name in ("topic", "queue_id", "sys_flag", "born_time", "born_host", "reconsume_times"):
            if any(getattr(message, name) != getattr(first, name) for message in messages):
                raise IllegalMessageError(name, "the messages of a batch must have the same")
        if any(message.delay_level for message in messages):
            raise IllegalMessageError("delay_level", "messages of a batch cannot be delayed")
        return cls(
            first.topic,
            encode_batch(
                BatchItem(message.flag, bytes(message.body), message.encode_properties())
                for message in messages
            ),
            first.queue_id,
            first.sys_flag,
            first.born_time,
            first.born_host,
            first.reconsume_times,
            wait_for_flush=all(message.wait_for_flush for message in messages),
        )


class Drafter:
    """Makes drafts. Raises IllegalMessageError for what the store must not take."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._store_host = encode_host(config.store_host)
        self._store_flag = (
            layout.STORE_HOST_V6 if len(self._store_host) == layout.HOST_V6_SIZE else 0
        )
        self._default_flags = self._host_flags(self._store_host)
        self._topics: dict[str, bytes] = {}

    @property
    def store_host(self) -> bytes:
        """The store host as it stands in records."""
        return self._store_host

    def draft(self, message: Message) -> tuple[Draft, str]:
        """The draft of a message and the topic it goes to, which a delay may have changed."""
        topic = message.topic
        encoded_topic = self._topics.get(topic) or self._check_topic(topic)
        body = message.body
        if type(body) is not bytes:
            body = self._plain_body(body)
        properties = message.encode_properties()
        queue_id = message.queue_id
        if queue_id < 0 or queue_id > INT32_MAX:
            raise IllegalMessageError("queue_id", f"{queue_id} is not in 0..{INT32_MAX}")
        if message.born_host is None:
            born_host = self._store_host
            sys_flag = message.sys_flag & ~_HOST_FLAGS | self._default_flags
        else:
            born_host = encode_host(message.born_host)
            sys_flag = message.sys_flag & ~_HOST_FLAGS | self._host_flags(born_host)
        if _DELAY_NAME in properties:
            topic, queue_id, properties = self._delayed(topic, queue_id, sys_flag, properties)
            encoded_topic = self._topics.get(topic) or self._check_topic(topic)
        if self._config.property_crc:
            properties = with_crc_room(properties)
        if len(properties) > layout.MAX_PROPERTIES:
            raise PropertiesTooLongError(
                "properties", f"{len(properties)} bytes, at most {layout.MAX_PROPERTIES}"
            )
        if len(body) > self._config.max_message_size:
            raise IllegalMessageError(
                "body", f"{len(body)} bytes, at most {self._config.max_message_size}"
            )
        size = record_size(
            len(born_host), len(self._store_host), len(body), len(encoded_topic), len(properties)
        )
        if size > self._config.max_record_size:
            raise IllegalMessageError(
                "message", f"a record of {size} bytes, at most {self._config.max_record_size}"
            )
        draft = Draft(
            encoded_topic,
            queue_id,
            message.flag,
            sys_flag,
            message.born_time or 0,
            born_host,
            message.reconsume_times,
            message.prepared_offset,
            body,
            properties,
            size,
        )
        return draft, topic

    def draft_batch(self, batch: Batch) -> BatchDraft:
        """The draft of a client batch."""
        topic = self._topics.get(batch.topic) or self._check_topic(batch.topic)
        if batch.topic.startswith(RETRY_PREFIX):
            raise IllegalMessageError("topic", f"{batch.topic}: a retry topic takes no batches")
        if batch.sys_flag & layout.TRANSACTION_MASK:
            raise IllegalMessageError("sys_flag", "a batch cannot be part of a transaction")
        if len(batch.body) > self._config.max_message_size:
            raise IllegalMessageError(
                "batch", f"{len(batch.body)} bytes, at most {self._config.max_message_size}"
            )
        shared = batch.shared_properties
        if shared and not shared.endswith(b"\x02"):
            shared += b"\x02"
        born_host = encode_host(batch.born_host) if batch.born_host else self._store_host
        try:
            items, size, largest = measure_batch(
                batch.body,
                len(born_host) + len(self._store_host),
                len(topic),
                len(shared),
                self._config.property_crc,
            )
        except FormatError as error:
            raise IllegalMessageError("batch", str(error)) from error
        room = self._config.commit_log_file_size - layout.BLANK.size
        if largest > self._config.max_record_size or size > room:
            raise IllegalMessageError(
                "batch",
                f"becomes {size} bytes of records, the largest of {largest}; at most {room} and "
                f"{self._config.max_record_size}",
            )
        return BatchDraft(
            topic,
            batch.queue_id,
            batch.sys_flag & ~_HOST_FLAGS | self._host_flags(born_host),
            batch.born_time or 0,
            born_host,
            batch.reconsume_times,
            batch.body,
            shared,
            items,
            size,
        )

    def _host_flags(self, born_host: bytes) -> int:
        born_flag = layout.BORN_HOST_V6 if len(born_host) == layout.HOST_V6_SIZE else 0
        return self._store_flag | born_flag

    def _check_topic(self, topic: str) -> bytes:
        """Check a topic once; what was accepted is remembered."""
        check_topic(topic)
        encoded = self._topics[topic] = topic.encode()
        return encoded

    def _plain_body(self, body: object) -> bytes:
        if isinstance(body, (bytes, bytearray, memoryview)):
            return bytes(body)
        raise IllegalMessageError("body", f"bytes are needed, not {type(body).__name__}")

    def _delayed(
        self, topic: str, queue_id: int, sys_flag: int, properties: bytes
    ) -> tuple[str, int, bytes]:
        """Topic, queue and properties of a message that is to wait: those of the schedule."""
        match = _DELAY.search(properties)
        level = int(match[1]) if match else 0
        transaction = sys_flag & layout.TRANSACTION_MASK
        if match is None or level == 0 or transaction not in (0, layout.TRANSACTION_COMMIT):
            return topic, queue_id, properties
        clamped = self._config.delay_levels.clamp(level)
        properties = properties[: match.start(1)] + b"%d" % clamped + properties[match.end(1) :]
        if not properties.endswith(b"\x02"):
            properties += b"\x02"
        properties += encode_properties({REAL_TOPIC: topic, REAL_QID: str(queue_id)})
        return SCHEDULE_TOPIC, clamped - 1, properties
