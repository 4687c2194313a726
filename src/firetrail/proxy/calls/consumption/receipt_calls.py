"""Calls about received messages: acknowledge, change the invisible time, move to dead letters."""

from collections.abc import Awaitable, Callable, Sequence

from firetrail.broker.pop.ack_processor import PopAck
from firetrail.errors import ProxyError
from firetrail.proxy.calls.consumption.pop_requests import PopRequests, receipt_error, valid_receipt
from firetrail.proxy.calls.consumption.renewal import Renewals, RenewedMessage
from firetrail.proxy.calls.resource_names import group_name, topic_name
from firetrail.proxy.calls.status_codes import OK, status_of
from firetrail.proxy.conversion.message_properties import milliseconds
from firetrail.proxy.conversion.protobuf_wire import EncodedMessage, field, key_of
from firetrail.proxy.schema.messages import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    Duration,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    Status,
)
from firetrail.proxy.transport.call import Call
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import Brokers, resolved
from firetrail.remoting.messages.pop.receipts import ORDERED, Receipt
from firetrail.remoting.wire.command import RemotingCommand

ACKS_MAX = 1024
"""Maximum number of messages that one call acknowledges."""
INVISIBLE_MAX_MS = 12 * 3600 * 1000
"""Maximum time for which a client may hide a message from others."""

REDELIVERY_MIN_MS = 1000
"""Minimum time until a message is redelivered, as in RocketMQ's timer. Without it, a client that
requests the next attempt at once, such as the one for Node.js, would use up all attempts in a
moment."""


_ENTRY = key_of(AckMessageResponse, "entries")
_MESSAGE_ID, _HANDLE = (
    key_of(AckMessageResultEntry, name) for name in ("message_id", "receipt_handle")
)
_OK_RESPONSE = AckMessageResponse(status=OK).SerializeToString()
_OK_ENTRY = AckMessageResultEntry(status=OK).SerializeToString()


class EntryAck:
    """A message that a client acknowledges.

    Attributes:
        of_broker: The acknowledgement in the terms of the broker, whose receipt may be a later one
            than the handle. None until the broker is asked.
        status: The outcome.
    """

    __slots__ = ("client", "group", "handle", "message_id", "of_broker", "status", "topic")

    def __init__(self, client: ProxyClient, group: str, topic: str, entry: AckMessageEntry) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.message_id = entry.message_id
        self.handle = entry.receipt_handle
        self.of_broker: PopAck | None = None
        self.status: Status | Awaitable[Status] = OK


AckAnswer = AckMessageResponse | EncodedMessage
"""The response to AckMessage, or its bytes."""
AcksByBroker = dict[tuple[ProxyClient, str], list[EntryAck]]
"""Messages that brokers are asked to acknowledge, by the client and the name of the broker."""


