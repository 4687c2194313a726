"""What a broker finds again in its store after a crash."""

from __future__ import annotations

from collections.abc import Iterator

from firetrail.broker.state.topics import HALF_TOPIC
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.properties import REAL_QID, REAL_TOPIC
from firetrail.store.broker_store import BrokerStore


def destinations(store: BrokerStore, since_ms: int) -> Iterator[tuple[str, int]]:
    """Topic and queue of the delayed and half messages that were stored since a time.

    A topic that was made for one of them has no queue before it is delivered.
    """
    for waiting in (SCHEDULE_TOPIC, HALF_TOPIC):
        for queue_id in store.queues(waiting):
            first = store.offset_at(waiting, queue_id, since_ms)
            for record in store.read(waiting, queue_id, first):
                topic, number = (record.properties.get(n, "") for n in (REAL_TOPIC, REAL_QID))
                if topic and topic != HALF_TOPIC and number.isascii() and number.isdigit():
                    yield topic, int(number)
