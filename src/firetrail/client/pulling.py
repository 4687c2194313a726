"""Pulling messages of a queue."""

from __future__ import annotations

from enum import IntFlag
from typing import NamedTuple

from firetrail.client.received import Received, decode_all
from firetrail.client.session import Session
from firetrail.client.subscription import wanted_by
from firetrail.errors import RequestError
from firetrail.remoting.bodies import BY_TAG, MessageQueue, SubscriptionData
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.headers import PullHeader, PullResponse

PULL_S = 10.0
"""Time for an answer beyond the time that the broker may wait for messages."""
BATCH = 32


class PullFlag(IntFlag):
    """The bits of a pull's ``sysFlag``."""

    COMMIT = 1
    SUSPEND = 2
    """Wait for messages if there are none."""
    SUBSCRIPTION = 4
    """The filter is in the request."""
    CLASS_FILTER = 8
    LITE = 16


class Pulled(NamedTuple):
    """Messages of a queue, and where to go on; all wanted ones before that are among them."""

    messages: list[Received]
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool = False
    """The offset asked for was not in the queue."""


_NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


class Puller:
    """Pulls for a group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

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
        moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
        if answer.code != ResponseCode.SUCCESS and answer.code not in _NOTHING and not moved:
            what = f"pull of {queue.topic} queue {queue.queue_id} on {queue.broker_name}"
            raise RequestError(answer.code, f"{what}: {answer.remark or 'no reason given'}")
        place = PullResponse.decode(answer.fields)
        messages = list(decode_all(queue, answer.content)) if not answer.code else []
        if subscription.expression_type == BY_TAG:
            messages = list(filter(wanted_by(subscription), messages))
        ends = (place.next_begin_offset, place.min_offset, place.max_offset)
        return Pulled(messages, *ends, moved)
