"""Pulls of messages from a queue."""

import logging
from typing import NamedTuple

from firetrail.client.cluster.session import LONG_POLL_MARGIN_S, Session
from firetrail.client.consumers.subscription import wanted_by
from firetrail.client.messages.received_message import Damaged, Received, decode_good
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import MessageQueue, SubscriptionData
from firetrail.remoting.messages.headers import PullHeader, PullResponse
from firetrail.remoting.wire.codes import PullFlag, RequestCode, ResponseCode

BATCH = 32
"""The default for the most messages per pull, as in the Java client."""
_RESET = "OFFSET_RESET"
"""The status of the answer to the first pull after a reset of the group's offsets."""

_log = logging.getLogger(__name__)


class PullResult(NamedTuple):
    """The answer of a broker to a pull: records as they are stored, and the next offset."""

    records: bytes
    """The concatenated records. Brokers compare only the hashes of tags, so some may not match."""
    next_offset: int
    min_offset: int
    max_offset: int
    code: int
    status: str
    """The result of the broker's store: ``FOUND``, ``MESSAGE_WAS_REMOVING``, …"""

    @property
    def moved(self) -> bool:
        """Whether the requested offset was outside the queue, or was reset."""
        return self.code == ResponseCode.PULL_OFFSET_MOVED


class Pulled(NamedTuple):
    """The result of a pull.

    Args:
        messages: All matching messages from the requested offset up to ``next_offset``.
        next_offset: The queue offset at which to continue.
        min_offset: The offset of the first message of the queue.
        max_offset: One past the last readable offset of the queue.
        moved: Whether the requested offset was outside the queue, or was reset by an
            administrator. Default: False.
    """

    messages: list[Received]
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool = False


_ANSWERS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class PullClient:
    """Pulls for a group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._reported: dict[MessageQueue, int] = {}  # damaged messages to come, already logged

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        *,
        count: int = BATCH,
        wait_s: float = 0.0,
    ) -> Pulled:
        """Return messages, starting at ``offset``; the broker waits up to ``wait_s`` for one.

        Damaged messages are skipped and logged.
        """
        answer = await self.ask(queue, offset, subscription, count=count, wait_s=wait_s)
        messages, damaged = decode_good(queue, answer.records)
        in_a_row = 1
        while damaged is not None and count > 1:
            # Only the broker knows the offset after a damaged message. So pull only the messages
            # before it, or the damaged message alone.
            in_a_row = damaged.in_a_row if damaged.before == 0 else 1
            count = min(max(damaged.before, 1), count - 1)
            answer = await self.ask(queue, offset, subscription, count=count)
            messages, damaged = decode_good(queue, answer.records)
        self._report(queue, answer.next_offset - 1, damaged, in_a_row)
        if subscription.is_by_tag:
            messages = list(filter(wanted_by(subscription), messages))
        return Pulled(
            messages, answer.next_offset, answer.min_offset, answer.max_offset, answer.moved
        )

    async def reset_to(
        self, queue: MessageQueue, offset: int, subscription: SubscriptionData
    ) -> int | None:
        """Return the offset that an administrator has reset the group to; None without a reset.

        ``offset`` is the current offset of the group.
        """
        answer = await self.ask(queue, offset, subscription, count=1)
        return answer.next_offset if answer.moved and answer.status == _RESET else None

    def _report(
        self, queue: MessageQueue, offset: int, damaged: Damaged | None, in_a_row: int
    ) -> None:
        """Log consecutive damaged messages in one line, at the first of them."""
        reported = self._reported.pop(queue, 0)
        if damaged is None:
            return
        if reported == 0:
            reported = in_a_row
            which = "message %d is" if in_a_row == 1 else f"{in_a_row} messages from %d on are"
            _log.error(
                f"%s queue %d on %s: {which} damaged and left out: %s",
                queue.topic,
                queue.queue_id,
                queue.broker_name,
                offset,
                damaged.error,
            )
        if reported > 1:
            self._reported[queue] = reported - 1

    async def ask(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        *,
        count: int = BATCH,
        wait_s: float = 0.0,
    ) -> PullResult:
        """Pull, and return the answer with its records undecoded."""
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
            timeout_s=wait_s + LONG_POLL_MARGIN_S,
        )
        if answer.code not in _ANSWERS:
            what = f"pull of {queue.topic} queue {queue.queue_id} on {queue.broker_name}"
            raise RequestError(answer.code, f"{what}: {answer.remark or 'no reason given'}")
        place = PullResponse.decode(answer.fields)
        return PullResult(
            answer.content if answer.code == ResponseCode.SUCCESS else b"",
            place.next_begin_offset,
            place.min_offset,
            place.max_offset,
            answer.code,
            answer.remark or "",
        )
