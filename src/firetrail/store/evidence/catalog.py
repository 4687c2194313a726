"""The topics of a store according to its broker's files, in addition to its log.

Records of a topic can be in the log although they are in no consume queue: the topic was deleted,
or Java keeps its queues in another format (``queue.type=BatchCQ``).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from firetrail.errors import FormatError
from firetrail.format.files import config_json
from firetrail.format.light import is_light
from firetrail.format.names import (
    BATCH_CONSUME_QUEUE,
    CONFIG,
    OFFSET_MAX,
    TOPICS_JSON,
)
from firetrail.format.system_topics import is_internal
from firetrail.store.evidence.inventory import ListedQueues
from firetrail.store.queues.queue_table import QueueKey
from firetrail.system import Files

_QUEUE_TYPE = "queue.type"
_BATCH_QUEUES = "BatchCQ"


class KnownTopics(NamedTuple):
    """The broker's ``topics.json``."""

    names: frozenset[str] = frozenset()
    changed_ms: int = 0
    """The time at which it was last changed; 0 if that is unknown or the file is missing."""
    batches: frozenset[str] = frozenset()
    """Topics with batch queues."""
    queues: Mapping[str, int] = MappingProxyType({})
    """The number of queues of each topic."""


class Catalog:
    """The topics of a store, and their queues.

    Args:
        files: The files of the system.
        root: The folder of the store.
        folders: The queues that have a folder.
        store_time: Returns the store time (ms) of the record at a physical offset.
        known: The queues that the inventory proves; those of an empty one if Java has written the
            store since.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        folders: Iterable[QueueKey],
        store_time: Callable[[int], int | None],
        known: ListedQueues,
    ) -> None:
        self._queues = known.keys.union(folders)
        self._with_queues = {topic for topic, _ in self._queues}
        self._complete_to = known.complete_to
        self._removed = known.removed
        self._store_time = store_time
        self._content = topics_content(files, root)
        batches = frozenset(files.names(root / BATCH_CONSUME_QUEUE))
        if _BATCH_QUEUES.encode() in self._content:
            batches |= self._listed.batches
        self.batches = batches - self._with_queues
        """Topics that have only batch queues; Java does not start with ordinary ones beside them.

        Their messages are not read, and puts to them are refused.
        """

    @cached_property
    def _listed(self) -> KnownTopics:
        return parse_topics(self._content)  # only when it is needed, because it takes a while

    def is_deleted(self, topic: str, newest: int) -> bool:
        """Return whether a topic whose newest message in the log is at ``newest`` was deleted.

        That is so if it has no queues, and the list of topics was changed after the message was
        stored and lacks the topic. An older list proves nothing: it is saved after the first send
        to a topic, not before it, and may come from a backup. A list also proves nothing if the
        topic is known to have been deleted before the message, but not after it. Light queues and
        internal topics are never deleted; brokers need not list them.
        """
        if topic in self._with_queues or is_light(topic) or is_internal(topic):
            return False
        if topic in self._listed.names:
            return False
        if newest >= self._removed.get(topic, OFFSET_MAX):
            return False
        stored = self._store_time(newest)
        return stored is not None and stored < self._listed.changed_ms

    def was_removed(self, topic: str, offset: int) -> bool:
        """Return whether a topic is known to have been deleted after its record at ``offset``."""
        return offset < self._removed.get(topic, 0)

    def may_have(self, topic: str) -> bool:
        """Return whether a topic may exist: it is listed, or there is no list."""
        return not self._listed.names or topic in self._listed.names

    def has(self, key: QueueKey) -> bool:
        """Return whether a queue has a folder, or is in a reliable inventory."""
        return key in self._queues

    def must_exist(self, key: QueueKey, newest: int) -> bool | None:
        """Return whether a queue exists or was lost; False if it was deleted with its topic.

        Its newest message in the log is at ``newest``. The result is None if the files do not show
        it. :meth:`firetrail.store.queues.generations.QueueGenerations.former` states the rule.
        """
        if self.has(key):
            return True
        if key[0] in self._removed:
            return not self.was_removed(key[0], newest)
        return False if newest < self._complete_to else None


def topics_content(files: Files, root: Path) -> bytes:
    """Return the content of a store's ``topics.json``; empty if it is missing."""
    try:
        return files.read(root / CONFIG / TOPICS_JSON)
    except FileNotFoundError:
        return b""


def parse_topics(content: bytes) -> KnownTopics:
    """Return the topics in a ``topics.json``; none if it cannot be parsed."""
    try:
        value = config_json.loads(content)
        table: dict[Any, Any] = value["topicConfigTable"]
        return KnownTopics(
            frozenset(map(str, table)),
            int(value.get("dataVersion", {}).get("timestamp", 0)),
            frozenset(str(name) for name, topic in table.items() if _has_batches(topic)),
            {str(name): int(topic.get("readQueueNums", 0)) for name, topic in table.items()},
        )
    except (FormatError, KeyError, TypeError, ValueError, AttributeError):
        return KnownTopics()


def _has_batches(topic: dict[str, Any]) -> bool:
    attributes = topic.get("attributes") or {}
    return bool(attributes.get(_QUEUE_TYPE) == _BATCH_QUEUES)
