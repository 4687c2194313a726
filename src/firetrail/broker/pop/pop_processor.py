"""Pops: messages that are handed out for a while, and redelivered if not acknowledged.

Consumers share queues without coordinating with each other: the broker keeps the offset of the
group, and advances it with each pop. A pop runs up to its answer in one step of the event loop, so
that no other pop of the same queue can interleave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.filter.message_selector import ALL, MessageFilter
from firetrail.broker.pop.ordered_pops import OrderedPop, OrderedPops
from firetrail.broker.pop.pop_checkpoints import (
    Pending,
    PopCheckpoint,
    PopCheckpoints,
    answer_when_stored,
    check_invisible_time,
)
from firetrail.broker.pop.pop_queues import PopQueues
from firetrail.broker.processors.consumer_checks import ConsumerChecks
from firetrail.broker.processors.lease_check import require_lease
from firetrail.broker.services.long_polling import ANY_OFFSET, HeldRequest, WakeOutcome
from firetrail.errors import FormatError, RequestError
from firetrail.format.layout import RECORD_HEAD
from firetrail.format.properties import POP_CK, PROPERTY_CRC, replace_properties
from firetrail.format.record import decode_message, encode_record
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler, failure, outcome_of
from firetrail.remoting.messages.pop.pop_headers import (
    ANY_QUEUE,
    NotificationHeader,
    NotificationResponse,
    PeekHeader,
    PeekResponse,
    PollingInfoHeader,
    PollingInfoResponse,
    PopHeader,
    PopResponse,
)
from firetrail.remoting.messages.pop.receipts import (
    ORDERED,
    Receipt,
    encode_counts,
    encode_places,
    kind_of,
)
from firetrail.remoting.messages.typed_header import TypedFields
from firetrail.remoting.servers.fair_shares import ShareHolder, holder_of
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.results import GetResult, GetStatus

MESSAGES_MAX = 32
"""Maximum number of messages of one pop: a checkpoint in Java's format has this many bits."""
ATTEMPT_ID_MAX = 128
"""Maximum length of the id of an attempt, which is saved with ordered pops. Clients send UUIDs."""
POLL_MAX_S = 300.0
"""Longest time that a pop waits, even if it asks for more."""

_QUEUE_OFFSET_AT = RECORD_HEAD.offsets["queue_offset"]
Part = Sequence[bytes | memoryview]
_Header = PopHeader | PeekHeader | NotificationHeader | PollingInfoHeader


@dataclass(slots=True)
class TakenMessages:
    """The messages that a pop has taken so far."""

    pop_time: int
    revive_queue: int = 0
    holder: ShareHolder | None = None
    """The client that takes them."""
    messages: list[bytes | memoryview] = field(default_factory=list)
    rest: int = 0
    """Messages that are left in the queues."""
    starts: list[tuple[str, int, list[int]]] = field(default_factory=list)
    places: list[tuple[str, int, list[int]]] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    counts: list[tuple[int, int, int]] = field(default_factory=list)
    """For pops in order: queue id, offset, and how often the message was popped before."""
    is_cut: bool = False
    """Whether the search stopped early, so that more matching messages may follow."""

    def add(self, queue: QueueKey, start: int, offsets: list[int], messages: Part) -> None:
        """Add messages of a queue of the topic, or of one of its retry topics."""
        topic, queue_id = queue
        kind = kind_of(topic)
        self.starts.append((kind, queue_id, [start]))
        self.places.append((kind, queue_id, offsets))
        self.messages += messages


class PollEnd(NamedTuple):
    """The reason to answer a request that has found no message."""

    code: ResponseCode
    reason: str | None = None


_TIME_IS_OVER = PollEnd(ResponseCode.POLLING_TIMEOUT)


class Attempt(NamedTuple):
    """The outcome of an attempt to answer a request."""

    answer: Answer
    """None if the request has to wait."""
    took_all: bool = False
    """Whether no messages are left for equivalent requests."""


