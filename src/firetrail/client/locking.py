"""Locks on queues, so that only one client of a group consumes each of them, in order."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from firetrail.client.session import Session
from firetrail.errors import FiretrailError
from firetrail.remoting.bodies import LockBody, LockedBody, MessageQueue
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import Command

_log = logging.getLogger(__name__)


class Locking:
    """The locks of one client. A broker keeps one that is not released for a minute."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._asked: set[MessageQueue] = set()  # of those this client may have the lock

    async def lock(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """The queues of these that no other client consumes; their locks are taken or renewed.

        Those of a broker that does not answer are not among them.
        """
        self._asked.update(queues)  # at once: a broker grants them even if this is cancelled
        locked: list[MessageQueue] = []
        for broker, some in _by_broker(queues):
            answer = await self._ask(broker, RequestCode.LOCK_BATCH_MQ, some)
            if answer is not None:
                locked += LockedBody.decode(answer.content).locked
        return [queue for queue in queues if queue in locked]

    async def unlock(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Let others consume the queues, or all of this client."""
        wanted = self._asked if queues is None else self._asked.intersection(queues)
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
