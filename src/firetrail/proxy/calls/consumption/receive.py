"""ReceiveMessage: messages for consumers, which they have to acknowledge."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from firetrail.errors import FiretrailError, ProxyError
from firetrail.format.properties import POP_CK, TAGS, decode_properties
from firetrail.format.record import Record
from firetrail.proxy.calls.consumption.pop_requests import RETURNED_MS, PopRequests
from firetrail.proxy.calls.consumption.receipt_calls import invisible_ms
from firetrail.proxy.calls.consumption.renewal import Renewals
from firetrail.proxy.calls.consumption.unordered_groups import UnorderedGroups
from firetrail.proxy.calls.grpc_guard import GrpcGuard
from firetrail.proxy.calls.queue_choice import open_queues
from firetrail.proxy.calls.resource_names import group_name, topic_name
from firetrail.proxy.calls.status_codes import OK, code_of
from firetrail.proxy.calls.wait_time import batch_size, filter_of, poll_s
from firetrail.proxy.conversion.delivered_messages import attempt_after, delivered, records_in
from firetrail.proxy.conversion.encoded_message import encoded_delivery, encoded_topic
from firetrail.proxy.conversion.message_properties import set_milliseconds
from firetrail.proxy.conversion.protobuf_wire import EncodedMessage
from firetrail.proxy.schema.messages import (
    Code,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
    Timestamp,
)
from firetrail.proxy.transport.call import Call
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import Brokers, resolved
from firetrail.remoting.connections.unexpected_errors import log_unexpected
from firetrail.remoting.messages.bodies import SubscriptionData, SubscriptionGroupConfig
from firetrail.remoting.messages.pop.pop_headers import ANY_QUEUE, PopHeader, PopResponse
from firetrail.remoting.messages.pop.receipts import PopReceipts, Receipt, decode_counts
from firetrail.remoting.messages.typed_header import TypedFields
from firetrail.remoting.wire.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

BATCH_MAX = 32
"""Maximum number of messages of one receive; more are not delivered at once."""
RENEWED_MS = 60_000
"""The invisible time of messages that are renewed automatically."""
INVISIBLE_MIN_MS = 10_000
"""Minimum time for which a client may hide messages from others."""
LATE_MAX = 10_000
"""Maximum number of pops of ended calls whose answers are awaited. The messages of further ones
stay invisible for their time."""
FROM_LAST = 1
"""The ``initMode`` with which a new group begins at the end of a topic, unless it is young."""

_CODES: dict[int, Code] = {
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_TIMEOUT: Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
}
"""Codes with which a broker answers a pop that finds no messages."""
Frame = ReceiveMessageResponse | EncodedMessage
Frames = Sequence[Frame]
Where = tuple[ProxyClient, str, str]
"""A client, its consumer group and the topic."""
_OK_FRAME = ReceiveMessageResponse(status=OK)
_log = logging.getLogger(__name__)


class PoppedMessage(NamedTuple):
    """A message of a pop."""

    record: Record
    properties: dict[str, str]
    receipt: Receipt
    earlier: int
    """The number of earlier deliveries; negative if its producer has set such a number."""

    @property
    def message_id(self) -> str:
        """The id of the message."""
        return self.record.unique_key or self.record.message_id


class ReceiveCalls:
    """Handles ReceiveMessage.

    Args:
        brokers: The brokers that have the messages.
        requests: The requests about popped messages.
        renewals: The messages that are renewed automatically.
        now_ms: The clock.
        guard: Checks calls again that have waited. Default: every call is allowed.
    """

    def __init__(
        self,
        brokers: Brokers,
        requests: PopRequests,
        renewals: Renewals,
        now_ms: Callable[[], int],
        guard: GrpcGuard | None = None,
    ) -> None:
        self._guard = guard
        self._brokers = brokers
        self._requests = requests
        self._renewals = renewals
        self._now_ms = now_ms
        self._unordered = UnorderedGroups(brokers)
        self._turn = 0
        self._returning: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Future[RemotingCommand]] = set()  # pops of calls that have ended

    async def receive(
        self, call: Call, client: ProxyClient, request: ReceiveMessageRequest
    ) -> Frames:
        """Return the frames of the answer: status, messages, and the time of the delivery."""
        asked = request.long_polling_timeout if request.HasField("long_polling_timeout") else None
        wait_s = poll_s(call, asked, client.settings)
        topic = topic_name(request.message_queue.topic, self._brokers.reserved)
        group = group_name(request.group)
        hidden_ms = _invisible_ms(request)
        wanted = filter_of(topic, request.filter_expression)
        count = batch_size(request.batch_size, BATCH_MAX)
        config = await resolved(self._brokers.group(group))
        is_orderly = bool(config and config.consume_message_orderly)
        broker = await self._broker(topic, request.message_queue.broker.name)
        header = PopHeader(
            consumer_group=group,
            topic=topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=count,
            invisible_time=hidden_ms,
            poll_time=int(wait_s * 1000),
            born_time=self._now_ms(),
            init_mode=FROM_LAST,
            exp_type=wanted.expression_type,
            exp=wanted.sub_string,
            order=is_orderly,
            attempt_id=request.attempt_id or None,
        )
        command = RemotingCommand(RequestCode.POP_MESSAGE, TypedFields(header))
        where = (client, group, topic)
        answer = self._brokers.request(client, broker, command)
        if not isinstance(answer, RemotingCommand):
            answer = await self._waited(where, broker, answer)
        if answer.code:
            if answer.code == ResponseCode.NO_PERMISSION and self._guard is not None:
                await self._guard.check_again("ReceiveMessage", call, request)
            code = _CODES.get(answer.code, code_of(answer.code))
            raise ProxyError(code, _reason(code, answer.remark))
        popped = _popped(answer, broker)
        call.when_done(lambda is_written: None if is_written else self._return(where, popped))
        attempts_max = (config or SubscriptionGroupConfig(group)).max_attempts
        try:
            if self._guard is not None:
                await self._guard.check_again("ReceiveMessage", call, request)
            await self._choose(call, where, wanted, popped, attempts_max)
            if popped and not is_orderly:
                await self._unordered.check(group, topic)
            if client.is_closed:  # it has announced its end while the call waited
                self._return(where, popped)
            return self._frames(where, popped, renew=request.auto_renew)
        except BaseException:
            self._return(where, popped)
            raise

    async def _waited(
        self, where: Where, broker: str, answer: Awaitable[RemotingCommand]
    ) -> RemotingCommand:
        """Wait for messages. If the call ends meanwhile, those that still arrive are returned."""
        pending = asyncio.ensure_future(answer)
        try:
            return await asyncio.shield(pending)
        except asyncio.CancelledError:
            if not self._brokers.withdraw(pending):
                if len(self._late) >= LATE_MAX:
                    pending.cancel()
                self._late.add(pending)
                pending.add_done_callback(partial(self._came_late, where, broker))
            raise

    def _came_late(
        self, where: Where, broker: str, pending: asyncio.Future[RemotingCommand]
    ) -> None:
        """Return the messages of a pop whose call has ended."""
        self._late.discard(pending)
        if not pending.cancelled() and pending.exception() is None and not pending.result().code:
            self._return(where, _popped(pending.result(), broker))

    async def _broker(self, topic: str, named: str) -> str:
        """Return the broker that the client has named, or any that has queues of the topic."""
        route = await resolved(self._brokers.route(topic))
        readable = [name for name, _ in open_queues(route, int(Permission.READ))]
        if named in readable:
            return named
        if not readable:
            raise ProxyError(Code.FORBIDDEN, f"topic {topic} has no readable queue")
        self._turn += 1
        return readable[self._turn % len(readable)]

    # -- popped messages ----------------------------------------------------------------------

    async def _choose(
        self,
        call: Call,
        where: Where,
        wanted: SubscriptionData,
        popped: list[PoppedMessage],
        attempts_max: int,
    ) -> None:
        """Remove the messages that are not to be delivered from a pop.

        Messages whose tag only has the hash of a wanted one are acknowledged. Messages that were
        delivered too often are moved to the dead letters.
        """
        tags = frozenset(wanted.tags_set)
        for message in list(popped):
            is_wanted = not tags or message.properties.get(TAGS) in tags
            if is_wanted and message.earlier < attempts_max:
                continue
            popped.remove(message)
            try:
                if is_wanted:
                    await self._requests.to_dead_letters(
                        *where, message.receipt, message.message_id, call.caller
                    )
                else:
                    await resolved(self._requests.ack(*where, message.receipt))
            except (FiretrailError, OSError) as error:  # it is popped again later
                _log.warning(
                    "a message of topic %s could not be removed for group %s and is redelivered "
                    "later: %s",
                    wanted.topic,
                    where[1],
                    error,
                )

    def _return(self, where: Where, popped: list[PoppedMessage]) -> None:
        """Let messages that did not reach a client become visible to others soon, once."""
        messages = popped.copy()
        popped.clear()
        if messages:
            task = asyncio.get_running_loop().create_task(self._give_back(where, messages))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _give_back(self, where: Where, messages: Sequence[PoppedMessage]) -> None:
        client, group, _ = where
        for message in messages:
            key = (client.client_id, group, message.receipt.encode())
            renewed = self._renewals.find(*key)
            self._renewals.remove(*key)
            receipt = message.receipt if renewed is None else renewed.receipt
            try:
                await self._requests.change(*where, receipt, RETURNED_MS)
            except (FiretrailError, OSError) as error:
                _log.info("a message is visible only after its invisible time: %s", error)

    # -- answers ------------------------------------------------------------------------------

    def _frames(self, where: Where, messages: Sequence[PoppedMessage], *, renew: bool) -> Frames:
        """Return the frames with messages, which are renewed from now on if asked for.

        A message that cannot be encoded is logged and left out, so that it does not hold up the
        others. Like every message that is not acknowledged, it ends as a dead letter.
        """
        frames: list[Frame] = [_OK_FRAME]
        for each in messages:
            handle = each.receipt.encode()
            attempt = attempt_after(each.earlier)
            try:
                frames.append(_frame(each, where[2], attempt, handle))
            except Exception as error:
                record = each.record
                place = f"{record.topic} queue {record.queue_id} offset {record.queue_offset}"
                text = f"the message in {place} cannot be encoded and is not delivered to group"
                log_unexpected(f"{text} {where[1]}", error, "encoding")
                continue
            if renew:
                self._renewals.add(*where, handle, each.receipt, attempt)
        if len(frames) == 1:
            raise ProxyError(Code.MESSAGE_NOT_FOUND, _reason(Code.MESSAGE_NOT_FOUND, None))
        frames.append(self._end_frame())
        return frames

    def failed(self, status: Status) -> Frames:
        """Return the frames of an answer without messages."""
        return [ReceiveMessageResponse(status=status), self._end_frame()]

    def _end_frame(self) -> ReceiveMessageResponse:
        now = Timestamp()
        set_milliseconds(now, self._now_ms())
        return ReceiveMessageResponse(delivery_timestamp=now)

    async def stop(self) -> None:
        """Wait until the messages of lost clients are returned; pops that wait are abandoned."""
        for pending in list(self._late):
            pending.cancel()
        await asyncio.gather(*self._returning, return_exceptions=True)


def _popped(answer: RemotingCommand, broker: str) -> list[PoppedMessage]:
    """Return the messages in the answer to a pop, with their receipts."""
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
                Receipt(*receipt[:-1], record.physical_offset),
                counts.get(place, record.reconsume_times),
            )
        )
    return found


def _frame(popped: PoppedMessage, topic: str, attempt: int, handle: str) -> Frame:
    record, properties = popped.record, popped.properties
    encoded = encoded_delivery(record, properties, encoded_topic(topic), attempt, handle)
    if encoded is not None:
        return encoded
    message = delivered(record, properties, topic, attempt=attempt, receipt=handle)
    return ReceiveMessageResponse(message=message)


def _invisible_ms(request: ReceiveMessageRequest) -> int:
    if request.auto_renew:
        return RENEWED_MS
    return invisible_ms(request.invisible_duration, INVISIBLE_MIN_MS)


def _reason(code: Code, remark: str | None) -> str:
    return "no new message" if code is Code.MESSAGE_NOT_FOUND else remark or ""
