"""Messages as consumers receive them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from firetrail.errors import FormatError
from firetrail.format.compression import inflated
from firetrail.format.layout import COMPRESSED, RECORD_SIZE_MIN
from firetrail.format.names import RETRY_PREFIX
from firetrail.format.properties import RETRY_TOPIC
from firetrail.format.record import Record, decode_received
from firetrail.remoting.messages.bodies import MessageQueue


@dataclass(frozen=True)
class Received:
    """A message that a consumer received.

    Args:
        queue: The queue that the message came from.
        record: The message as it is stored.
    """

    queue: MessageQueue
    record: Record

    @property
    def topic(self) -> str:
        """The topic that the message was sent to, also if it came from the retry topic."""
        if self.queue.topic.startswith(RETRY_PREFIX):
            return self.properties.get(RETRY_TOPIC, self.queue.topic)
        return self.queue.topic

    @cached_property
    def body(self) -> bytes:
        """The body, decompressed if necessary.

        Raises FormatError if it cannot be decompressed; ``record.body`` is the body as it is
        stored.
        """
        record, queue = self.record, self.queue
        if not record.sys_flag & COMPRESSED:
            return record.body
        try:
            return inflated(record.body, record.sys_flag)
        except FormatError as error:
            raise FormatError(
                f"the compressed body of the message in {queue.topic} queue {queue.queue_id} "
                f"of {queue.broker_name}",
                record.queue_offset,
                error.detail,
            ) from None

    @cached_property
    def properties(self) -> dict[str, str]:
        """All properties of the message."""
        return self.record.properties

    @property
    def tags(self) -> str | None:
        """The tag; None if the message has none."""
        return self.record.tags

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys under which the message is indexed."""
        return self.record.keys

    @property
    def message_id(self) -> str:
        """The id that the producer assigned; without one, the id that the broker assigned."""
        return self.record.unique_key or self.record.message_id

    @property
    def queue_id(self) -> int:
        """The number of the queue that the message came from."""
        return self.queue.queue_id

    @property
    def queue_offset(self) -> int:
        """The number of the message within its queue."""
        return self.record.queue_offset

    @property
    def reconsume_times(self) -> int:
        """The number of earlier deliveries that did not succeed."""
        return self.record.reconsume_times

    def tried(self, times: int) -> Received:
        """Return the same message with another ``reconsume_times``.

        Args:
            times: The new value.
        """
        return Received(self.queue, self.record._replace(reconsume_times=times))


class Damaged(NamedTuple):
    """The first run of damaged messages in an answer."""

    before: int
    """The number of good messages before the run."""
    in_a_row: int
    """The length of the run."""
    error: FormatError
    """The error of its first message."""


def decode_good(queue: MessageQueue, raw: bytes) -> tuple[list[Received], Damaged | None]:
    """Decode the messages in the body of a response, skipping damaged ones.

    The caller has to report the damage, because it knows the offset. The good messages after a
    damaged one may be incomplete, because the size of the damaged one can be wrong.
    """
    view = memoryview(raw)
    found: list[Received] = []
    damaged: Damaged | None = None
    at = 0
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        try:
            found.append(Received(queue, decode_received(view[at : at + size])))
        except FormatError as error:
            if damaged is None:
                damaged = Damaged(len(found), 1, error)
            elif damaged.before == len(found):
                damaged = damaged._replace(in_a_row=damaged.in_a_row + 1)
            if size < RECORD_SIZE_MIN:
                break
        at += size
    return found, damaged


def decode_all(queue: MessageQueue, raw: bytes) -> Iterator[Received]:
    """Yield the messages in the body of a response; raise FormatError if one is damaged."""
    view = memoryview(raw)
    at = 0
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        record = decode_received(view[at : at + size])
        yield Received(queue, record)
        at += record.size
