"""ReceiveMessage: messages for consumers, which they have to acknowledge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from firetrail.errors import FiretrailError, ProxyError
from firetrail.format.properties import POP_CK, TAGS, decode_properties
from firetrail.format.record import Record
from firetrail.proxy.brokers import Brokers, resolved
from firetrail.proxy.call import Call
from firetrail.proxy.clients import ProxyClient
from firetrail.proxy.codes import OK, code_of
from firetrail.proxy.delivered import delivered, records_in
from firetrail.proxy.message_properties import milliseconds, set_milliseconds
from firetrail.proxy.names import group_name, topic_name
from firetrail.proxy.polling import poll_s, subscription_of
from firetrail.proxy.pop_requests import RETURNED_MS, PopRequests
from firetrail.proxy.receipts import INVISIBLE_MAX_MS
from firetrail.proxy.renewal import Renewals
from firetrail.proxy.schema.messages import (
    Code,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
    Timestamp,
)
from firetrail.remoting.bodies import SubscriptionData, SubscriptionGroupConfig, TopicRouteData
from firetrail.remoting.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.pop_headers import ANY_QUEUE, PopHeader, PopResponse
from firetrail.remoting.receipts import PopReceipts, Receipt, decode_counts

BATCH_MAX = 32
"""Maximum number of messages of one receive; more are not delivered at once."""
RENEWED_MS = 60_000
"""The invisible time of messages that are renewed automatically."""
INVISIBLE_MIN_MS = 10_000
"""Minimum time for which a client may hide messages from others."""
ATTEMPTS_MAX = SubscriptionGroupConfig("").retry_max_times + 1
"""How often a message is delivered to a group that is not known yet."""
FROM_LAST = 1
"""The ``initMode`` with which a new group begins at the end of a topic, unless it is young."""

_CODES: dict[int, Code] = {
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_TIMEOUT: Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
}
"""Codes of brokers that only the answer to a pop has."""
Frames = Sequence[ReceiveMessageResponse]
_log = logging.getLogger(__name__)


class PoppedMessage(NamedTuple):
    """A message of a pop."""

    record: Record
    properties: dict[str, str]
    receipt: Receipt
    earlier: int
    """How often it was delivered before."""

    @property
    def message_id(self) -> str:
        """The id of the message."""
        return self.record.unique_key or self.record.message_id


class ReceiveCalls:
    """Handles ReceiveMessage.

    Args:
        brokers: the brokers that have the messages.
        requests: the requests about popped messages.
        renewals: the messages that are renewed automatically.
        now_ms: the clock.
    """

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
        self._turn = 0
        self._returning: set[asyncio.Task[None]] = set()

    async def receive(
        self, call: Call, client: ProxyClient, request: ReceiveMessageRequest
    ) -> Frames:
        """Return the frames of the answer: status, messages, and the time of the delivery."""
        asked = request.long_polling_timeout if request.HasField("long_polling_timeout") else None
        wait_s = poll_s(call, asked, client.settings)
        topic = topic_name(request.message_queue.topic, self._brokers.reserved)
        group = group_name(request.group)
        invisible_ms = _invisible_ms(request)
        wanted = subscription_of(topic, request.filter_expression)
        if request.batch_size <= 0:
            raise ProxyError(Code.BAD_REQUEST, f"the batch size {request.batch_size} is too small")
        config = await resolved(self._brokers.group(group))
        header = PopHeader(
            group,
            topic,
            ANY_QUEUE,
            min(request.batch_size, BATCH_MAX),
            invisible_ms,
            int(wait_s * 1000),
            self._now_ms(),
            FROM_LAST,
            wanted.expression_type,
            wanted.sub_string,
            bool(config and config.consume_message_orderly),
            request.attempt_id or None,
        )
        broker = await self._broker(topic, request.message_queue.broker.name)
        command = RemotingCommand(RequestCode.POP_MESSAGE, header.encode())
        answer = await resolved(self._brokers.request(client, broker, command))
        if answer.code:
            code = _CODES.get(answer.code, code_of(answer.code))
            raise ProxyError(code, _reason(code, answer.remark))
        popped = self._popped(answer, broker, topic, group)
        attempts_max = config.retry_max_times + 1 if config is not None else ATTEMPTS_MAX
        chosen = await self._chosen(client, header, wanted, popped, attempts_max)
        return self._delivery(call, client, request, topic, group, chosen)

    async def _broker(self, topic: str, named: str) -> str:
        """Return the broker that the client has named, or any that has queues of the topic."""
        route = await resolved(self._brokers.route(topic))
        readable = readable_brokers(route)
        if named in readable:
            return named
        if not readable:
            raise ProxyError(Code.FORBIDDEN, f"topic {topic} has no readable queue")
        self._turn += 1
        return readable[self._turn % len(readable)]

    # -- popped messages ----------------------------------------------------------------------

    def _popped(
        self, answer: RemotingCommand, broker: str, topic: str, group: str
    ) -> list[PoppedMessage]:
        header = PopResponse.decode(answer.fields)
        receipts = PopReceipts(header, broker)
        counts = decode_counts(header.order_count_info)
        found = []
        for record in records_in(answer.body):
            properties = decode_properties(record.raw_properties)
            place = (record.queue_id, record.queue_offset)
            receipt = receipts.of(record.topic, *place, properties.get(POP_CK))
            found.append(
                PoppedMessage(
                    record,
                    properties,
                    receipt._replace(log_offset=record.physical_offset),
                    counts.get(place, record.reconsume_times),
                )
            )
        return found

    async def _chosen(
        self,
        client: ProxyClient,
        header: PopHeader,
        wanted: SubscriptionData,
        popped: Sequence[PoppedMessage],
        attempts_max: int,
    ) -> list[PoppedMessage]:
        """Return the messages to deliver.

        Messages whose tag only has the hash of a wanted one are acknowledged. Messages that were
        delivered too often are moved to the dead letters.
        """
        tags = frozenset(wanted.tags_set)
        where = (client, header.consumer_group, header.topic)
        chosen = []
        for message in popped:
            is_wanted = not tags or message.properties.get(TAGS) in tags
            if is_wanted and message.earlier < attempts_max:
                chosen.append(message)
                continue
            try:
                if is_wanted:
                    await self._requests.to_dead_letters(
                        *where, message.receipt, message.message_id
                    )
                else:
                    await resolved(self._requests.ack(*where, message.receipt))
            except (FiretrailError, OSError) as error:  # it is popped again later
                _log.warning(
                    "a message of topic %s could not be removed for group %s and is redelivered "
                    "later: %s",
                    header.topic,
                    header.consumer_group,
                    error,
                )
        return chosen

    # -- delivery -----------------------------------------------------------------------------

    def _delivery(
        self,
        call: Call,
        client: ProxyClient,
        request: ReceiveMessageRequest,
        topic: str,
        group: str,
        messages: Sequence[PoppedMessage],
    ) -> Frames:
        """Return the frames with messages; they are renewed, or returned if the client is gone."""
        if not messages:
            raise ProxyError(Code.MESSAGE_NOT_FOUND, _reason(Code.MESSAGE_NOT_FOUND, None))
        frames = [ReceiveMessageResponse(status=OK)]
        handles = []
        for each in messages:
            handle = each.receipt.encode()
            handles.append(handle)
            attempt = each.earlier + 1
            message = delivered(
                each.record, each.properties, topic, attempt=attempt, receipt=handle
            )
            frames.append(ReceiveMessageResponse(message=message))
            if request.auto_renew:
                self._renewals.add(client, group, topic, handle, each.receipt, attempt)
        frames.append(self._end_frame())

        def done(is_written: bool) -> None:
            if not is_written:
                task = asyncio.get_running_loop().create_task(
                    self._give_back(client, group, topic, messages, handles)
                )
                self._returning.add(task)
                task.add_done_callback(self._returning.discard)

        call.when_done(done)
        return frames

    def failed(self, status: Status) -> Frames:
        """Return the frames of an answer without messages."""
        return [ReceiveMessageResponse(status=status), self._end_frame()]

    def _end_frame(self) -> ReceiveMessageResponse:
        now = Timestamp()
        set_milliseconds(now, self._now_ms())
        return ReceiveMessageResponse(delivery_timestamp=now)

    async def _give_back(
        self,
        client: ProxyClient,
        group: str,
        topic: str,
        messages: Sequence[PoppedMessage],
        handles: Sequence[str],
    ) -> None:
        """Let messages that did not reach a client become visible to others soon."""
        for message, handle in zip(messages, handles, strict=True):
            self._renewals.remove(client.client_id, group, handle)
            try:
                await self._requests.change(client, group, topic, message.receipt, RETURNED_MS)
            except (FiretrailError, OSError) as error:
                _log.info("a message is visible only after its invisible time: %s", error)

    async def stop(self) -> None:
        """Wait until the messages of lost clients are returned."""
        await asyncio.gather(*self._returning, return_exceptions=True)


def readable_brokers(route: TopicRouteData) -> list[str]:
    """Return the names of the brokers that deliver messages of a topic, sorted."""
    masters = {broker.broker_name for broker in route.broker_datas if broker.master is not None}
    return sorted(
        queues.broker_name
        for queues in route.queue_datas
        if queues.perm & Permission.READ
        and queues.read_queue_nums > 0
        and queues.broker_name in masters
    )


def _invisible_ms(request: ReceiveMessageRequest) -> int:
    if request.auto_renew:
        return RENEWED_MS
    time_ms = milliseconds(request.invisible_duration)
    if not INVISIBLE_MIN_MS <= time_ms <= INVISIBLE_MAX_MS:
        raise ProxyError(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisible time is {time_ms} ms; allowed are {INVISIBLE_MIN_MS} to "
            f"{INVISIBLE_MAX_MS} ms",
        )
    return time_ms


def _reason(code: Code, remark: str | None) -> str:
    return "no new message" if code is Code.MESSAGE_NOT_FOUND else remark or ""
