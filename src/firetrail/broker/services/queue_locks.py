"""Locks on queues for consumers in order: one client per queue and group.

A client renews its locks. A lock that is not renewed expires after a minute.
"""

from __future__ import annotations

from collections.abc import Callable

from firetrail.remoting.bodies import LockBody, LockedBody, MessageQueue
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Handler

LOCK_EXPIRY_S = 60.0


class RebalanceLockManager:
    """The owners of locked queues. ``now`` is the event loop's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._held: dict[str, dict[MessageQueue, tuple[str, float]]] = {}
        self.handlers: dict[int, Handler] = {
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }

    def _lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        wanted = LockBody.decode(request.content)
        now = self._now()
        held = self._held.setdefault(wanted.consumer_group, {})
        locked = []
        for queue in wanted.mq_set:
            owner, since = held.get(queue, ("", 0.0))
            if owner in ("", wanted.client_id) or now - since > LOCK_EXPIRY_S:
                held[queue] = wanted.client_id, now
                locked.append(queue)
        return request.answer(body=LockedBody(locked).encode(standard=True))

    def _unlock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        given = LockBody.decode(request.content)
        held = self._held.get(given.consumer_group, {})
        for queue in given.mq_set:
            if held.get(queue, ("", 0.0))[0] == given.client_id:
                del held[queue]
        return request.answer()

    def expire(self) -> None:
        """Remove the locks that were not renewed in time."""
        oldest = self._now() - LOCK_EXPIRY_S
        for group, held in list(self._held.items()):
            kept = {queue: lock for queue, lock in held.items() if lock[1] >= oldest}
            if kept:
                self._held[group] = kept
            else:
                del self._held[group]
