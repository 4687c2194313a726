"""Drafts of messages: the checks of the Java store, delay levels, hosts and flags.

All of this happens before the append lock is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from firetrail.errors import FormatError, IllegalMessageError, PropertiesTooLongError
from firetrail.format import layout
from firetrail.format.batch import BatchItem, decode_batch, encode_batch, has_property
from firetrail.format.kernels.draft import Draft, DraftRules, Message, check_int32
from firetrail.format.kernels.encode import RecordFields, measure_batch
from firetrail.format.light import (
    LIGHT_PREFIX,
    LIGHT_QUEUE_ID,
    LIGHT_QUEUES_MAX,
    SEPARATOR,
    listed_queues,
    may_name_light_queues,
)
from firetrail.format.message_types import is_delayed, may_be_delayed
from firetrail.format.names import RETRY_PREFIX, SCHEDULE_TOPIC
from firetrail.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    REAL_QID,
    REAL_TOPIC,
    WAIT,
    closed_properties,
    decode_properties,
    get_property,
    replace_properties,
    without_crc,
)
from firetrail.format.values.arguments import instance, number, several, truth
from firetrail.format.values.delay import level_in
from firetrail.format.values.hosts import Host, encode_host
from firetrail.format.values.integers import INT32_MAX, INT32_MIN, whole
from firetrail.store.log.commit_log import BatchDraft
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.queue_table import QueueTable
from firetrail.store.settings.store_config import StoreConfig

DELAY_ELAPSED = -1
"""The delay level of a message whose raw properties name the level that it has waited for.

