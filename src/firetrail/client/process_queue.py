"""A queue that a push consumer has: messages are pulled, handed over, and accounted for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from firetrail.client.pull import Puller
from firetrail.client.received import Received
from firetrail.client.session import Session
from firetrail.errors import FiretrailError
from firetrail.remoting.bodies import MessageQueue, SubscriptionData

WAIT_S = 15.0
"""How long a broker may hold a pull that finds nothing."""
PAUSE_S = 3.0
"""Before pulling again after a failure."""
RESTART_S = 1.0
"""Before a message is handed over again whose consumption ended without an outcome."""
LOCK_LOOK_S = 0.1
"""Between two looks whether the lock was renewed."""

_log = logging.getLogger(__name__)

Consume = Callable[["ProcessQueue", Received], Awaitable[bool]]
"""Whether the message is done with; if not, another client gets it."""


class ProcessQueue:
    """Pulls ahead of the consumption, at most ``ahead`` messages.

    A message leaves the account only when ``consume`` says that it is done with. One whose task
    ends otherwise, cancelled or failed, is handed over again, so that the offset never stalls.
    """

    def __init__(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        offset: int,
        ahead: int,
        is_locked: Callable[[MessageQueue], bool] = lambda queue: True,
    ) -> None:
        """``is_locked`` says whether no other client can have the queue at the moment."""
        self.queue = queue
        self._subscription = subscription
        self._next = offset
        self._ahead = ahead
        self._is_locked = is_locked
        self._pending: dict[int, Received] = {}  # in the order of their offsets
        self._begun: set[int] = set()  # offsets handed over and not done with
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulling: asyncio.Task[None] | None = None
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
    def is_busy(self) -> bool:
        """Whether the listener has a message of it at the moment."""
        return bool(self._tasks)

    async def is_mine(self) -> bool:
        """Waits until no other client can have the queue; False if it was given up meanwhile."""
        while not self.dropped:
            if self._is_locked(self.queue):
                return True
            await asyncio.sleep(LOCK_LOOK_S)
        return False

    async def is_elsewhere(self, puller: Puller, message: Received) -> bool:
        """Whether an administrator has set the group elsewhere while a message is retried.

        Then the queue goes on there. Pulls, which would be told, wait for the message.
        """
        try:
            offset = await puller.reset_to(self.queue, message.queue_offset, self._subscription)
        except (OSError, FiretrailError) as error:
            _log.warning("%s; the message is retried", error)
            return False
        if offset is None:
            return False
        self._pending.clear()
        self._next = offset
        return True

    def start(self, session: Session, puller: Puller, consume: Consume, *, in_order: bool) -> None:
        """Pull until it is stopped."""
        self._pulling = session.spawn(self._run(session, puller, consume, in_order))

    def drop(self) -> set[asyncio.Task[None]]:
        """Pull and hand over nothing more. The tasks that still consume a message."""
        self.dropped = True
        if self._pulling is not None:
            self._pulling.cancel()
        return set(self._tasks)

    async def _run(
        self, session: Session, puller: Puller, consume: Consume, in_order: bool
    ) -> None:
        while not self.dropped:
            if in_order and not await self.is_mine():
                return
            try:
                pulled = await puller.pull(
                    self.queue, self._next, self._subscription, wait_s=WAIT_S
                )
            except Exception as error:
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
                if message.queue_offset not in self._pending:
                    break  # the group was set elsewhere meanwhile
                self._begun.add(message.queue_offset)
                self._hand_over(session, consume, message)
                while len(self._begun) >= (1 if in_order else self._ahead):
                    self._room.clear()
                    await self._room.wait()

    def _hand_over(self, session: Session, consume: Consume, message: Received) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if message.queue_offset not in self._pending:
                self._begun.discard(message.queue_offset)
                self._room.set()
            elif not self.dropped:
                loop = asyncio.get_running_loop()
                loop.call_later(RESTART_S, self._hand_over, session, consume, message)

        if not self.dropped:
            task = session.spawn(self._consume(consume, message))
            self._tasks.add(task)
            task.add_done_callback(ended)

    async def _consume(self, consume: Consume, message: Received) -> None:
        if await consume(self, message):
            self._pending.pop(message.queue_offset, None)


async def drop_all(assigned: Iterable[ProcessQueue], grace_s: float) -> set[asyncio.Task[None]]:
    """Drop queues; the tasks that still consume their messages after ``grace_s``."""
    tasks: set[asyncio.Task[None]] = set()
    for taken in assigned:
        tasks |= taken.drop()
    tasks -= {asyncio.current_task()}  # a listener may close its consumer
    return (await asyncio.wait(tasks, timeout=grace_s))[1] if tasks else tasks
