"""The topics of RocketMQ itself, and what clients and administrators may do with each.

A topic is a system topic if it is in :data:`SYSTEM_TOPICS`, or if its name begins with
``rmq_sys_``, in small letters or not. gRPC clients can use none of them. A broker also has topics
that are named after it and its cluster (:func:`own_topics`).
"""

from types import MappingProxyType
from typing import NamedTuple

from firetrail.format.files.timer import TIMER_TOPIC
from firetrail.format.names import (
    AUTO_CREATE_TOPIC,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    TRACE_TOPIC,
    reply_topic,
)

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Messages of open transactions wait here."""
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""The ends of transactions."""
CHECKED_OFTEN_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages whose transaction was checked too often."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
"""Java reports readers here that a pull moved."""
BENCHMARK_TOPIC = "BenchmarkTest"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
"""The name under which Java keeps positions of RocksDB queues."""
REVIVE_PREFIX = f"{SYSTEM_PREFIX}REVIVE_LOG_"


class SystemTopic(NamedTuple):
    """A topic of RocketMQ itself."""

    for_clients: bool
    """Clients may send to it, as far as its permissions go."""
    internal: bool
    """It holds records of brokers. ``Topic:*`` does not include it: a permission has its very name.
    It was never deleted, whether or not a broker lists it."""
    fixed: bool
    """Administrators can neither create, change nor delete it."""


_RECORDS = SystemTopic(for_clients=False, internal=True, fixed=True)
_NAMED_LIKE_ONE = SystemTopic(for_clients=True, internal=True, fixed=True)

SYSTEM_TOPICS = MappingProxyType(
    {
        AUTO_CREATE_TOPIC: SystemTopic(for_clients=True, internal=False, fixed=True),
        BENCHMARK_TOPIC: SystemTopic(for_clients=True, internal=False, fixed=True),
        CHECKPOINT_TOPIC: SystemTopic(for_clients=True, internal=False, fixed=True),
        SELF_TEST_TOPIC: SystemTopic(for_clients=False, internal=False, fixed=True),
        SCHEDULE_TOPIC: _RECORDS,
        TIMER_TOPIC: _RECORDS,
        HALF_TOPIC: _RECORDS,
        OP_TOPIC: _RECORDS,
        CHECKED_OFTEN_TOPIC: _RECORDS,
        OFFSET_MOVED_TOPIC: _RECORDS,
        TRACE_TOPIC: SystemTopic(for_clients=True, internal=False, fixed=False),
    }
)
"""The system topics by name. In RocketMQ, the trace topic is fixed as well. Here it is an ordinary
topic in all but name, because brokers create it only if a setting says so."""


def system_topic(name: str) -> SystemTopic | None:
    """Return what is special about a system topic; None for a topic of clients."""
    found = SYSTEM_TOPICS.get(name)
    if found is None and name[: len(SYSTEM_PREFIX)].lower() == SYSTEM_PREFIX:
        return _NAMED_LIKE_ONE
    return found


def is_internal(topic: str) -> bool:
    """Return whether a topic holds records of brokers."""
    found = system_topic(topic)
    return found is not None and found.internal


def refuses_clients(topic: str) -> bool:
    """Return whether no client may send to a topic, whatever its permissions are."""
    found = SYSTEM_TOPICS.get(topic)
    return found is not None and not found.for_clients


def is_fixed(topic: str) -> bool:
    """Return whether administrators can neither create, change nor delete a topic."""
    found = system_topic(topic)
    return found is not None and found.fixed


def revive_topic(cluster: str) -> str:
    """Return the internal topic of a cluster's brokers that records pops and acknowledgements."""
    return REVIVE_PREFIX + cluster


def own_topics(cluster: str, broker: str) -> frozenset[str]:
    """Return the topics that are named after a broker and its cluster.

    They are system topics to clients and administrators of this broker.
    """
    return frozenset({cluster, broker, reply_topic(cluster), revive_topic(cluster)})
