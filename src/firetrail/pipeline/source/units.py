"""The units of consume queues, for those who only read: opened, searched, copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from firetrail.errors import DataLostError
from firetrail.format.unit import UNIT_SIZE, ConsumeQueueUnit
from firetrail.pipeline.kernels.pick import ANY_QUEUE, NO_UNITS, Picker
from firetrail.pipeline.source.splits import QueueRange, QueueSet, RowSelection
from firetrail.pipeline.workers import not_shared
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.system import System


@contextmanager
def open_queue(store: str, topic: str, queue_id: int, file_size: int) -> Iterator[ConsumeQueue]:
    """A queue of a store, closed at the end."""
    queue = ConsumeQueue(System(), Path(store), topic, queue_id, file_size, writable=False)
    with closing(queue):
        queue.load()
        yield queue


def check_queue(queue: ConsumeQueue, end: int) -> None:
    """Raise NotSharedError unless a queue reaches up to offset ``end``, as it did for the planner.

    Retention never deletes the last file of a queue.
    """
    if queue.max_offset < end:
        what = f"ends at offset {queue.max_offset}" if queue.files.segments else "has no files"
        raise not_shared(queue.files.folder, f"the driver saw this queue up to {end}, it {what}")


def first_behind(
    queue: ConsumeQueue, begin: int, end: int, physical_offset: int, *, damaged: bool = False
) -> int:
    """The first offset in ``begin..end`` whose record begins at ``physical_offset`` or later.

    ``damaged`` says whether a unit that no record can have counts as such a one. It must where a
    range begins, and must not where one ends, or it would hide the units beside it.
    """

    def is_behind(unit: ConsumeQueueUnit) -> bool:
        return unit.physical_offset >= physical_offset if unit.is_written else damaged

    return queue.first_where(begin, end, is_behind)


def read_units(queue: ConsumeQueue, begin: int, end: int) -> bytes:
    """The stored units of a range. Raises DataLostError if a part of it is gone."""
    parts = []
    at = begin * UNIT_SIZE
    while at < end * UNIT_SIZE:
        segment = queue.files.find(at)
        view = segment.look() if segment is not None else None
        if segment is None or view is None:
            raise DataLostError(
                f"queue {queue.topic}/{queue.queue_id} no longer has offset {at // UNIT_SIZE}: "
                f"it begins at {queue.files.min_offset // UNIT_SIZE} now"
            )
        stop = min(end * UNIT_SIZE - segment.base, segment.size)
        parts.append(bytes(view[at - segment.base : stop]))
        at = segment.base + stop
    return b"".join(parts)


class Chooser:
    """Picks what is wanted of the records of a part of the log, and knows what was expected."""

    def __init__(
        self,
        ranges: list[QueueRange] | None,
        units: bytes,
        wanted: RowSelection,
        *,
        has_units: bool = False,
    ) -> None:
        entries: list[tuple[str, int, int, int, int]] | None = None
        if ranges is not None:
            entries = []
            at = 0
            for part in ranges:
                place = at if has_units else NO_UNITS
                entries.append((part.topic, part.queue_id, part.begin, part.end, place))
                at += part.count * UNIT_SIZE
        elif wanted.topics is not None:
            entries = [(topic, ANY_QUEUE, 0, 0, NO_UNITS) for topic in wanted.topics]
        self.picker = Picker(
            entries,
            units or b"\0",
            wanted.tags,
            wanted.key,
            wanted.since,
            wanted.until,
            wanted.dispatched,
        )
        self._ranges = ranges if has_units else None

    @classmethod
    def of_log(
        cls, store: str, queues: QueueSet | None, wanted: RowSelection, start: int, end: int
    ) -> Chooser:
        """For the records from ``start`` up to ``end``: their units are read here."""
        if queues is None or not queues.file_size:
            ranges = None if queues is None else list(queues.ranges)
            return cls(ranges, b"", wanted, has_units=False)
        found: list[QueueRange] = []
        units: list[bytes] = []
        for part in queues.ranges:
            with open_queue(store, part.topic, part.queue_id, queues.file_size) as queue:
                check_queue(queue, part.end)
                begin = first_behind(queue, part.begin, part.end, start, damaged=True)
                stop = first_behind(queue, begin, part.end, end)
                if begin < stop:
                    units.append(read_units(queue, begin, stop))
                    found.append(QueueRange(part.topic, part.queue_id, begin, stop))
        return cls(found, b"".join(units), wanted, has_units=True)

    @classmethod
    def of_units(
        cls, part: QueueRange, begin: int, end: int, units: bytes, wanted: RowSelection
    ) -> Chooser:
        """For the records that a part of a range's units point to."""
        found = QueueRange(part.topic, part.queue_id, begin, end)
        return cls([found], units, wanted, has_units=True)

    def missed(self) -> tuple[QueueRange, int] | None:
        """A range whose units do not all have their record, and how many have."""
        for number, part in enumerate(self._ranges or ()):
            seen = self.picker.seen(number)
            if seen != part.count:
                return part, seen
        return None
