"""Receipts of popped messages, with which consumers acknowledge them.

::

    <start> <pop time> <invisible ms> <revive queue> <retry> <broker> <queue> <offset> <log offset>

``start`` is the offset at which the pop started. A receipt is RocketMQ's "extra info", and is
stored in the property ``POP_CK``. The answer to a pop contains the common parts of the receipts of
its messages, and the client builds the receipts. Only the gRPC service writes the ninth word: the
physical offset of the record in the commit log, by which it moves a message to the dead letters.
Further words are ignored, as in RocketMQ's broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from firetrail.errors import RequestError
from firetrail.format.names import (
    RETRY_PREFIX,
    is_retry_topic_v2,
    pop_retry_topic,
    pop_retry_topic_v2,
)
from firetrail.format.values.integers import INT32_MAX, number_in, parse_whole
from firetrail.remoting.messages.pop.pop_headers import PopResponse
from firetrail.remoting.wire.codes import ResponseCode

ORDERED = 999
"""The "revive queue" of pops in order, whose state is not in a revive queue."""
NORMAL, RETRY, RETRY_V2 = "0", "1", "2"
"""Whether a message comes from the topic itself or from one of its two retry topics.

The second retry topic is used by Java brokers with ``enableRetryTopicV2``.
"""
_KINDS = (NORMAL, RETRY, RETRY_V2)

Places = Mapping[tuple[str, int], list[int]]
"""Offsets by queue: the kind of its topic (``NORMAL``, ``RETRY``, ``RETRY_V2``), and its id."""


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
    log_offset: int | None = None
    """The physical offset of the record; None in receipts that do not contain it."""

    @classmethod
    def decode(cls, text: str) -> Receipt:
        """Decode a receipt; raise RequestError if it is invalid."""
        words = text.split(" ")
        try:
            start, time, invisible = (parse_whole(word) for word in words[:3])
            revive, queue_id = (parse_whole(words[at], most=INT32_MAX) for at in (3, 6))
            retry, broker_name, offset = words[4], words[5], parse_whole(words[7])
            if retry not in _KINDS or not broker_name:
                raise ValueError
        except (ValueError, IndexError):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"{text!r:.200} is not the receipt of a message"
            ) from None
        log_offset = number_in(words[8], 0) if len(words) > 8 else None
        return cls(start, time, invisible, revive, retry, broker_name, queue_id, offset, log_offset)

    def encode(self) -> str:
        """Encode the receipt as text."""
        start, pop_time, invisible_ms, revive_queue, retry, name, queue_id, offset, log_offset = (
            self
        )
        text = (
            f"{start} {pop_time} {invisible_ms} {revive_queue} {retry} {name} {queue_id} {offset}"
        )
        return text if log_offset is None else f"{text} {log_offset}"

    def topic(self, topic: str, group: str) -> str:
        """Return the topic that the message is stored in: ``topic`` or its retry topic."""
        return real_topic(topic, group, self.retry)


class PopReceipts:
    """The receipts of the messages in the answer to a pop.

    Args:
        answer: The header of the answer.
        broker_name: The name of the broker that answered.
    """

    def __init__(self, answer: PopResponse, broker_name: str) -> None:
        self._answer = answer
        self._broker_name = broker_name
        self._starts = decode_places(answer.start_offset_info)
        self._places: Places | None = None  # only decoded if a message carries a receipt

    def of(self, topic: str, queue_id: int, offset: int, carried: str | None) -> Receipt:
        """Return the receipt of a message.

        Args:
            topic: The topic of the record.
            queue_id: The queue of the record.
            offset: The queue offset of the record.
            carried: The property POP_CK, None if there is none. Redelivered messages carry their
                receipts in it. Other messages have it only if their producer has sent it.
        """
        if carried is not None:
            places = self._places = self._places or decode_places(self._answer.msg_offset_info)
            if any(offset in places.get((kind, queue_id), ()) for kind in (RETRY, RETRY_V2)):
                return Receipt.decode(carried)
        answer = self._answer
        kind = kind_of(topic)
        return Receipt(
            start=self._starts.get((kind, queue_id), [offset])[0],
            pop_time=answer.pop_time,
            invisible_ms=answer.invisible_time,
            revive_queue=answer.revive_qid,
            retry=kind,
            broker_name=self._broker_name,
            queue_id=queue_id,
            offset=offset,
        )


def real_topic(topic: str, group: str, retry: str) -> str:
    """Return the topic, or its retry topic for a group."""
    if retry == NORMAL or topic.startswith(RETRY_PREFIX):
        return topic
    return (pop_retry_topic_v2 if retry == RETRY_V2 else pop_retry_topic)(topic, group)


def kind_of(topic: str) -> str:
    """Return the kind of a topic, as in receipts."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if is_retry_topic_v2(topic) else RETRY


def encode_places(places: Iterable[tuple[str, int, Iterable[int]]]) -> str:
    """Encode offsets as ``kind queue offset,offset;…``.

    Each item is the kind of the queue's topic, the id of the queue, and the offsets.
    """
    return ";".join(
        f"{kind} {queue_id} {','.join(map(str, offsets))}" for kind, queue_id, offsets in places
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


def decode_counts(text: str | None) -> dict[tuple[int, int], int]:
    """Decode the result of :func:`encode_counts` by queue id and offset; zeros are left out.

    The lowest counts of the queues are ignored. Raise RequestError if the text is invalid.
    """
    found: dict[tuple[int, int], int] = {}
    for part in filter(None, (text or "").split(";")):
        try:
            _, place, times = part.split(" ")
            if place.startswith("qo"):
                queue_id, offset = place[2:].split("%")
                found[parse_whole(queue_id), parse_whole(offset)] = parse_whole(times)
        except ValueError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{text!r:.200} is not a list of delivery counts"
            ) from None
    return found


def decode_places(text: str | None) -> Places:
    """Decode the result of :func:`encode_places`; raise RequestError if it is invalid."""
    found: dict[tuple[str, int], list[int]] = {}
    for part in filter(None, (text or "").split(";")):
        try:
            kind, queue_id, offsets = part.split(" ")
            found[kind, parse_whole(queue_id)] = list(map(parse_whole, offsets.split(",")))
        except ValueError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{text!r:.200} is not a list of queue offsets"
            ) from None
    return found
