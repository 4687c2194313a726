"""What a broker's files say about the topics of a store, in addition to its log.

Records of a topic can be in the log although they are in no consume queue: the topic was deleted,
or Java keeps its queues in another format (``queue.type=BatchCQ``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from firetrail.errors import FormatError
from firetrail.format import config_json
from firetrail.format.light import SYSTEM_PREFIX, is_light
from firetrail.format.names import BATCH_CONSUME_QUEUE, CONFIG, SCHEDULE_TOPIC, TOPICS_JSON
from firetrail.store.queues.table import QueueKey
from firetrail.system import Files

TOPICS_FILE = f"{CONFIG}/{TOPICS_JSON}"
_NOT_LISTED = frozenset({SCHEDULE_TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC"})
"""Internal topics of brokers, beside those with a prefix, that may not be listed."""
_QUEUE_TYPE = "queue.type"
_BATCH_QUEUES = "BatchCQ"


class TopicList(NamedTuple):
    """The broker's ``topics.json``."""

    names: frozenset[str] = frozenset()
    changed_ms: int = 0
    """When it was last changed; 0 if that is unknown or the file is missing."""
    batches: frozenset[str] = frozenset()
    """Topics with batch queues."""


class Catalog:
    """The topics of a store, and their ``queues``.

    With ``complete``, other queues certainly do not exist; otherwise some may have been lost.
    ``removed`` maps deleted topics to the end of the log at that time. ``store_time`` returns the
    store time (ms) of the record at a physical offset.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        queues: Iterable[QueueKey],
        store_time: Callable[[int], int | None],
        *,
        complete: bool = False,
        removed: Mapping[str, int] | None = None,
    ) -> None:
        self._queues = frozenset(queues)
        self._with_queues = {topic for topic, _ in self._queues}
        self._complete = complete
        self._removed = removed or {}
        self._store_time = store_time
        self._content = _read(files, root / CONFIG / TOPICS_JSON)
        batches = frozenset(files.names(root / BATCH_CONSUME_QUEUE))
        if _BATCH_QUEUES.encode() in self._content:
            batches |= self._listed.batches
        self.batches = batches - self._with_queues
        """Topics that have only batch queues; Java does not start with ordinary ones beside them.

        Their messages are not read, and puts to them are refused.
        """

    @cached_property
    def _listed(self) -> TopicList:
        return parse_topics(self._content)  # only when it is needed, because it takes a while

    def is_deleted(self, topic: str, newest: int) -> bool:
        """Return whether a topic whose newest message in the log is at ``newest`` was deleted.

        That is so if it has no queues, and the list of topics was changed after the message was
        stored and lacks the topic. An older list proves nothing: it is saved after the first send
        to a topic, not before it, and may come from a backup.
        """
        if topic in self._with_queues or topic in self._listed.names or _is_internal(topic):
            return False
        stored = self._store_time(newest)
        return stored is not None and stored < self._listed.changed_ms

    def was_removed(self, topic: str, offset: int) -> bool:
        """Return whether a topic is known to have been deleted after its record at ``offset``."""
        return offset < self._removed.get(topic, 0)

    def may_have(self, topic: str) -> bool:
        """Return whether a topic may exist: it is listed, or there is no list."""
        return not self._listed.names or topic in self._listed.names

    def is_former(self, key: QueueKey, newest: int, created: int) -> bool:
        """Return whether all messages of a queue, the newest at ``newest``, are of a deleted topic.

        The topic's other queues begin again at ``created``, or not at all if that is -1. The queue
        must not exist, because all queues are deleted with their topic. If the topic has no queues
        at all, they were more likely lost, unless it is known to have been ``removed``.
        """
        if key in self._queues:
            return False
        if self._complete or self.was_removed(key[0], newest):
            return True
        return key[0] in self._with_queues and newest < created


def _is_internal(topic: str) -> bool:
    return is_light(topic) or topic in _NOT_LISTED or topic.lower().startswith(SYSTEM_PREFIX)


def _read(files: Files, path: Path) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError:
        return b""


def parse_topics(content: bytes) -> TopicList:
    """Return the topics in a ``topics.json``; none if it cannot be parsed."""
    try:
        value = config_json.loads(content)
        table: dict[Any, Any] = value["topicConfigTable"]
        return TopicList(
            frozenset(map(str, table)),
            int(value.get("dataVersion", {}).get("timestamp", 0)),
            frozenset(str(name) for name, topic in table.items() if _has_batches(topic)),
        )
    except (FormatError, KeyError, TypeError, ValueError, AttributeError):
        return TopicList()


def _has_batches(topic: dict[str, Any]) -> bool:
    attributes = topic.get("attributes") or {}
    return bool(attributes.get(_QUEUE_TYPE) == _BATCH_QUEUES)
