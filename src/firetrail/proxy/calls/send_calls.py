"""SendMessage: messages of producers.

A message that the broker stores at once is answered without a coroutine. This is the common case in
one process.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from firetrail.errors import ProxyError
from firetrail.format.kernels.properties import join_properties
from firetrail.format.layout import COMPRESSED, TRANSACTION_PREPARED
from firetrail.format.message_types import type_conflict
from firetrail.format.names import AUTO_CREATE_TOPIC
from firetrail.format.properties import SHARDING_KEY
from firetrail.proxy.calls.consumption.receipt_calls import common_status
from firetrail.proxy.calls.queue_choice import QueueChoice, WriteQueue
from firetrail.proxy.calls.resource_names import topic_name
from firetrail.proxy.calls.status_codes import OK, checked, code_of, status_of
from firetrail.proxy.calls.transaction_calls import KnownTransactions
from firetrail.proxy.conversion.message_checks import BODY_MAX, STORED_SIZE_MAX, check_message
from firetrail.proxy.conversion.message_properties import milliseconds, stored_properties
from firetrail.proxy.conversion.protobuf_wire import EncodedMessage, field, int64, key_of
from firetrail.proxy.schema.messages import (
    Code,
    Encoding,
    Message,
    MessageType,
    Resource,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    Status,
)
from firetrail.proxy.transport.call import Call
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import Brokers, resolved
from firetrail.remoting.messages.bodies import TopicConfig, TopicRouteData
from firetrail.remoting.messages.headers import DEFAULT_QUEUES, SendHeaderV2, SendResponse
from firetrail.remoting.messages.typed_header import TypedFields
from firetrail.remoting.wire.codes import UNCONFIRMED_CODES, RequestCode
from firetrail.remoting.wire.command import RemotingCommand

MESSAGES_MAX = 1024
"""Maximum number of messages in one call."""

SendAnswer = SendMessageResponse | EncodedMessage
"""The response to SendMessage, or its bytes."""

_ENTRY = key_of(SendMessageResponse, "entries")
_MESSAGE_ID, _TRANSACTION_ID, _OFFSET, _RECALL_HANDLE = (
    key_of(SendResultEntry, name)
    for name in ("message_id", "transaction_id", "offset", "recall_handle")
)
_OK_RESPONSE = SendMessageResponse(status=OK).SerializeToString()
_OK_ENTRY = SendResultEntry(status=OK).SerializeToString()


class OutgoingSend(NamedTuple):
    """A message that has passed all checks, and the request that sends it."""

    message: Message
    topic: str
    queue: WriteQueue
    command: RemotingCommand

    @property
    def is_transaction(self) -> bool:
        """Whether this is the half message of a transaction."""
        return self.message.system_properties.message_type == MessageType.TRANSACTION


class SendCalls:
    """Handles SendMessage.

    Args:
        brokers: The brokers that store the messages.
        transactions: Remembers where half messages are stored.
        now_ms: The clock.
        delay_max_ms: The longest delay of a message.
    """

    def __init__(
        self,
        brokers: Brokers,
        transactions: KnownTransactions,
        now_ms: Callable[[], int],
        delay_max_ms: int,
    ) -> None:
        self._delay_max_ms = delay_max_ms
        self._brokers = brokers
        self._transactions = transactions
        self._now_ms = now_ms
        self._choice = QueueChoice()

    def send(
        self, call: Call, client: ProxyClient, request: SendMessageRequest
    ) -> SendAnswer | Awaitable[SendAnswer]:
        """Store messages. All are checked before the first one is stored."""
        topic = self._checked_topic(request.messages)
        config = self._brokers.topic(topic)
        route = self._brokers.route(topic) if isinstance(config, TopicConfig) else None
        if not isinstance(config, TopicConfig) or not isinstance(route, TopicRouteData):
            return self._send_later(call, client, request, topic, config, route)
        outgoing = self._outgoing(call, request, config, route)
        if len(outgoing) > 1:
            return self._send_all(client, outgoing)
        answer = self._ask(client, outgoing[0])
        if isinstance(answer, RemotingCommand):
            return self._response(outgoing[0], answer)
        return self._answered(outgoing[0], answer)

    # -- checks -------------------------------------------------------------------------------

    def _checked_topic(self, messages: Sequence[Message]) -> str:
        """Check the messages; return their topic."""
        if not messages:
            raise ProxyError(Code.MESSAGE_CORRUPTED, "the request has no message")
        first = messages[0].topic
        topic = topic_name(first, self._brokers.reserved)
        if len(messages) > 1:
            _check_size(messages)
        now_ms = self._now_ms()
        for number, message in enumerate(messages):
            if number:
                _check_same_topic(first, message.topic)
            check_message(message, now_ms, self._delay_max_ms)
        return topic

    def _outgoing(
        self, call: Call, request: SendMessageRequest, config: TopicConfig, route: TopicRouteData
    ) -> list[OutgoingSend]:
        """Return the requests that send messages; raise ProxyError if the topic forbids one."""
        topic = config.topic_name
        found = []
        for message in request.messages:
            properties = stored_properties(message, topic, call.peer)
            conflict = type_conflict(topic, config.attributes, properties)
            if conflict is not None:
                raise ProxyError(
                    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                    f"topic {topic} is for {conflict.wanted} messages, but this is a "
                    f"{conflict.found} message; change the type of the topic or send to another "
                    "one",
                )
            lite_topic = message.system_properties.lite_topic
            group = properties.get(SHARDING_KEY) or lite_topic or None
            queue = self._choice.choose(topic, route, group)
            if queue is None:
                raise ProxyError(Code.FORBIDDEN, f"topic {topic} has no writable queue")
            command = _command(message, topic, queue, properties)
            found.append(OutgoingSend(message, topic, queue, command))
        return found

    # -- sending ------------------------------------------------------------------------------

    async def _send_later(
        self,
        call: Call,
        client: ProxyClient,
        request: SendMessageRequest,
        topic: str,
        config: TopicConfig | Awaitable[TopicConfig | None] | None,
        route: TopicRouteData | Awaitable[TopicRouteData] | None,
    ) -> SendAnswer:
        known = await resolved(config)
        if known is None:
            raise ProxyError(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist; create it first")
        queues = await resolved(route if route is not None else self._brokers.route(topic))
        outgoing = self._outgoing(call, request, known, queues)
        if len(outgoing) > 1:
            return await self._send_all(client, outgoing)
        return self._response(outgoing[0], await resolved(self._ask(client, outgoing[0])))

    async def _send_all(
        self, client: ProxyClient, outgoing: Sequence[OutgoingSend]
    ) -> SendMessageResponse:
        entries = []
        for each in outgoing:
            try:
                answer = await resolved(self._ask(client, each))
                entries.append(self._entry(each, answer))
            except Exception as error:
                entries.append(SendResultEntry(status=status_of(error)))
        status = common_status([entry.status for entry in entries])
        return SendMessageResponse(status=status, entries=entries)

    def _ask(
        self, client: ProxyClient, outgoing: OutgoingSend
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        return self._brokers.request(client, outgoing.queue.broker_name, outgoing.command)

    # -- answers ------------------------------------------------------------------------------

    async def _answered(
        self, outgoing: OutgoingSend, answer: Awaitable[RemotingCommand]
    ) -> SendAnswer:
        return self._response(outgoing, await answer)

    def _response(self, outgoing: OutgoingSend, answer: RemotingCommand) -> SendAnswer:
        """Return the response for one message; raise ProxyError if the broker refused it."""
        if answer.code:
            entry = _unconfirmed(answer)
            return SendMessageResponse(status=entry.status, entries=[entry])
        return EncodedMessage(_OK_RESPONSE + field(_ENTRY, self._stored(outgoing, answer)))

    def _entry(self, outgoing: OutgoingSend, answer: RemotingCommand) -> SendResultEntry:
        """Return the entry of a message; raise ProxyError if the broker refused it."""
        if answer.code:
            return _unconfirmed(answer)
        return SendResultEntry.FromString(self._stored(outgoing, answer))

    def _stored(self, outgoing: OutgoingSend, answer: RemotingCommand) -> bytes:
        """Return the encoded entry of a message that the broker has stored."""
        response = SendResponse.decode(answer.fields)
        message_id = outgoing.message.system_properties.message_id
        if outgoing.is_transaction:
            self._transactions.begun(
                outgoing.topic, message_id, outgoing.queue.broker_name, response
            )
        raw_id = message_id.encode()
        entry = _OK_ENTRY + field(_MESSAGE_ID, raw_id) + field(_TRANSACTION_ID, raw_id)
        if response.queue_offset:
            entry += _OFFSET + int64(response.queue_offset)
        if response.recall_handle:
            entry += field(_RECALL_HANDLE, response.recall_handle.encode())
        return entry


def _unconfirmed(answer: RemotingCommand) -> SendResultEntry:
    """Return the entry of a message that is stored but not confirmed; raise ProxyError for others.

    Args:
        answer: The answer of the broker, with another code than SUCCESS.
    """
    if answer.code not in UNCONFIRMED_CODES:
        checked(answer)
    code = code_of(answer.code)
    return SendResultEntry(status=Status(code=code, message=answer.remark or code.name))


def _check_size(messages: Sequence[Message]) -> None:
    if len(messages) > MESSAGES_MAX:
        raise ProxyError(
            Code.PAYLOAD_TOO_LARGE,
            f"the request has {len(messages)} messages, the limit is {MESSAGES_MAX}",
        )
    size = sum(len(message.body) for message in messages)
    if size > BODY_MAX:
        raise ProxyError(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the bodies of the request have {size} bytes, the limit is {BODY_MAX}",
        )


def _check_same_topic(first: Resource, other: Resource) -> None:
    if (other.name, other.resource_namespace) != (first.name, first.resource_namespace):
        raise ProxyError(
            Code.MESSAGE_CORRUPTED,
            f"all messages of a request must have the same topic, but they have {first.name} and "
            f"{other.name!r:.80}",
        )


def _command(
    message: Message, topic: str, queue: WriteQueue, properties: dict[str, str]
) -> RemotingCommand:
    system = message.system_properties
    sys_flag = COMPRESSED if system.body_encoding == Encoding.GZIP else 0
    if system.message_type == MessageType.TRANSACTION:
        sys_flag |= TRANSACTION_PREPARED
    text = join_properties(properties)
    size = len(text) if text.isascii() else len(text.encode())
    if size > STORED_SIZE_MAX:
        raise ProxyError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"all properties together have {size} bytes, the limit is {STORED_SIZE_MAX}",
        )
    header = SendHeaderV2(
        producer_group=topic,
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=DEFAULT_QUEUES,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_timestamp=milliseconds(system.born_timestamp),
        flag=0,
        properties=text,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name=queue.broker_name,
    )
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, TypedFields(header), message.body)
