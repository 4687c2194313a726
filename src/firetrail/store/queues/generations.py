"""The generations of a queue: a topic that was deleted and created again counts from 0 again.

The records of the former topic stay in the log until they expire. A reader of the log therefore
meets the queue offsets of one generation after those of another, and only the last generation is in
the queue.
"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from firetrail.format.light import is_light
from firetrail.format.names import TOPICS_FILE
from firetrail.store.queues.queue_table import QueueKey


class TopicFacts(Protocol):
    """Facts about the topics of a store from other files than its log."""

    @property
    def batches(self) -> frozenset[str]:
        """Topics that have only batch queues."""

    def is_deleted(self, topic: str, newest: int) -> bool:
        """Return whether a topic whose newest message in the log is at ``newest`` was deleted."""

    def must_exist(self, key: QueueKey, newest: int) -> bool | None:
        """Return whether a queue exists or was lost; None if the files do not show it."""


def begins_generation(number: int, end: int) -> bool:
    """Return whether a message begins a new generation of a queue that has ``end`` units.

    Only number 0 does. Any other number that the queue has is a repetition: RocketMQ reuses
    numbers whose units a crash has removed, and the first message of each number counts.
    """
    return number == 0 and end > 0


class Reason(StrEnum):
    """The reason why messages of the log are in no queue; scripts rely on these names."""

    FORMER = "created-again"
    DELETED = "deleted"
    REPEATED = "repeated"
    BATCHES = "batches"


_SENTENCES = {
    Reason.FORMER: "{count} of topic {topic}, which was deleted and created again since, {are} "
    "left out",
    Reason.DELETED: "{count} of topic {topic} {are} left out: "
    f"{TOPICS_FILE} is newer and does not list the topic, so it was deleted",
    Reason.REPEATED: "{count} of topic {topic} {are} left out: other messages have their queue "
    "offsets",
    Reason.BATCHES: "topic {topic} is left out: it has batch queues, which only RocketMQ reads",
}


class OmittedMessages(NamedTuple):
    """Messages of the log that are in no queue, and why."""

    topic: str
    reason: Reason
    messages: int | None
    """None if they were not counted."""

    def __str__(self) -> str:
        count, are = (
            ("1 message", "is") if self.messages == 1 else (f"{self.messages} messages", "are")
        )
        return _SENTENCES[self.reason].format(count=count, topic=self.topic, are=are)


class QueueGenerations:
    """Counts the messages of a log that its queues do not have.

    All units are passed to it in the order of the log, in runs of consecutive numbers. If the log
    is damaged, ``beginnings`` tells where message 0 of the last generation of a queue is or was.
    """

    def __init__(self, beginnings: Mapping[QueueKey, int] | None = None) -> None:
        self._beginnings = beginnings or {}
        self._ends: dict[QueueKey, int] = {}
        self._newest: dict[QueueKey, int] = {}
        self._firsts: dict[QueueKey, int] = {}  # of the last records with consecutive numbers
        self._former_ends: dict[str, int] = {}  # a topic's last record known to be deleted
        self._messages: Counter[QueueKey] = Counter()
        self._former: Counter[QueueKey] = Counter()
        self._repeated: Counter[QueueKey] = Counter()

    def note(self, key: QueueKey, number: int, length: int, first: int, newest: int) -> bool:
        """Count a run, given its first and newest record; return whether a generation begins."""
        end = self._ends.get(key, 0)
        is_new = begins_generation(number, end) or (
            end > 0 and self._newest[key] < self._beginnings.get(key, -1) <= first
        )
        if is_new:
            self._former[key] += self._messages.pop(key) + self._repeated.pop(key, 0)
            last_former = max(self._newest[key], self._former_ends.get(key[0], -1))
            self._former_ends[key[0]] = last_former
        if number != end or not end:
            self._firsts[key] = first
        if is_new:
            end = 0
        known = 0 if is_light(key[0]) else max(min(end - number, length), 0)
        if known:
            self._repeated[key] += known
        self._messages[key] += length - known
        self._ends[key] = max(end, number + length)
        self._newest[key] = newest
        return is_new

    def end(self, key: QueueKey) -> int | None:
        """Return one past the last number of a queue, or None if it has no message."""
        return self._ends.get(key)

    def absent(self, facts: TopicFacts) -> dict[QueueKey, Reason]:
        """Return the queues that do not exist because their topic was deleted."""
        deleted = self._deleted(facts)
        found = dict.fromkeys(self.former(facts), Reason.FORMER)
        return found | {key: Reason.DELETED for key in self._newest if key[0] in deleted}

    def former(self, facts: TopicFacts) -> list[QueueKey]:
        """Return the queues that a topic had before it was deleted and created again.

        If a queue begins again with number 0 in the log, only the messages before that are of a
        former topic, because they were deleted with all queues. All messages that a queue has in
        the log, from ``first`` to ``newest``, are of a former topic if this is certain:

        - A queue that has a folder, or is in a reliable inventory, exists: it is not former.
        - If the inventory records where the topic was deleted last, the queue is former exactly if
          ``newest`` is before that place. Messages after it are never left out.
        - If the inventory is complete up to a place after ``newest``, and lacks the queue, the
          queue is former.
        - Otherwise only the log can prove it: another queue of the topic began again, and its last
          message before that comes after ``first``. The topic was deleted after that message. As
          the numbers from ``first`` to ``newest`` are consecutive, it was not deleted between them,
          and therefore after ``newest``. That another queue began again after ``newest`` does not
          prove it: this queue may have received its first messages after the topic was recreated.

        In case of doubt the queue is kept: messages of a deleted topic do less harm than lost ones.
        """
        return [key for key, newest in self._newest.items() if self._is_former(key, newest, facts)]

    def _is_former(self, key: QueueKey, newest: int, facts: TopicFacts) -> bool:
        must_exist = facts.must_exist(key, newest)
        if must_exist is not None:
            return not must_exist
        return self._firsts[key] < self._former_ends.get(key[0], -1)

    def _deleted(self, facts: TopicFacts) -> set[str]:
        newest: dict[str, int] = {}
        for (topic, _), place in self._newest.items():
            newest[topic] = max(place, newest.get(topic, -1))
        return {topic for topic, place in newest.items() if facts.is_deleted(topic, place)}

    def left_out(self, facts: TopicFacts) -> tuple[OmittedMessages, ...]:
        """Return the messages that are in no queue, by topic and reason."""
        absent = self.absent(facts)
        counts: Counter[tuple[str, Reason]] = Counter()
        for key in self._newest:
            former, repeated = self._former[key], self._repeated[key]
            reason = absent.get(key)
            if reason is not None:
                counts[key[0], reason] += former + repeated + self._messages[key]
            else:
                counts[key[0], Reason.FORMER] += former
                counts[key[0], Reason.REPEATED] += repeated
        found = [OmittedMessages(*cause, count) for cause, count in counts.items() if count]
        found += (OmittedMessages(topic, Reason.BATCHES, None) for topic in facts.batches)
        return tuple(sorted(found, key=lambda each: each[:2]))
