"""The scrub of an open store: it reads the log in small steps, to find damage before readers do."""

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import StoreDamagedError, StoreError
from firetrail.format import columns as col
from firetrail.store.integrity.damage_ledger import DamageLedger
from firetrail.store.integrity.damaged_messages import READ_REMEDY
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.view_log import ViewLog
from firetrail.store.log.walk import Damage, LogWalk, RecordBatch
from firetrail.system import System

ROWS = 16
"""Number of records that are checked together: a step exceeds its size by at most as many."""
WAIT_REMEDY = "it can be repaired when a good record follows it in the log"


class DamagedRange(NamedTuple):
    """A damaged part of the log.

    Attributes:
        begin: The physical offset of the first damaged record.
        end: The physical offset of the next good record.
        next_record: The bytes of that record.
    """

    begin: int
    end: int
    next_record: bytes


class LogScrub:
    """Checks every record of a log; one thread at a time uses it.

    It has its own mappings of the log files, so the store need not know it as a reader.

    Attributes:
        position: The physical offset that the present pass has reached.
        passes: The number of passes that have reached the end of the log.
    """

    def __init__(self, system: System, root: Path, log: CommitLog, ledger: DamageLedger) -> None:
        """Prepare to read.

        Args:
            system: Files and locks.
            root: The folder of the store.
            log: The open log.
            ledger: Where damage is noted.
        """
        self._system = system
        self._root = root
        self._log = log
        self._ledger = ledger
        self._guard = system.threads.lock()
        self._walk: Generator[int, None, None] | None = None
        self._is_closed = False
        self.position = log.min_offset
        self.passes = 0

    @property
    def _end(self) -> int:
        """The end of the part of the log that is on disk and, as far as replicas are concerned,
        certain to stay."""
        return min(self._log.flushed_offset, self._log.shown_offset)

    def step(self, size: int) -> int:
        """Check about ``size`` more bytes of the log, and note damage.

        Returns:
            The bytes that were read; 0 if the pass is over. The next step then begins another one.
        """
        with self._guard:
            if self._is_closed:
                return 0
            if self._walk is None:
                self._walk = self._pass()
            read = 0
            while read < size and (part := next(self._walk, None)) is not None:
                read += part
            if read == 0:
                self._walk = None
                self.passes += 1
            return read

    def close(self) -> None:
        """Wait for a step that is in progress, and close the files; nothing is read after that."""
        with self._guard:
            self._is_closed = True
            if self._walk is not None:
                self._walk.close()
                self._walk = None

    def _pass(self) -> Generator[int, None, None]:
        """Check the log from its beginning to its present end; yield the bytes of each step."""
        end, size = self._end, self._log.file_size
        self.position = self._log.min_offset
        while self.position < end:
            file_end = self.position - self.position % size + size
            with closing(self._view()) as view:
                walk = LogWalk(view, self.position, min(end, file_end), live=True, rows=ROWS)
                for part in walk:
                    self._note(part)
                    yield walk.position - self.position
                    self.position = walk.position
            self.position = max(self.position, min(end, file_end), self._log.min_offset)

    def _view(self) -> ViewLog:
        view = ViewLog(self._system, self._root)
        view.load()
        return view

    def _note(self, part: RecordBatch | Damage) -> None:
        damage = part.failed if isinstance(part, RecordBatch) else part
        if damage is not None and damage.physical_offset >= self._log.min_offset:
            where = str(damage.path), damage.position, damage.physical_offset
            self._ledger.note(StoreDamagedError(*where, damage.detail, READ_REMEDY))

    def examine(self, offset: int, *, is_misplaced: bool = False) -> DamagedRange | None:
        """Return the damage at a physical offset, as far as the next good record.

        Returns None if there is a good record now, or the log begins later by now.

        Args:
            offset: The physical offset.
            is_misplaced: Whether the record is damaged although its checksums are right.
                Default: False.

        Raises:
            StoreError: The log is not on disk up to the offset yet.
            StoreDamagedError: No good record follows yet.
        """
        if offset < self._log.min_offset:
            return None
        if offset >= self._end:
            raise StoreError(f"the log is not on disk up to offset {offset} yet")
        with closing(self._view()) as view:
            place: StoreDamagedError | None = None
            for part in LogWalk(view, offset, self._end, live=True, rows=1):
                damage = part.failed if isinstance(part, RecordBatch) else part
                if damage is None:
                    assert isinstance(part, RecordBatch)
                    found = _until(part, offset)
                    if found is not None or not is_misplaced:
                        return found
                    continue
                if place is None:
                    where = str(damage.path), damage.position, damage.physical_offset
                    place = StoreDamagedError(*where, damage.detail, WAIT_REMEDY)
        if is_misplaced:
            raise StoreError(f"no record follows that at offset {offset} yet")
        if place is None:
            return None
        raise place


def _until(batch: RecordBatch, offset: int) -> DamagedRange | None:
    end = batch.columns.column(col.PHYSICAL_OFFSET)[0]
    if end == offset:
        return None
    at = end - batch.segment.base
    size = batch.columns.column(col.SIZE)[0]
    return DamagedRange(offset, end, bytes(batch.segment.view[at : at + size]))
