"""The arrangement of units and entries in files, computed from their numbers alone."""

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import repeat, takewhile
from typing import NamedTuple, Protocol, TypeVar

from firetrail.format.files.index import IndexGeometry, IndexHeader
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.format.light import is_light
from firetrail.format.names import index_name, queue_folder
from firetrail.pipeline.jobs.rebuild.assembly import (
    IndexFiles,
    QueueFiles,
    StagedEntries,
    StagedUnits,
)
from firetrail.pipeline.jobs.rebuild.pieces import DerivedPiece, StagedFiles, StagedPiece
from firetrail.store.evidence.catalog import Catalog
from firetrail.store.inspect.view import StoreView
from firetrail.store.queues.consume_queue import gap_detail
from firetrail.store.queues.generations import QueueGenerations
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.repair.rebuild import damage_at

RANGE_BYTES = 64 << 20
"""Approximate part of a queue that one task writes."""
TASK_BYTES = 1 << 30
"""Limit for what a task should read and write."""
TASKS_PER_SLOT = 2
"""Tasks per slot, so that all slots end at about the same time."""


class _QueueGap(NamedTuple):
    """A message that a queue cannot take because the previous one is missing in the log."""

    physical_offset: int
    detail: str


def queue_files(
    view: StoreView, staged: list[StagedPiece], catalog: Catalog, generations: QueueGenerations
) -> Iterator[QueueFiles]:
    """Yield the files of all queues; ``generations`` counts the messages that are left out.

    The rules are those of the live dispatcher: a queue begins with its first message in the log, a
    message whose queue offset the queue already has is skipped, and no offset may be missing. As in
    recovery, an offset 0 after others starts the queue again, and its earlier messages are dropped.
    """
    queues: dict[QueueKey, list[tuple[str, DerivedPiece]]] = {}
    gaps: dict[QueueKey, _QueueGap] = {}
    for part in staged:
        for piece in part.pieces:
            key = (piece.topic, piece.queue_id)
            if piece.topic in catalog.batches:
                continue
            end = generations.end(key)
            found = queues.setdefault(key, [])
            if generations.note(
                key, piece.offset, piece.length, piece.physical_offset, piece.newest
            ):
                found.clear()
            elif is_light(piece.topic) and found:  # appended regardless of their offsets
                before = found[-1][1]
                piece = piece._replace(offset=before.offset + before.length)
            elif end is not None and piece.offset > end:
                detail = gap_detail(*key, end, piece.offset)
                gaps.setdefault(key, _QueueGap(piece.physical_offset, detail))
            found.append((part.units, piece))
    if gaps:
        first = min(gaps.values())
        raise damage_at(view, first.physical_offset, first.detail)
    absent = generations.absent(catalog)
    files_per_range = max(RANGE_BYTES // view.queue_file_size, 1)
    for (topic, queue_id), found in queues.items():
        queue_folder(topic, queue_id)  # raises if the name is not possible
        if (topic, queue_id) in absent:
            continue
        ranges: dict[int, list[StagedUnits]] = {}
        for units in _new_units(found):
            _cut(units, files_per_range * view.queue_file_size // UNIT_SIZE, ranges)
        for units_of_range in ranges.values():
            yield QueueFiles(topic, queue_id, view.queue_file_size, units_of_range)


def _new_units(found: list[tuple[str, DerivedPiece]]) -> Iterator[StagedUnits]:
    """Yield the pieces of a queue without messages whose offsets earlier pieces already have."""
    end = found[0][1].offset
    for path, piece in found:
        known = end - piece.offset
        if known < piece.length:
            position = piece.position + known * UNIT_SIZE
            yield StagedUnits(path, position, end, piece.length - known)
            end = piece.offset + piece.length


def _cut(units: StagedUnits, range_length: int, ranges: dict[int, list[StagedUnits]]) -> None:
    """Distribute units over ranges of ``range_length`` queue offsets."""
    path, position, offset, length = units
    while length:
        number = offset // range_length
        inside = min(length, (number + 1) * range_length - offset)
        ranges.setdefault(number, []).append(StagedUnits(path, position, offset, inside))
        position += inside * UNIT_SIZE
        offset += inside
        length -= inside


def index_files(
    staged: list[StagedPiece], geometry: IndexGeometry, created_ms: int
) -> Iterator[IndexFiles]:
    """Yield the files of the index; the first is named after the time ``created_ms``."""
    created = datetime.fromtimestamp(created_ms / 1000)
    before: IndexHeader | None = None
    counts = [(part.entries, part.entry_count) for part in staged]
    for share in takewhile(bool, deal_out(counts, repeat(geometry.entries - 1))):
        yield IndexFiles(index_name(created), geometry, before, share)
        before = _end_of(share[-1])
        created += timedelta(milliseconds=1)


def deal_out(staged: list[tuple[str, int]], sizes: Iterable[int]) -> Iterator[list[StagedEntries]]:
    """Yield shares of the entries of some files, in order, with at most ``sizes`` entries each."""
    left = deque(StagedEntries(path, 0, count) for path, count in staged if count)
    for size in sizes:
        share: list[StagedEntries] = []
        while size and left:
            path, first, end = left.popleft()
            taken = min(size, end - first)
            share.append(StagedEntries(path, first, first + taken))
            size -= taken
            if first + taken < end:
                left.appendleft(StagedEntries(path, first + taken, end))
        yield share


def _end_of(entries: StagedEntries) -> IndexHeader:
    """Return the end time and offset in the header of an index file that ends with ``entries``."""
    found = StagedFiles().entries(entries.path)
    _, offset, time = found[3 * entries.end - 3 : 3 * entries.end]
    return IndexHeader(end_timestamp=time, end_offset=offset)


class Weighted(Protocol):
    """Work for a task."""

    @property
    def weight(self) -> int:
        """Approximate number of bytes that it reads and writes."""


W = TypeVar("W", bound=Weighted)


def shared_out(work: list[W], slots: int) -> list[list[W]]:
    """Divide work into shares of about the same weight, enough to keep all slots busy."""
    weight = sum(item.weight for item in work)
    count = min(max(TASKS_PER_SLOT * slots, -(-weight // TASK_BYTES)), len(work))
    shares: list[list[W]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for item in sorted(work, key=lambda item: item.weight, reverse=True):
        load, number = heappop(heap)
        shares[number].append(item)
        heappush(heap, (load + item.weight, number))
    return shares
