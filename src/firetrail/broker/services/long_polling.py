"""Long polling: pulls and pops that found no message and wait for one in the broker.

A held request is woken when messages arrive in one of its queues. It is answered when one of them
matches, or when its time is over. Arrivals are announced in the thread that dispatched the
messages: the store's dispatcher, or the event loop if a put or pull helped. Everything else happens
in the event loop.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from threading import get_ident

from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.messages.pop.pop_headers import ANY_QUEUE
from firetrail.remoting.servers.fair_shares import FairShares, holder_of, unknown_holder
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.broker_store import BrokerStore
from firetrail.store.dispatch.derivation import Arrival
from firetrail.store.queues.queue_table import QueueKey

HELD_PER_CONNECTION = 10_000
"""Maximum number of held requests of one connection, one per queue. Further requests are answered
at once."""
HELD_BYTES = 256 << 20
"""Maximum size of the frames of all held requests, of which each caller has a share."""
HELD_LEAST = 2_684
"""Minimum size at which each request is counted: about the memory that it needs. This allows
100,000 held requests."""
PULL_MAX_S = 60.0
"""Longest time that a pull waits, even if it asks for more; stock clients ask for 20 or 30 s."""
WAKE_SLICE = 200
"""Number of requests that are woken before the event loop runs other tasks."""

NOBODY = unknown_holder("")
ANY_OFFSET = -1
"""The offset of a request that every arrival wakes, because it has to check its queues itself."""


class WakeOutcome(Enum):
    """The outcome of a request that was woken."""

    WAITS = "waits"
    ANSWERED = "answered"
    TOOK_ALL = "took all"
    """It was answered, and no messages are left for other requests with an equal key."""


class HeldRequest:
    """A waiting request. ``wake`` answers it if possible, and returns whether it did."""

    __slots__ = (
        "connection",
        "group",
        "holder",
        "key",
        "offset",
        "queues",
        "size",
        "timer",
        "wake",
    )

    def __init__(
        self,
        connection: Connection,
        queues: Sequence[QueueKey],
        offset: int,
        wake: Callable[[bool], WakeOutcome],
        group: str = "",
        key: object = None,
    ) -> None:
        self.connection = connection
        self.holder = NOBODY
        """The client that sent it."""
        self.queues = queues
        """The queues it waits for; the queue id ANY_QUEUE means all queues of a topic."""
        self.offset = offset
        """The request waits for a message with this queue offset or a later one."""
        self.group = group
        """The consumer group of a pop; POLLING_INFO counts waiting pops by it."""
        self.key = key
        """If a request finds nothing, all others with an equal key find nothing either. None is
        equal to no other key."""
        self.wake = wake
        """Called with True when the time is over, in which case it has to answer."""
        self.size = 0
        """Bytes of the frame of the request; it counts as HELD_LEAST if it has fewer."""
        self.timer: asyncio.TimerHandle | None = None


class LongPolling:
    """All held requests, by queue."""

    def __init__(self, store: BrokerStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._thread = get_ident()  # that of the loop
        self._held: dict[QueueKey, dict[HeldRequest, None]] = {}  # in the order of arrival
        self._by_connection: dict[Connection, set[HeldRequest]] = {}
        self._unread: set[Connection] = set()  # with requests that wait until their peers read
        self._count = 0
        self._shares = FairShares(
            "bytes of pulls and pops that wait",
            "Wait with fewer of them at the same time; this one is answered at once.",
            lambda: HELD_BYTES,
            loop.time,
        )
        self._planned: dict[tuple[str, QueueKey], asyncio.TimerHandle] = {}
        self.announcements = 0
        """The number of announced arrivals. It changes before held requests are looked for."""
        store.embedded.on_arrival(self._announced)

    def excess(self, connection: Connection, request: RemotingCommand) -> str | None:
        """Return why a request cannot be held; None if it can."""
        if len(self._by_connection.get(connection, ())) >= HELD_PER_CONNECTION:
            return f"{HELD_PER_CONNECTION} requests of the connection wait, which is the limit"
        holder = holder_of(connection.host, request.caller)
        return self._shares.excess(holder, max(request.size, HELD_LEAST))

    def hold(self, held: HeldRequest, seconds: float, since: int | None = None) -> None:
        """Wake the request when a message arrives, or after ``seconds``.

        ``since`` is the number of announcements when the request began to look for messages. If
        there was none since then, it need not look for messages again.
        """
        for queue in held.queues:
            self._held.setdefault(queue, {})[held] = None
        self._by_connection.setdefault(held.connection, set()).add(held)
        self._count += 1
        held.size = max(held.size, HELD_LEAST)
        self._shares.take(held.holder, held.size)
        held.timer = self._loop.call_later(seconds, self._time_out, held)
        if since == self.announcements:
            return
        # Messages that arrived after the request looked were announced before it was held.
        ends = {queue: self._newest(queue) for queue in held.queues}
        news = {queue: newest for queue, newest in ends.items() if newest > held.offset}
        if news:
            self._loop.call_soon(self._arrived, news)

    def waiting(self, queue: QueueKey, group: str) -> int:
        """Return the number of pops of a group that wait for the queue."""
        return sum(held.group == group for held in self._held.get(queue, ()))

    def wake_later(self, group: str, queue: QueueKey, after_s: float = 0.0) -> None:
        """Wake the requests for the queue after some seconds, when it opens for the group.

        This replaces the time that was planned for the same group and queue before.
        """
        planned = self._planned.pop((group, queue), None)
        if planned is not None:
            planned.cancel()
        self._planned[group, queue] = self._loop.call_later(
            after_s, self._wake_planned, group, queue
        )

    def wake(self, queue: QueueKey) -> None:
        """Wake the requests for the queue, whether or not a message has arrived."""
        for held in list(self._held.get(queue, ())):
            if held.wake(False) is not WakeOutcome.WAITS:
                self._drop(held)

    def wake_for(self, queue: QueueKey) -> None:
        """Wake the requests for a queue, and those for all queues of its topic."""
        for waited in (queue, (queue[0], ANY_QUEUE)):
            self.wake(waited)

    def _wake_planned(self, group: str, queue: QueueKey) -> None:
        del self._planned[group, queue]
        queues = queue, (queue[0], ANY_QUEUE)
        self._arrived({queue: self._newest(queue) for queue in queues})

    def closed(self, connection: Connection) -> bool:
        """Drop the requests of a closed connection; return whether there were any."""
        self._unread.discard(connection)
        waiting = list(self._by_connection.get(connection, ()))
        for held in waiting:
            self._drop(held)
        return bool(waiting)

    def release(self) -> None:
        """Answer all requests now, as if their time limit had passed."""
        for waiting in list(self._by_connection.values()):
            for held in list(waiting):
                self._time_out(held)

    def stop(self) -> None:
        """Drop all requests and cancel all timers."""
        for connection in list(self._by_connection):
            self.closed(connection)
        for planned in self._planned.values():
            planned.cancel()
        self._planned.clear()

    def _announced(self, arrivals: Sequence[Arrival]) -> None:
        """Pass on awaited arrivals. Runs in the dispatcher, or in a thread that helps it."""
        self.announcements += 1  # only one thread dispatches at a time
        held = self._held
        ends = {(topic, queue_id): end for topic, queue_id, end, _ in arrivals}
        ends |= {(topic, ANY_QUEUE): ANY_OFFSET + 1 for topic, _ in ends}
        awaited = {queue: end for queue, end in ends.items() if queue in held}
        if not awaited or self._loop.is_closed():
            return
        if get_ident() == self._thread:
            self._loop.call_soon(self._arrived, awaited)
        else:
            self._loop.call_soon_threadsafe(self._arrived, awaited)

    def _arrived(self, ends: Mapping[QueueKey, int]) -> None:
        """Wake the requests that wait for messages before the new ends of queues."""
        waiting = [
            (newest, held) for queue, newest in ends.items() for held in self._held.get(queue, ())
        ]
        self._wake_slice(iter(waiting), set())

    def _wake_slice(
        self, waiting: Iterator[tuple[int, HeldRequest]], unsuccessful: set[object]
    ) -> None:
        """Wake some requests, and the others after other tasks of the event loop."""
        woken = 0
        for newest, held in waiting:
            if newest <= held.offset or held.timer is None or held.key in unsuccessful:
                continue
            if held.connection.is_unread:
                self._wake_when_read(held.connection)
                continue
            outcome = held.wake(False)
            if outcome is not WakeOutcome.WAITS:
                self._drop(held)
            if outcome is not WakeOutcome.ANSWERED and held.key is not None:
                unsuccessful.add(held.key)
            woken += 1
            if woken == WAKE_SLICE:
                self._loop.call_soon(self._wake_slice, waiting, unsuccessful)
                return

    def _wake_when_read(self, connection: Connection) -> None:
        """Wake the requests of a connection when its peer has read the answers that it has."""
        if connection not in self._unread:
            self._unread.add(connection)
            connection.when_drained(self._read)

    def _read(self, connection: Connection) -> None:
        self._unread.discard(connection)
        waiting = [
            (self._newest(queue), held)
            for held in self._by_connection.get(connection, ())
            for queue in held.queues
        ]
        self._wake_slice(iter(waiting), set())

    def _newest(self, queue: QueueKey) -> int:
        return self._store.queues.max_offset(*queue) if queue[1] != ANY_QUEUE else ANY_OFFSET + 1

    def _time_out(self, held: HeldRequest) -> None:
        self._drop(held)
        held.wake(True)

    def _drop(self, held: HeldRequest) -> None:
        if held.timer is None:
            return
        held.timer.cancel()
        held.timer = None
        self._count -= 1
        self._shares.give_back(held.holder, held.size)
        for queue in held.queues:
            waiting = self._held[queue]
            del waiting[held]
            if not waiting:
                del self._held[queue]
        others = self._by_connection[held.connection]
        others.discard(held)
        if not others:
            del self._by_connection[held.connection]
