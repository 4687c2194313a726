"""A part of the log that is lost: its messages, queue offsets and times, by queue."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from firetrail.store.log.good_records import GoodRecord
from firetrail.store.queues.generations import begins_generation
from firetrail.store.queues.queue_table import QueueKey


@dataclass(slots=True)
class QueueLoss:
    """The messages of one queue that would be lost."""

    topic: str
    queue_id: int
    first_offset: int
    end_offset: int
    """The queue offset after the last one."""
    readable: int = 0
    """The number of good ones among them."""
    first_stored: int | None = None
    last_stored: int | None = None
    """Store times (ms) of the first and the last good message."""

    @property
    def messages(self) -> int:
        """The number of messages."""
        return self.end_offset - self.first_offset


@dataclass(slots=True)
class Loss:
    """The content of the log from ``begin`` on."""

    begin: int
    end: int
    detail: str
    """The damage at ``begin``."""
    queues: list[QueueLoss] = field(default_factory=list)
    others: int = 0
    """Good records that are in no queue: prepared or rolled-back messages."""

    @property
    def messages(self) -> int:
        """The number of messages in queues."""
        return sum(queue.messages for queue in self.queues)

    @property
    def readable(self) -> int:
        """The number of good messages in queues."""
        return sum(queue.readable for queue in self.queues)

    @property
    def is_empty(self) -> bool:
        """Whether no record is lost."""
        return not self.messages and not self.others

    def as_json(self) -> dict[str, object]:
        """Return everything in a form for scripts."""
        return {
            "begin_offset": self.begin,
            "end_offset": self.end,
            "detail": self.detail,
            "messages": self.messages,
            "readable": self.readable,
            "others": self.others,
            "queues": [
                {
                    "topic": queue.topic,
                    "queue_id": queue.queue_id,
                    "first_offset": queue.first_offset,
                    "last_offset": queue.end_offset - 1,
                    "messages": queue.messages,
                    "readable": queue.readable,
                    "first_stored": queue.first_stored,
                    "last_stored": queue.last_stored,
                }
                for queue in self.queues
            ],
        }


def count_records(loss: Loss, records: Iterable[GoodRecord]) -> Iterator[GoodRecord]:
    """Yield the same records, and count them as lost."""
    queues = {(queue.topic, queue.queue_id): queue for queue in loss.queues}
    known = {key: (queue.first_offset, queue.end_offset) for key, queue in queues.items()}
    for record in records:
        if record.in_queue:
            _count(queues, known, record)
        else:
            loss.others += 1
        yield record
    loss.queues = [queues[pair] for pair in sorted(queues)]


def _count(
    queues: dict[QueueKey, QueueLoss], known: Mapping[QueueKey, tuple[int, int]], record: GoodRecord
) -> None:
    """Count a message that can be read, which its queue may not have had yet.

    If it begins a new generation of its queue, only the messages that the queue is ``known`` to
    have count before it.
    """
    key, number = (record.topic, record.queue_id), record.queue_offset
    queue = queues.get(key)
    if queue is None or (queue.readable and begins_generation(number, queue.end_offset)):
        queue = queues[key] = QueueLoss(*key, *known.get(key, (number, number)))
    queue.end_offset = max(queue.end_offset, record.queue_offset + 1)
    queue.readable += 1
    if queue.first_stored is None:
        queue.first_stored = record.store_time
    queue.last_stored = record.store_time
