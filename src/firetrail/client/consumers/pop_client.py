"""Pops of messages from a broker, and their acknowledgement by receipt."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from firetrail.client.cluster.session import LONG_POLL_MARGIN_S, Session
from firetrail.client.messages.received_message import Received, decode_good
from firetrail.errors import RequestError
from firetrail.format.properties import POP_CK
from firetrail.remoting.messages.bodies import MessageQueue, SubscriptionData
from firetrail.remoting.messages.pop.pop_bodies import BatchAck, BatchAckBody
from firetrail.remoting.messages.pop.pop_headers import (
    ANY_QUEUE,
    AckHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponse,
    NotificationHeader,
    NotificationResponse,
    PopHeader,
    PopResponse,
)
from firetrail.remoting.messages.pop.receipts import PopReceipts, Receipt
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.system import SYSTEM

_log = logging.getLogger(__name__)
_FIRST, _LAST = 0, 1
_NO_MESSAGES = (
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.POLLING_FULL,
    ResponseCode.PULL_NOT_FOUND,
)


@dataclass(frozen=True)
class Popped(Received):
    """A message that is invisible to other consumers for a while, and its receipt.

    Args:
        queue: The queue that the message came from.
        record: The message as it is stored.
        receipt: The handle with which the message is acknowledged.
    """

    receipt: Receipt


class PopClient:
    """Pops for a group. ``from_first`` returns whether a new group starts at the first message of a
    topic."""

    def __init__(self, session: Session, group: str, from_first: Callable[[str], bool]) -> None:
        self._session = session
        self._group = group
        self._from_first = from_first

    async def pop(
        self,
        broker_name: str,
        wanted: SubscriptionData,
        *,
        count: int,
        invisible_s: float,
        wait_s: float,
    ) -> list[Popped]:
        """Return messages of any queue; the broker waits up to ``wait_s`` for the first one."""
        header = PopHeader(
            consumer_group=self._group,
            topic=wanted.topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=count,
            invisible_time=int(invisible_s * 1000),
            poll_time=int(wait_s * 1000),
            born_time=SYSTEM.clock.now_ms(),
            init_mode=_FIRST if self._from_first(wanted.topic) else _LAST,
            exp_type=wanted.expression_type,
            exp=wanted.sub_string,
        )
        answer = await self._session.request(
            self._session.address_of(broker_name),
            RequestCode.POP_MESSAGE,
            header,
            timeout_s=wait_s + LONG_POLL_MARGIN_S,
        )
        if answer.code in _NO_MESSAGES:
            return []
        if answer.code != ResponseCode.SUCCESS:
            what = f"pop of {wanted.topic} on {broker_name}"
            raise RequestError(answer.code, f"{what}: {answer.remark or 'no reason given'}")
        queue = MessageQueue(wanted.topic, broker_name, ANY_QUEUE)
        found, damaged = decode_good(queue, answer.content)
        if damaged is not None:
            _log.error(
                "%s on %s: at least %d of the popped messages are damaged and left out: %s",
                wanted.topic,
                broker_name,
                damaged.in_a_row,
                damaged.error,
            )
        return list(_with_receipts(found, PopResponse.decode(answer.fields)))

    async def has_messages(self, broker_name: str, topic: str, wait_s: float) -> bool:
        """Wait up to ``wait_s`` until a broker has messages to pop; return whether it has."""
        now_ms = SYSTEM.clock.now_ms()
        header = NotificationHeader(self._group, topic, ANY_QUEUE, int(wait_s * 1000), now_ms)
        answer = await self._session.ask(
            self._session.address_of(broker_name),
            RequestCode.NOTIFICATION,
            header,
            timeout_s=wait_s + LONG_POLL_MARGIN_S,
        )
        return NotificationResponse.decode(answer.fields).has_msg

    async def ack(self, message: Popped) -> None:
        """Acknowledge a message."""
        receipt = message.receipt
        header = AckHeader(
            self._group,
            receipt.topic(message.topic, self._group),
            receipt.queue_id,
            receipt.encode(),
            receipt.offset,
        )
        address = self._session.address_of(receipt.broker_name)
        await self._session.ask(address, RequestCode.ACK_MESSAGE, header)

    async def ack_all(self, broker_name: str, messages: Sequence[Popped]) -> None:
        """Acknowledge messages of one broker."""
        together: dict[tuple[str, Receipt], list[int]] = {}
        for message in messages:
            pop = message.receipt._replace(offset=0)
            together.setdefault((message.topic, pop), []).append(message.receipt.offset)
        acks = [
            BatchAck(
                group=self._group,
                topic=topic,
                start=pop.start,
                queue_id=pop.queue_id,
                revive_queue=pop.revive_queue,
                pop_time=pop.pop_time,
                invisible_ms=pop.invisible_ms,
                bits=BatchAck.bits_of(pop.start, offsets),
                retry=pop.retry,
            )
            for (topic, pop), offsets in together.items()
        ]
        body = BatchAckBody(broker_name, acks).encode(standard=True)
        address = self._session.address_of(broker_name)
        await self._session.ask(address, RequestCode.BATCH_ACK_MESSAGE, body=body)

    async def change(self, message: Popped, invisible_s: float) -> Popped:
        """Return the message with a new receipt, valid for ``invisible_s`` from now on."""
        receipt = message.receipt
        header = ChangeInvisibleTimeHeader(
            self._group,
            receipt.topic(message.topic, self._group),
            receipt.queue_id,
            receipt.encode(),
            receipt.offset,
            int(invisible_s * 1000),
        )
        address = self._session.address_of(receipt.broker_name)
        answer = await self._session.ask(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        changed = ChangeInvisibleTimeResponse.decode(answer.fields)
        renewed = receipt._replace(
            start=receipt.offset,
            pop_time=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )
        return Popped(message.queue, message.record, renewed)


def _with_receipts(messages: Sequence[Received], header: PopResponse) -> Iterator[Popped]:
    """Yield popped messages with receipts; redelivered ones carry theirs in a property."""
    for message in messages:
        record = message.record
        queue = MessageQueue(record.topic, message.queue.broker_name, record.queue_id)
        receipts = PopReceipts(header, queue.broker_name)
        carried = message.properties.get(POP_CK)
        yield Popped(
            queue, record, receipts.of(record.topic, record.queue_id, record.queue_offset, carried)
        )
