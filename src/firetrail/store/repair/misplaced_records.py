"""Records whose topic, queue id or queue offset is damaged.

Without the property CRC no checksum covers these fields, so such a record looks good. But the
messages of a queue are numbered consecutively. A record with another number than the expected one
is out of order, and its neighbours show why:

- The next message of the queue has the number after the missing one: only the number of this record
  is wrong, and the right one is known.
- The next message has the missing number: this record belongs to another queue.
- The next message has the number after this record's: the messages in between are lost, and this
  record is good.

At the end of a queue, and if two records have the same number, the unit in the queue's files
decides: it was derived from the record before that was damaged. A queue that begins with 0 again is
that of a topic that was deleted and created again.
"""

from array import array
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from firetrail.errors import StoreError
from firetrail.format.files.unit import UNIT_SIZE, decode_unit
from firetrail.format.light import is_light
from firetrail.format.names import BATCH_CONSUME_QUEUE, is_queue
from firetrail.store.dispatch.derivation import DerivedRun, derive_runs
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.walk import Damage, RecordBatch
from firetrail.store.problems import ProblemKind
from firetrail.store.queues.queue_table import QueueKey

_WAITS = array("q", [0])  # delay levels do not matter here


class MisplacedRecord(NamedTuple):
    """A record that is out of order in the queue that it names."""

    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    """The number in the record."""
    number: int | None
    """The queue offset that it had; None if it belongs to another queue, which is unknown."""
    kind: ProblemKind
    detail: str


class _Single(NamedTuple):
    """One record of a queue."""

    physical_offset: int
    number: int


@dataclass(slots=True)
class _Queue:
    """The part of a queue whose messages are known to be in order."""

    next: int
    damages: int
    """The number of unreadable places in the log before its last record."""
    records: int = 0
    last: int = -1
    """Physical offset of its last record."""
    doubtful: _Single | None = None
    """A later record that is out of order, until the next one shows why."""


