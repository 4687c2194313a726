"""Locks on queues, so that only one client of a group consumes each of them.

Where the order matters nobody consumes a queue without its lock. Otherwise a lock only says that
its owner has not committed its last offset yet: whoever gets the queue next waits a moment for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from firetrail.client.session import Session
from firetrail.errors import FiretrailError
from firetrail.remoting.bodies import LockBody, LockedBody, MessageQueue
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import Command

LOCK_S = 30.0
"""A lock that was not renewed for so long does not count."""
HANDOVER_S = 3.0
"""How long a queue whose order does not matter is left to the client that has it. One that is alive
gives it up within about a second; one that is not keeps its locks for a minute."""
HANDOVER_LOOK_S = 0.1
"""Between two looks whether such a queue was given up."""
RELOCK_S = 20.0
"""A lock that was not renewed for so long is renewed."""

_log = logging.getLogger(__name__)


class _Grant(NamedTuple):
    """When a lock was requested that a broker granted, and over which connection."""

    at: float
    address: str
    losses: int  # of connections to that address before the request


class QueueLocks:
    """The locks of one client. A broker keeps one that is not released for a minute.

    It keeps them in memory. So a lock counts only as long as the connection over which it was
    granted or renewed: the broker may have restarted and granted it to another client since.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._asked: set[MessageQueue] = set()  # of those this client may have the lock
        self._granted: dict[MessageQueue, _Grant] = {}
        self._refused: dict[MessageQueue, float] = {}  # since when

    async def lock(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """The queues of these that no other client consumes; their locks are taken or renewed.

        Those of a broker that does not answer are not among them.
        """
        granted, _ = await self._request(queues)
        return [queue for queue in queues if queue in granted and self.holds(queue)]

    async def _request(
        self, queues: Sequence[MessageQueue]
    ) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """The queues that brokers have granted, and those that they have refused."""
        self._asked.update(queues)  # at once: a broker grants them even if this is cancelled
        locked: set[MessageQueue] = set()
        refused: set[MessageQueue] = set()
        for broker, some in _by_broker(queues):
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
        """The queues that can be consumed where the order does not matter.

        Their locks are taken. One that is refused is waited for, but not for longer than
        HANDOVER_S; a broker that does not answer is not waited for.
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
        """Release the locks of all other queues of a topic, and wait for none of them."""
        others = [queue for queue in self._asked if queue.topic == topic and queue not in queues]
        for queue in others:
            self._refused.pop(queue, None)
        await self.unlock(others)

    def _grant_now(self, broker: str) -> _Grant | None:
        """What a lock counts from that is requested now; None if no route names the broker."""
        try:
            address = self._session.address_of(broker)
        except FiretrailError:
            return None
        now = asyncio.get_running_loop().time()
        return _Grant(now, address, self._session.losses(address))

    def holds(self, queue: MessageQueue) -> bool:
        """Whether no other client can have the lock of a queue at the moment."""
        return self._age(queue) < LOCK_S

    def is_due(self, queue: MessageQueue) -> bool:
        """Whether the lock of a queue has to be taken or renewed."""
        return self._age(queue) >= RELOCK_S

    def _age(self, queue: MessageQueue) -> float:
        grant = self._granted.get(queue)
        if grant is None or grant.losses != self._session.losses(grant.address):
            return math.inf
        return asyncio.get_running_loop().time() - grant.at

    async def unlock(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Let others consume the queues, or all of this client."""
        wanted = self._asked if queues is None else self._asked.intersection(queues)
        for queue in wanted:
            self._granted.pop(queue, None)
        for broker, some in _by_broker(wanted):
            if await self._ask(broker, RequestCode.UNLOCK_BATCH_MQ, some) is not None:
                self._asked.difference_update(some)

    async def _ask(
        self, broker: str, code: RequestCode, queues: list[MessageQueue]
    ) -> Command | None:
        """The answer of a broker; None, and a line in the log, if there is none."""
        body = LockBody(self._group, self._session.client_id, queues).encode()
        try:
            return await self._session.ask(self._session.address_of(broker), code, body=body)
        except (OSError, FiretrailError) as error:
            _log.warning("%s: %s on %s: %s", self._group, code.name, broker, error)
            return None


def _by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    """The queues of each broker."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return sorted(found.items())