class PopProcessor:
    """Handles POP_MESSAGE, PEEK_MESSAGE, NOTIFICATION and POLLING_INFO."""

    def __init__(
        self,
        state: BrokerState,
        checkpoints: PopCheckpoints,
        orders: OrderedPops,
        checks: ConsumerChecks,
    ) -> None:
        self._checks = checks
        self._store = state.store
        self._offsets = state.offsets
        self._selector = state.selector
        self._long_polling = state.long_polling
        self._clients = state.clients
        self._checkpoints = checkpoints
        self._orders = orders
        self._live = state.live
        self._traffic = state.traffic
        self._now_ms = state.system.clock.now_ms
        self._numbers = count()
        self._queues = PopQueues(
            state.store, state.topics, state.groups, state.offsets, state.selector
        )
        self._replies: set[asyncio.Task[None]] = set()
        self.handlers: dict[int, Handler] = {
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.PEEK_MESSAGE: self._peek,
            RequestCode.NOTIFICATION: self._notify,
            RequestCode.POLLING_INFO: self._polling_info,
        }

    # -- requests -----------------------------------------------------------------------------

    def _pop(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = PopHeader.decode(request.fields)
        self._check(header)
        _check_attempt(header)
        _check_pop(header)
        selection = self._selector.parsed(header.exp or "", header.exp_type)
        holder = holder_of(connection.host, request.caller, header.consumer_group)

        def attempt(end: PollEnd | None) -> Attempt:
            excess = self._checkpoints.excess(holder)
            if excess is not None:
                taken, full = TakenMessages(self._now_ms()), ResponseCode.POLLING_FULL
                return Attempt(_answer(request, header, taken, full, excess))
            if header.order:
                taken = self._take_in_order(header, selection)
            else:
                taken = self._take(header, selection, holder)
            if taken.messages:
                answer = answer_when_stored(taken.pending, _answer(request, header, taken))
                return Attempt(answer, took_all=not taken.rest)
            if end is None and taken.is_cut:
                end = _TIME_IS_OVER
            return Attempt(None if end is None else _answer(request, header, taken, *end))

        return self._answer_or_hold(connection, request, header, attempt)

    def _notify(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = NotificationHeader.decode(request.fields)
        self._check(header)
        _check_attempt(header)

        def attempt(end: PollEnd | None) -> Attempt:
            group = header.consumer_group
            queues = self._queues.of(group, header.topic, header.queue_id, in_order=header.order)
            has = any(
                self._store.queues.max_offset(*queue) > self._queues.at(group, queue)
                for queue in queues
                if not header.order or not self._orders.is_closed(group, queue, header.attempt_id)
            )
            response = NotificationResponse(has)
            is_over = has or end is not None
            return Attempt(request.answer(fields=response.encode()) if is_over else None)

        return self._answer_or_hold(connection, request, header, attempt)

    def _peek(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = PeekHeader.decode(request.fields)
        self._check(header)
        found: list[bytes | memoryview] = []
        rest = 0
        for queue in self._queues.of(header.consumer_group, header.topic, header.queue_id):
            offset = self._queues.at(header.consumer_group, queue)
            rest += max(self._store.queues.max_offset(*queue) - offset, 0)
            left = min(header.max_msg_nums, MESSAGES_MAX) - len(found)
            if left > 0:
                found += self._queues.read(queue, offset, left, ALL)[1].buffers
        return request.answer(
            ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND,
            GetStatus.FOUND.value if found else GetStatus.NO_MESSAGE_IN_QUEUE.value,
            PeekResponse(rest).encode(),
            found,
        )

    def _polling_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = PollingInfoHeader.decode(request.fields)
        self._check(header)
        queue = (header.topic, max(header.queue_id, ANY_QUEUE))
        waiting = self._long_polling.waiting(queue, header.consumer_group)
        return request.answer(fields=PollingInfoResponse(waiting).encode())

    # -- checks -------------------------------------------------------------------------------

    def _check(self, header: _Header) -> None:
        """Raise RequestError if the consumer may not read the queue."""
        self._checks.require_poppable(header.consumer_group, header.topic, header.queue_id)

    # -- taking -------------------------------------------------------------------------------

    def _take(
        self, header: PopHeader, selection: MessageFilter, holder: ShareHolder
    ) -> TakenMessages:
        taken = TakenMessages(
            self._now_ms(), next(self._numbers) % self._checkpoints.queues, holder
        )
        where = (header.consumer_group, header.topic, header.queue_id)
        for queue, offset, end in self._queues.positions(*where, header.init_mode):
            if end == offset:
                continue
            left = header.max_msg_nums - len(taken.messages)
            if left > 0:
                offset = self._take_from(queue, offset, left, selection, header, taken)
            taken.rest += max(end - offset, 0)
        return taken

    def _take_in_order(self, header: PopHeader, selection: MessageFilter) -> TakenMessages:
        taken = TakenMessages(self._now_ms(), ORDERED)
        group = header.consumer_group
        where = (group, header.topic, header.queue_id)
        for queue, offset, _ in self._queues.positions(*where, header.init_mode, in_order=True):
            left = header.max_msg_nums - len(taken.messages)
            if left <= 0 or self._orders.is_closed(group, queue, header.attempt_id):
                continue
            offset, result = self._queues.read(queue, offset, left, selection)
            taken.rest += max(result.max_offset - result.next_offset, 0)
            if not result.buffers:
                taken.is_cut |= _is_cut(offset, result)
                self._offsets.commit(group, *queue, offset)
                continue
            offsets = _offsets_of(result.buffers)
            batch = OrderedPop(taken.pop_time, header.invisible_time, offsets, header.attempt_id)
            self._orders.add(group, queue, batch)
            self._traffic.count_get(queue[0], group, result.count, result.size)
            self._long_polling.wake_later(group, queue, header.invisible_time / 1000)
            taken.add(queue, offset, offsets, result.buffers)
            taken.counts += [(queue[1], o, batch.counts.get(o, 0)) for o in offsets]
        return taken

    def _take_from(
        self,
        queue: QueueKey,
        offset: int,
        count: int,
        selection: MessageFilter,
        header: PopHeader,
        taken: TakenMessages,
    ) -> int:
        """Take at most ``count`` messages of a queue; return the new offset of the group."""
        topic, queue_id = queue
        offset, result = self._queues.read(queue, offset, count, selection)
        if result.buffers:
            offsets = _offsets_of(result.buffers)
            point = PopCheckpoint(
                topic=topic,
                group=header.consumer_group,
                queue_id=queue_id,
                start=offset,
                pop_time=taken.pop_time,
                invisible_ms=header.invisible_time,
                broker_name=self._live.current.name,
                open=set(offsets),
                revive_queue=taken.revive_queue,
                holder=taken.holder,
            )
            if self._checkpoints.find(point.key) is not None:
                return offset  # the group was reset; both pops would have the same receipts
            pending = self._checkpoints.add(point)
            if pending is not None:
                taken.pending.append(pending)
            self._traffic.count_get(topic, header.consumer_group, result.count, result.size)
            is_retry = topic != header.topic
            found = list(_renamed(result.buffers, point, header)) if is_retry else result.buffers
            taken.add(queue, offset, offsets, found)
            offset = result.next_offset
        elif _is_cut(offset, result):
            taken.is_cut = True
        self._offsets.commit(header.consumer_group, topic, queue_id, offset)
        return offset

    # -- waiting ------------------------------------------------------------------------------

    def _answer_or_hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PopHeader | NotificationHeader,
        attempt: Callable[[PollEnd | None], Attempt],
    ) -> Answer:
        """Return the answer of an attempt; if there is none, hold the request for later ones."""
        wait_s = min(header.poll_time / 1000, POLL_MAX_S)
        since = self._long_polling.announcements
        answer, _ = attempt(_TIME_IS_OVER if wait_s <= 0 else None)
        if answer is not None:
            return answer
        if (excess := self._long_polling.excess(connection, request)) is not None:
            return attempt(PollEnd(ResponseCode.POLLING_FULL, excess)).answer

        def wake(is_over: bool) -> WakeOutcome:
            try:
                if request.caller is not None:
                    self._clients.check_again(connection, request)
                require_lease(self._store.gate)
                self._check(header)
                answer, took_all = attempt(_TIME_IS_OVER if is_over else None)
            except Exception as error:
                answer, took_all = failure(request, error), False
            if answer is None:
                return WakeOutcome.WAITS
            self._reply(connection, request, answer)
            return WakeOutcome.TOOK_ALL if took_all else WakeOutcome.ANSWERED

        retries = self._queues.retry_topics(header.consumer_group, header.topic)
        queues = [(header.topic, max(header.queue_id, ANY_QUEUE))]
        queues += [(retry, ANY_QUEUE) for retry in retries]
        held = HeldRequest(
            connection, queues, ANY_OFFSET, wake, header.consumer_group, _poll_key(header)
        )
        held.holder = holder_of(connection.host, request.caller)
        held.size = request.size
        self._long_polling.hold(held, wait_s, since)
        return None

    def _reply(
        self,
        connection: Connection,
        request: RemotingCommand,
        answer: RemotingCommand | Awaitable[RemotingCommand | None],
    ) -> None:
        if isinstance(answer, RemotingCommand):
            connection.reply(request, answer)
            return

        async def reply() -> None:
            found = await outcome_of(request, answer)
            if found is not None:
                connection.reply(request, found)

        task = asyncio.get_running_loop().create_task(reply())
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)


def _poll_key(header: PopHeader | NotificationHeader) -> object:
    """Return the key of equivalent waiting requests: if one finds no messages, none of them
    does."""
    where = (header.consumer_group, header.topic, header.queue_id, header.order, header.attempt_id)
    return (where, header.exp_type, header.exp) if isinstance(header, PopHeader) else where


def _is_cut(offset: int, result: GetResult) -> bool:
    """Whether more messages may follow that can be read now; a damaged one may be repaired soon."""
    return offset < result.max_offset and result.status is not GetStatus.OFFSET_OVERFLOW_ONE


def _check_attempt(header: PopHeader | NotificationHeader) -> None:
    if len(header.attempt_id or "") > ATTEMPT_ID_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"attemptId has {len(header.attempt_id or '')} characters; at most {ATTEMPT_ID_MAX} "
            "are allowed",
        )


