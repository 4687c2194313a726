"""The queue that a message is sent to.

Clients of the gRPC service do not choose queues. Messages of a group go to one queue, which is
determined by a consistent hash, so that their order is kept. All others are distributed over the
queues in turn; the broker puts those with a priority into the queue that is for it.
"""

from collections.abc import Iterator
from itertools import count
from random import randrange
from typing import NamedTuple

from firetrail.format.values.javahash import java_hash
from firetrail.remoting.messages.bodies import TopicRouteData
from firetrail.remoting.wire.codes import Permission

TOPICS_MAX = 10_000
"""Maximum number of topics whose turns are remembered. If there are more, all begin again at random
queues."""
_WRITE = int(Permission.WRITE)  # a plain number, because the operators of enums are slow
_FACTOR = 2862933555777941757
_MASK = (1 << 64) - 1


class WriteQueue(NamedTuple):
    """A queue of a broker that accepts messages."""

    broker_name: str
    queue_id: int


class QueueChoice:
    """Chooses queues of topics, for messages with and without a message group."""

    def __init__(self) -> None:
        self._turns: dict[str, Iterator[int]] = {}
        self._writable: dict[str, tuple[TopicRouteData, list[tuple[str, int]]]] = {}

    def choose(self, topic: str, route: TopicRouteData, group: str | None) -> WriteQueue | None:
        """Return the queue for a message; None if the topic has no writable queue.

        Args:
            topic: The name of the topic.
            route: The brokers and queues of the topic.
            group: The message group, None for a message without one.
        """
        known, brokers = self._writable.get(topic, (None, []))
        if known is not route:  # routes are replaced when they change
            brokers = self._remember(topic, route)
        size = sum(queues for _, queues in brokers)
        if not size:
            return None
        if group is not None:
            number = consistent_hash(java_hash(group), size)
        else:
            number = self._turn(topic) % size
        for broker_name, queues in brokers:
            if number < queues:
                return WriteQueue(broker_name, number)
            number -= queues
        raise AssertionError("the number is less than the size")

    def _remember(self, topic: str, route: TopicRouteData) -> list[tuple[str, int]]:
        if len(self._writable) >= TOPICS_MAX:
            self._writable.clear()
        brokers = open_queues(route, _WRITE)
        self._writable[topic] = (route, brokers)
        return brokers

    def _turn(self, topic: str) -> int:
        turns = self._turns.get(topic)
        if turns is None:
            if len(self._turns) >= TOPICS_MAX:
                self._turns.clear()
            turns = self._turns[topic] = count(randrange(1 << 16))
        return next(turns)


def open_queues(route: TopicRouteData, permission: int) -> list[tuple[str, int]]:
    """Return the brokers that have queues with a permission, by name, with their numbers.

    Args:
        route: The brokers and queues of a topic. Brokers without a master do not count.
        permission: ``Permission.WRITE`` or ``Permission.READ``.
    """
    found = route.open_queues(permission, masters_only=True)
    return sorted((data.broker_name, len(queues)) for data, queues in found)


def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of a signed number, as ``Hashing.consistentHash`` of Guava computes it."""
    state = value & _MASK
    bucket = 0
    while True:
        state = (state * _FACTOR + 1) & _MASK
        following = int((bucket + 1) / (((state >> 33) + 1) / (1 << 31)))
        if not 0 <= following < buckets:
            return bucket
        bucket = following
