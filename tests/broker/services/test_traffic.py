"""Counters of messages in and out, over spans of time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL

from firetrail import Message
from firetrail.broker.services.traffic import DAY, HOUR, MINUTE, SPANS, Traffic
from firetrail.store.broker_store import BrokerStore
from firetrail.system import SYSTEM


class Clock:
    """A clock that moves only on request."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BrokerStore]:
    with BrokerStore.open(tmp_path / "store", SMALL, system=SYSTEM) as opened:
        yield opened


def pass_time(clock: Clock, traffic: Traffic, samples: int) -> None:
    for _ in range(samples):
        clock.now += 10
        traffic.sample()


def put(store: BrokerStore, topic: str, count: int, queue_id: int = 0) -> int:
    sizes = [
        store.embedded.put(Message(topic, b"12345", queue_id=queue_id)).size for _ in range(count)
    ]
    store.embedded.wait_dispatched()
    return sum(sizes)


def test_puts_are_counted_with_their_bytes(store: BrokerStore) -> None:
    put(store, "T", 3)  # before counting begins
    traffic = Traffic(store, Clock())
    size = put(store, "T", 5) + put(store, "T", 2, queue_id=1)
    more = put(store, "U", 1500)  # over several files of the queue
    traffic.count_puts()
    assert (traffic.topics["T"].messages, traffic.topics["T"].bytes) == (7, size)
    assert (traffic.topics["U"].messages, traffic.topics["U"].bytes) == (1500, more)
    assert (traffic.put.messages, traffic.put.bytes) == (1507, size + more)


def test_a_topic_that_was_deleted_and_created_again_counts_up(store: BrokerStore) -> None:
    traffic = Traffic(store, Clock())
    put(store, "T", 1000)
    while not store.removal.remove("T", store.removal.settle()):
        pass  # queues are being synced
    size = put(store, "T", 2)
    traffic.count_puts()
    assert (traffic.topics["T"].messages, traffic.topics["T"].bytes) == (1002, size)
    assert traffic.put.messages == 1002


def test_messages_are_counted_by_minute_hour_and_day(store: BrokerStore) -> None:
    clock = Clock()
    traffic = Traffic(store, clock)
    traffic.count_get("T", "G", 30, 3000)
    pass_time(clock, traffic, 3)
    count = traffic.groups["T", "G"]
    minute = traffic.messages(count, MINUTE)
    assert (minute.sum, minute.tps) == (30, 1.0)
    assert traffic.bytes(count, MINUTE).avgpt == 100.0
    pass_time(clock, traffic, 6)
    assert traffic.messages(count, MINUTE).sum == 0
    assert traffic.messages(count, HOUR).sum == 30
    traffic.count_get("T", "G", 6, 600)
    assert traffic.messages(count, MINUTE).sum == 6
    pass_time(clock, traffic, 7 * 60)
    assert [traffic.messages(count, span).sum for span in SPANS] == [0, 0, 36]
    assert (traffic.got.messages, traffic.got.bytes) == (36, 3600)


def test_counters_that_do_not_change_for_a_day_are_dropped(store: BrokerStore) -> None:
    clock = Clock()
    traffic = Traffic(store, clock)
    traffic.count_sent_back("T", "G", 10)
    traffic.count_get("T", "G", 1, 10)
    pass_time(clock, traffic, 24 * 360)
    traffic.count_get("T", "G", 1, 10)
    assert traffic.messages(traffic.sent_back["T", "G"], DAY).sum == 1
    pass_time(clock, traffic, 2 * 360)
    assert ("T", "G") not in traffic.sent_back
    assert traffic.messages(traffic.groups["T", "G"], DAY).sum == 1


def test_a_stopped_counter_does_not_read_the_store(tmp_path: Path) -> None:
    with BrokerStore.open(tmp_path / "store", SMALL, system=SYSTEM) as store:
        traffic = Traffic(store, Clock())
        put(store, "T", 1)
        traffic.stop()
    traffic.sample()
    assert traffic.topics == {}
