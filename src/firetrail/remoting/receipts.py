"""Receipts of popped messages: what a consumer shows to acknowledge one.

::

    <start> <pop time> <invisible ms> <revive queue> <retry> <broker> <queue> <offset>

``start`` is the offset that the pop began at. They are RocketMQ's "extra info", and stand in the
property ``POP_CK``. A pop is answered with what the receipts of its messages have in common; the
client puts them together. RocketMQ's gRPC proxy appends the commit log offset as a ninth word;
further words are ignored, as RocketMQ's broker does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from firetrail.errors import RequestError
from firetrail.format.names import RETRY_PREFIX, pop_retry_topic
from firetrail.remoting.codes import ResponseCode

ORDERED = 999
"""The "revive queue" of pops in order, whose state is elsewhere."""
NORMAL, RETRY, RETRY_V2 = "0", "1", "2"
"""Whether a message is from the topic itself, or from one of the topics of those that come again.

The second of these is used by Java brokers with ``enableRetryTopicV2``.
"""

Places = Mapping[tuple[bool, int], list[int]]
"""Offsets by queue id, and whether it is a queue of the retry topic."""


class Receipt(NamedTuple):
    """The right to acknowledge a message, for as long as it is invisible to others."""

    start: int
    pop_time: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker_name: str
    queue_id: int
    offset: int

    @classmethod
    def decode(cls, text: str) -> Receipt:
        """The receipt in a text; RequestError if it is none."""
        words = text.split(" ")
        try:
            start, time, invisible, revive = map(int, words[:4])
            retry, broker_name = words[4:6]
            queue_id, offset = map(int, words[6:8])
        except ValueError:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"{text!r:.200} is not the receipt of a message"
            ) from None
        return cls(start, time, invisible, revive, retry, broker_name, queue_id, offset)

    def encode(self) -> str:
        """The text."""
        return " ".join(map(str, self))

    def topic(self, topic: str, group: str) -> str:
        """The topic that the message is in: ``topic``, or where what comes again is."""
        return real_topic(topic, group, self.retry)


def real_topic(topic: str, group: str, retry: str) -> str:
    """The topic, or the one of its messages that come again."""
    if retry == NORMAL or topic.startswith(RETRY_PREFIX):
        return topic
    return pop_retry_topic(topic, group, "+" if retry == RETRY_V2 else "_")


def encode_places(places: Iterable[tuple[bool, int, Iterable[int]]]) -> str:
    """``retry queue offset,offset;…``: whether of the retry topic, queue id, offsets."""
    return ";".join(
        f"{RETRY if again else NORMAL} {queue_id} {','.join(map(str, offsets))}"
        for again, queue_id, offsets in places
    )


def encode_counts(counts: Iterable[tuple[int, int, int]]) -> str:
    """How often messages of pops in order were popped before: queue id, offset, times.

    For older clients each queue has the least of its messages behind them.
    """
    parts = []
    least: dict[int, int] = {}
    for queue_id, offset, times in counts:
        least[queue_id] = min(least.get(queue_id, times), times)
        if times:
            parts.append(f"{NORMAL} qo{queue_id}%{offset} {times}")
    return ";".join(parts + [f"{NORMAL} {queue_id} {times}" for queue_id, times in least.items()])


def decode_places(text: str | None) -> Places:
    """The same read; RequestError for what is not of this form."""
    found: dict[tuple[bool, int], list[int]] = {}
    for part in filter(None, (text or "").split(";")):
        try:
            retry, queue_id, offsets = part.split(" ")
            found[retry != NORMAL, int(queue_id)] = list(map(int, offsets.split(",")))
        except ValueError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{text!r:.200} does not say where messages stand"
            ) from None
    return found