def _check_pop(header: PopHeader) -> None:
    if not 0 < header.max_msg_nums <= MESSAGES_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"maxMsgNums is {header.max_msg_nums}, it must be from 1 to {MESSAGES_MAX}",
        )
    if header.invisible_time <= 0:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {header.invisible_time}, it must be greater than 0",
        )
    check_invisible_time(header.invisible_time)


def _offsets_of(buffers: Part) -> list[int]:
    return [int.from_bytes(raw[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8], "big") for raw in buffers]


def _renamed(buffers: Part, point: PopCheckpoint, header: PopHeader) -> Iterator[bytes]:
    """Yield redelivered messages under the topic that the consumer pops, with their receipts."""
    for buffer in buffers:
        try:
            record = decode_message(buffer)
        except FormatError:  # the consumer reports it, as it does with any other damaged message
            yield bytes(buffer)
            continue
        receipt = Receipt(
            start=point.start,
            pop_time=point.pop_time,
            invisible_ms=point.invisible_ms,
            revive_queue=point.revive_queue,
            retry=kind_of(point.topic),
            broker_name=point.broker_name,
            queue_id=point.queue_id,
            offset=record.queue_offset,
        )
        raw = replace_properties(
            record.raw_properties, {POP_CK: receipt.encode(), PROPERTY_CRC: None}
        )
        yield encode_record(record._replace(topic=header.topic, raw_properties=raw))


def _answer(
    request: RemotingCommand,
    header: PopHeader,
    taken: TakenMessages,
    code: ResponseCode = ResponseCode.SUCCESS,
    remark: str | None = None,
) -> RemotingCommand:
    found = code is ResponseCode.SUCCESS
    response = PopResponse(
        pop_time=taken.pop_time,
        invisible_time=header.invisible_time,
        revive_qid=taken.revive_queue,
        rest_num=taken.rest,
        start_offset_info=encode_places(taken.starts),
        msg_offset_info=encode_places(taken.places),
        order_count_info=encode_counts(taken.counts) if header.order else None,
    )
    status = GetStatus.FOUND if found else GetStatus.NO_MESSAGE_IN_QUEUE
    return request.answer(code, remark or status.value, TypedFields(response), taken.messages)
