"""A message as a consumer gets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from firetrail.client.compression import inflated
from firetrail.errors import FormatError
from firetrail.format.layout import COMPRESSED, RECORD_SIZE_MIN
from firetrail.format.names import RETRY_PREFIX
from firetrail.format.properties import RETRY_TOPIC
from firetrail.format.record import Record, decode_received
from firetrail.remoting.bodies import MessageQueue


@dataclass(frozen=True)
class Received:
    """A message, and the queue it came from."""

    queue: MessageQueue
    record: Record

    @property
    def topic(self) -> str:
        """The topic it was sent to; of one that is tried again, not the retry topic."""
        if self.queue.topic.startswith(RETRY_PREFIX):
            return self.properties.get(RETRY_TOPIC, self.queue.topic)
        return self.queue.topic

    @cached_property
    def body(self) -> bytes:
        """The body, inflated if the producer has compressed it; FormatError if that cannot be."""
        record = self.record
        return (
            inflated(record.body, record.sys_flag) if record.sys_flag & COMPRESSED else record.body
        )

    @cached_property
    def properties(self) -> dict[str, str]:
        """The properties by name."""
        return self.record.properties

    @property
    def tags(self) -> str | None:
        """The tag."""
        return self.record.tags

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys."""
        return self.record.keys

    @property
    def message_id(self) -> str:
        """The id that the producer gave it; the broker's, if it gave none."""
        return self.record.unique_key or self.record.message_id

    @property
    def queue_id(self) -> int:
        """The number of the queue that it came from."""
        return self.queue.queue_id

    @property
    def queue_offset(self) -> int:
        """Its place in the queue."""
        return self.record.queue_offset

    @property
    def reconsume_times(self) -> int:
        """How often it was tried before."""
        return self.record.reconsume_times

    def tried(self, times: int) -> Received:
        """The same message, tried so often."""
        return Received(self.queue, self.record._replace(reconsume_times=times))


class Damaged(NamedTuple):
    """The first damaged messages in an answer."""

    before: int
    """Good messages before them."""
    in_a_row: int
    """How many there are, one behind the other."""
    error: FormatError
    """What is wrong with the first."""


def decode_good(queue: MessageQueue, raw: bytes) -> tuple[list[Received], Damaged | None]:
    """As :func:`decode_all`, for consumers, who get on: what is damaged is left out.

    What is left out has to be reported by the caller, who knows where it stands. Good messages
    behind it may not be all, for its size can be wrong.
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
    """The messages in the body of a response, one behind the other."""
    view = memoryview(raw)
    at = 0
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        record = decode_received(view[at : at + size])
        yield Received(queue, record)
        at += record.size
