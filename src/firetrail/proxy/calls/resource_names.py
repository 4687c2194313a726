"""The names of topics and groups that clients may use.

Only ``Resource.name`` counts. RocketMQ ignores the namespace of requests, and so does Firetrail.
"""

from collections.abc import Collection
from functools import lru_cache

from firetrail.errors import ProxyError
from firetrail.format.names import (
    GROUP_RULE,
    SYSTEM_GROUP_PREFIX,
    TOPIC_RULE,
    is_group,
    is_topic,
)
from firetrail.format.system_topics import system_topic
from firetrail.proxy.schema.messages import Code, Resource

_REMEMBERED = 1024
"""Maximum number of valid names that are remembered."""
_SHOWN = 64  # characters of a wrong name in an error


def topic_name(topic: Resource, reserved: Collection[str] = ()) -> str:
    """Return the name of a topic.

    Args:
        topic: The topic in a request.
        reserved: Further names that are reserved (:attr:`Brokers.reserved`). Default: none.

    Raises:
        ProxyError: No topic of clients may have this name.
    """
    name = topic.name
    _check_topic(name)
    if name in reserved:
        raise _reserved(name)
    return name


@lru_cache(maxsize=_REMEMBERED)
def _check_topic(name: str) -> None:
    if not name.strip():
        raise ProxyError(Code.ILLEGAL_TOPIC, "the name of the topic is blank")
    if not is_topic(name):
        raise ProxyError(Code.ILLEGAL_TOPIC, f"topic {name[:_SHOWN]!r}: {TOPIC_RULE}")
    if system_topic(name) is not None:
        raise _reserved(name)


def _reserved(name: str) -> ProxyError:
    return ProxyError(Code.ILLEGAL_TOPIC, f"topic {name} is reserved for the system")


def group_name(group: Resource) -> str:
    """Return the name of a consumer group.

    Raises:
        ProxyError: No group of clients may have this name.
    """
    name = group.name
    _check_group(name)
    return name


@lru_cache(maxsize=_REMEMBERED)
def _check_group(name: str) -> None:
    if not name.strip():
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, "the name of the consumer group is blank")
    if not is_group(name):
        raise ProxyError(
            Code.ILLEGAL_CONSUMER_GROUP, f"consumer group {name[:_SHOWN]!r}: {GROUP_RULE}"
        )
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise ProxyError(
            Code.ILLEGAL_CONSUMER_GROUP, f"consumer group {name} is reserved for the system"
        )