Java leaves that property in the delivered message, where consumers read it."""


_HOST_FLAGS = layout.BORN_HOST_V6 | layout.STORE_HOST_V6


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages for one topic and queue that are stored in one piece, as a client sends them.

    Args:
        topic: The topic of all messages.
        body: The messages as clients encode a batch (``firetrail.format.batch``).
        queue_id: The queue of all messages; 0 by default.
        sys_flag: RocketMQ's system flags; 0 by default. A batch cannot be part of a transaction.
        born_time: The time at which the client created the batch, in ms; by default its store time.
        born_host: The client's address; by default the address of the store.
        reconsume_times: The number of times that the messages were redelivered; 0 by default.
        shared_properties: Encoded properties that are appended to those of each message. If a
            message has one of them as well, the shared value counts, as in RocketMQ.
        wait_for_flush: Whether a put waits for the disk with SYNC_FLUSH; True by default.

    Raises:
        IllegalMessageError: The body is not bytes.
        WrongTypeError: Another argument has a wrong type.
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

    def __post_init__(self) -> None:
        instance("topic", self.topic, str)
        for name in ("queue_id", "sys_flag", "reconsume_times"):
            number(name, getattr(self, name), INT32_MIN, INT32_MAX)
        if self.born_time is not None:
            whole("born_time", self.born_time)
        if self.born_host is not None:
            instance("born_host", self.born_host, Host)
        _check_body(self.body)
        instance("shared_properties", self.shared_properties, bytes)
        truth("wait_for_flush", self.wait_for_flush)

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Self:
        """Return the batch of some messages.

        Args:
            messages: At least one message. All must have the same topic, queue, system flags, born
                time, born host and number of redeliveries, which a batch has only once.

        Raises:
            IllegalMessageError: The messages differ in one of those, one of them has a flag that is
                not a signed number of 32 bits, or there is no message.
            PropertiesTooLongError: The properties of a message do not fit into a record.
        """
        if not several("messages", messages, Message):
            raise IllegalMessageError("batch", "it is empty; pass at least one message")
        for message in messages:
            _check_body(message.body)
        first = messages[0]
        for name in ("topic", "queue_id", "sys_flag", "born_time", "born_host", "reconsume_times"):
            if any(getattr(message, name) != getattr(first, name) for message in messages):
                raise IllegalMessageError(name, "all messages of a batch must have the same")
        return cls(
            first.topic,
            encode_batch(_item(number, message) for number, message in enumerate(messages)),
            first.queue_id,
            first.sys_flag,
            first.born_time,
            first.born_host,
            first.reconsume_times,
            wait_for_flush=all(message.wait_for_flush for message in messages),
        )


def _item(position: int, message: Message) -> BatchItem:
    """Return a message as the batch encodes it; ``position`` is its place in the batch, from 0."""
    properties = message.encode_properties()
    if len(properties) > layout.MAX_PROPERTIES:
        detail = f"{len(properties)} bytes, at most {layout.MAX_PROPERTIES}"
        raise PropertiesTooLongError(f"properties of message {position}", detail)
    check_int32(f"flag of message {position}", message.flag)
    return BatchItem(message.flag, bytes(message.body), properties)


def _check_body(body: object) -> None:
    if not isinstance(body, bytes | bytearray | memoryview):
        raise IllegalMessageError("body", f"bytes are needed, not {type(body).__name__}")


class Drafter:
    """Creates drafts, and raises IllegalMessageError for messages that the store must refuse."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self.rules = DraftRules(
            encode_host(config.store_host),
            config.property_crc,
            config.max_message_size,
            config.max_record_size,
        )

    def delayed(self, message: Message, draft: Draft) -> Message:
        """Return the message as it is stored in the schedule; itself if it has no delay."""
        if message.delay_level == DELAY_ELAPSED:
            return message
        properties = without_crc(message.encode_properties())  # as in the draft
        level = level_in(get_property(properties, DELAY))
        if level == 0 or not layout.takes_queue_offset(draft.sys_flag):
            return message
        clamped = self._config.delay_levels.clamp(level)
        changes: dict[str, str | None] = {
            REAL_TOPIC: message.topic,
            REAL_QID: str(message.queue_id),
        }
        if clamped != level:
            changes = {DELAY: str(clamped), **changes}
        properties = replace_properties(properties, changes)
        return stored_as(message, SCHEDULE_TOPIC, clamped - 1, properties)

    def draft_batch(self, batch: Batch) -> BatchDraft:
        """Return the draft of a client batch."""
        topic = batch.topic.encode()
        store_host = self.rules.store_host
        if batch.topic.startswith(RETRY_PREFIX):
            raise IllegalMessageError("topic", f"{batch.topic}: a retry topic accepts no batches")
        if batch.sys_flag & layout.TRANSACTION_MASK:
            raise IllegalMessageError("sys_flag", "a batch cannot be part of a transaction")
        if self.rules.light_queues and _names_light_queues(batch):
            raise IllegalMessageError(
                INNER_MULTI_DISPATCH,
                "messages of a batch cannot name light queues; send them one by one",
            )
        if _is_delayed(batch):
            raise IllegalMessageError(
                "batch",
                "it has a delay level or a delivery time (DELAY, TIMER_*), and batches are not "
                "delayed; send delayed messages one by one",
            )
        if len(batch.body) > self.rules.body_max:
            raise IllegalMessageError(
                "batch", f"it has {len(batch.body)} bytes, at most {self.rules.body_max}"
            )
        items = bytes(without_crcs(batch.body))
        shared = closed_properties(without_crc(batch.shared_properties))
        born_host = encode_host(batch.born_host) if batch.born_host else store_host
        born_flag = layout.BORN_HOST_V6 if len(born_host) == layout.HOST_V6_SIZE else 0
        try:
            messages, size, largest = measure_batch(
                items,
                len(born_host) + len(store_host),
                len(topic),
                len(shared),
                self._config.property_crc,
            )
        except FormatError as error:
            raise IllegalMessageError("batch", str(error)) from error
        room = self._config.commit_log_file_size - layout.BLANK.size
        if largest > self.rules.record_max or size > room:
            raise IllegalMessageError(
                "batch",
                f"its records have {size} bytes, the largest {largest}; at most {room} and "
                f"{self.rules.record_max} are allowed",
            )
        common = RecordFields(
            topic,
            born_host,
            store_host,
            properties=shared,
            queue_id=batch.queue_id,
            sys_flag=batch.sys_flag & ~_HOST_FLAGS | self.rules.store_flags | born_flag,
            born_time=batch.born_time or 0,
            reconsume_times=batch.reconsume_times,
        )
        return BatchDraft(common, items, messages, size)


