"""Calls about received messages: acknowledge, change the invisible time, move to dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from firetrail.errors import ProxyError
from firetrail.proxy.brokers import Brokers, resolved
from firetrail.proxy.call import Call
from firetrail.proxy.clients import ProxyClient
from firetrail.proxy.codes import OK, status_of
from firetrail.proxy.message_properties import milliseconds
from firetrail.proxy.names import group_name, topic_name
from firetrail.proxy.pop_requests import PopRequests, check_receipt_answer, valid_receipt
from firetrail.proxy.renewal import Renewals, RenewedMessage
from firetrail.proxy.schema.messages import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    Status,
)
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.receipts import ORDERED, Receipt

ACKS_MAX = 1024
"""Maximum number of messages that one call acknowledges."""
INVISIBLE_MAX_MS = 12 * 3600 * 1000
"""Maximum time for which a client may hide a message from others."""

REDELIVERY_MIN_MS = 1000
"""Minimum time until a message is redelivered, as RocketMQ's timer has one. Without it, a client
that asks for the next attempt at once, as the one for Node.js does, would use up all attempts in a
moment."""


class ReceiptCalls:
    """Handles AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

    def __init__(
        self,
        brokers: Brokers,
        requests: PopRequests,
        renewals: Renewals,
        now_ms: Callable[[], int],
    ) -> None:
        self._brokers = brokers
        self._requests = requests
        self._renewals = renewals
        self._now_ms = now_ms

    # -- acknowledgements ---------------------------------------------------------------------

    def ack(
        self, call: Call, client: ProxyClient, request: AckMessageRequest
    ) -> AckMessageResponse | Awaitable[AckMessageResponse]:
        """Acknowledge messages. A message that a client acknowledges twice is OK both times."""
        topic = topic_name(request.topic, self._brokers.reserved)
        group = group_name(request.group)
        entries = request.entries
        if not entries:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, "there is no message to acknowledge")
        if len(entries) > ACKS_MAX:
            raise ProxyError(
                Code.PAYLOAD_TOO_LARGE,
                f"{len(entries)} messages are acknowledged at once, the limit is {ACKS_MAX}",
            )
        answers = [self._ack(client, group, topic, entry) for entry in entries]
        if all(isinstance(answer, Status) for answer in answers):
            return _ack_response(entries, answers)  # type: ignore[arg-type]
        return self._ack_later(entries, answers)

    async def _ack_later(
        self, entries: Sequence[AckMessageEntry], answers: Sequence[Status | Awaitable[Status]]
    ) -> AckMessageResponse:
        return _ack_response(entries, [await resolved(answer) for answer in answers])

    def _ack(
        self, client: ProxyClient, group: str, topic: str, entry: AckMessageEntry
    ) -> Status | Awaitable[Status]:
        renewed = self._renewals.find(client.client_id, group, entry.receipt_handle)
        if renewed is not None and renewed.renewing is not None:
            return self._ack_renewed(client, group, topic, entry, renewed)
        try:
            receipt = self._receipt(entry.receipt_handle, renewed)
            answer = self._requests.ack(client, group, topic, receipt)
        except Exception as error:
            return status_of(error)
        if isinstance(answer, RemotingCommand):
            return self._acked(client, group, entry, answer)
        return self._ack_answered(client, group, entry, answer)

    async def _ack_renewed(
        self,
        client: ProxyClient,
        group: str,
        topic: str,
        entry: AckMessageEntry,
        renewed: RenewedMessage,
    ) -> Status:
        """Acknowledge a message after the renewal that is in progress."""
        if renewed.renewing is not None:
            await renewed.renewing
        return await resolved(self._ack(client, group, topic, entry))

    async def _ack_answered(
        self,
        client: ProxyClient,
        group: str,
        entry: AckMessageEntry,
        answer: Awaitable[RemotingCommand],
    ) -> Status:
        try:
            return self._acked(client, group, entry, await answer)
        except Exception as error:
            return status_of(error)

    def _acked(
        self, client: ProxyClient, group: str, entry: AckMessageEntry, answer: RemotingCommand
    ) -> Status:
        try:
            check_receipt_answer(answer)
        except ProxyError as error:
            return status_of(error)
        self._renewals.remove(client.client_id, group, entry.receipt_handle)
        return OK

    # -- other calls --------------------------------------------------------------------------

    async def change(
        self, call: Call, client: ProxyClient, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Let a message become visible again at another time; return its new handle."""
        topic = topic_name(request.topic, self._brokers.reserved)
        group = group_name(request.group)
        time_ms = milliseconds(request.invisible_duration)
        if not 0 <= time_ms <= INVISIBLE_MAX_MS:
            raise ProxyError(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisible time is {time_ms} ms; allowed are 0 to {INVISIBLE_MAX_MS} ms",
            )
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
        await self._requests.to_dead_letters(client, group, topic, receipt, request.message_id)
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


def common_status(statuses: Sequence[Status]) -> Status:
    """Return the status that all entries of a response share, or MULTIPLE_RESULTS."""
    first = statuses[0]
    if any(status.code != first.code for status in statuses):
        return Status(code=Code.MULTIPLE_RESULTS, message="the entries have different codes")
    return first


def _ack_response(
    entries: Sequence[AckMessageEntry], statuses: Sequence[Status]
) -> AckMessageResponse:
    return AckMessageResponse(
        status=common_status(statuses),
        entries=[
            AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )
            for entry, status in zip(entries, statuses, strict=True)
        ],
    )
