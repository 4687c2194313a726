"""A queue that a push consumer has: messages are pulled, handed over, and accounted for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from firetrail.client.pulling import Puller
from firetrail.client.received import Received
from firetrail.client.session import Session
from firetrail.errors import FiretrailError
from firetrail.remoting.bodies import MessageQueue, SubscriptionData

WAIT_S = 15.0
"""How long a broker may hold a pull that finds nothing."""
PAUSE_S = 3.0
"""Before pulling again after a failure."""
LOCK_S = 30.0
"""A lock that was not renewed for so long does not count."""

_log = logging.getLogger(__name__)

Consume = Callable[["Assigned", Received], Awaitable[bool]]
"""Whether the message is done with; if not, another client gets it."""


class Assigned:
    """Pulls ahead of the consumption, at most ``ahead`` messages."""

    def __init__(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        offset: int,
        ahead: int,
    ) -> None:
        self.queue = queue
        self._subscription = subscription
        self._next = offset
        self._ahead = ahead
        self._pending: dict[int, Received] = {}  # in the order of their offsets
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulling: asyncio.Task[None] | None = None
        self.locked_at = float("-inf")
        """When the broker has granted or renewed the lock, by the loop's clock."""
        self.dropped = False
        self.committed = -1
        """The offset that the broker was told last."""

    @property
    def offset(self) -> int:
        """Everything before it is consumed."""
        return next(iter(self._pending), self._next)

    @property
    def waiting(self) -> int:
        """Messages that are here and not yet consumed."""
        return len(self._pending)

    @property
    def is_locked(self) -> bool:
        """Whether no other client consumes the queue."""
        return asyncio.get_running_loop().time() - self.locked_at < LOCK_S

    def start(self, session: Session, puller: Puller, consume: Consume, *, in_order: bool) -> None:
        """Pull until it is stopped."""
        self._pulling = session.spawn(self._run(session, puller, consume, in_order))

    async def stop(self, grace_s: float) -> None:
        """Pull no more; wait for what is being consumed, but not for long."""
        self.dropped = True
        if self._pulling is not None:
            self._pulling.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)

    async def _run(
        self, session: Session, puller: Puller, consume: Consume, in_order: bool
    ) -> None:
        while not self.dropped:
            if in_order and not self.is_locked:
                await asyncio.sleep(0.1)
                continue
            try:
                pulled = await puller.pull(
                    self.queue, self._next, self._subscription, wait_s=WAIT_S
                )
            except (OSError, TimeoutError, FiretrailError) as error:
                _log.warning("%s; pulled again in %g s", error, PAUSE_S)
                session.forget_route(self.queue.topic)
                await asyncio.sleep(PAUSE_S)
                continue
            if pulled.moved:  # what is pending is no longer where the group stands
                self._pending.clear()
            for message in pulled.messages:
                self._pending[message.queue_offset] = message
            self._next = pulled.next_offset
            for message in pulled.messages:
                await self._hand_over(session, consume, message, in_order)

    async def _hand_over(
        self, session: Session, consume: Consume, message: Received, in_order: bool
    ) -> None:
        limit = 1 if in_order else self._ahead
        task = session.spawn(self._consume(consume, message))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        while len(self._tasks) >= limit:
            self._room.clear()
            await self._room.wait()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.set()

    async def _consume(self, consume: Consume, message: Received) -> None:
        if await consume(self, message):
            self._pending.pop(message.queue_offset, None)
