"""A queue assigned to a push consumer: it pulls messages, dispatches them and tracks the offset."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from firetrail.client.cluster.session import Session
from firetrail.client.consumers.pull_client import PullClient
from firetrail.client.messages.received_message import Received
from firetrail.errors import FiretrailError
from firetrail.remoting.messages.bodies import MessageQueue, SubscriptionData

LONG_POLL_S = 15.0
"""The time for which a broker may hold a pull that finds no messages."""
PULL_RETRY_S = 3.0
"""Pause after a failed pull."""
RESTART_S = 1.0
"""Pause before a message is dispatched again whose task was cancelled or failed."""
LOCK_POLL_S = 0.1
"""Interval at which a queue without its lock checks whether the lock was renewed."""

_log = logging.getLogger(__name__)

Consume = Callable[["ProcessQueue", Received], Awaitable[bool]]
"""Consumes a message; returns False if the queue was given up first, so another client gets it."""


class ProcessQueue:
    """Pulls messages and has up to ``ahead`` of them consumed at once.

    A message stays pending until ``consume`` returns True. If its task is cancelled or fails
    instead, the message is dispatched again, so that the offset never stalls.
    """

    def __init__(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        offset: int,
        ahead: int,
        is_locked: Callable[[MessageQueue], bool] = lambda queue: True,
    ) -> None:
        """Start at ``offset``. ``is_locked`` returns whether this client holds the queue's lock."""
        self.queue = queue
        self._subscription = subscription
        self._next = offset
        self._ahead = ahead
        self._is_locked = is_locked
        self._pending: dict[int, Received] = {}  # in the order of their offsets
        self._interrupted: set[int] = set()  # offsets whose listeners ended their own tasks
        self._dispatched: set[int] = set()  # offsets that listeners work on
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulling: asyncio.Task[None] | None = None
        self.dropped = False
        self.committed = -1
        """The offset committed last; -1 if none was."""
        self.committed_at: str | None = None
        """The address of the broker that has the committed offset; None if none was committed."""

    @property
    def offset(self) -> int:
        """The lowest offset that is not consumed yet."""
        return next(iter(self._pending), self._next)

    @property
    def waiting(self) -> int:
        """The number of messages that were pulled and are not consumed yet."""
        return len(self._pending)

    @property
    def is_busy(self) -> bool:
        """Whether a listener works on a message of this queue."""
        return bool(self._tasks)

    async def is_mine(self) -> bool:
        """Wait until this client holds the queue's lock; return False if it gives the queue up."""
        while not self.dropped:
            if self._is_locked(self.queue):
                return True
            await asyncio.sleep(LOCK_POLL_S)
        return False

    async def was_reset(self, puller: PullClient, message: Received) -> bool:
        """Return whether an administrator has reset the offset while a message is retried.

        If so, the queue continues at the new offset. A pull would notice the reset, but in order
        there is no pull until the message is consumed, so this method asks the broker.
        """
        try:
            offset = await puller.reset_to(self.queue, message.queue_offset, self._subscription)
        except (OSError, FiretrailError) as error:
            _log.warning(
                "cannot check for a reset of the offsets; message %s is retried: %s",
                message.message_id,
                error,
            )
            return False
        if offset is None:
            return False
        self._pending.clear()
        self._next = offset
        return True

    def interruption_of(self, message: Received) -> BaseException | None:
        """Return an error if the listener ended its task instead of returning or raising."""
        if message.queue_offset not in self._interrupted:
            return None
        self._interrupted.discard(message.queue_offset)
        return asyncio.CancelledError("the listener cancelled its own task")

    def retried(self, message: Received) -> Received:
        """Keep the number of attempts of a message in case its task is cancelled."""
        if message.queue_offset in self._pending:
            self._pending[message.queue_offset] = message
        return message

    def start(
        self, session: Session, puller: PullClient, consume: Consume, *, in_order: bool
    ) -> None:
        """Start to pull and dispatch messages, until :meth:`drop`."""
        self._pulling = session.spawn(self._run(session, puller, consume, in_order))

    def drop(self) -> set[asyncio.Task[None]]:
        """Stop pulling and dispatching; return the tasks that still consume a message."""
        self.dropped = True
        if self._pulling is not None:
            self._pulling.cancel()
        return set(self._tasks)

    async def _run(
        self, session: Session, puller: PullClient, consume: Consume, in_order: bool
    ) -> None:
        while not self.dropped:
            if in_order and not await self.is_mine():
                return
            try:
                await session.route(self.queue.topic)  # after a failure: another may be the master
                pulled = await puller.pull(
                    self.queue, self._next, self._subscription, wait_s=LONG_POLL_S
                )
            except Exception as error:
                _log.warning("a pull failed; retrying in %g s: %s", PULL_RETRY_S, error)
                session.forget_route(self.queue.topic)
                await asyncio.sleep(PULL_RETRY_S)
                continue
            if pulled.moved:  # pending messages no longer count for the group's offset
                self._pending.clear()
            for message in pulled.messages:
                self._pending[message.queue_offset] = message
            self._next = pulled.next_offset
            for message in pulled.messages:
                if message.queue_offset not in self._pending:
                    break  # the offset was reset while this loop waited
                self._dispatched.add(message.queue_offset)
                self._dispatch(session, consume, message)
                while len(self._dispatched) >= (1 if in_order else self._ahead):
                    self._room.clear()
                    await self._room.wait()

    def _dispatch(self, session: Session, consume: Consume, message: Received) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if message.queue_offset not in self._pending:
                self._dispatched.discard(message.queue_offset)
                self._room.set()
            elif not self.dropped:
                if task.cancelled() or isinstance(task.exception(), GeneratorExit):
                    self._interrupted.add(message.queue_offset)
                again = self._pending[message.queue_offset]
                loop = asyncio.get_running_loop()
                loop.call_later(RESTART_S, self._dispatch, session, consume, again)

        if not self.dropped:
            task = session.spawn(self._consume(consume, message))
            self._tasks.add(task)
            task.add_done_callback(ended)

    async def _consume(self, consume: Consume, message: Received) -> None:
        if await consume(self, message):
            self._pending.pop(message.queue_offset, None)


async def drop_all(assigned: Iterable[ProcessQueue], grace_s: float) -> set[asyncio.Task[None]]:
    """Drop queues; return the tasks that still consume their messages after ``grace_s``."""
    tasks: set[asyncio.Task[None]] = set()
    for taken in assigned:
        tasks |= taken.drop()
    tasks -= {asyncio.current_task()}  # a listener may close its consumer
    return (await asyncio.wait(tasks, timeout=grace_s))[1] if tasks else tasks
