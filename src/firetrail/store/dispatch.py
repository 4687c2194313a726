"""Dispatch: from the log to the consume queues and the index, in the order of the log.

:func:`dispatch_range` is what both the live thread and recovery run over a part of a segment. The
thread waits until the log grows, takes what is there in one step, and tells the listeners which
queues have new messages. A range may be dispatched again: queues and index pass over what they
have.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable
from typing import NamedTuple

from firetrail.errors import DiskFullError, StoreError
from firetrail.format import columns as col
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.delay import DelayLevels
from firetrail.format.javahash import java_text
from firetrail.format.kernels.derive import ENTRIES_PER_RECORD_MAX, derive_entries, derive_units
from firetrail.format.kernels.scan import scan
from firetrail.format.layout import UNIT
from firetrail.storage.segment import Segment
from firetrail.store.commitlog import CommitLog
from firetrail.store.indexes import Index
from firetrail.store.queues import QueueTable

_LOGGER = logging.getLogger(__name__)
ROWS_PER_STEP = 4096
_ENTRIES_PER_STEP = max(ENTRIES_PER_RECORD_MAX, 4 * ROWS_PER_STEP)
QUIET_ROUNDS = 20
"""After so many looks a millisecond apart that found nothing new, the log counts as quiet."""
DISK_FULL_PAUSE_S = 1.0
"""How long dispatch waits for space before it tries again."""


class Arrival(NamedTuple):
    """New messages in a queue: those before ``max_offset``."""

    topic: str
    queue_id: int
    max_offset: int


class Step(NamedTuple):
    """What a step over a part of a segment did."""

    rows: int
    position: int  # in the segment, behind the last record that was dispatched
    stop: Stop
    last_record_offset: int
    last_store_time: int
    arrivals: list[Arrival]


class Deriver:
    """Applies what follows from a range of the log to queues and index."""

    def __init__(
        self, queues: QueueTable, index: Index | None, delays: DelayLevels, *, tags: bool = False
    ) -> None:
        self._queues = queues
        self._index = index
        self.tags = tags
        """Whether tags are in the index beside the keys."""
        self._waits = array("q", delays.waits_ms)
        self._columns = Columns(ROWS_PER_STEP)
        self._entries = array("q", bytes(24 * _ENTRIES_PER_STEP))
        self._appended = 0  # of the entries that were derived last; the others wait for space
        self._derived = 0
        self._next_row = 0
        self._arrivals: list[Arrival] = []  # of this step, or of one that waits for space
        self.queues_from = 0
        self.index_from = 0
        """Records before these physical offsets are left out: queues and index have them."""

    def step(self, segment: Segment, at: int, limit: int, check: Check) -> Step:
        """Dispatch at most ROWS_PER_STEP records of ``segment.view[at : limit]``.

        After a DiskFullError, the next call from the same place goes on.
        """
        view = segment.view
        table = self._columns.table
        rows, position, stop = scan(view, at, limit, segment.base, table, check)
        store_time = 0
        last_record = -1
        if rows:
            last_record = self._columns.column(col.PHYSICAL_OFFSET)[rows - 1]
            store_time = self._columns.column(col.STORE_TIME)[rows - 1]
            first = segment.base + at
            if segment.base + position > self.queues_from:
                self._append_units(view, rows)
            if self._index is not None and segment.base + position > self.index_from:
                self._append_entries(self._index, view, rows, first)
        arrivals, self._arrivals = self._arrivals, []
        return Step(rows, position, Stop(stop), last_record, store_time, arrivals)

    def _append_units(self, view: memoryview, rows: int) -> None:
        units, runs = derive_units(view, self._columns.table, rows, self._waits)
        content = memoryview(units)
        topic_at = self._columns.column(col.TOPIC_AT)
        topic_size = self._columns.column(col.TOPIC_SIZE)
        queue_ids = self._columns.column(col.QUEUE_ID)
        queue_offsets = self._columns.column(col.QUEUE_OFFSET)
        for row, count, start in runs:
            name = java_text(bytes(view[topic_at[row] : topic_at[row] + topic_size[row]]))
            queue = self._queues.open(name, queue_ids[row])
            offset = queue_offsets[row]
            if queue.append(offset, content[start : start + count * UNIT.size]):
                self._queues.dirty.add(queue)
                self._arrivals.append(Arrival(name, queue.queue_id, offset + count))

    def _append_entries(self, index: Index, view: memoryview, rows: int, first: int) -> None:
        """Index the rows that the index does not have."""
        if self._next_row == 0 and first < self.index_from:
            self._next_row = self._first_row(rows)
        while True:
            while self._appended < self._derived:
                self._appended = index.append(self._entries, self._appended, self._derived)
            if self._next_row >= rows:
                break
            self._appended = 0
            self._derived, self._next_row = derive_entries(
                view, self._columns.table, self._next_row, rows, self._entries, self.tags
            )
        self._next_row = 0

    def _first_row(self, rows: int) -> int:
        """The first row that the index does not have."""
        offsets = self._columns.column(col.PHYSICAL_OFFSET)
        return next((row for row in range(rows) if offsets[row] >= self.index_from), rows)


class Dispatcher:
    """The thread that keeps queues and index up with the log."""

    def __init__(
        self,
        log: CommitLog,
        deriver: Deriver,
        limit: Callable[[], int],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._deriver = deriver
        self._limit = limit
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._stopping = False
        self._quiet_rounds = QUIET_ROUNDS
        self._thread = threading.Thread(target=self._run, name="firetrail-dispatch", daemon=True)
        self.listeners: list[Callable[[list[Arrival]], None]] = []
        self.idle = False
        """Whether the thread waits; who appends then calls :meth:`wake`."""
        self.position = 0
        """Everything in the log before it is in queues and index."""
        self.last_record_offset = -1
        self.last_store_time = 0
        self.starved = ""
        """Why dispatch cannot go on for now: the disk is full. Empty while it can."""

    @property
    def behind(self) -> int:
        """Bytes of the log that are readable and not dispatched."""
        return max(self._limit() - self.position, 0)

    def begin_at(self, position: int, last_record_offset: int, last_store_time: int) -> None:
        """The log is dispatched up to ``position``, behind the given record."""
        self.position = position
        self.last_record_offset = last_record_offset
        self.last_store_time = last_store_time

    def start(self) -> None:
        """Follow the log."""
        self._thread.start()

    def wake(self) -> None:
        """There is more to dispatch."""
        self.idle = False
        self._wake.set()

    def stop(self) -> None:
        """Dispatch what is left and end the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                try:
                    if self._advance():
                        self.starved = ""
                        self._quiet_rounds = 0
                        continue
                    if self._stopping:
                        return
                    self._wait()
                except DiskFullError as error:
                    self.starved = str(error)
                    if self._stopping:
                        return
                    self._wake.wait(DISK_FULL_PAUSE_S)
                    self._wake.clear()
        except Exception as error:
            self._on_failure(error)

    def _wait(self) -> None:
        """Wait for more: a little while the log is busy, else until somebody calls wake.

        Being woken costs the one who appends more than the append itself, so a busy log is looked
        at again every millisecond, and only a quiet one waits to be told.
        """
        if self._quiet_rounds < QUIET_ROUNDS:
            self._quiet_rounds += 1
            self._log.queue.system.clock.sleep_ms(1)
            return
        self._wake.clear()
        self.idle = True
        if self.behind:  # it came between the last look and the announcement
            self.idle = False
            return
        self._wake.wait()
        self.idle = False

    def _advance(self) -> bool:
        """Take one step; whether there was anything to do."""
        limit = self._limit()
        position = max(self.position, self._log.min_offset)
        if position >= limit:
            return False
        segment = self._log.queue.find(position)
        if segment is None:
            return False
        end = min(limit, segment.end) - segment.base
        step = self._deriver.step(segment, position - segment.base, end, Check.NONE)
        if step.rows:
            self.last_store_time = step.last_store_time
            self.last_record_offset = step.last_record_offset
        self.position = segment.end if step.stop is Stop.BLANK else segment.base + step.position
        if step.arrivals:
            self._announce(step.arrivals)
        if not step.rows and step.stop is not Stop.BLANK:
            raise StoreError(
                f"{segment.path}: no record at {step.position} ({step.stop.name}) although "
                f"{limit} bytes of the log are written; check the store: firetrail fsck"
            )
        return True

    def _announce(self, arrivals: list[Arrival]) -> None:
        """Tell the listeners; one that fails is no reason to stop dispatching."""
        for listener in self.listeners:
            try:
                listener(arrivals)
            except Exception:
                _LOGGER.exception("a listener for arriving messages failed: %r", listener)
