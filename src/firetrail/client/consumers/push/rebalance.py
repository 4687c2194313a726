"""Strategies that distribute the queues of a topic over the members of a group.

Each member computes the distribution by itself, and all must get the same result, including members
in other languages. So the strategies are exactly RocketMQ's. A strategy gets the id of this client,
the sorted ids of all clients and all queues, sorted, and returns the queues of this client.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence

from firetrail.remoting.messages.bodies import MessageQueue

Strategy = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]
"""A function that takes this client's id, all client ids and all queues, and returns the queues of
this client."""

VIRTUAL_NODES = 10
"""Points per client on the ring of :func:`by_consistent_hash`, as in the Java client."""


def averagely(
    me: str, clients: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Assign contiguous ranges of equal size; a remainder goes to the first clients, one each.

    Args:
        me: The id of this client.
        clients: The sorted ids of all clients of the group.
        queues: All queues of the topic, sorted.
    """
    index = clients.index(me)
    size, left = divmod(len(queues), len(clients))
    start = index * size + min(index, left)
    return list(queues[start : start + size + (index < left)])


def by_circle(
    me: str, clients: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Assign the queues to the clients in turn (round robin).

    Args:
        me: The id of this client.
        clients: The sorted ids of all clients of the group.
        queues: All queues of the topic, sorted.
    """
    return list(queues[clients.index(me) :: len(clients)])


def by_consistent_hash(
    me: str, clients: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Assign by consistent hashing, so that few queues move when a client joins or leaves.

    Args:
        me: The id of this client.
        clients: The sorted ids of all clients of the group.
        queues: All queues of the topic, sorted.
    """
    ring = sorted(
        {_md5(f"{client}-{i}"): client for client in clients for i in range(VIRTUAL_NODES)}.items()
    )
    points = [point for point, _ in ring]

    def owner(queue: MessageQueue) -> str:
        text = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        return ring[bisect.bisect_left(points, _md5(text)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == me]


def _md5(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def in_rooms(*rooms: str) -> Strategy:
    """Return a strategy that assigns only the queues of brokers in some machine rooms, evenly.

    Args:
        rooms: The names of the rooms; the brokers there are named ``room@name``.
    """

    def strategy(
        me: str, clients: Sequence[str], queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        index = clients.index(me)
        near = [queue for queue in queues if _room(queue.broker_name) in rooms]
        size, left = divmod(len(near), len(clients))
        mine = near[index * size : (index + 1) * size]
        if index < left:
            mine.append(near[index + size * len(clients)])
        return mine

    return strategy


def _room(broker_name: str) -> str | None:
    parts = broker_name.split("@")
    return parts[0] if len(parts) == 2 else None


def nearby(
    room_of_broker: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
    strategy: Strategy = averagely,
) -> Strategy:
    """Return a strategy that assigns the queues of each machine room to the clients in that room.

    Queues in rooms without a client are shared by all clients.

    Args:
        room_of_broker: Returns the room of a queue's broker.
        room_of_client: Returns the room of a client id.
        strategy: How the queues of a room are distributed. Default: :func:`averagely`.
    """

    def near(me: str, clients: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        here = room_of_client(me)
        occupied = {room_of_client(client) for client in clients}
        neighbours = [client for client in clients if room_of_client(client) == here]
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(room_of_broker(queue), []).append(queue)
        mine = strategy(me, neighbours, by_room.pop(here, []))
        for room in sorted(by_room):
            if room not in occupied:
                mine += strategy(me, clients, by_room[room])
        return mine

    return near


def fixed(mine: Sequence[MessageQueue]) -> Strategy:
    """Return a strategy that always assigns the same queues to this client.

    Args:
        mine: The queues of this client.
    """
    return lambda me, clients, queues: [queue for queue in queues if queue in mine]
