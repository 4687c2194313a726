"""Acknowledgements of popped messages, and changes of their invisible time."""

from __future__ import annotations

from collections.abc import Sequence

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.pop.checkpoints import (
    Key,
    PopCheckpoint,
    PopCheckpoints,
    answer_when_stored,
    check_invisible_time,
)
from firetrail.broker.pop.orders import PopOrders
from firetrail.errors import RequestError
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Answer, Handler
from firetrail.remoting.pop_bodies import BatchAckBody
from firetrail.remoting.pop_headers import (
    AckHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponse,
)
from firetrail.remoting.receipts import ORDERED, Receipt, real_topic
from firetrail.store.queues.table import QueueKey


class AckProcessor:
    """Handles ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME.

    Acknowledging a message that is visible again, or that was acknowledged before, succeeds without
    any effect, as in RocketMQ.
    """

    def __init__(self, state: BrokerState, checkpoints: PopCheckpoints, orders: PopOrders) -> None:
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
        self._check(header)
        receipt = Receipt.decode(header.extra_info)
        if receipt.revive_queue == ORDERED:
            queue = (header.topic, header.queue_id)
            self._ack_in_order(header.consumer_group, queue, [header.offset], receipt.pop_time)
            return request.answer()
        point = self._checkpoints.find(_key(header, receipt))
        pending = point and self._checkpoints.ack(point, [header.offset])
        return answer_when_stored([pending] if pending else [], request.answer())

    def _ack_all(self, connection: Connection, request: RemotingCommand) -> Answer:
        body = BatchAckBody.decode(request.content)
        if not body.acks:
            raise RequestError(ResponseCode.NO_MESSAGE, "there is nothing to acknowledge")
        pending = []
        name = body.broker_name or self._name
        for ack in body.acks:
            if ack.revive_queue == ORDERED:
                queue = (ack.topic, ack.queue_id)
                offsets = ack.among(self._orders.popped(ack.group, queue, ack.pop_time))
                self._ack_in_order(ack.group, queue, offsets, ack.pop_time)
                continue
            topic = real_topic(ack.topic, ack.group, ack.retry)
            key = (topic, ack.group, ack.queue_id, ack.start, ack.pop_time, name)
            point = self._checkpoints.find(key)
            if point is not None:
                pending.append(self._checkpoints.ack(point, ack.among(point.open)))
        return answer_when_stored([each for each in pending if each is not None], request.answer())

    def _change(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = ChangeInvisibleTimeHeader.decode(request.fields)
        self._check(header)
        check_invisible_time(header.invisible_time)
        receipt = Receipt.decode(header.extra_info)
        if receipt.revive_queue == ORDERED:
            return self._change_in_order(request, header, receipt)
        old = self._checkpoints.find(_key(header, receipt))
        if old is None or header.offset not in old.open:
            raise _too_late(header)
        new = PopCheckpoint(
            old.topic,
            old.group,
            old.queue_id,
            header.offset,
            max(self._now_ms(), old.pop_time + 1),  # an equal time would give an equal key
            max(header.invisible_time, 0),
            old.broker_name,
            {header.offset},
            old.revive_queue,
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

    def _check(self, header: AckHeader | ChangeInvisibleTimeHeader) -> None:
        topic = self._topics.require(header.topic)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        first = self._store.min_offset(header.topic, header.queue_id)
        end = self._store.numbered_end(header.topic, header.queue_id)
        if not first <= header.offset < end:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queue_id}, "
                f"commit:{header.offset}, store:{first}~{end}",
            )


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
