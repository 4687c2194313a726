"""Sends: messages from producers go through the checks of RocketMQ's broker into the store.

A send is one plain function from the request to the response. It returns a coroutine only if the
response has to wait for the disk, and a callback if it has to wait for replicas only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from random import randrange

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.services.registration import wait_for_registration
from firetrail.broker.services.type_conflicts import TypeConflicts
from firetrail.broker.state.attributes import unsupported_value
from firetrail.broker.state.group_table import is_last
from firetrail.broker.stored_messages import CODES
from firetrail.broker.timer.admission import TimerAdmission
from firetrail.broker.transactions.transactions import Transactions
from firetrail.errors import FormatError, RequestError
from firetrail.format.batch import has_property
from firetrail.format.files.timer import TIMER_TOPIC
from firetrail.format.kernels.draft import Message
from firetrail.format.kernels.ids import join_ids
from firetrail.format.kernels.properties import join_properties, parse_properties
from firetrail.format.layout import TRANSACTION_MASK, takes_queue_offset
from firetrail.format.message_types import (
    LOST_BY_DEAD_LETTERS,
    begins_transaction,
    has_delivery_time,
    queue_of_priority,
    waits_for_disk,
)
from firetrail.format.names import dead_letter_topic, group_of_retries
from firetrail.format.properties import (
    CLUSTER,
    INNER_NUM,
    MSG_REGION,
    PRIORITY,
    REAL_QID,
    TRACE_ON,
    UNIQ_KEY,
    WAIT,
)
from firetrail.format.system_topics import HALF_TOPIC, refuses_clients
from firetrail.format.values.hosts import Host, parse_host
from firetrail.format.values.ids import encode_message_id
from firetrail.format.values.truths import truth_text
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler, LaterAnswer
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.messages.headers import SendHeader, SendHeaderV2
from firetrail.remoting.wire.codes import CommandFlag, Permission, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.admission.drafter import Batch
from firetrail.store.put.pending_puts import PendingPut
from firetrail.store.results import PutResult, PutStatus

_REPLACED = (WAIT, MSG_REGION, TRACE_ON, CLUSTER)
"""Properties that are not stored as they were sent."""
_INNER_BATCH = 0x80
"""The system flag of a message that contains several."""
_OFFSET_DIGITS = 16
# Plain numbers, because operators and hashes of an enum would cost measurable time in every send.
_WRITE = int(Permission.WRITE)
_RESPONSE = int(CommandFlag.RESPONSE)
_STORED = int(ResponseCode.SUCCESS)


class SendProcessor:
    """Handles SEND_MESSAGE and its variants."""

    def __init__(
        self,
        state: BrokerState,
        transactions: Transactions,
        admission: TimerAdmission,
        pending_registration: Callable[[], asyncio.Future[None] | None],
    ) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._transactions = transactions
        self._admission = admission
        self._pending_registration = pending_registration
        self._type_conflicts = TypeConflicts(state.system.clock.monotonic)
        config = state.config
        self._trace = {MSG_REGION: config.region, TRACE_ON: truth_text(config.trace_on)}
        self._added = join_properties({**self._trace, CLUSTER: config.cluster})
        self._id_start = encode_message_id(state.store.config.store_host, 0)[:-_OFFSET_DIGITS]
        self.handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE: self._send_v1,
            RequestCode.SEND_MESSAGE_V2: self._send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self._send_v2,
        }

    def _send_v1(self, connection: Connection, request: RemotingCommand) -> Answer:
        return self.send(connection, request, SendHeader.decode(request.fields))

    def _send_v2(self, connection: Connection, request: RemotingCommand) -> Answer:
        return self.send(connection, request, SendHeaderV2.decode(request.fields))

    def send(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendHeader,
        properties: dict[str, str] | None = None,
    ) -> Answer:
        """Store the message or the batch of a request.

        Args:
            connection: The connection of the producer.
            request: The request, whose body is the message.
            header: Its header.
            properties: The properties in the header, if they are parsed. They are changed to those
                that are stored. Default: None.
        """
        topic = self._topics.get(header.topic)
        registration = None
        if topic is None or refuses_clients(header.topic) or not topic.perm & _WRITE:
            is_new = topic is None
            topic = self._writable_topic(header)
            registration = self._pending_registration() if is_new else None
        if properties is None:
            properties = parse_properties(header.properties or "")
        is_inner_batch = INNER_NUM in properties or header.sys_flag & _INNER_BATCH
        if is_inner_batch or (header.batch and _has_inner_batch(request.content)):
            raise _inner_batch()
        if topic.attributes:
            _check_attributes(topic)
            self._type_conflicts.check(topic, header, properties, request.content, connection.peer)
        queue_id = header.queue_id
        if header.reconsume_times and (group := self._group_that_gave_up(header, request.version)):
            topic, queue_id = self._topics.ensure(dead_letter_topic(group), 1), 0
            for name in LOST_BY_DEAD_LETTERS:
                properties.pop(name, None)
        elif PRIORITY in properties and not header.batch:
            queue_id = queue_of_priority(properties, topic.write_queue_nums, queue_id)
        if not 0 <= queue_id < topic.write_queue_nums:
            if queue_id < 0 < topic.write_queue_nums:
                queue_id = randrange(topic.write_queue_nums)
            elif queue_id not in topic.queues:
                raise no_queue(topic, queue_id)
        message = self._message(topic.topic_name, queue_id, connection, request, header, properties)
        result = self._store.writer.begin_put(message)
        if registration is not None:
            return self._answer_with_route(request, result, message, properties, registration)
        if isinstance(result, PutResult):
            return self._answer(request, result, message, properties)
        if isinstance(result, PendingPut):
            return LaterAnswer(
                request, result, lambda put: self._answer(request, put, message, properties)
            )
        return self._answer_later(request, result, message, properties)

    def _message(
        self,
        topic: str,
        queue_id: int,
        connection: Connection,
        request: RemotingCommand,
        header: SendHeader,
        properties: dict[str, str],
    ) -> Message | Batch:
        """Return the message or the batch of a request, as it is stored, and change the properties.

        Properties that the broker sets replace those of the same name, which a message that was
        stored before has.
        """
        wait = waits_for_disk(properties)
        for name in _REPLACED:
            properties.pop(name, None)
        if header.batch:
            return Batch(
                topic=topic,
                body=request.content,
                queue_id=queue_id,
                sys_flag=header.sys_flag,
                born_time=header.born_timestamp,
                born_host=_host(connection.peer),
                reconsume_times=header.reconsume_times or 0,
                shared_properties=self._stored_form(properties),
                wait_for_flush=wait,
            )
        sys_flag, host = _without_transaction(header.sys_flag), _host(connection.peer)
        is_half = begins_transaction(properties, header.reconsume_times or 0)
        if has_delivery_time(properties) and topic == header.topic:  # else dead
            topic, queue_id = self._admission.admit(properties, topic, queue_id, half=is_half)
        if is_half:
            topic, queue_id = self._transactions.admit(
                properties, topic, queue_id, host, request.caller
            )
            sys_flag &= ~TRANSACTION_MASK
        return Message(
            topic,
            request.content,
            queue_id=queue_id,
            flag=header.flag,
            sys_flag=sys_flag,
            born_time=header.born_timestamp,
            born_host=host,
            reconsume_times=header.reconsume_times or 0,
            raw_properties=self._stored_form(properties),
            wait_for_flush=wait,
        )

    def _stored_form(self, properties: Mapping[str, str]) -> bytes:
        """Return properties of a message with those that the broker adds."""
        return (join_properties(properties) + self._added).encode("utf-8", "replace")

    # -- checks -------------------------------------------------------------------------------

    def _writable_topic(self, header: SendHeader) -> TopicConfig:
        """Return or create the topic; raise RequestError if clients may not send to it."""
        name = header.topic
        if refuses_clients(name):
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden."
            )
        topic = self._topics.get(name) or self._topics.for_send(header)
        if not topic.perm & Permission.WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden"
            )
        return topic

    def _group_that_gave_up(self, header: SendHeader, version: int) -> str | None:
        """Return the group of a message that a consumer sends to be retried, but too often."""
        name = None if header.batch else group_of_retries(header.topic)
        if name is None:
            return None
        retries = (header.reconsume_times or 0) - 1  # the consumer has counted this one
        group = self._groups.require(name)
        return name if is_last(group, retries, header.max_reconsume_times, version) else None

    # -- answers ------------------------------------------------------------------------------

    async def _answer_with_route(
        self,
        request: RemotingCommand,
        result: PutResult | Awaitable[PutResult],
        message: Message | Batch,
        properties: Mapping[str, str],
        registration: asyncio.Future[None],
    ) -> RemotingCommand:
        """Answer the first send to a new topic when the topic has a route, like RocketMQ."""
        stored = result if isinstance(result, PutResult) else await result
        await wait_for_registration(registration)
        return self._answer(request, stored, message, properties)

    async def _answer_later(
        self,
        request: RemotingCommand,
        result: Awaitable[PutResult],
        message: Message | Batch,
        properties: Mapping[str, str],
    ) -> RemotingCommand:
        return self._answer(request, await result, message, properties)

    def _answer(
        self,
        request: RemotingCommand,
        result: PutResult,
        message: Message | Batch,
        properties: Mapping[str, str],
    ) -> RemotingCommand:
        if result.store_host is None:
            return request.answer(CODES[result.status], f"{result.field}: {result.detail}")
        fields = {
            "msgId": f"{self._id_start}{result.physical_offset:016X}",
            "queueId": str(message.queue_id),
            "queueOffset": str(result.queue_offset),
            **self._trace,
        }
        if isinstance(message, Batch):
            # The store may have been closed while the batch waited for replicas.
            if records := self._store.reads.records_of(result):
                fields["msgId"] = join_ids(
                    records, result.messages, result.physical_offset, self._id_start.encode()
                )
        elif message.topic == TIMER_TOPIC:
            fields["queueId"] = properties[REAL_QID]
            if handle := self._admission.recall_handle(properties):
                fields["recallHandle"] = handle
        elif message.topic == HALF_TOPIC:
            self._transactions.begun(result, properties, message.born_host, request.caller)
            fields["transactionId"] = properties.get(UNIQ_KEY) or fields["msgId"]
        return RemotingCommand(
            _STORED if result.status is PutStatus.PUT_OK else CODES[result.status],
            fields,
            b"",
            result.detail or None,
            request.opaque,
            _RESPONSE,
            serialize=request.serialize,
        )


def _check_attributes(topic: TopicConfig) -> None:
    """Raise RequestError if the topic is of a kind that Firetrail cannot store."""
    if unsupported := unsupported_value(topic.attributes or {}):
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"the topic[{topic.topic_name}] sending message is forbidden: it has {unsupported}, "
            "which Firetrail does not support, and RocketMQ could not read messages that are "
            "stored here; send to another topic or to a RocketMQ broker",
        )


def _without_transaction(sys_flag: int) -> int:
    """Return the flags of a message without those of a prepared or rolled back transaction.

    The property TRAN_MSG alone begins a transaction. A message with the flag alone would get no
    offset in its queue: RocketMQ acknowledges it and never delivers it.
    """
    return sys_flag if takes_queue_offset(sys_flag) else sys_flag & ~TRANSACTION_MASK


def _has_inner_batch(batch: bytes | memoryview) -> bool:
    """Return whether a message of a batch claims to be several; the store refuses broken ones."""
    try:
        return has_property(batch, INNER_NUM)
    except FormatError:
        return False


def _inner_batch() -> RequestError:
    """Return the refusal of a message that claims to be several, as in batch consume queues.

    RocketMQ refuses it, too. If a RocketMQ broker took the folder over, it would stop at a record
    whose number of messages is not a number.
    """
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message has the property {INNER_NUM} or the flag of an inner batch, for which the "
        "topic would need queue.type=BatchCQ; remove them",
    )


def no_queue(topic: TopicConfig, queue_id: int) -> RequestError:
    """Return the refusal of a message for a queue that its topic does not have."""
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"request queueId[{queue_id}] is illegal, topic {topic.topic_name} has "
        f"{len(topic.queues)} queues",
    )


@lru_cache(maxsize=4096)
def _host(peer: str) -> Host | None:
    """Return the producer's address; None, for the store's own, if a record cannot hold it."""
    try:
        return parse_host(peer)
    except FormatError:
        return None
