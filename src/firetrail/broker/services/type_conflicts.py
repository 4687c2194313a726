"""Reports of messages that are of another type than their topic.

RocketMQ accepts them over the remoting protocol, and so does Firetrail. A gRPC client could not
send them, so they usually show that a topic was created for something else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from firetrail.errors import FormatError
from firetrail.format.batch import first_item
from firetrail.format.message_types import TYPE_ATTRIBUTE, type_conflict
from firetrail.format.properties import decode_properties
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.messages.headers import SendHeader

REPORT_INTERVAL_S = 60.0
"""Pause between two log lines about one topic."""
TOPICS_MAX = 1_000
"""Maximum number of topics whose conflicts are counted; the one counted longest is forgotten."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _ConflictCount:
    messages: int = 0
    reported_at: float = float("-inf")


class TypeConflicts:
    """Counts such messages by topic, and logs some of them.

    Args:
        monotonic: returns a time in seconds that never goes back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._counts: dict[str, _ConflictCount] = {}

    def check(
        self,
        topic: TopicConfig,
        header: SendHeader,
        properties: Mapping[str, str],
        content: bytes,
        peer: str,
    ) -> None:
        """Report a message, or the first message of a batch, if it does not fit its topic."""
        attributes = topic.attributes or {}
        if TYPE_ATTRIBUTE not in attributes:
            return
        if header.batch:
            try:
                properties = decode_properties(first_item(content).properties)
            except FormatError:  # the store refuses the batch and gives the reason
                return
        conflict = type_conflict(topic.topic_name, attributes, properties)
        if conflict is None:
            return
        count = self._count(topic.topic_name)
        count.messages += 1
        now = self._monotonic()
        if now - count.reported_at < REPORT_INTERVAL_S:
            return
        count.reported_at = now
        _log.warning(
            "topic %s has the type %s, but %s (producer group %.120s) sent a message of the type "
            "%s; it was accepted, but gRPC clients cannot send such a message; %d so far; to allow "
            "all types: firetrail topic create %s --type MIXED --queues %d",
            topic.topic_name,
            conflict.wanted,
            peer,
            header.producer_group,
            conflict.found,
            count.messages,
            topic.topic_name,
            topic.write_queue_nums,
        )

    def _count(self, topic: str) -> _ConflictCount:
        count = self._counts.get(topic)
        if count is None:
            if len(self._counts) >= TOPICS_MAX:
                del self._counts[next(iter(self._counts))]
            count = self._counts[topic] = _ConflictCount()
        return count