class ReceiptCalls:
    """Handles AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

    def __init__(
        self, brokers: Brokers, requests: PopRequests, renewals: Renewals, now_ms: Callable[[], int]
    ) -> None:
        self._brokers = brokers
        self._requests = requests
        self._renewals = renewals
        self._now_ms = now_ms

    # -- acknowledgements ---------------------------------------------------------------------

    def ack(
        self, call: Call, client: ProxyClient, request: AckMessageRequest
    ) -> AckAnswer | Awaitable[AckAnswer]:
        """Acknowledge messages. A message that a client acknowledges twice is OK both times."""
        return self.ack_all([(client, request)])[0]

    def ack_all(
        self, requests: Sequence[tuple[ProxyClient, AckMessageRequest]]
    ) -> list[AckAnswer | Awaitable[AckAnswer]]:
        """Acknowledge the messages of requests that arrived together; return their responses.

        Brokers get the messages of all requests at once.
        """
        asked: AcksByBroker = {}
        found = [self._entry_acks(client, request, asked) for client, request in requests]
        self._ask(asked)
        return [
            self._ack_answer(acks)
            if isinstance(acks, list)
            else AckMessageResponse(status=status_of(acks))
            for acks in found
        ]

    def _entry_acks(
        self, client: ProxyClient, request: AckMessageRequest, asked: AcksByBroker
    ) -> list[EntryAck] | ProxyError:
        """Return the messages of a request, or why it is refused."""
        entries = request.entries
        try:
            topic = topic_name(request.topic, self._brokers.reserved)
            group = group_name(request.group)
        except ProxyError as error:
            return error
        if not entries:
            return ProxyError(Code.INTERNAL_SERVER_ERROR, "there is no message to acknowledge")
        if len(entries) > ACKS_MAX:
            return ProxyError(
                Code.PAYLOAD_TOO_LARGE,
                f"{len(entries)} messages are acknowledged at once, the limit is {ACKS_MAX}",
            )
        acks = [EntryAck(client, group, topic, entry) for entry in entries]
        for ack in acks:
            self._prepare(ack, asked)
        return acks

    def _prepare(self, ack: EntryAck, asked: AcksByBroker) -> None:
        """Add a message to those that brokers are asked about, unless it has an outcome already."""
        renewed = self._renewals.find(ack.client.client_id, ack.group, ack.handle)
        if renewed is not None and renewed.renewing is not None:
            ack.status = self._ack_renewed(ack, renewed.renewing)
            return
        try:
            receipt = self._receipt(ack.handle, renewed)
        except ProxyError as error:
            ack.status = status_of(error)
            return
        ack.of_broker = PopAck(ack.group, receipt.topic(ack.topic, ack.group), receipt)
        key = (ack.client, receipt.broker_name)
        others = asked.get(key)
        if others is None:
            asked[key] = [ack]
        else:
            others.append(ack)

    def _ask(self, asked: AcksByBroker) -> None:
        """Let brokers acknowledge messages, and note the outcome of each."""
        for (client, broker), acks in asked.items():
            wanted = [ack.of_broker for ack in acks if ack.of_broker is not None]
            try:
                answers = self._brokers.acknowledge(client, broker, wanted)
            except Exception as error:
                status = status_of(error)
                for ack in acks:
                    ack.status = status
                continue
            for ack, answer in zip(acks, answers, strict=True):
                if isinstance(answer, RemotingCommand):
                    ack.status = self._acked(ack, answer)
                else:
                    ack.status = self._ack_answered(ack, answer)

    async def _ack_renewed(self, ack: EntryAck, renewing: Awaitable[object]) -> Status:
        """Acknowledge a message after the renewal that is in progress."""
        await renewing
        asked: AcksByBroker = {}
        self._prepare(ack, asked)
        self._ask(asked)
        return await resolved(ack.status)

    async def _ack_answered(self, ack: EntryAck, answer: Awaitable[RemotingCommand]) -> Status:
        try:
            return self._acked(ack, await answer)
        except Exception as error:
            return status_of(error)

    def _acked(self, ack: EntryAck, answer: RemotingCommand) -> Status:
        if answer.code:
            return status_of(receipt_error(answer))
        self._renewals.remove(ack.client.client_id, ack.group, ack.handle)
        return OK

    def _ack_answer(self, acks: Sequence[EntryAck]) -> AckAnswer | Awaitable[AckAnswer]:
        statuses = [ack.status for ack in acks]
        if all([status is OK for status in statuses]):
            return _all_acked(acks)
        if all(isinstance(status, Status) for status in statuses):
            return _ack_response(acks, statuses)  # type: ignore[arg-type]
        return self._ack_later(acks)

    async def _ack_later(self, acks: Sequence[EntryAck]) -> AckAnswer:
        return _ack_response(acks, [await resolved(ack.status) for ack in acks])

    # -- other calls --------------------------------------------------------------------------

    async def change(
        self, call: Call, client: ProxyClient, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Let a message become visible again at another time; return its new handle."""
        topic = topic_name(request.topic, self._brokers.reserved)
        group = group_name(request.group)
        time_ms = invisible_ms(request.invisible_duration, 0)
        receipt = await self._current(client, group, request.receipt_handle)
        if receipt.revive_queue != ORDERED:
            time_ms = max(time_ms, REDELIVERY_MIN_MS)
        changed = await self._requests.change(client, group, topic, receipt, time_ms)
        self._renewals.remove(client.client_id, group, request.receipt_handle)
        return ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.encode())

    async def forward(
        self, call: Call, client: ProxyClient, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Move a message to the dead letters of its group."""
        topic = topic_name(request.topic, self._brokers.reserved)
        group = group_name(request.group)
        receipt = await self._current(client, group, request.receipt_handle)
        await self._requests.to_dead_letters(
            client, group, topic, receipt, request.message_id, call.caller
        )
        self._renewals.remove(client.client_id, group, request.receipt_handle)
        return ForwardMessageToDeadLetterQueueResponse(status=OK)

    # -- handles ------------------------------------------------------------------------------

    async def _current(self, client: ProxyClient, group: str, handle: str) -> Receipt:
        """Return the valid receipt for a handle, after a renewal that is in progress."""
        renewed = self._renewals.find(client.client_id, group, handle)
        if renewed is not None and renewed.renewing is not None:
            await renewed.renewing
            renewed = self._renewals.find(client.client_id, group, handle)
        return self._receipt(handle, renewed)

    def _receipt(self, handle: str, renewed: RenewedMessage | None) -> Receipt:
        now_ms = self._now_ms()
        if renewed is not None and renewed.receipt.pop_time + renewed.receipt.invisible_ms > now_ms:
            return renewed.receipt
        return valid_receipt(handle, now_ms)


def invisible_ms(duration: Duration, least_ms: int) -> int:
    """Return the time for which a client hides a message, in ms.

    Clients compare the beginning of the texts, which are those of RocketMQ.

    Raises:
        ProxyError: The time is less than ``least_ms``, or more than :data:`INVISIBLE_MAX_MS`.
    """
    time_ms = milliseconds(duration)
    bound = None
    if time_ms < least_ms:
        bound = f"small. min is {least_ms}"
    elif time_ms > INVISIBLE_MAX_MS:
        bound = f"large. max is {INVISIBLE_MAX_MS}"
    if bound is not None:
        raise ProxyError(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too {bound} ms, and the request has {time_ms} ms",
        )
    return time_ms


def common_status(statuses: Sequence[Status]) -> Status:
    """Return the status that all entries of a response share, or MULTIPLE_RESULTS."""
    first = statuses[0]
    if any(status.code != first.code for status in statuses):
        return Status(code=Code.MULTIPLE_RESULTS, message=Code.MULTIPLE_RESULTS.name)
    return first


def _ack_response(acks: Sequence[EntryAck], statuses: Sequence[Status]) -> AckMessageResponse:
    """Return the response: its own text is the name of its code, and entries have the reasons.

    RocketMQ answers the same, and clients show only the text of the response.
    """
    code = common_status(statuses).code
    return AckMessageResponse(
        status=Status(code=code, message=Code(code).name),
        entries=[
            AckMessageResultEntry(
                message_id=ack.message_id, receipt_handle=ack.handle, status=status
            )
            for ack, status in zip(acks, statuses, strict=True)
        ],
    )


def _all_acked(acks: Sequence[EntryAck]) -> EncodedMessage:
    """Return the encoded response for the common case that every message is acknowledged."""
    parts = [_OK_RESPONSE]
    for ack in acks:
        entry = field(_HANDLE, ack.handle.encode()) + _OK_ENTRY
        if ack.message_id:  # protobuf leaves out empty texts
            entry = field(_MESSAGE_ID, ack.message_id.encode()) + entry
        parts.append(field(_ENTRY, entry))
    return EncodedMessage(b"".join(parts))
