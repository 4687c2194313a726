"""The loss if the log ended earlier: messages, queues, queue offsets and times."""

from array import array
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from firetrail.format import columns as col
from firetrail.format.columns import Check
from firetrail.format.files.unit import PRE_BLANK
from firetrail.format.light import numbered_queues
from firetrail.format.properties import INNER_MULTI_DISPATCH
from firetrail.format.record import decode_message
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.dispatch.derivation import derive_runs, note_runs
from firetrail.store.evidence.catalog import Catalog
from firetrail.store.inspect.log_tail import TailKind, read_tail
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.good_records import GoodRecord, good_records
from firetrail.store.log.lost_part import Loss, QueueLoss, count_records
from firetrail.store.log.walk import Damage, LogWalk, RecordBatch
from firetrail.store.problems import CUT_IT, ProblemKind
from firetrail.store.queues.generations import QueueGenerations
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.repair.misplaced_records import MisplacedRecord, OrderCheck, as_damage

_LIGHT_NAME = INNER_MULTI_DISPATCH.encode()


class LogFaults(NamedTuple):
    """The faults of a log."""

    damage: Damage | None
    """The first position without a good record."""
    misplaced: dict[int, MisplacedRecord]
    """Records out of order in their queues, by their physical offsets."""

    def first(self, view: StoreView) -> Damage | None:
        """Return the fault that comes first in the log."""
        first = next(iter(self.misplaced.values()), None)
        if first is None:
            return self.damage
        if self.damage is not None and self.damage.physical_offset < first.physical_offset:
            return self.damage
        return as_damage(view, first)


def find_faults(view: StoreView, check: Check = Check.RECORD) -> LogFaults:
    """Check the whole log and the bytes after its end."""
    order = OrderCheck(view)
    damage: Damage | None = None
    last = -1
    for part in view.walk(check=check):
        order.take(part)
        if damage is None:
            damage = _fault_of(part, last)
        if isinstance(part, RecordBatch):
            last = part.columns.column(col.PHYSICAL_OFFSET)[part.rows - 1]
    tail = read_tail(view)
    if damage is None and tail.kind in (TailKind.DAMAGED, TailKind.TORN):
        damage = tail.found
    if damage is None:
        damage = _short_file(view)
    return LogFaults(damage, order.finish())


def _short_file(view: StoreView) -> Damage | None:
    """Return the end of the log as damage if a file is too short although all records are good."""
    for problem in view.log.misfits:
        if problem.kind is ProblemKind.FILE_SIZE and CUT_IT not in problem.detail:
            segment = view.log.find(view.end) or view.log.segments[-1]
            detail = f"{problem.file} is {problem.detail}"
            return Damage(
                segment.path, view.end - segment.base, view.end, problem.kind, detail, None
            )
    return None


def _fault_of(part: RecordBatch | Damage, last: int) -> Damage | None:
    """Return the damage of a part of the log; ``last`` is the record before it."""
    found = part.failed if isinstance(part, RecordBatch) else part
    if found is None or found.kind is ProblemKind.BLANK_SIZE:  # that size is never read
        return None
    if found.kind is ProblemKind.FILE_END:
        # The last record of the file is too long: it leaves no room for the end mark of the file.
        base = found.physical_offset - found.position
        return found._replace(physical_offset=last, position=last - base)
    return found


def known_end(view: StoreView) -> int:
    """Return the end of the messages that are known to have been in the log, damaged or not.

    More messages may follow the watermark of a crashed store: Firetrail leaves no old bytes there.
    """
    end = _recorded_end(view)
    if view.watermark is not None and view.state is StoreState.CRASHED:
        end = max(end, view.log.limit)
    return end


def loss_behind(view: StoreView, damage: Damage) -> Loss:
    """Return the loss of a log that ends before some damage."""
    begin = damage.physical_offset
    loss = Loss(begin, begin, damage.detail)
    for pair in sorted(view.tails):
        with closing(view.open_queue(*pair)) as queue:
            first = queue.first_where(
                queue.min_offset(view.log.min_offset),
                queue.max_offset,
                lambda unit: unit.physical_offset >= begin,
            )
            if first < queue.max_offset:
                loss.queues.append(QueueLoss(*pair, first, queue.max_offset))
    deleted = find_deleted(view)
    records = good_records(view.log, begin, known_end(view))
    kept = (record for record in records if not deleted.has(record))
    for record in count_records(loss, kept):
        loss.end = record.physical_offset + len(record.content)
    loss.end = max(loss.end, _recorded_end(view))
    return loss


def _recorded_end(view: StoreView) -> int:
    """Return the end of the messages that queues, index or watermark point to."""
    durable = view.watermark.durable_offset if view.watermark is not None else 0
    return max(view.end, durable)


class DeletedRecords(NamedTuple):
    """The records of a log that were deleted with their topic."""

    queues: Container[QueueKey]
    """Queues that no longer exist."""
    beginnings: Mapping[QueueKey, int]
    """The offsets at which the other queues begin; records before that are of a former topic."""
    catalog: Catalog
    """Knows where topics were deleted."""

    def has(self, record: GoodRecord) -> bool:
        """Return whether a record was deleted with its topic.

        One that light queues may still serve was not, unless its queue does not exist.
        """
        key, place = (record.topic, record.queue_id), record.physical_offset
        if not record.in_queue or key in self.queues:
            return record.in_queue
        begin = self.beginnings.get(key, 0)
        is_former = place < begin or self.catalog.was_removed(record.topic, place)
        return is_former and not _is_in_light_queues(record)


def _is_in_light_queues(record: GoodRecord) -> bool:
    content = bytes(record.content)
    return _LIGHT_NAME in content and bool(numbered_queues(decode_message(content).raw_properties))


def find_deleted(view: StoreView) -> DeletedRecords:
    """Find the records that were deleted with their topic, also if the log is damaged."""
    beginnings = _beginnings(view)
    generations, light = QueueGenerations(beginnings), view.queues.may_lack_light_queues
    waits = array("q", DelayLevels.parse(DEFAULT_DELAY_LEVELS).waits_ms)
    for part in _all_records(view):
        runs = derive_runs(part.segment.view, part.columns, part.rows, waits, light=light)
        note_runs(runs, generations)
    catalog = view.catalog()
    return DeletedRecords(generations.absent(catalog), beginnings, catalog)


def _beginnings(view: StoreView) -> dict[QueueKey, int]:
    """Return the position of message 0 of each queue, before the log was damaged, from the units.

    A unit that points into a good record is damaged, and is ignored.
    """
    found: dict[QueueKey, int] = {}
    end = known_end(view)
    for key in view.tails:
        with closing(view.open_queue(*key)) as queue:
            first, second = queue.unit(0), queue.unit(1)
        if first is None or first == PRE_BLANK or first.physical_offset >= end:
            continue
        if second is None or second.physical_offset > first.physical_offset:
            found[key] = first.physical_offset
    places = sorted(found.values())
    wrong: set[int] = set()
    for part in _all_records(view):
        offsets = part.columns.column(col.PHYSICAL_OFFSET)[: part.rows]
        last = offsets[-1] + part.columns.column(col.SIZE)[part.rows - 1]
        inside = places[bisect_left(places, offsets[0]) : bisect_left(places, last)]
        wrong.update(set(inside).difference(offsets))
    return {key: place for key, place in found.items() if place not in wrong}


def _all_records(view: StoreView) -> Iterator[RecordBatch]:
    for part in LogWalk(view.log, view.log.min_offset, known_end(view), Check.NONE):
        if isinstance(part, RecordBatch):
            yield part
