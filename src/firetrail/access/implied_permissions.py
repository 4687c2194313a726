"""The permissions that the names of topics and groups imply.

``%RETRY%g`` belongs to group g: its consumers send to it and read from it. ``%DLQ%g`` is read like
any other topic, and also by the consumers of g. Writing to it needs an entry that begins with
``%DLQ%``. Internal topics, such as those of half messages, are not part of ``Topic:*``: they need
an entry with their very name.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from firetrail.auth.caller import NO_PERMISSION, Caller
from firetrail.auth.resources import NAME_MAX, WHOLE, Action, Requirement, ResourceType, need
from firetrail.errors import RequestError
from firetrail.format.names import (
    DLQ_PREFIX,
    group_of_dead_letters,
    group_of_retries,
    popped_topic,
    retry_topic,
)
from firetrail.format.properties import REAL_TOPIC
from firetrail.format.record import Record
from firetrail.format.system_topics import is_internal
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

NOT_YOURS = "there is no message at this place that the sender has a permission for"
"""The refusal of a message that a request names by its id or offset. It reveals neither the topic
nor whether the message exists."""

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
PUB, SUB, CREATE, UPDATE = Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE
DELETE, GET, LIST = Action.DELETE, Action.GET, Action.LIST


def topic_need(topic: str, *actions: Action) -> Requirement:
    """Return the need for one of the actions on a topic of any kind.

    The last 4,096 are kept, but none with a name that is too long for a topic: clients choose the
    names.
    """
    return (_kept_topic_need if len(topic) <= NAME_MAX else _new_topic_need)(topic, *actions)


def _new_topic_need(topic: str, *actions: Action) -> Requirement:
    group = group_of_retries(topic)
    if group is not None:
        of_group = [SUB if action is PUB else action for action in actions]
        return need(GROUP, group, *of_group)
    group = group_of_dead_letters(topic)
    if group is not None:
        return _dead_letter_need(topic, group, frozenset(actions) - {PUB})
    if is_internal(topic):
        return Requirement(TOPIC, topic, frozenset(actions), explicit=topic)
    return need(TOPIC, topic, *actions)


def _dead_letter_need(topic: str, group: str, reading: frozenset[Action]) -> Requirement:
    if not reading:
        return Requirement(TOPIC, topic, frozenset({PUB}), explicit=DLQ_PREFIX)
    of_group = need(GROUP, group, *reading)
    return Requirement(TOPIC, topic, reading, otherwise=of_group)


_kept_topic_need = lru_cache(4096)(_new_topic_need)


def group_need(group: str, *actions: Action) -> Requirement:
    """Return the need for one of the actions on a group."""
    return need(GROUP, group, *actions)


def consumed(topic: str, group: str) -> Iterator[Requirement]:
    """Yield the permissions that a group needs to consume a topic.

    A retry topic may be consumed by its own group only.

    Raises:
        RequestError: The topic is the retry topic of another group.
    """
    yield need(GROUP, group, SUB)
    if topic == retry_topic(group):
        return
    original = popped_topic(topic, group)
    if group_of_retries(original) is not None:
        raise RequestError(
            NO_PERMISSION, f"group {group:.255} may not consume {topic:.255} of another group"
        )
    yield topic_need(original, SUB)


def require_record(request: RemotingCommand, record: Record | None, *actions: Action) -> None:
    """Check that the sender of a request may do something with the record that was found.

    Raises:
        RequestError: It may not, or the topic of the record is unknown.
    """
    if request.caller is None:
        return
    if record is None:
        raise RequestError(NO_PERMISSION, NOT_YOURS)
    _require_found(request.caller, (topic_need(real_topic_of(record), *actions),))


def require_consumed(caller: Caller, record: Record, group: str) -> None:
    """Check that a caller may consume the record that was found, for a group.

    Raises:
        RequestError: It may not.
    """
    _require_found(caller, consumed(real_topic_of(record), group))


def no_record(caller: Caller | None, detail: str, *actions: Action) -> RequestError:
    """Return the error for an offset at which the requested record does not exist.

    A user without permission for all topics gets the same answer as for a record of other users,
    and so cannot find out where those are.

    Args:
        caller: The sender of the request; None if there is no access control.
        detail: The missing record, for callers who may see all topics.
        actions: The actions of the request on a record.
    """
    if caller is None or caller.refusal([need(TOPIC, WHOLE, LIST, *actions)]) is None:
        return RequestError(ResponseCode.SYSTEM_ERROR, detail)
    return RequestError(NO_PERMISSION, NOT_YOURS)


def _require_found(caller: Caller, needs: Iterable[Requirement]) -> None:
    """Check the needs for a record that was found; a refusal reveals neither its topic nor another
    group."""
    try:
        caller.require(*needs)
    except RequestError:
        raise RequestError(NO_PERMISSION, NOT_YOURS) from None


def real_topic_of(record: Record) -> str:
    """Return the topic that a record belongs to: an internal topic holds it for another."""
    is_held = is_internal(record.topic)
    return record.properties.get(REAL_TOPIC, record.topic) if is_held else record.topic
