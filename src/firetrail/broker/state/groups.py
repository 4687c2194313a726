"""The consumer groups of a broker, as in RocketMQ's ``subscriptionGroup.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from firetrail.broker.config import BrokerConfig
from firetrail.broker.state.config_file import ConfigFile
from firetrail.broker.state.saver import Saver
from firetrail.broker.state.topics import QUEUES_MAX
from firetrail.errors import RequestError
from firetrail.format.names import GROUP_RULE, is_group
from firetrail.remoting.bodies import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from firetrail.remoting.codes import ResponseCode

SYSTEM_PREFIX = "CID_RMQ_SYS_"
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_PULL",
)

_NO_READING = 1 << 2
"""RocketMQ's number of the permission to read."""


class GroupTable:
    """Consumer groups by name."""

    def __init__(self, file: ConfigFile, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        kept = file.load(SubscriptionGroupTable)
        self._groups = dict(kept.subscription_group_table)
        self._version = kept.data_version
        self.forbidden = kept.forbidden_table or {}
        """What single groups may not do with single topics, as bits."""
        self._saver = Saver(file, lambda: self.content().to_json())
        for name in SYSTEM_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(name))

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, None if there is none."""
        return self._groups.get(name)

    def names(self) -> list[str]:
        """The names of all groups, in order."""
        return sorted(self._groups)

    def require(self, name: str) -> SubscriptionGroupConfig:
        """The group, a new one if that is allowed; RequestError if not."""
        group = self._groups.get(name)
        if group is not None:
            return group
        check_group(name)
        if not self._config.auto_create_groups and not name.startswith(SYSTEM_PREFIX):
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist; create it first",
            )
        group = SubscriptionGroupConfig(name)
        self.put([group])
        return group

    def put(self, groups: Iterable[SubscriptionGroupConfig]) -> None:
        """Take groups, new or changed ones."""
        groups = list(groups)
        for group in groups:
            check_group(group.group_name)
            if not 0 <= group.retry_queue_nums <= QUEUES_MAX:
                raise RequestError(
                    ResponseCode.INVALID_PARAMETER,
                    f"group {group.group_name}: retryQueueNums is {group.retry_queue_nums}, 0 to "
                    f"{QUEUES_MAX} are allowed",
                )
        for group in groups:
            self._groups[group.group_name] = group
        self._changed()

    def recover(self, popped: Iterable[tuple[str, int]]) -> None:
        """Take back groups that have popped something and were not saved before a crash.

        With each name comes the time of a pop: one before the file's belongs to a group that was
        deleted.
        """
        lost = {
            name
            for name, time in popped
            if name not in self._groups and time >= self._version.timestamp
        }
        if lost and self._config.auto_create_groups:
            self.put(SubscriptionGroupConfig(name) for name in sorted(lost))

    def remove(self, name: str) -> None:
        """Forget the group."""
        if self._groups.pop(name, None) is not None:
            self._changed()

    def is_forbidden(self, name: str, topic: str) -> bool:
        """Whether the group may not read the topic."""
        return bool(self.forbidden.get(name, {}).get(topic, 0) & _NO_READING)

    def forbid(self, name: str, topic: str, forbidden: bool) -> None:
        """Forbid the group to read the topic, or allow it again."""
        topics = self.forbidden.setdefault(name, {})
        bits = topics.get(topic, 0)
        topics[topic] = bits | _NO_READING if forbidden else bits & ~_NO_READING
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.forbidden[name]
        self._changed()

    def content(self) -> SubscriptionGroupTable:
        """All of it."""
        return SubscriptionGroupTable(
            dict(sorted(self._groups.items())), self._version, self.forbidden or None
        )

    def _changed(self) -> None:
        version = self._version
        self._version = DataVersion(version.counter + 1, self._now_ms(), version.state_version)
        self._saver.changed()

    async def saved(self) -> None:
        """Return when all changes are in the file."""
        await self._saver.saved()

    async def stop(self) -> None:
        """Save what is not saved."""
        await self._saver.stop()


def check_group(name: str) -> None:
    """RequestError unless ``name`` may be a group."""
    if not is_group(name):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the group {name!r:.140} is illegal: {GROUP_RULE}"
        )