class OrderCheck:
    """Finds the records of a log that are out of order in their queues."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        # Java numbers the messages of these topics by batches.
        batched = view.system.files.names(view.root / BATCH_CONSUME_QUEUE)
        self._batched = frozenset(batched).difference(view.queues.topics() if batched else ())
        self._queues: dict[QueueKey, _Queue] = {}
        self._damages = 0
        self._found: dict[int, MisplacedRecord] = {}

    def take(self, part: RecordBatch | Damage) -> None:
        """Check the next part of the log."""
        if isinstance(part, Damage):
            self._damages += part.kind is not ProblemKind.BLANK_SIZE
            return
        unsure = part.failed is not None and part.failed.kind is ProblemKind.PROPERTY_CRC
        rows = part.rows - 1 if unsure else part.rows
        self._damages += unsure
        for run in derive_runs(part.segment.view, part.columns, rows, _WAITS, light=False):
            if not is_light(run.topic) and run.topic not in self._batched:
                self._take_run(run)

    def finish(self) -> dict[int, MisplacedRecord]:
        """Return the records that are out of order, by their physical offsets."""
        catalog = self._view.catalog()
        for key, queue in self._queues.items():
            if queue.doubtful is not None:
                self._settle_by_unit(key, queue, queue.doubtful)
            elif catalog.has(key) or catalog.was_removed(key[0], queue.last):
                continue
            elif queue.records == 1 and queue.next > 1 and self._is_unknown(key):
                self._note_foreign(key, _Single(queue.last, queue.next - 1))
        return dict(sorted(self._found.items()))

    def _take_run(self, run: DerivedRun) -> None:
        key, number, count = run[:2], run.offset, len(run.units) // UNIT_SIZE
        first = _Single(decode_unit(run.units).physical_offset, number)
        if not is_queue(*key):
            detail = f"topic {key[0]!r}, queue {key[1]} cannot be a consume queue"
            for at in range(0, len(run.units), UNIT_SIZE):
                place = decode_unit(run.units, at).physical_offset
                self._note(key, _Single(place, number + at // UNIT_SIZE), None, detail)
            return
        queue = self._queues.get(key)
        if queue is None or (number != queue.next and self._begins_between(key, queue, first)):
            queue = self._queues[key] = _Queue(self._first_number(key, first), self._damages)
        is_gap_known = self._damages > queue.damages
        queue.damages = self._damages
        if queue.doubtful is not None:
            self._settle(key, queue, queue.doubtful, number)
        queue.records += count
        if number != queue.next and not (number > queue.next and is_gap_known):
            if count == 1:
                queue.doubtful = first
                return
            if _is_repeated(queue, first):
                self._settle_repeated(key, queue, first)
            else:
                self._note_gap(key, first, queue.next)
        queue.next = number + count
        queue.last = decode_unit(run.units, len(run.units) - UNIT_SIZE).physical_offset

    def _first_number(self, key: QueueKey, first: _Single) -> int:
        """Return the number that the first message of a queue in the log should have."""
        if self._view.log.min_offset == 0 and not self._damages:
            return 0
        if self._is_unit_of(key, first.number, first.physical_offset):
            return first.number
        if key in self._view.tails:
            with closing(self._view.open_queue(*key)) as queue:
                begin = queue.min_offset(self._view.log.min_offset)
            if self._is_unit_of(key, begin, first.physical_offset):
                return begin
        return first.number

    def _begins_between(self, key: QueueKey, queue: _Queue, record: _Single) -> bool:
        """Return whether message 0 was between the last record and this one, in a damaged place.

        Then the topic was deleted after the last record and created again.
        """
        last = queue.last if queue.doubtful is None else queue.doubtful.physical_offset
        begin = self._place_of(key, 0)
        is_unit = self._is_unit_of(key, record.number, record.physical_offset)
        return begin is not None and last < begin < record.physical_offset and is_unit

    def _is_unit_of(self, key: QueueKey, number: int, physical_offset: int) -> bool:
        """Return whether the unit at ``number`` of a queue points to a record."""
        return self._place_of(key, number) == physical_offset

    def _place_of(self, key: QueueKey, number: int) -> int | None:
        """Return the physical offset in the unit at ``number`` of a queue, if it has one."""
        if key not in self._view.tails or number < 0:
            return None
        try:
            with closing(self._view.open_queue(*key)) as queue:
                unit = queue.unit(number)
        except (StoreError, OSError):
            return None
        return unit.physical_offset if unit is not None else None

    def _is_unknown(self, key: QueueKey) -> bool:
        """Return whether a queue does not exist, although it would if it had messages."""
        view = self._view
        exists = key in view.tails or key in view.queue_faults
        return view.state is StoreState.CLOSED and bool(view.tails) and not exists

    # -- why ----------------------------------------------------------------------------------

    def _settle(self, key: QueueKey, queue: _Queue, doubtful: _Single, following: int) -> None:
        """Resolve a doubtful message by the number of the following one, or by its unit."""
        expected = queue.next
        if following == expected + 1:
            self._correct(key, queue, doubtful)
        elif following == expected and _is_repeated(queue, doubtful):
            self._settle_repeated(key, queue, doubtful)
        elif following == doubtful.number + 1:
            self._accept(key, queue, doubtful)
        elif following == expected:
            self._note_foreign(key, doubtful)
        else:
            self._settle_by_unit(key, queue, doubtful)
        queue.doubtful = None

    def _settle_by_unit(self, key: QueueKey, queue: _Queue, doubtful: _Single) -> None:
        """Resolve a doubtful message that no neighbour explains."""
        if self._is_unit_of(key, queue.next, doubtful.physical_offset):
            self._correct(key, queue, doubtful)
        elif _is_repeated(queue, doubtful):
            self._settle_repeated(key, queue, doubtful)
        elif self._is_unit_of(key, doubtful.number, doubtful.physical_offset):
            self._accept(key, queue, doubtful)
        elif doubtful.number:
            self._note_foreign(key, doubtful)
        else:
            self._accept(key, queue, doubtful)

    def _settle_repeated(self, key: QueueKey, queue: _Queue, second: _Single) -> None:
        """Resolve two records with one number: the unit shows which is of another queue, if any."""
        first = _Single(queue.last, second.number)
        if self._is_unit_of(key, second.number, first.physical_offset):
            self._note_foreign(key, second)
            return
        if self._is_unit_of(key, second.number, second.physical_offset):
            self._note_foreign(key, first)
        else:
            self._note_gap(key, second, queue.next)
        queue.last = second.physical_offset

    def _accept(self, key: QueueKey, queue: _Queue, record: _Single) -> None:
        """Accept a record: the messages before it are lost, or it begins a new generation."""
        self._note_gap(key, record, queue.next)
        queue.next, queue.last = record.number + 1, record.physical_offset

    def _correct(self, key: QueueKey, queue: _Queue, record: _Single) -> None:
        """Note that a record is the missing message, although it has another number."""
        detail = f"is marked as message {record.number} of {_name(key)}, but is {queue.next}"
        self._note(key, record, queue.next, detail, ProblemKind.QUEUE_OFFSET)
        queue.next, queue.last = queue.next + 1, record.physical_offset

    # -- findings -----------------------------------------------------------------------------

    def _note_gap(self, key: QueueKey, record: _Single, expected: int) -> None:
        if record.number:
            detail = f"is message {record.number} of {_name(key)}, but {expected} was expected"
            self._note(key, record, record.number, detail, ProblemKind.QUEUE_OFFSET)

    def _note_foreign(self, key: QueueKey, record: _Single) -> None:
        place = f"message {record.number} of {_name(key)}"
        detail = f"is marked as {place}, where it does not fit, and belongs to another queue"
        self._note(key, record, None, detail, ProblemKind.QUEUE_OFFSET)

    def _note(
        self,
        key: QueueKey,
        record: _Single,
        number: int | None,
        detail: str,
        kind: ProblemKind = ProblemKind.RECORD_QUEUE,
    ) -> None:
        place = record.physical_offset
        self._found[place] = MisplacedRecord(place, *key, record.number, number, kind, detail)


def _is_repeated(queue: _Queue, record: _Single) -> bool:
    """Return whether a record has the number of the previous one; 0 may begin a new generation."""
    return 0 < record.number == queue.next - 1


def _name(key: QueueKey) -> str:
    return f"{key[0]}/{key[1]}"


def as_damage(view: StoreView, record: MisplacedRecord) -> Damage:
    """Return the location of a misplaced record as a damage."""
    segment = view.log.find(record.physical_offset)
    assert segment is not None
    at = record.physical_offset - segment.base
    return Damage(
        segment.path, at, record.physical_offset, record.kind, f"the record {record.detail}", None
    )
