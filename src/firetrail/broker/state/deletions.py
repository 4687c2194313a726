"""Deletions of topics and groups: everything that is kept under their names is forgotten.

A new topic or group of the same name begins like any other. So each table of the broker with topics
or groups as keys is listed here, and has a method ``forget``.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from firetrail.broker.state.group_table import GroupTable
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.topic_table import TopicTable
from firetrail.format.names import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2


class KeyedTable(Protocol):
    """A table that is keyed by topics, by groups, or by both."""

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove all entries of a topic, of a group, or of a group in a topic."""

    async def saved(self) -> None:
        """Return when all changes so far outlive a crash, as far as entries do."""


class Deletions:
    """Deletes topics and groups, and what other tables have of them."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        progress: Iterable[KeyedTable],
        settings: Iterable[KeyedTable],
    ) -> None:
        """Initialize.

        Args:
            topics: The topics.
            groups: The consumer groups.
            offsets: The offsets of the groups.
            progress: Other tables of what groups have consumed.
            settings: Tables of how groups consume, and of what is set for topics.
        """
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._progress: Sequence[KeyedTable] = (offsets, *progress)
        self._settings: Sequence[KeyedTable] = (groups, *settings)

    async def delete_topic(self, name: str) -> list[str]:
        """Delete a topic, and those that redeliver its messages to groups that popped them.

        Return the names of the deleted topics, whose queues are left to the caller.

        Raises:
            RequestError: A table cannot be saved.
        """
        pairs = ((name, group) for group in self._offsets.groups_of(name))
        names = [name, *self._retry_topics(pairs)]
        tables = self._remove_topics(names)
        await self._topics.saved()
        await _save(tables)
        return names

    async def delete_group(self, name: str, *, with_progress: bool) -> list[str]:
        """Delete a group; keep what it has consumed unless ``with_progress``.

        Otherwise the topics that redeliver messages which it has popped are deleted as well. Return
        their names.

        Raises:
            RequestError: A table cannot be saved.
        """
        self._groups.remove(name)
        names: list[str] = []
        tables = self._settings
        if with_progress:
            names = self._retry_topics((topic, name) for topic in self._offsets.of_group(name))
            tables = self._remove_topics(names)
        _forget(tables, group=name)
        await self._topics.saved()
        await _save(tables)
        return names

    def forget_gone(self, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        """Forget the progress in topics, and of groups, that the master of a slave has deleted.

        Its offsets are copied, and so are the settings.
        """
        for topic in topics:
            _forget(self._progress[1:], topic=topic)
        for group in groups:
            _forget(self._progress[1:], group=group)

    def _remove_topics(self, names: Iterable[str]) -> Sequence[KeyedTable]:
        """Remove topics, and return the tables that have changed besides those of the topics."""
        tables = (*self._progress, *self._settings)
        for name in names:
            self._topics.remove(name)
            _forget(tables, topic=name)
        return tables

    def _retry_topics(self, pairs: Iterable[tuple[str, str]]) -> list[str]:
        """Return the existing topics that redeliver popped messages, by topic and group."""
        found = []
        for topic, group in pairs:
            if not self._is_shared(topic, group):
                found.append(pop_retry_topic(topic, group))
            found.append(pop_retry_topic_v2(topic, group))
        return [name for name in found if self._topics.get(name) is not None]

    def _is_shared(self, topic: str, group: str) -> bool:
        """Return whether the topic of redelivered pops is also that of another group or topic.

        Its name joins the two by a character that both may contain.
        """
        name = pop_retry_topic(topic, group).removeprefix(RETRY_PREFIX)
        if self._groups.get(name) is not None:
            return True
        parts = name.split("_")
        splits = (("_".join(parts[:n]), "_".join(parts[n:])) for n in range(1, len(parts)))
        return any(
            each != (group, topic) and each[1] in self._offsets.of_group(each[0]) for each in splits
        )


def _forget(
    tables: Iterable[KeyedTable], *, topic: str | None = None, group: str | None = None
) -> None:
    for table in tables:
        table.forget(topic=topic, group=group)


async def _save(tables: Iterable[KeyedTable]) -> None:
    """Return when the tables are saved; otherwise a new topic would inherit the entries."""
    for table in tables:
        await table.saved()
