"""The progress of a table: the messages of each broker's queues that it has.

Tasks report the offsets that they read as spans. The driver puts the spans of a queue together: one
that begins before the last one ended is a message read twice, one that begins later is a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.format.layout import COMPRESSED


class Span(NamedTuple):
    """Consecutive offsets of a queue, from ``begin`` up to ``end``."""

    queue_id: int
    begin: int
    end: int


class QueueProgress(NamedTuple):
    """The part of a queue that a table has: ``begin`` up to ``end``, without ``lost`` messages."""

    begin: int
    end: int
    lost: int = 0


class NewestMessage(NamedTuple):
    """The newest message of a broker in a table, which identifies the broker's log."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    msg_id: str
    store_ms: int
    digest: str = ""
    """The hash of its content; empty if it cannot be decompressed, and in tables without one."""


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """The messages of one broker that a table has.

    Every message of the topic before the physical offset ``read_to`` is in the table, if it was
    still there to be read. It is 0 if the source has no log.
    """

    queues: Mapping[int, QueueProgress] = field(default_factory=dict)
    read_to: int = 0
    anchor: NewestMessage | None = None

    @property
    def messages(self) -> int:
        """The number of messages that were read."""
        return sum(queue.end - queue.begin for queue in self.queues.values()) - self.lost

    @property
    def lost(self) -> int:
        """The number of messages that had been deleted before they were read."""
        return sum(queue.lost for queue in self.queues.values())

    def ends(self) -> dict[int, int]:
        """Return the offset of the next message of each queue."""
        return {queue_id: queue.end for queue_id, queue in self.queues.items()}

    def extended(self, spans: Iterable[Span], read_to: int, anchor: NewestMessage | None) -> Self:
        """Return the progress after some spans; the offsets between them are lost.

        Raises:
            ValueError: A message was read twice; the text says which.
        """
        queues = dict(self.queues)
        for span in sorted(spans):
            if span.queue_id not in queues:
                queues[span.queue_id] = QueueProgress(span.begin, span.end)
                continue
            known = queues[span.queue_id]
            if span.begin < known.end:
                raise ValueError(f"offset {span.begin} of queue {span.queue_id} was read twice")
            lost = known.lost + span.begin - known.end
            queues[span.queue_id] = QueueProgress(known.begin, span.end, lost)
        newest = max(
            (found for found in (self.anchor, anchor) if found is not None),
            key=lambda found: found.physical_offset,
            default=None,
        )
        return type(self)(queues, max(self.read_to, read_to), newest)

    def as_json(self) -> dict[str, Any]:
        """Return the progress as a value of JSON."""
        return {
            "queues": {str(number): list(queue) for number, queue in sorted(self.queues.items())},
            "read_to": self.read_to,
            "anchor": None if self.anchor is None else self.anchor._asdict(),
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the progress that :meth:`as_json` returned as a value."""
        queues = {int(number): QueueProgress(*queue) for number, queue in value["queues"].items()}
        anchor = value["anchor"]
        return cls(
            queues, int(value["read_to"]), None if anchor is None else NewestMessage(**anchor)
        )


def lost_between(before: BrokerProgress, after: BrokerProgress) -> list[Span]:
    """Return the lost messages of each queue, as spans that begin where it had ended."""
    found = []
    for queue_id, queue in sorted(after.queues.items()):
        known = before.queues.get(queue_id, QueueProgress(queue.begin, queue.begin))
        if queue.lost > known.lost:
            found.append(Span(queue_id, known.end, known.end + queue.lost - known.lost))
    return found


def lost_count(before: BrokerProgress, after: BrokerProgress) -> int:
    """Return the number of messages that were lost."""
    return sum(span.end - span.begin for span in lost_between(before, after))


def content_digest(row: pa.RecordBatch) -> str:
    """Return the hash of the content of one message; empty if its body is still compressed.

    The id does not prove it: that of a message from an embedded store is its place in the log.
    """
    if row.column("sys_flag")[0].as_py() & COMPRESSED:
        return ""
    born = row.column("born_time").cast(pa.int64())[0].as_py()
    properties = sorted(row.column("properties")[0].as_py() or ())
    content = repr((born, properties, row.column("body")[0].as_py() or b""))
    return sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


class SpanCollector:
    """Collects the offsets of the rows that a task reads, and its newest message."""

    def __init__(self) -> None:
        self._ends: dict[int, list[tuple[int, int]]] = {}
        self.anchor: NewestMessage | None = None
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch with the columns of the source."""
        if batch.num_rows == 0:
            return
        self.rows += batch.num_rows
        queue_ids, offsets = batch.column("queue_id"), batch.column("queue_offset")
        for queue_id in queue_ids.unique().to_pylist():
            of_queue = offsets.filter(pc.equal(queue_ids, queue_id)).sort().to_pylist()
            ends = self._ends.setdefault(queue_id, [])
            if of_queue[-1] - of_queue[0] + 1 == len(set(of_queue)) == len(of_queue):
                ends.append((of_queue[0], of_queue[-1] + 1))
            else:
                ends += [(offset, offset + 1) for offset in of_queue]
        self._look_for_newest(batch)

    def _look_for_newest(self, batch: pa.RecordBatch) -> None:
        places = batch.column("physical_offset")
        highest = pc.max(places).as_py()
        if self.anchor is None or highest > self.anchor.physical_offset:
            row = batch.slice(places.index(highest).as_py(), 1)
            stored = row.column("store_time").cast(pa.int64())[0].as_py()
            self.anchor = NewestMessage(
                row.column("queue_id")[0].as_py(),
                row.column("queue_offset")[0].as_py(),
                highest,
                row.column("msg_id")[0].as_py() or "",
                (stored or 0) // 1000,
                content_digest(row),
            )

    def spans(self) -> list[Span]:
        """Return the offsets that were added, as few spans."""
        found: list[Span] = []
        for queue_id, ends in sorted(self._ends.items()):
            for begin, end in sorted(ends):
                last = found[-1] if found else None
                if last is not None and last.queue_id == queue_id and last.end == begin:
                    found[-1] = last._replace(end=end)
                else:
                    found.append(Span(queue_id, begin, end))
        return found
