"""The consumer groups of a broker, as in RocketMQ's ``subscriptionGroup.json``."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.state.attributes import altered_of_group
from firetrail.broker.state.auto_creation import AutoCreation
from firetrail.broker.state.saver import Saver
from firetrail.broker.state.topic_table import QUEUES_MAX
from firetrail.errors import RequestError
from firetrail.format.names import GROUP_RULE, SYSTEM_GROUP_PREFIX, is_group
from firetrail.format.values.integers import INT32_MAX, INT32_MIN
from firetrail.remoting.messages.bodies import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from firetrail.remoting.wire.codes import ResponseCode, Version
from firetrail.settings.config_file import ConfigFile
from firetrail.settings.settings_table import Live

SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_PULL",
)

FORBIDDEN_MAX = 10_000
"""Maximum number of pairs of a group and a topic that it may not read."""

_NO_READING = 1 << 2
"""The bit that RocketMQ uses for a forbidden read permission."""


class GroupTable:
    """The table of consumer groups by name.

    The table of a slave is a copy of its master's: :meth:`adopt` replaces it, and nothing else adds
    a group to it.

    Attributes:
        is_frozen: Whether no group is created on demand, as in a copy.
        fence: Returns why another broker may be the master, so that no group is created on demand;
            empty if none may.
    """

    def __init__(
        self,
        file: ConfigFile,
        config: Live[BrokerConfig],
        now_ms: Callable[[], int],
        *,
        is_copy: bool = False,
    ) -> None:
        self._live = config
        self._is_copy = is_copy
        self.is_frozen = False
        self.fence: Callable[[], str] = lambda: ""
        self._now_ms = now_ms
        kept = file.load(SubscriptionGroupTable)
        self._groups = dict(kept.subscription_group_table)
        self._version = kept.data_version
        self.forbidden = kept.forbidden_table or {}
        """Bits of forbidden permissions by group and topic."""
        self._saver = Saver(file, lambda: self.content().to_json())
        self._creation = AutoCreation(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "auto_groups_max",
            lambda: config.current.auto_groups_max,
            lambda: config.current.auto_create_rate,
            now_ms,
        )
        for name in () if is_copy else SYSTEM_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(name))

    @property
    def offsets_max(self) -> int:
        """Maximum number of offsets of all groups in all queues."""
        return self._live.current.offsets_max

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """Return the group, None if it does not exist."""
        return self._groups.get(name)

    def names(self) -> list[str]:
        """Return the sorted names of all groups."""
        return sorted(self._groups)

    def require(self, name: str) -> SubscriptionGroupConfig:
        """Return the group; create it if that is allowed, raise RequestError if not.

        A slave, and a master that is frozen or fenced, return it as a master would create it.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        check_group(name)
        if not self._live.current.auto_create_groups and not name.startswith(SYSTEM_GROUP_PREFIX):
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist; create it first",
            )
        group = SubscriptionGroupConfig(name)
        if not (self._is_copy or self.is_frozen or self.fence()):
            if not name.startswith(SYSTEM_GROUP_PREFIX):
                self._creation.check(f"group {name}", len(self._groups))
            self.put([group])
        return group

    def put(self, groups: Iterable[SubscriptionGroupConfig]) -> None:
        """Add or change groups; raise RequestError, and change nothing, if one is invalid.

        As in Java, the attributes of a group are changes to those that it has.
        """
        groups = list(groups)
        for group in groups:
            check_group(group.group_name)
            if refusal := _refusal(group):
                raise RequestError(
                    ResponseCode.INVALID_PARAMETER, f"group {group.group_name}: {refusal}"
                )
        for group in groups:
            before = self._groups.get(group.group_name)
            kept = altered_of_group(before.attributes if before else None, group.attributes)
            self._groups[group.group_name] = replace(group, attributes=kept)
        self._changed()

    def recover(self, popped: Iterable[tuple[str, int]]) -> None:
        """Create the groups again that have popped messages and were not saved before a crash.

        Each name comes with the time of a pop. A pop that is older than the file belongs to a group
        that was deleted.
        """
        lost = {
            name
            for name, time in popped
            if name not in self._groups and time >= self._version.timestamp
        }
        if lost and self._live.current.auto_create_groups:
            self.put(SubscriptionGroupConfig(name) for name in sorted(lost))

    def adopt(self, table: SubscriptionGroupTable) -> bool:
        """Replace all groups by those of a master; return whether anything has changed."""
        if replace(table, forbidden_table=table.forbidden_table or None) == self.content():
            return False
        self._groups = dict(table.subscription_group_table)
        self._version = table.data_version
        self.forbidden = table.forbidden_table or {}
        self._saver.changed()
        return True

    def remove(self, name: str) -> None:
        """Delete the group and its forbidden topics."""
        is_known = self._groups.pop(name, None) is not None
        was_forbidden = self.forbidden.pop(name, None) is not None
        if is_known or was_forbidden:
            self._changed()

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Allow groups again to read a topic, or a group to read any, or this topic."""
        for owner, topics in list(self.forbidden.items()):
            if group in (None, owner) and (topic is None or topic in topics):
                kept = {name: bits for name, bits in topics.items() if topic not in (None, name)}
                self.forbidden[owner] = kept
                if not kept:
                    del self.forbidden[owner]
                self._changed()

    def is_forbidden(self, name: str, topic: str) -> bool:
        """Whether the group may not read the topic."""
        return bool(self.forbidden.get(name, {}).get(topic, 0) & _NO_READING)

    def forbid(self, name: str, topic: str, forbidden: bool) -> None:
        """Forbid the group to read the topic, or allow it again."""
        if forbidden and sum(map(len, self.forbidden.values())) >= FORBIDDEN_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"{FORBIDDEN_MAX} topics are forbidden to groups, which is the limit; allow some "
                f"before {topic} is forbidden to {name}",
            )
        topics = self.forbidden.setdefault(name, {})
        bits = topics.get(topic, 0)
        topics[topic] = bits | _NO_READING if forbidden else bits & ~_NO_READING
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.forbidden[name]
        self._changed()

    def content(self) -> SubscriptionGroupTable:
        """Return the whole table."""
        return SubscriptionGroupTable(
            dict(sorted(self._groups.items())),
            self._version,
            {group: dict(topics) for group, topics in self.forbidden.items()} or None,
        )

    def _changed(self) -> None:
        version = self._version
        self._version = DataVersion(version.counter + 1, self._now_ms(), version.state_version)
        self._saver.changed()

    async def saved(self) -> None:
        """Return when all changes are in the file."""
        await self._saver.saved()

    async def stop(self) -> None:
        """Save unsaved changes."""
        await self._saver.stop()


def _refusal(group: SubscriptionGroupConfig) -> str:
    """Return why the settings of a group are not allowed; empty if they are allowed."""
    if not 0 <= group.retry_queue_nums <= QUEUES_MAX:
        return f"retryQueueNums is {group.retry_queue_nums}, it must be from 0 to {QUEUES_MAX}"
    if not INT32_MIN <= group.retry_max_times <= INT32_MAX:
        return f"retryMaxTimes is {group.retry_max_times}, which does not fit in 32 bits"
    refusal = group.retry_policy.refusal()
    return f"groupRetryPolicy: {refusal}" if refusal else ""


def check_group(name: str) -> None:
    """Raise RequestError unless ``name`` is a valid name of a group."""
    if not is_group(name):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the group {name!r:.140} is illegal: {GROUP_RULE}"
        )


def is_last(group: SubscriptionGroupConfig, retries: int, asked: int | None, version: int) -> bool:
    """Return whether a message that is not consumed becomes a dead letter, not another retry.

    Args:
        group: The settings of the consumer group.
        retries: The number of times that the message was retried before.
        asked: The limit in the request, which consumers since 3.4.9 may choose; None for the
            group's.
        version: The version of the consumer.
    """
    if asked is None or version < Version.V3_4_9:
        asked = group.retry_max_times
    return retries >= asked
