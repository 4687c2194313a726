"""Pulling messages of a queue."""

from __future__ import annotations

import logging
from typing import NamedTuple

from firetrail.client.received import Damaged, Received, decode_good
from firetrail.client.session import Session
from firetrail.client.subscription import wanted_by
from firetrail.errors import RequestError
from firetrail.remoting.bodies import BY_TAG, MessageQueue, SubscriptionData
from firetrail.remoting.codes import PullFlag, RequestCode, ResponseCode
from firetrail.remoting.headers import PullHeader, PullResponse

PULL_S = 10.0
"""Time for an answer beyond the time that the broker may wait for messages."""
BATCH = 32
_RESET = "OFFSET_RESET"
"""The status that brokers answer the first pull with after a reset of the group's offsets."""

_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What a broker said to a pull: records as they are stored, and where to go on."""

    records: bytes
    """One behind the other; brokers compare only the hashes of tags, so some may be unwanted."""
    next_offset: int
    min_offset: int
    max_offset: int
    code: int
    status: str
    """How the broker's store calls it: ``FOUND``, ``MESSAGE_WAS_REMOVING``, …"""

    @property
    def moved(self) -> bool:
        """The offset asked for was not in the queue."""
        return self.code == ResponseCode.PULL_OFFSET_MOVED


class Pulled(NamedTuple):
    """Messages of a queue, and where to go on; all wanted ones before that are among them."""

    messages: list[Received]
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool = False
    """The offset asked for was not in the queue."""


_ANSWERS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Puller:
    """Pulls for a group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._announced: dict[MessageQueue, int] = {}  # damaged messages to come, already reported

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        *,
        count: int = BATCH,
        wait_s: float = 0.0,
    ) -> Pulled:
        """Messages from ``offset`` on. If there are none, waits up to ``wait_s`` for one."""
        answer = await self.ask(queue, offset, subscription, count=count, wait_s=wait_s)
        messages, damaged = decode_good(queue, answer.records)
        in_a_row = 1
        while damaged is not None and count > 1:
            # Only those before the damaged one, or that alone: where to go on is the broker's word.
            in_a_row = damaged.in_a_row if damaged.before == 0 else 1
            count = min(max(damaged.before, 1), count - 1)
            answer = await self.ask(queue, offset, subscription, count=count)
            messages, damaged = decode_good(queue, answer.records)
        self._report(queue, answer.next_offset - 1, damaged, in_a_row)
        if subscription.expression_type == BY_TAG:
            messages = list(filter(wanted_by(subscription), messages))
        return Pulled(
            messages, answer.next_offset, answer.min_offset, answer.max_offset, answer.moved
        )

    async def reset_to(
        self, queue: MessageQueue, offset: int, subscription: SubscriptionData
    ) -> int | None:
        """Where an administrator has set the group, which is at ``offset``; None if nowhere."""
        answer = await self.ask(queue, offset, subscription, count=1)
        return answer.next_offset if answer.moved and answer.status == _RESET else None

    def _report(
        self, queue: MessageQueue, offset: int, damaged: Damaged | None, in_a_row: int
    ) -> None:
        """Log damaged messages that follow each other in one line, when the first of them comes."""
        announced = self._announced.pop(queue, 0)
        if damaged is None:
            return
        if announced == 0:
            announced = in_a_row
            which = "message %d is" if in_a_row == 1 else f"{in_a_row} messages from %d on are"
            _log.error(
                f"%s queue %d on %s: {which} damaged and left out: %s",
                queue.topic,
                queue.queue_id,
                queue.broker_name,
                offset,
                damaged.error,
            )
        if announced > 1:
            self._announced[queue] = announced - 1

    async def ask(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        *,
        count: int = BATCH,
        wait_s: float = 0.0,
    ) -> Answer:
        """The same with the records as they come."""
        flags = PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if wait_s > 0 else PullFlag(0))
        header = PullHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=int(flags),
            commit_offset=0,
            suspend_timeout_millis=int(wait_s * 1000),
            sub_version=subscription.sub_version,
            subscription=subscription.sub_string,
            expression_type=subscription.expression_type,
        )
        answer = await self._session.request(
            self._session.address_of(queue.broker_name),
            RequestCode.PULL_MESSAGE,
            header,
            timeout_s=wait_s + PULL_S,
        )
        if answer.code not in _ANSWERS:
            what = f"pull of {queue.topic} queue {queue.queue_id} on {queue.broker_name}"
            raise RequestError(answer.code, f"{what}: {answer.remark or 'no reason given'}")
        place = PullResponse.decode(answer.fields)
        return Answer(
            answer.content if answer.code == ResponseCode.SUCCESS else b"",
            place.next_begin_offset,
            place.min_offset,
            place.max_offset,
            answer.code,
            answer.remark or "",
        )
