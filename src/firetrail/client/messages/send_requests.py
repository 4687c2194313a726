"""Send requests of a client: the request is built, and the response is read."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import count
from typing import NamedTuple

from firetrail.client.cluster.client_arguments import checked_queue
from firetrail.client.cluster.session import ROLE_CODES
from firetrail.errors import (
    FiretrailError,
    IllegalMessageError,
    PropertiesTooLongError,
    RequestError,
)
from firetrail.format import compression
from firetrail.format.batch import BatchItem, decode_batch, encode_batch
from firetrail.format.kernels.draft import Message, check_int32
from firetrail.format.layout import BATCH_ITEM, COMPRESSED, MAX_PROPERTIES, TRANSACTION_PREPARED
from firetrail.format.message_types import (
    MessageType,
    is_delayed,
    is_transactional,
    may_be_delayed,
    type_of_message,
)
from firetrail.format.names import AUTO_CREATE_TOPIC, RETRY_PREFIX, check_topic
from firetrail.format.properties import (
    PRIORITY,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    closed_properties,
    decode_properties,
    encode_properties,
    get_property,
    replace_properties,
)
from firetrail.format.values.arguments import instance, number, several
from firetrail.format.values.ids import encode_unique_id
from firetrail.format.values.integers import INT32_MAX
from firetrail.format.values.truths import truth_text
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.messages.headers import DEFAULT_QUEUES, SendHeaderV2, SendResponse
from firetrail.remoting.wire.codes import UNCONFIRMED_CODES, Language, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FRAME_MAX, HEADER_MAX, encode_frame
from firetrail.system import SYSTEM

COMPRESS_OVER = 4096
"""The size above which bodies are compressed, as in the Java client, if that makes them smaller."""
SEND_S = 10.0
"""Default time limit for the answer to a request that stores messages. It is longer than a broker
with default settings waits for its disk (``syncFlushTimeout``, 5 s) and then for its replicas
(``slaveTimeout``, 3 s). A client that gave up earlier would send a stored message again."""
BROKER_SPECIFIC_CODES = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})
"""Response codes that concern a single broker: another one may accept the message."""


class SendStatus(StrEnum):
    """The outcome of a send: how safely the message is stored."""

    OK = "SEND_OK"
    """The message is stored as the settings of the broker require."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """The message is stored, but was not synced to disk in time."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """The message is stored, but replicas have not confirmed it in time."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """The message is stored, but too few replicas are connected to confirm it."""


_STATUSES: Mapping[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    **{code: SendStatus[code.name] for code in UNCONFIRMED_CODES},
}


class SendResult(NamedTuple):
    """The place and status of a stored message, or of the first message of a batch."""

    status: SendStatus
    """The safety with which it is stored."""
    message_id: str
    """The id that this client assigned; for a batch, all ids, separated by commas."""
    offset_message_id: str
    """The id that the broker assigned; for a batch, all ids, separated by commas."""
    queue: MessageQueue
    """The queue that it is stored in."""
    queue_offset: int
    """Its number within the queue."""
    transaction_id: str | None = None
    """The id of its transaction, if the broker assigned one."""
    recall_handle: str | None = None
    """With it, :meth:`Producer.recall` recalls the message. None for a message that does not wait
    for a delivery time."""


class OutgoingMessage(NamedTuple):
    """An encoded message that is ready to be sent to any queue."""

    topic: str
    message_id: str
    properties: str
    body: bytes
    flag: int
    sys_flag: int
    batch: bool
    born_ms: int | None = None
    """The time at which the message was created, in ms since 1970; None for the time of the
    send."""

    def header(self, group: str, queue_id: int) -> SendHeaderV2:
        """Return the header of the request that sends the message to a queue."""
        return SendHeaderV2(
            producer_group=group,
            topic=self.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUES,
            queue_id=queue_id,
            sys_flag=self.sys_flag,
            born_timestamp=SYSTEM.clock.now_ms() if self.born_ms is None else self.born_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=0,
            unit_mode=False,
            batch=self.batch,
        )


def draft_of(
    message: Message,
    ids: Iterator[str],
    queue: MessageQueue | None = None,
    more: Mapping[str, str] | None = None,
    *,
    half: bool = False,
) -> OutgoingMessage:
    """Encode a message, after checking it.

    ``queue`` is the queue that it is sent to, or None for any. ``more`` are additional properties.
    ``half`` marks the half message of a transaction.
    """
    _check(message, queue)
    raw, message_id = _properties(message, ids)
    if not half and _is_of_transaction(raw):
        what = f"{TRAN_MSG}=true would hide the message for ever; use send_in_transaction"
        raise IllegalMessageError("properties", what)
    raw += encode_properties(more or {})
    _check_properties(raw)
    body, sys_flag = _compressed(bytes(message.body))
    sys_flag |= TRANSACTION_PREPARED if half else 0
    properties, born = raw.decode(), message.born_time
    return OutgoingMessage(
        topic=message.topic,
        message_id=message_id,
        properties=properties,
        body=body,
        flag=message.flag,
        sys_flag=sys_flag,
        batch=False,
        born_ms=born,
    )


def _is_of_transaction(raw: bytes) -> bool:
    return is_transactional({TRAN_MSG: get_property(raw, TRAN_MSG) or ""})


def _compressed(body: bytes) -> tuple[bytes, int]:
    """Return a body, compressed if that makes it smaller, and the flag that says so."""
    if len(body) <= COMPRESS_OVER:
        return body, 0
    if len(body) > compression.INFLATED_MAX:
        most = f"consumers decompress at most {compression.INFLATED_MAX}"
        what = f"{len(body)} bytes; {most}, so send it in several messages"
        raise IllegalMessageError("body", what)
    compressed = zlib.compress(body, 5)
    return (compressed, COMPRESSED) if len(compressed) < len(body) else (body, 0)


def batch_of(
    messages: Sequence[Message], ids: Iterator[str], queue: MessageQueue | None = None
) -> OutgoingMessage:
    """Encode several messages that are sent and stored together, after checking them."""
    if not several("messages", messages, Message):
        raise IllegalMessageError("batch", "is empty")
    topic, born = messages[0].topic, messages[0].born_time
    items, names = [], []
    for message in messages:
        _check(message, queue)
        if message.born_time != born:
            what = f"must be equal in all messages of a batch, not {born} and {message.born_time}"
            raise IllegalMessageError("born_time", what)
        if message.topic != topic:
            raise IllegalMessageError("batch", f"has the topics {topic} and {message.topic}")
        if topic.startswith(RETRY_PREFIX):
            raise IllegalMessageError("batch", f"{topic}: a retry topic accepts no batches")
        raw, message_id = _properties(message, ids)
        if may_be_delayed(raw) and is_delayed(decode_properties(raw)):
            raise IllegalMessageError("batch", "has a delayed message; send that one alone")
        _check_properties(raw)
        names.append(message_id)
        items.append(BatchItem(message.flag, bytes(message.body), raw))
    # Brokers give the properties of the batch to each of its messages.
    properties = encode_properties({WAIT: "true"}).decode()
    return OutgoingMessage(
        topic=topic,
        message_id=",".join(names),
        properties=properties,
        body=encode_batch(items),
        flag=0,
        sys_flag=0,
        batch=True,
        born_ms=born,
    )


def check_frame(code: RequestCode, header: SendHeaderV2, body: bytes) -> None:
    """Raise IllegalMessageError if the request is so long that a broker would close the connection.

    The number of the request is not known yet, so the longest possible one is assumed.
    """
    if len(body) <= FRAME_MAX - HEADER_MAX:
        return
    request = RemotingCommand(
        code, header.encode(), body, opaque=INT32_MAX, language=Language.PYTHON
    )
    size = sum(map(len, encode_frame(request)))
    if size > FRAME_MAX:
        what = f"a request of {size} bytes; brokers read at most {FRAME_MAX}, so send it in parts"
        raise IllegalMessageError("body", what)


def check_queue(queue: MessageQueue | None, topic: str) -> None:
    """Raise IllegalMessageError unless the queue belongs to the topic."""
    if queue is not None and checked_queue(queue).topic != topic:
        what = f"belongs to the topic {queue.topic}, but the topic of the message is {topic}"
        raise IllegalMessageError("queue", what)


def check_body(body: object) -> None:
    """Raise IllegalMessageError unless the body is bytes."""
    if not isinstance(body, bytes | bytearray | memoryview):
        kind = type(body).__name__
        raise IllegalMessageError("body", f"is of type {kind}, not bytes; encode it first")


def _check(message: Message, queue: MessageQueue | None) -> None:
    """Raise IllegalMessageError for fields that cannot be sent, or that a broker would reject."""
    check_topic(instance("message", message, Message).topic)
    check_queue(queue, message.topic)
    check_body(message.body)
    if message.queue_id and (queue is None or queue.queue_id != message.queue_id):
        what = (
            f"{message.queue_id} is only for embedded stores; "
            "pass queue=MessageQueue(...) to the producer instead"
        )
        raise IllegalMessageError("queue_id", what)
    for name in ("sys_flag", "born_host", "reconsume_times", "prepared_offset"):
        if getattr(message, name):
            raise IllegalMessageError(name, "is set by the broker; a producer cannot send it")
    check_int32("flag", message.flag)


def encoded(topic: str, items: bytes, sys_flag: int = 0) -> OutgoingMessage:
    """Wrap messages that are already encoded as a batch (:mod:`firetrail.format.batch`).

    The messages get no ids. A single message is sent as such, not as a batch, because brokers
    accept it up to a larger size; only a single message can be compressed. It loses a TRAN_MSG=true
    that brokers ignore in a batch: alone, it would be a half message whose transaction nobody ends.
    A PRIORITY message remains a batch, or loses its priority if it is compressed: brokers would put
    a single one into another queue.
    """
    number("sys_flag", sys_flag, most=INT32_MAX)
    if len(instance("items", items, bytes)) < BATCH_ITEM.size:
        raise IllegalMessageError("items", "contain no message")
    (size,) = BATCH_ITEM.struct.unpack_from(items)[:1]
    if size < len(items):
        return OutgoingMessage(
            topic=topic,
            message_id="",
            properties="",
            body=items,
            flag=0,
            sys_flag=sys_flag,
            batch=True,
        )
    (item,) = decode_batch(items)
    raw = item.properties
    if _is_of_transaction(raw):
        raw = replace_properties(raw, {TRAN_MSG: None})
    if type_of_message(decode_properties(raw)) is MessageType.PRIORITY:
        if not sys_flag:
            return OutgoingMessage(
                topic=topic,
                message_id="",
                properties="",
                body=items,
                flag=0,
                sys_flag=0,
                batch=True,
            )
        raw = replace_properties(raw, {PRIORITY: None})
    properties = raw.decode("utf-8", "replace")
    return OutgoingMessage(
        topic=topic,
        message_id="",
        properties=properties,
        body=item.body,
        flag=item.flag,
        sys_flag=sys_flag,
        batch=False,
    )


def result_of(draft: OutgoingMessage, queue: MessageQueue, response: RemotingCommand) -> SendResult:
    """Return the result of a send; raise RequestError if the broker did not store the message."""
    status = _STATUSES.get(response.code)
    if status is None:
        remark = f"{queue.broker_name}: {response.remark or 'no reason given'}"
        raise RequestError(response.code, remark)
    header = SendResponse.decode(response.fields)
    return SendResult(
        status=status,
        message_id=draft.message_id,
        offset_message_id=header.msg_id,
        queue=MessageQueue(queue.topic, queue.broker_name, header.queue_id),
        queue_offset=header.queue_offset,
        transaction_id=header.transaction_id,
        recall_handle=header.recall_handle,
    )


def may_retry(error: OSError | RequestError) -> bool:
    """Return whether a send that failed with an error may succeed later or on another broker."""
    if isinstance(error, RequestError) and error.code in BROKER_SPECIFIC_CODES:
        return True
    return error.retriable if isinstance(error, FiretrailError) else True


def needs_pause(error: OSError | RequestError) -> bool:
    """Return whether a send should pause before the next attempt: it failed at once.

    A broker that is busy, hands over to another master or has ended a connection needs a moment.
    """
    if isinstance(error, RequestError):
        return error.code in ROLE_CODES
    return not isinstance(error, TimeoutError)


def _properties(message: Message, ids: Iterator[str]) -> tuple[bytes, str]:
    """Return the encoded properties, with an id, and the id."""
    raw = closed_properties(message.encode_properties())
    message_id = get_property(raw, UNIQ_KEY)
    if message_id is None:
        message_id = next(ids)
        raw += encode_properties({UNIQ_KEY: message_id})
    if get_property(raw, WAIT) is None:
        raw += encode_properties({WAIT: truth_text(message.wait_for_flush)})
    return raw, message_id


def _check_properties(raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise IllegalMessageError("raw_properties", "are not UTF-8") from None
    if len(raw) > MAX_PROPERTIES:
        raise PropertiesTooLongError("properties", f"{len(raw)} bytes, at most {MAX_PROPERTIES}")


def unique_ids(ip: str, pid: int, salt: int) -> Iterator[str]:
    """Yield ids in the form of the Java client, unique within a month of one process."""
    start = datetime.fromtimestamp(SYSTEM.clock.now_ms() / 1000)
    month_ms = int(datetime(start.year, start.month, 1).timestamp()) * 1000
    for counter in count():
        since = SYSTEM.clock.now_ms() - month_ms
        yield encode_unique_id(ip, pid, salt, since, counter)
