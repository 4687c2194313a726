"""The strategies return the same assignments as the Java client."""

import pytest

from firetrail.client.consumers.push.rebalance import (
    Strategy,
    averagely,
    by_circle,
    by_consistent_hash,
    fixed,
    in_rooms,
    nearby,
)
from firetrail.remoting.messages.bodies import MessageQueue

QUEUES = [MessageQueue("T", broker, number) for broker in ("a@x", "b@y") for number in range(5)]
ROOMS = {"a@x": "10.0.0.1", "b@y": "10.0.0.2"}
CLIENTS = ["10.0.0.1@1", "10.0.0.1@2", "10.0.0.2@1"]


def room_of_broker(queue: MessageQueue) -> str:
    return ROOMS[queue.broker_name]


def room_of_client(client: str) -> str:
    return client.partition("@")[0]


NEAR_BY_CIRCLE = nearby(room_of_broker, room_of_client, by_circle)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (averagely, ["a0 a1 a2 a3", "a4 b0 b1", "b2 b3 b4"]),
        (by_circle, ["a0 a3 b1 b4", "a1 a4 b2", "a2 b0 b3"]),
        (by_consistent_hash, ["a1 a2 b3", "a0 a4 b1 b2", "a3 b0 b4"]),
        (in_rooms("a"), ["a0 a3", "a1 a4", "a2"]),
        (nearby(lambda q: q.broker_name, lambda c: "a@x"), ["a0 a1 b0 b1", "a2 a3 b2 b3", "a4 b4"]),
        (nearby(room_of_broker, room_of_client), ["a0 a1 a2", "a3 a4", "b0 b1 b2 b3 b4"]),
        (
            nearby(room_of_broker, room_of_client, by_circle),
            ["a0 a2 a4", "a1 a3", "b0 b1 b2 b3 b4"],
        ),
    ],
)
def test_assignments_are_those_of_rocketmq_4_9(strategy: Strategy, expected: list[str]) -> None:
    found = [
        " ".join(f"{q.broker_name[0]}{q.queue_id}" for q in strategy(client, CLIENTS, QUEUES))
        for client in CLIENTS
    ]
    assert found == expected


@pytest.mark.parametrize("strategy", [averagely, by_circle, by_consistent_hash])
@pytest.mark.parametrize("clients", range(1, 14))
def test_every_queue_has_one_owner(strategy: Strategy, clients: int) -> None:
    ids = sorted(f"c{number}" for number in range(clients))
    taken = [queue for client in ids for queue in strategy(client, ids, QUEUES)]
    assert sorted(taken) == QUEUES


def test_fixed_assigns_only_existing_queues() -> None:
    mine = [QUEUES[3], MessageQueue("other", "a@x", 0)]
    assert fixed(mine)("10.0.0.1@1", CLIENTS, QUEUES) == [QUEUES[3]]