class LightNumbers:
    """Assigns queue offsets in the light queues that messages name, as Java's broker does.

    A caller holds :attr:`guard` from the assignment until the message is in the log.
    """

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self.guard = queues.system.threads.lock()

    def numbered(self, message: Message) -> tuple[Message, list[ConsumeQueue]]:
        """Return the message as it is stored, and the light queues that it belongs to.

        Raises IllegalMessageError if it names a queue that it cannot be put into.
        """
        properties = message.encode_properties()
        names = get_property(properties, INNER_MULTI_DISPATCH)
        if names is None or not may_name_light_queues(message.topic):
            return message, []
        every_name = names.rstrip(SEPARATOR).split(SEPARATOR)
        wanted = listed_queues(names)
        for name in every_name:
            if name not in wanted:
                raise IllegalMessageError(
                    INNER_MULTI_DISPATCH,
                    f"{name!r} is not a light queue; its name must begin with {LIGHT_PREFIX}",
                )
        queues = {name: self._open(name) for name in wanted}
        numbers = SEPARATOR.join(str(queues[name].next_offset) for name in every_name)
        changes: dict[str, str | None] = {INNER_MULTI_QUEUE_OFFSET: numbers, WAIT: None}
        properties = replace_properties(properties, changes)
        stored = stored_as(message, message.topic, message.queue_id, properties)
        return stored, list(queues.values())

    def _open(self, name: str) -> ConsumeQueue:
        queue = self._queues.find(name, LIGHT_QUEUE_ID)
        if queue is not None:
            return queue
        if self._queues.light_queues >= LIGHT_QUEUES_MAX:
            raise IllegalMessageError(
                INNER_MULTI_DISPATCH, f"{name}: there are {LIGHT_QUEUES_MAX} light queues already"
            )
        return self._queues.open(name, LIGHT_QUEUE_ID)


def stored_as(message: Message, topic: str, queue_id: int, properties: bytes) -> Message:
    """Return the message with the topic, queue and properties that it is stored with."""
    return Message(
        topic,
        message.body,
        queue_id=queue_id,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_time=message.born_time,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
        raw_properties=properties,
        wait_for_flush=message.wait_for_flush,
    )


def _is_delayed(batch: Batch) -> bool:
    """Return whether a message of a batch, or the batch for all of them, asks for a delay."""
    if not may_be_delayed(batch.body) and not may_be_delayed(batch.shared_properties):
        return False
    shared = decode_properties(batch.shared_properties)
    return any(
        is_delayed(decode_properties(item.properties) | shared) for item in _items(batch.body)
    )


def _names_light_queues(batch: Batch) -> bool:
    if not may_name_light_queues(batch.topic):
        return False
    if get_property(batch.shared_properties, INNER_MULTI_DISPATCH) is not None:
        return True
    try:
        return has_property(batch.body, INNER_MULTI_DISPATCH)
    except FormatError as error:
        raise IllegalMessageError("batch", str(error)) from error


def without_crcs(batch: bytes | memoryview) -> bytes | memoryview:
    """Return a batch without the record checksums that its items were copied with."""
    if layout.PROPERTY_CRC_MARK not in bytes(batch):
        return batch
    items = _items(batch)
    return encode_batch(item._replace(properties=without_crc(item.properties)) for item in items)


def _items(batch: bytes | memoryview) -> tuple[BatchItem, ...]:
    try:
        return decode_batch(batch)
    except FormatError as error:
        raise IllegalMessageError("batch", str(error)) from error
