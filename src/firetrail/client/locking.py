"""Locks on queues, so that only one client of a group consumes each of them, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from firetrail.client.session import Session
from firetrail.remoting.bodies import LockBody, LockedBody, MessageQueue
from firetrail.remoting.codes import RequestCode


class Locking:
    """The locks of one client. A broker keeps one that is not released for a minute."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._asked: set[MessageQueue] = set()  # of those this client may have the lock

    async def lock(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """The queues of these that no other client consumes; their locks are taken or renewed."""
        self._asked.update(queues)  # at once: a broker grants them even if this is cancelled
        locked: list[MessageQueue] = []
        for address, body, _ in self._by_broker(queues):
            answer = await self._session.ask(address, RequestCode.LOCK_BATCH_MQ, body=body)
            locked += LockedBody.decode(answer.content).locked
        return [queue for queue in queues if queue in locked]

    async def unlock(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Let others consume the queues, or all of this client."""
        wanted = self._asked if queues is None else self._asked.intersection(queues)
        for address, body, some in list(self._by_broker(wanted)):
            await self._session.ask(address, RequestCode.UNLOCK_BATCH_MQ, body=body)
            self._asked.difference_update(some)

    def _by_broker(
        self, queues: Iterable[MessageQueue]
    ) -> Iterator[tuple[str, bytes, list[MessageQueue]]]:
        """Address, request and queues for each broker."""
        for broker in sorted({queue.broker_name for queue in queues}):
            some = [queue for queue in queues if queue.broker_name == broker]
            body = LockBody(self._group, self._session.client_id, some).encode()
            yield self._session.address_of(broker), body, some
