"""Receipts of popped messages, with which consumers acknowledge them.

::

    <start> <pop time> <invisible ms> <revive queue> <retry> <broker> <queue> <offset>

``start`` is the offset at which the pop started. A receipt is RocketMQ's "extra info", and is
stored in the property ``POP_CK``. The answer to a pop contains the common parts of the receipts of
its messages, and the client builds the receipts. RocketMQ's gRPC proxy appends the commit log
offset as a ninth word; additional words are ignored, as in RocketMQ's broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from firetrail.errors import RequestError
from firetrail.format.names import RETRY_PREFIX, pop_retry_topic
from firetrail.remoting.codes import ResponseCode

ORDERED = 999
"""The "revive queue" of pops in order, whose state is not in a revive queue."""
NORMAL, RETRY, RETRY_V2 = "0", "1", "2"
"""Whether a message comes from the topic itself or from one of its two retry topics.

The second retry topic is used by Java brokers with ``enableRetryTopicV2``.
"""

Places = Mapping[tuple[bool, int], list[int]]
"""Offsets by queue: whether it belongs to the retry topic, and its id."""


class Receipt(NamedTuple):
    """The handle that acknowledges a message while it is invisible to other consumers."""

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
        """Decode a receipt; raise RequestError if it is invalid."""
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
        """Encode the receipt as text."""
        return " ".join(map(str, self))

    def topic(self, topic: str, group: str) -> str:
        """Return the topic that the message is stored in: ``topic`` or its retry topic."""
        return real_topic(topic, group, self.retry)


def real_topic(topic: str, group: str, retry: str) -> str:
    """Return the topic, or its retry topic for a group."""
    if retry == NORMAL or topic.startswith(RETRY_PREFIX):
        return topic
    return pop_retry_topic(topic, group, "+" if retry == RETRY_V2 else "_")


def encode_places(places: Iterable[tuple[bool, int, Iterable[int]]]) -> str:
    """Encode offsets as ``retry queue offset,offset;…``.

    Each item is whether the queue belongs to the retry topic, its id, and the offsets.
    """
    return ";".join(
        f"{RETRY if is_retry else NORMAL} {queue_id} {','.join(map(str, offsets))}"
        for is_retry, queue_id, offsets in places
    )


def encode_counts(counts: Iterable[tuple[int, int, int]]) -> str:
    """Encode how often messages of pops in order were popped before: queue id, offset, times.

    For older clients, the lowest count of each queue follows.
    """
    parts = []
    least: dict[int, int] = {}
    for queue_id, offset, times in counts:
        least[queue_id] = min(least.get(queue_id, times), times)
        if times:
            parts.append(f"{NORMAL} qo{queue_id}%{offset} {times}")
    return ";".join(parts + [f"{NORMAL} {queue_id} {times}" for queue_id, times in least.items()])


def decode_places(text: str | None) -> Places:
    """Decode the result of :func:`encode_places`; raise RequestError if it is invalid."""
    found: dict[tuple[bool, int], list[int]] = {}
    for part in filter(None, (text or "").split(";")):
        try:
            retry, queue_id, offsets = part.split(" ")
            found[retry != NORMAL, int(queue_id)] = list(map(int, offsets.split(",")))
        except ValueError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{text!r:.200} is not a list of queue offsets"
            ) from None
    return found
