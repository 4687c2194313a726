"""Locks on queues for consumers in order: one client per queue and group.

A client renews its locks. A lock that is not renewed expires after a minute. Only queues of this
broker are locked, and only for groups that exist. Callers and their groups have shares of all
locks.
"""

from collections.abc import Callable
from typing import NamedTuple

from firetrail.access.client_owners import ClientOwners
from firetrail.broker.state.group_table import GroupTable
from firetrail.broker.state.topic_table import TopicTable
from firetrail.errors import RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import LockBody, LockedBody, MessageQueue
from firetrail.remoting.servers.fair_shares import FairShares, ShareHolder, holder_of
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

LOCK_EXPIRY_S = 60.0
LOCKS_MAX = 200_000
"""Maximum number of locked queues of all groups. Further ones are not locked, as if another client
held them."""
CLIENT_ID_MAX = 1024
"""Maximum length of the id of a client."""


class QueueLock(NamedTuple):
    """A lock on a queue.

    Attributes:
        client_id: The client that has it.
        since: The time at which the client took or renewed it last.
        holder: The name under which it is counted.
    """

    client_id: str
    since: float
    holder: ShareHolder


class RebalanceLockManager:
    """The owners of locked queues.

    Args:
        now: The event loop's clock.
        name: The name of the broker.
        topics: Its topics.
        groups: Its consumer groups.
        owners: The users that client ids belong to. Default: there is no access control.
    """

    def __init__(
        self,
        now: Callable[[], float],
        name: str,
        topics: TopicTable,
        groups: GroupTable,
        owners: ClientOwners | None = None,
    ) -> None:
        self._owners = owners
        self._now = now
        self._name = name
        self._topics = topics
        self._groups = groups
        self._held: dict[str, dict[MessageQueue, QueueLock]] = {}
        remedy = "Unlock queues that are not consumed, or use fewer groups in order."
        self._shares = FairShares("locked queues", remedy, lambda: LOCKS_MAX, now)
        self.handlers: dict[int, Handler] = {
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }

    def _body(self, request: RemotingCommand) -> LockBody:
        """Return the body of a request, whose client must be one of the user that sends it."""
        body = LockBody.decode(request.content)
        if self._owners is not None and request.caller is not None:
            self._owners.check(body.client_id, request.caller)
        return body

    def _lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        wanted = self._body(request)
        check_client_id(wanted.client_id)
        self._groups.require(wanted.consumer_group)
        group = wanted.consumer_group
        holder = holder_of(connection.host, request.caller, group)
        held = self._held.setdefault(group, {})
        locked = [
            queue
            for queue in filter(self._is_known, wanted.mq_set)
            if self._take(held, queue, wanted.client_id, holder)
        ]
        return request.answer(body=LockedBody(locked).encode(standard=True))

    def _take(
        self,
        held: dict[MessageQueue, QueueLock],
        queue: MessageQueue,
        client_id: str,
        holder: ShareHolder,
    ) -> bool:
        """Lock a queue or renew its lock; return whether the client has it.

        Args:
            held: The locks of the group.
            queue: The queue.
            client_id: The client.
            holder: The name under which a new lock is counted.
        """
        now = self._now()
        lock = held.get(queue)
        if lock is not None and now - lock.since > LOCK_EXPIRY_S:
            self._release(held, queue)
            lock = None
        if lock is None:
            if self._shares.excess(holder) is not None:
                return False
            self._shares.take(holder)
            lock = QueueLock(client_id, now, holder)
        elif lock.client_id != client_id:
            return False
        held[queue] = lock._replace(since=now)
        return True

    def _release(self, held: dict[MessageQueue, QueueLock], queue: MessageQueue) -> None:
        self._shares.give_back(held.pop(queue).holder)

    def _is_known(self, queue: MessageQueue) -> bool:
        topic = self._topics.get(queue.topic)
        if topic is None or queue.broker_name != self._name:
            return False
        return queue.queue_id in topic.queues

    def _unlock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        given = self._body(request)
        held = self._held.get(given.consumer_group, {})
        for queue in given.mq_set:
            if queue in held and held[queue].client_id == given.client_id:
                self._release(held, queue)
        return request.answer()

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the locks of a group, on the queues of a topic, or both."""
        for owner, held in list(self._held.items()):
            if group in (None, owner):
                for queue in [each for each in held if topic in (None, each.topic)]:
                    self._release(held, queue)
            if not held:
                del self._held[owner]

    async def saved(self) -> None:
        """Return at once: locks end with the process."""

    def expire(self) -> None:
        """Remove the locks that were not renewed in time."""
        oldest = self._now() - LOCK_EXPIRY_S
        for group, held in list(self._held.items()):
            for queue in [queue for queue, lock in held.items() if lock.since < oldest]:
                self._release(held, queue)
            if not held:
                del self._held[group]


def check_client_id(client_id: str) -> None:
    """Raise RequestError if the id of a client is too long to be kept."""
    if len(client_id) > CLIENT_ID_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the client id has {len(client_id)} characters; at most {CLIENT_ID_MAX} are allowed",
        )
