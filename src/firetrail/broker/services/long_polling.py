"""Pulls and pops that found nothing and wait for messages: long polling.

A held one is woken when messages arrive in one of its queues, and answered when one of them is
wanted, or when its time is over. Arrivals are told by the store's dispatching thread; everything
else happens in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from firetrail.remoting.connection import Connection
from firetrail.remoting.pop_headers import ANY_QUEUE
from firetrail.store.broker_store import BrokerStore
from firetrail.store.dispatch.deriver import Arrival

HELD_MAX = 100_000
"""So many pulls are held at most; more are answered at once."""

Queue = tuple[str, int]
"""Topic and queue id, or ANY_QUEUE for all queues of the topic."""
WHATEVER = -1
"""The offset of who has to look for itself whether there is something new."""


class HeldRequest:
    """A request that waits. ``wake`` answers it if it can, and says whether it has."""

    __slots__ = ("alike", "connection", "group", "offset", "queues", "timer", "wake")

    def __init__(
        self,
        connection: Connection,
        queues: Sequence[Queue],
        offset: int,
        wake: Callable[[bool], bool],
        group: str = "",
        alike: object = None,
    ) -> None:
        self.connection = connection
        self.queues = queues
        self.offset = offset
        """It waits for a message with this queue offset or a later one."""
        self.group = group
        """The consumer group of a pop, for who asks how many of them wait."""
        self.alike = alike
        """Where one finds nothing, all with the same find nothing. None is the same as no other."""
        self.wake = wake
        """Called with whether its time is over, in which case it has to answer."""
        self.timer: asyncio.TimerHandle | None = None


class LongPolling:
    """All that wait, by queue."""

    def __init__(self, store: BrokerStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._held: dict[Queue, dict[HeldRequest, None]] = {}  # in the order in which they came
        self._on: dict[Connection, set[HeldRequest]] = {}
        self._count = 0
        self._looks: dict[tuple[str, Queue], asyncio.TimerHandle] = {}
        store.on_arrival(self._heard)

    @property
    def is_full(self) -> bool:
        """Whether no more pulls can wait."""
        return self._count >= HELD_MAX

    def hold(self, held: HeldRequest, seconds: float) -> None:
        """Wake it when something arrives, or after some seconds."""
        for queue in held.queues:
            self._held.setdefault(queue, {})[held] = None
        self._on.setdefault(held.connection, set()).add(held)
        self._count += 1
        held.timer = self._loop.call_later(seconds, self._time_out, held)
        # What arrived since it looked was not announced to it.
        news = [queue for queue in held.queues if self._newest(queue) > held.offset]
        if news:
            self._loop.call_soon(self._arrived, news)

    def waiting(self, queue: Queue, group: str) -> int:
        """How many pops of a group wait for the queue."""
        return sum(held.group == group for held in self._held.get(queue, ()))

    def look(self, group: str, queue: Queue, after_s: float = 0.0) -> None:
        """Wake who waits for the queue: it may be open for the group then, and not before."""
        planned = self._looks.pop((group, queue), None)
        if planned is not None:
            planned.cancel()
        self._looks[group, queue] = self._loop.call_later(after_s, self._look, group, queue)

    def wake(self, queue: Queue) -> None:
        """Wake who waits for the queue, whether or not something has arrived."""
        for held in list(self._held.get(queue, ())):
            if held.wake(False):
                self._drop(held)

    def _look(self, group: str, queue: Queue) -> None:
        del self._looks[group, queue]
        self._arrived([queue, (queue[0], ANY_QUEUE)])

    def closed(self, connection: Connection) -> None:
        """Nobody waits there any more."""
        for held in list(self._on.get(connection, ())):
            self._drop(held)

    def stop(self) -> None:
        """Forget all."""
        for connection in list(self._on):
            self.closed(connection)
        for planned in self._looks.values():
            planned.cancel()
        self._looks.clear()

    def _heard(self, arrivals: Sequence[Arrival]) -> None:
        """In the dispatching thread: pass on what somebody waits for."""
        held = self._held
        queues = [(topic, number) for topic, number, *_ in arrivals if (topic, number) in held]
        queues += {(topic, ANY_QUEUE) for topic, *_ in arrivals if (topic, ANY_QUEUE) in held}
        if queues and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived, queues)

    def _arrived(self, queues: Sequence[Queue]) -> None:
        in_vain: set[object] = set()
        for queue in queues:
            newest = self._newest(queue)
            for held in list(self._held.get(queue, ())):
                if newest <= held.offset or held.timer is None or held.alike in in_vain:
                    continue
                if held.wake(False):
                    self._drop(held)
                elif held.alike is not None:
                    in_vain.add(held.alike)

    def _newest(self, queue: Queue) -> int:
        return self._store.max_offset(*queue) if queue[1] != ANY_QUEUE else WHATEVER + 1

    def _time_out(self, held: HeldRequest) -> None:
        self._drop(held)
        held.wake(True)

    def _drop(self, held: HeldRequest) -> None:
        if held.timer is None:
            return
        held.timer.cancel()
        held.timer = None
        self._count -= 1
        for queue in held.queues:
            waiting = self._held[queue]
            del waiting[held]
            if not waiting:
                del self._held[queue]
        others = self._on[held.connection]
        others.discard(held)
        if not others:
            del self._on[held.connection]
