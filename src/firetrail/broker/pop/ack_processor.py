"""Acknowledgements of popped messages, and changes of their invisible time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.pop.ordered_pops import OrderedPops
from firetrail.broker.pop.pop_checkpoints import (
    Key,
    PopCheckpoint,
    PopCheckpoints,
    answer_when_stored,
    check_invisible_time,
)
from firetrail.errors import RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler, failure
from firetrail.remoting.messages.pop.pop_bodies import BatchAckBody
from firetrail.remoting.messages.pop.pop_headers import (
    AckHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponse,
)
from firetrail.remoting.messages.pop.receipts import ORDERED, Receipt, real_topic
from firetrail.remoting.servers.refusals import CompoundRequest
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.queues.queue_table import QueueKey

OffsetsOfQueues = dict[QueueKey, range]
"""The range of offsets of each queue."""


class PopAck(NamedTuple):
    """The acknowledgement of a message."""

    group: str
    topic: str
    """The topic that the message is stored in, which may be a retry topic."""
    receipt: Receipt


@dataclass(slots=True)
class PopAcks(CompoundRequest):
    """A BATCH_ACK_MESSAGE inside this process: acknowledgements of any pops, each with its own
    outcome.

    Each message is checked as by an ACK_MESSAGE. Those of one pop share one record in the log.

    Attributes:
        acks: The acknowledgements; their indexes are the numbers of the parts.
    """

    acks: Sequence[PopAck] = ()


class AckProcessor:
    """Handles ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME.

    Acknowledging a message that is visible again, or that was acknowledged before, succeeds without
    any effect, as in RocketMQ.
    """

    def __init__(
        self, state: BrokerState, checkpoints: PopCheckpoints, orders: OrderedPops
    ) -> None:
        self._store = state.store
        self._topics = state.topics
        self._checkpoints = checkpoints
        self._orders = orders
        self._long_polling = state.long_polling
        self._name = state.config.name
        self._now_ms = state.system.clock.now_ms
        self.handlers: dict[int, Handler] = {
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.BATCH_ACK_MESSAGE: self._ack_all,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change,
        }

    def _ack(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = AckHeader.decode(request.fields)
        self._check(header.topic, header.queue_id, header.offset)
        receipt = Receipt.decode(header.extra_info)
        if receipt.revive_queue == ORDERED:
            queue = (header.topic, header.queue_id)
            self._ack_in_order(header.consumer_group, queue, [header.offset], receipt.pop_time)
            return request.answer()
        point = self._checkpoints.find(_key(header, receipt))
        pending = point and self._checkpoints.ack(point, [header.offset])
        return answer_when_stored([pending] if pending else [], request.answer())

    def _ack_all(self, connection: Connection, request: RemotingCommand) -> Answer:
        if isinstance(request, PopAcks):
            return self._ack_together(request)
        body = BatchAckBody.decode(request.content)
        if not body.acks:
            raise RequestError(ResponseCode.NO_MESSAGE, "there is nothing to acknowledge")
        pending = []
        name = body.broker_name or self._name
        for ack in body.acks:
            topic = real_topic(ack.topic, ack.group, ack.retry)
            try:
                stored = self._offsets(topic, ack.queue_id)
            except RequestError:  # the others count, and RocketMQ reports success as well
                continue
            if ack.revive_queue == ORDERED:
                queue = (topic, ack.queue_id)
                popped = self._orders.popped(ack.group, queue, ack.pop_time)
                self._ack_in_order(ack.group, queue, ack.among(popped), ack.pop_time)
                continue
            key = (topic, ack.group, ack.queue_id, ack.start, ack.pop_time, name)
            point = self._checkpoints.find(key)
            if point is not None:
                offsets = [offset for offset in point.open if offset in stored]
                pending.append(self._checkpoints.ack(point, ack.among(offsets)))
        return answer_when_stored([each for each in pending if each is not None], request.answer())

    def _ack_together(self, request: PopAcks) -> Answer:
        """Acknowledge messages with one record for each pop that they are from."""
        by_pop: dict[Key, list[int]] = {}
        known: OffsetsOfQueues = {}
        for number, (group, topic, receipt) in enumerate(request.acks):
            queue_id, offset = receipt.queue_id, receipt.offset
            try:
                self._check(topic, queue_id, offset, known)
            except RequestError as error:
                request.refusals[number] = failure(request, error)
                continue
            if receipt.revive_queue == ORDERED:
                self._ack_in_order(group, (topic, queue_id), [offset], receipt.pop_time)
                continue
            name = receipt.broker_name
            key = (topic, group, queue_id, receipt.start, receipt.pop_time, name)
            by_pop.setdefault(key, []).append(number)
        pending = []
        for key, numbers in by_pop.items():
            point = self._checkpoints.find(key)
            if point is None:
                continue
            offsets = [request.acks[number].receipt.offset for number in numbers]
            try:
                stored = self._checkpoints.ack(point, offsets)
            except Exception as error:  # the messages of other pops may be acknowledged
                request.refusals |= dict.fromkeys(numbers, failure(request, error))
                continue
            if stored is not None:
                pending.append(stored)
        return answer_when_stored(pending, request.answer())

    def _change(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = ChangeInvisibleTimeHeader.decode(request.fields)
        self._check(header.topic, header.queue_id, header.offset)
        check_invisible_time(header.invisible_time)
        receipt = Receipt.decode(header.extra_info)
        if receipt.revive_queue == ORDERED:
            return self._change_in_order(request, header, receipt)
        old = self._checkpoints.find(_key(header, receipt))
        if old is None or header.offset not in old.open:
            raise _too_late(header)
        new = PopCheckpoint(
            topic=old.topic,
            group=old.group,
            queue_id=old.queue_id,
            start=header.offset,
            pop_time=max(self._now_ms(), old.pop_time + 1),  # an equal time would give an equal key
            invisible_ms=max(header.invisible_time, 0),
            broker_name=old.broker_name,
            open={header.offset},
            revive_queue=old.revive_queue,
            holder=old.holder,
        )
        added = self._checkpoints.add(new)
        acked = self._checkpoints.ack(old, [header.offset])
        response = ChangeInvisibleTimeResponse(new.pop_time, new.invisible_ms, new.revive_queue)
        pending = [each for each in (added, acked) if each is not None]
        return answer_when_stored(pending, request.answer(fields=response.encode()))

    # -- in order -----------------------------------------------------------------------------

    def _ack_in_order(
        self, group: str, queue: QueueKey, offsets: Sequence[int], pop_time: int
    ) -> None:
        opened = [self._orders.ack(group, queue, offset, pop_time) for offset in offsets]
        if any(opened):
            self._long_polling.wake_later(group, queue)

    def _change_in_order(
        self, request: RemotingCommand, header: ChangeInvisibleTimeHeader, receipt: Receipt
    ) -> RemotingCommand:
        queue = (header.topic, header.queue_id)
        invisible_ms = max(header.invisible_time, 0)
        until = self._now_ms() + invisible_ms
        where = (header.consumer_group, queue, header.offset, receipt.pop_time)
        free_at = self._orders.change(*where, until)
        if free_at is None:
            raise _too_late(header)
        self._long_polling.wake_later(where[0], queue, max(free_at - self._now_ms(), 0) / 1000)
        time = receipt.pop_time
        response = ChangeInvisibleTimeResponse(time, until - time, ORDERED)
        return request.answer(fields=response.encode())

    # -- checks -------------------------------------------------------------------------------

    def _check(
        self, name: str, queue_id: int, offset: int, known: OffsetsOfQueues | None = None
    ) -> None:
        """Raise RequestError unless a queue has a message at an offset.

        ``known`` remembers the offsets of queues between calls.
        """
        queue = (name, queue_id)
        offsets = known.get(queue) if known is not None else None
        if offsets is None:
            offsets = self._offsets(name, queue_id)
            if known is not None:
                known[queue] = offsets
        if offset not in offsets:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{name}@{queue_id}, commit:{offset}, "
                f"store:{offsets.start}~{offsets.stop}",
            )

    def _offsets(self, name: str, queue_id: int) -> range:
        topic = self._topics.require(name)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        first = self._store.queues.min_offset(name, queue_id)
        return range(first, self._store.queues.numbered_end(name, queue_id))


def _too_late(header: ChangeInvisibleTimeHeader) -> RequestError:
    return RequestError(
        ResponseCode.NO_MESSAGE,
        f"the message at {header.topic} queue {header.queue_id} offset {header.offset} "
        "was acknowledged or is visible again: this receipt is no longer valid",
    )


def _key(header: AckHeader | ChangeInvisibleTimeHeader, receipt: Receipt) -> Key:
    return (
        header.topic,
        header.consumer_group,
        header.queue_id,
        receipt.start,
        receipt.pop_time,
        receipt.broker_name,
    )
