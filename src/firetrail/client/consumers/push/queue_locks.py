"""Locks on queues, so that only one client of a group consumes each of them.

With ``in_order``, a client consumes a queue only while it holds the queue's lock. Without it, a
lock only means that its owner has not committed its last offset yet, so the next owner of the queue
waits a moment for the lock, but not forever.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from firetrail.client.cluster.session import Session
from firetrail.errors import FiretrailError
from firetrail.remoting.messages.bodies import LockBody, LockedBody, MessageQueue
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

LOCK_LIFETIME_S = 30.0
"""The time for which a lock is valid after it was granted or renewed."""
HANDOVER_S = 3.0
"""The time that a client waits for the previous owner of a queue without ``in_order``. A live owner
gives the queue up within about a second; the locks of a dead one expire after a minute."""
HANDOVER_POLL_S = 0.1
"""Interval at which a waiting client requests such a queue again."""
LOCK_RENEWAL_S = 20.0
"""The age at which a lock is renewed."""

_log = logging.getLogger(__name__)


class _Grant(NamedTuple):
    """The request with which a lock was granted: its time and its connection."""

    at: float
    address: str
    losses: int
    """The number of connections to that address that were lost before the request."""


class QueueLocks:
    """The locks of one client. A broker keeps a lock for a minute unless it is released.

    A broker keeps the locks in memory only. So a lock is valid only as long as the connection over
    which it was granted or renewed: after a restart the broker may grant it to another client.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._requested: set[MessageQueue] = set()  # this client may hold the locks of these
        self._granted: dict[MessageQueue, _Grant] = {}
        self._refused: dict[MessageQueue, float] = {}  # when each was refused first

    async def lock(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Take or renew the locks of queues; return the queues whose locks this client holds now.

        The queues of a broker that does not answer are not among them.
        """
        granted, _ = await self._request(queues)
        return [queue for queue in queues if queue in granted and self.holds(queue)]

    async def _request(
        self, queues: Sequence[MessageQueue]
    ) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Request locks; return the queues whose locks were granted, and those refused."""
        self._requested.update(queues)  # now, as a broker grants them even if this is cancelled
        locked: set[MessageQueue] = set()
        refused: set[MessageQueue] = set()
        for broker, some in by_broker(queues):
            grant = self._grant_now(broker)
            answer = await self._ask(broker, RequestCode.LOCK_BATCH_MQ, some)
            if answer is not None and grant is not None:
                granted = LockedBody.decode(answer.content).locked
                for queue in some:
                    self._granted.pop(queue, None)
                self._granted |= dict.fromkeys(granted, grant)
                locked.update(granted)
                refused.update(set(some).difference(granted))
        return locked, refused

    async def take_over(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Take the locks of queues; return the queues that can be consumed without ``in_order``.

        A queue whose lock is refused is left out for up to HANDOVER_S, counted from the first
        refusal. The queues of a broker that does not answer are returned at once.
        """
        _, refused = await self._request(queues)
        now = asyncio.get_running_loop().time()
        free = []
        for queue in queues:
            if queue in refused and now - self._refused.setdefault(queue, now) < HANDOVER_S:
                continue
            self._refused.pop(queue, None)
            free.append(queue)
        return free

    async def keep_only(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Release the locks of all other queues of a topic, and stop waiting for them."""
        requested = (queue for queue in self._requested if queue.topic == topic)
        others = [queue for queue in requested if queue not in queues]
        for queue in others:
            self._refused.pop(queue, None)
        await self.unlock(others)

    def _grant_now(self, broker: str) -> _Grant | None:
        """Return the grant of a lock requested now; None if no route contains the broker."""
        try:
            address = self._session.address_of(broker)
        except FiretrailError:
            return None
        now = asyncio.get_running_loop().time()
        return _Grant(now, address, self._session.losses(address))

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether this client holds the lock of a queue."""
        return self._age(queue) < LOCK_LIFETIME_S

    def is_due(self, queue: MessageQueue) -> bool:
        """Return whether the lock of a queue has to be taken or renewed."""
        return self._age(queue) >= LOCK_RENEWAL_S

    def _age(self, queue: MessageQueue) -> float:
        grant = self._granted.get(queue)
        if grant is None or grant.losses != self._session.losses(grant.address):
            return math.inf
        return asyncio.get_running_loop().time() - grant.at

    async def unlock(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Release the locks of the queues; by default, all locks of this client."""
        requested = self._requested if queues is None else self._requested.intersection(queues)
        for queue in requested:
            self._granted.pop(queue, None)
        for broker, some in by_broker(requested):
            if await self._ask(broker, RequestCode.UNLOCK_BATCH_MQ, some) is not None:
                self._requested.difference_update(some)

    async def _ask(
        self, broker: str, code: RequestCode, queues: list[MessageQueue]
    ) -> RemotingCommand | None:
        """Return the answer of a broker; if the request fails, log the error and return None."""
        body = LockBody(self._group, self._session.client_id, queues).encode()
        try:
            return await self._session.ask(self._session.address_of(broker), code, body=body)
        except (OSError, FiretrailError) as error:
            _log.warning("%s: %s failed on %s: %s", self._group, code.name, broker, error)
            return None


def by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    """Group queues by the names of their brokers."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return sorted(found.items())
