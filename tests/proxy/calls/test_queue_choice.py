"""The queue that a message is sent to."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.format.values.javahash import java_hash
from firetrail.proxy.calls import queue_choice
from firetrail.proxy.calls.queue_choice import QueueChoice, WriteQueue, consistent_hash
from firetrail.remoting.messages.bodies import BrokerData, QueueData, TopicRouteData


def route(*queues: tuple[str, int, int], without_master: str = "") -> TopicRouteData:
    """Return a route of brokers with their write queues and permissions."""
    return TopicRouteData(
        [QueueData(name, 8, count, perm) for name, count, perm in queues],
        [
            BrokerData(name, "c", {1 if name == without_master else 0: "127.0.0.1:1"})
            for name, _, _ in queues
        ],
    )


@pytest.mark.parametrize(
    ("group", "queue_id"),
    [
        *(("g", 1), ("order-1", 3), ("order-2", 2), ("order-3", 3), ("a", 0), ("b", 0)),
        *(("Zürich", 0), ("x" * 63, 2)),
    ],
)
def test_groups_go_to_the_queues_that_rocketmqs_proxy_chooses(group: str, queue_id: int) -> None:
    choice = QueueChoice()
    for _ in range(3):
        assert choice.choose("T", route(("b", 4, 6)), group) == WriteQueue("b", queue_id)


@given(st.text(max_size=64), st.integers(1, 1000))
def test_the_hash_is_a_bucket_and_changes_only_to_the_new_one(text: str, buckets: int) -> None:
    bucket = consistent_hash(java_hash(text), buckets)
    assert 0 <= bucket < buckets
    assert consistent_hash(java_hash(text), buckets + 1) in (bucket, buckets)


def test_queues_of_several_brokers_are_in_the_order_of_the_names() -> None:
    both = route(("b", 2, 6), ("a", 2, 2))
    order = [WriteQueue("a", 0), WriteQueue("a", 1), WriteQueue("b", 0), WriteQueue("b", 1)]
    assert QueueChoice().choose("T", both, "order-2") == order[2]
    choice = QueueChoice()
    taken = [choice.choose("T", both, None) for _ in range(8)]
    first = order.index(taken[0] or order[0])
    assert taken == [order[(first + n) % 4] for n in range(8)]


def test_each_topic_has_its_own_turns() -> None:
    choice = QueueChoice()
    taken = Counter(
        choice.choose(topic, route(("a", 4, 6)), None) for _ in range(8) for topic in ("T1", "T2")
    )
    assert set(taken.values()) == {4}


def test_a_topic_without_writable_queues_has_no_choice() -> None:
    choice = QueueChoice()
    assert choice.choose("T", TopicRouteData(), None) is None
    assert choice.choose("T", route(("a", 4, 4)), "g") is None
    assert choice.choose("T", route(("a", 0, 6)), "g") is None
    assert choice.choose("T", route(("a", 4, 6), without_master="a"), "g") is None


def test_the_number_of_remembered_topics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_choice, "TOPICS_MAX", 3)
    choice = QueueChoice()
    for number in range(10):
        assert choice.choose(f"T{number}", route(("a", 4, 6)), None) is not None
    assert len(choice._turns) <= 3
