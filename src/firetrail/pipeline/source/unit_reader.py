"""Read access to the units of consume queues: opening, searching and copying."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from firetrail.errors import DataLostError
from firetrail.format.files.unit import UNIT_SIZE, ConsumeQueueUnit
from firetrail.pipeline.kernels.pick import ANY_QUEUE, NO_UNITS, Picker
from firetrail.pipeline.source.plan.store_splits import QueueRange, QueueSet, RowSelection
from firetrail.pipeline.workers import not_shared
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.system import SYSTEM


@contextmanager
def open_queue(store: str, topic: str, queue_id: int, file_size: int) -> Iterator[ConsumeQueue]:
    """Open a queue of a store, and close it at the end of the block."""
    queue = ConsumeQueue(SYSTEM, Path(store), topic, queue_id, file_size, writable=False)
    with closing(queue):
        queue.load()
        yield queue


def check_queue(queue: ConsumeQueue, end: int) -> None:
    """Raise NotSharedError unless a queue has offsets up to ``end``, as it had for the driver.

    Retention never deletes the last file of a queue.
    """
    if queue.max_offset < end:
        state = f"ends at offset {queue.max_offset}" if queue.files.segments else "has no files"
        detail = f"the driver saw this queue up to offset {end}, but it {state}"
        raise not_shared(queue.files.folder, detail)


def first_at_or_after(
    queue: ConsumeQueue, begin: int, end: int, physical_offset: int, *, damaged: bool = False
) -> int:
    """Return the first offset in ``begin..end`` whose record is at ``physical_offset`` or later.

    ``damaged`` says whether an impossible unit counts as such a record. It must count in a search
    for the beginning of a range, and must not in a search for its end; otherwise it would hide the
    units next to it.
    """

    def is_at_or_after(unit: ConsumeQueueUnit) -> bool:
        return unit.physical_offset >= physical_offset if unit.is_written else damaged

    return queue.first_where(begin, end, is_at_or_after)


def read_units(queue: ConsumeQueue, begin: int, end: int) -> bytes:
    """Return the units of a range; raise DataLostError if retention deleted a part of it."""
    parts = []
    at = begin * UNIT_SIZE
    while at < end * UNIT_SIZE:
        segment = queue.files.find(at)
        view = segment.look() if segment is not None else None
        if segment is None or view is None:
            raise DataLostError(
                f"queue {queue.topic}/{queue.queue_id} no longer has offset {at // UNIT_SIZE}: "
                f"it now begins at {queue.files.min_offset // UNIT_SIZE}; read again"
            )
        stop = min(end * UNIT_SIZE - segment.base, segment.size)
        parts.append(bytes(view[at - segment.base : stop]))
        at = segment.base + stop
    return b"".join(parts)


class RecordSelector:
    """Picks the selected records of a part of the log, and counts those that were expected."""

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
    ) -> RecordSelector:
        """Return a selector for the records from ``start`` up to ``end``, whose units it reads."""
        if queues is None or not queues.file_size:
            ranges = None if queues is None else list(queues.ranges)
            return cls(ranges, b"", wanted, has_units=False)
        found: list[QueueRange] = []
        units: list[bytes] = []
        for part in queues.ranges:
            with open_queue(store, part.topic, part.queue_id, queues.file_size) as queue:
                check_queue(queue, part.end)
                begin = first_at_or_after(queue, part.begin, part.end, start, damaged=True)
                stop = first_at_or_after(queue, begin, part.end, end)
                if begin < stop:
                    units.append(read_units(queue, begin, stop))
                    found.append(QueueRange(part.topic, part.queue_id, begin, stop))
        return cls(found, b"".join(units), wanted, has_units=True)

    @classmethod
    def of_units(
        cls, part: QueueRange, begin: int, end: int, units: bytes, wanted: RowSelection
    ) -> RecordSelector:
        """Return a selector for the records that some units of a range point to."""
        found = QueueRange(part.topic, part.queue_id, begin, end)
        return cls([found], units, wanted, has_units=True)

    def missed(self) -> tuple[QueueRange, int] | None:
        """Return a range with units that lack their record, and how many of its units have one."""
        for number, part in enumerate(self._ranges or ()):
            seen = self.picker.seen(number)
            if seen != part.count:
                return part, seen
        return None
