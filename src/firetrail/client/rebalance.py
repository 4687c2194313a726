"""Which of a topic's queues each consumer of a group takes.

All consumers of a group decide for themselves and have to come to the same result, those of other
languages too: so the strategies are RocketMQ's, to the letter. Each gets this client's id, the ids
of all clients and all queues, both sorted, and returns the queues of this client.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence

from firetrail.remoting.bodies import MessageQueue

Strategy = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]

VIRTUAL_NODES = 10


def averagely(
    me: str, clients: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Neighbouring queues, to each client as many; the first ones get what is left over."""
    index = clients.index(me)
    size, left = divmod(len(queues), len(clients))
    start = index * size + min(index, left)
    return list(queues[start : start + size + (index < left)])


def by_circle(
    me: str, clients: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """One queue after the other, to one client after the other."""
    return list(queues[clients.index(me) :: len(clients)])


def by_consistent_hash(
    me: str, clients: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Each queue to the client next on a ring: few move when a client comes or goes."""
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
    """Only queues of brokers called ``room@name`` with one of these rooms, evenly."""

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
    """Queues of brokers in this client's machine room, shared with the clients there.

    Those of rooms without a client are shared by all. ``strategy`` says how.
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
    """Always these."""
    return lambda me, clients, queues: [queue for queue in queues if queue in mine]
