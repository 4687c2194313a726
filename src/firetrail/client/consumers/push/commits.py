"""Commits of a group's member, which never take the progress of another member back."""

import asyncio
import logging
import math

from firetrail.client.cluster.offsets import Offsets
from firetrail.client.consumers.push.process_queue import ProcessQueue
from firetrail.client.consumers.push.queue_locks import QueueLocks
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import MessageQueue

LATE_S = 10.0
"""If more time passes between two rounds of commits, the process was suspended or its event
loop was blocked. Twice the interval of commits."""

_log = logging.getLogger(__name__)


class Commits:
    """Commits the offsets of one member.

    A process that was suspended, or whose event loop was blocked, may have lost queues to other
    members without noticing. A commit that is late or the last one, or without the lock of its
    queue, therefore only raises the offset of the group.

    While a master is down, a replica takes the commits. The master does not copy them when it
    returns, so a member commits its offsets again when their broker has another address.
    """

    def __init__(self, group: str, offsets: Offsets, locks: QueueLocks) -> None:
        self._group = group
        self._offsets = offsets
        self._locks = locks
        self._last = math.inf  # when the last round began
        self._only_raises = False

    def begin_round(self, *, is_last: bool = False) -> None:
        """Note that all queues are about to be committed, for the last time before a close."""
        now = asyncio.get_running_loop().time()
        self._only_raises = is_last or now - self._last > LATE_S
        self._last = now

    def is_due(self, queue: MessageQueue, taken: ProcessQueue, offset: int) -> bool:
        """Return whether the broker of a queue does not have this offset yet."""
        return offset != taken.committed or self._has_moved(queue, taken)

    def _has_moved(self, queue: MessageQueue, taken: ProcessQueue) -> bool:
        """Return whether another broker than the one with the last commit has the queue now."""
        if taken.committed_at is None:
            return False
        try:
            return self._offsets.address(queue) != taken.committed_at
        except RequestError:  # no broker is registered at the moment
            return False

    async def commit(self, queue: MessageQueue, taken: ProcessQueue, offset: int) -> None:
        """Commit the offset of a queue that this member consumes."""
        is_owner = self._locks.holds(queue) and not self._has_moved(queue, taken)
        if self._only_raises or not is_owner:
            await self.advance(queue, taken, offset)
        else:
            await self.force(queue, taken, offset)

    async def force(self, queue: MessageQueue, taken: ProcessQueue, offset: int) -> None:
        """Commit an offset even if it is lower: this member owns the queue, or it was reset."""
        taken.committed_at = await self._offsets.commit(self._group, queue, offset)
        taken.committed = offset

    async def advance(self, queue: MessageQueue, taken: ProcessQueue, offset: int) -> None:
        """Commit an offset unless another member has committed a higher one."""
        address = self._offsets.address(queue)
        committed = await self._offsets.committed(self._group, queue)
        if committed is None or committed <= offset:
            await self.force(queue, taken, offset)
            return
        _log.warning(
            "%s: %s queue %d on %s went to another member, which has committed offset %d; this "
            "member had reached %d, and some messages may have been consumed twice",
            self._group,
            queue.topic,
            queue.queue_id,
            queue.broker_name,
            committed,
            offset,
        )
        taken.committed = offset
        taken.committed_at = address
