"""A store opened for reading only, whoever wrote it and however it was left.

Nothing is written and no lock is taken, so the store may be closed, crashed or in use, by another
process or by this one. What does not fit (a gap between files, a file of the wrong size, a damaged
queue or index file) is noted and the rest can be read.

Where the log ends
    The newest record that something else knows of (a queue's last unit, the index, the watermark)
    is looked up; from there the log is followed as long as records verify, checksums included. So
    the cost is that of the tail, not of the log.

    While the store is in use, records that queues do not have yet count only if another record
    follows them, or if the watermark says that they are on disk: the last one may be half written.
    They are whole then, but not necessarily synced.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from firetrail.errors import ConfigError, SegmentSizeError, StoreDamagedError, StoreError
from firetrail.format import columns as col
from firetrail.format.columns import Check, Stop
from firetrail.format.index import IndexGeometry
from firetrail.format.names import INDEX, parse_index_name, queue_folder
from firetrail.format.unit import ConsumeQueueUnit
from firetrail.storage.queue import usual_size
from firetrail.storage.system import System
from firetrail.store.config import StoreConfig
from firetrail.store.consumequeue import ConsumeQueue
from firetrail.store.folder import AbortFile, check_is_store, lock_owner
from firetrail.store.foreign import foreign_names
from firetrail.store.indexes import Index
from firetrail.store.indexfile import IndexFile
from firetrail.store.problems import Kind, Problem
from firetrail.store.queues import QueueKey, QueueTable
from firetrail.store.reading import Reader
from firetrail.store.viewlog import ViewLog, segment_sizes
from firetrail.store.walk import Batch, LogWalk
from firetrail.store.watermark import Watermark, read_checkpoint, read_watermark


class StoreState(Enum):
    """How a store was left."""

    OPEN = "open"  # some process has it open for writing
    CLOSED = "closed"
    CRASHED = "crashed"  # its last user did not close it; the next one recovers it


class QueueTail(NamedTuple):
    """How a queue ends: its last unit (None without any), and the queue offset behind it."""

    last: ConsumeQueueUnit | None
    max_offset: int


class LogEnd(NamedTuple):
    """Where the log ends, and its last record (-1 if there is none)."""

    offset: int
    last_record: int


class Known(NamedTuple):
    """What one look at a store has found out, so that others see the same store."""

    state: StoreState
    owner: int | None
    queue_file_size: int
    tails: dict[QueueKey, QueueTail]
    queue_faults: dict[QueueKey, Problem]
    end: LogEnd


class Claim(NamedTuple):
    """A record that should be in the log, because something else points to it."""

    physical_offset: int
    size: int | None  # where it is known


_QUEUE_FAULTS: dict[type[Exception], Kind] = {
    SegmentSizeError: Kind.FILE_SIZE,
    StoreDamagedError: Kind.FILE_MISSING,
}


class StoreView:
    """What is in a store. Use it as a context manager, or close it."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        system: System,
        *,
        exclusive: bool = False,
        known: Known | None = None,
    ) -> None:
        check_is_store(system, root)
        self.root = root
        self.system = system
        self.owner = None if exclusive or known else lock_owner(system, root)
        """Process id of who has the store open for writing."""
        abort = AbortFile(system, root)
        self.abort = abort.exists
        self.state = StoreState.CLOSED
        if self.owner is not None:
            self.state = StoreState.OPEN
        elif self.abort:
            self.state = StoreState.CRASHED
        if known is not None:
            self.state, self.owner = known.state, known.owner
        self.checkpoint = read_checkpoint(system, root)
        counts = not self.abort or abort.is_ours
        self.watermark: Watermark | None = read_watermark(system, root) if counts else None
        size = self._find_queue_size() if known is None else known.queue_file_size
        self.queue_file_size = size or config.consume_queue_file_size
        self.queues = QueueTable(system, root, self.queue_file_size, writable=False)
        self.queue_faults: dict[QueueKey, Problem] = {}
        """Queues that cannot be read, and why."""
        # Before the log: it then reaches at least as far as they say.
        if known is None:
            self.queues.list_folders()
            self.tails = self._read_tails()
        else:
            self.tails, self.queue_faults = known.tails, known.queue_faults
        self.index = Index(system, root, self._geometry_of(config), writable=False)
        self.index_faults: list[Problem] = []
        """Index files that cannot be read, and why."""
        self._load_index(self._geometry_of(config))
        self.log = ViewLog(system, root)
        self.log.load()
        self.end, self.last_record = self._find_end() if known is None else known.end
        self.log.end_at(self.end)
        self.config = self._adopt_sizes(config)
        self.reader = Reader(self.log, self.queues, self.index, self.config)

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        system: System | None = None,
        exclusive: bool = False,
        known: Known | None = None,
    ) -> Self:
        """Look into the store in a folder. Raises NotAStoreError, or OSError for want of access.

        ``exclusive`` is for those who hold the store's lock themselves: nobody is writing it.
        ``known`` is what another view has found out, and is not looked for again.
        """
        system = system or System()
        return cls(Path(path), config or StoreConfig(), system, exclusive=exclusive, known=known)

    def known(self, queues: Iterable[QueueKey] = ()) -> Known:
        """What others need to see the same store, and of its queues these."""
        wanted = set(queues)
        return Known(
            self.state,
            self.owner,
            self.queue_file_size,
            {key: tail for key, tail in self.tails.items() if key in wanted},
            {key: fault for key, fault in self.queue_faults.items() if key in wanted},
            LogEnd(self.end, self.last_record),
        )

    def close(self) -> None:
        """Close the files. Slices of the log stay valid."""
        self.log.close()
        self.queues.close()
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- the parts ----------------------------------------------------------------------------

    def _find_queue_size(self) -> int:
        """The usual length of a queue file."""
        queues = QueueTable(self.system, self.root, 0, writable=False)
        queues.list_folders()
        files = (self.queue_files(*pair)[:1] for pair in queues.pairs())
        return usual_size(size for first in files for _, size in first)

    def queue_files(self, topic: str, queue_id: int) -> list[tuple[int, int]]:
        """(start offset, length) of the files of a queue."""
        return segment_sizes(self.system, self.root / queue_folder(topic, queue_id))

    def _read_tails(self) -> dict[QueueKey, QueueTail]:
        """The end of every queue. Their files are closed again: there may be very many."""
        tails: dict[QueueKey, QueueTail] = {}
        for pair in self.queues.pairs():
            try:
                with closing(self.open_queue(*pair)) as queue:
                    tails[pair] = QueueTail(queue.last_unit, queue.max_offset)
            except (StoreError, OSError) as error:
                kind = _QUEUE_FAULTS.get(type(error), Kind.FILE_UNREADABLE)
                self.queue_faults[pair] = Problem(queue_folder(*pair), 0, None, kind, str(error))
        return tails

    def queue_end(self, topic: str, queue_id: int) -> int | None:
        """Queue offset behind the last unit; 0 without such a queue, None if it is damaged."""
        if (topic, queue_id) in self.queue_faults:
            return None
        tail = self.tails.get((topic, queue_id))
        return tail.max_offset if tail is not None else 0

    def open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue of its own, for a look at it; close it. Raises StoreError if it is damaged."""
        try:
            return self._open_queue(topic, queue_id)
        except FileNotFoundError:
            # Retention may delete a file between its listing and its opening.
            return self._open_queue(topic, queue_id)

    def _open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(
            self.system, self.root, topic, queue_id, self.queue_file_size, writable=False
        )
        try:
            queue.load()
        except BaseException:
            queue.close()
            raise
        return queue

    @staticmethod
    def _geometry_of(config: StoreConfig) -> IndexGeometry:
        return IndexGeometry(config.index_slots, config.index_entries)

    def _load_index(self, geometry: IndexGeometry) -> None:
        """Open the index files; one that does not tell its geometry is as the others."""
        folder = self.root / INDEX
        names = [n for n in self.system.files.names(folder) if parse_index_name(n) is not None]
        loaded: dict[str, IndexFile] = {}
        for _ in range(2):
            self.index_faults.clear()
            for name in names:
                if name not in loaded:
                    file = self._open_index(folder / name, geometry)
                    if file is not None:
                        loaded[name] = file
                        geometry = IndexGeometry(file.slots, file.entries)
        self.index.files = tuple(loaded[name] for name in names if name in loaded)

    def _open_index(self, path: Path, geometry: IndexGeometry) -> IndexFile | None:
        kind, file = Kind.INDEX_FILE, None
        try:
            if self.system.files.size(path) == 0:
                return None  # as a crash right after its creation leaves it
            file = IndexFile.load(self.system, path, geometry, writable=False)
            _ = file.header  # raises if it is none
            return file
        except StoreDamagedError as error:
            detail = error.detail
        except OSError as error:
            if self.state is StoreState.OPEN and isinstance(error, FileNotFoundError):
                return None  # retention has deleted it meanwhile
            kind, detail = Kind.FILE_UNREADABLE, str(error.strerror)
        if file is not None:
            file.segment.close()
        self.index_faults.append(Problem(self.relative(path), 0, None, kind, detail))
        return None

    def _adopt_sizes(self, config: StoreConfig) -> StoreConfig:
        """The settings with the sizes of the files, as far as these can be settings."""
        sizes = {
            "commit_log_file_size": self.log.segment_size,
            "consume_queue_file_size": self.queue_file_size,
        }
        if self.index.files:
            newest = self.index.files[-1]
            sizes |= {"index_slots": newest.slots, "index_entries": newest.entries}
        for name, size in sizes.items():
            if size:
                try:
                    config = config.for_files(**{name: size})
                except ConfigError:
                    continue  # a damaged file; the check says more about it
        return config

    # -- the end of the log -------------------------------------------------------------------

    def _find_end(self) -> LogEnd:
        known, durable = self._newest_known(), 0
        if self.watermark is not None:
            durable = self.watermark.durable_offset
            if self.watermark.clean and self.state is StoreState.CLOSED and known.offset == durable:
                return known
        return self._follow(known, durable)

    def claims(self) -> list[Claim]:
        """What queues, index and watermark say about the end of the log, newest first."""
        claims = [
            Claim(tail.last.physical_offset, tail.last.size)
            for tail in self.tails.values()
            if tail.last is not None
        ]
        if self.index.files:
            claims.append(Claim(self.index.end_offset, None))
        if self.watermark is not None and self.watermark.last_record_offset >= 0:
            claims.append(Claim(self.watermark.last_record_offset, None))
        return sorted(claims, key=lambda claim: claim.physical_offset, reverse=True)

    def _newest_known(self) -> LogEnd:
        """The newest record that is known of and is there."""
        for claim in self.claims():
            size = self._record_size(claim)
            if size is not None:
                return LogEnd(claim.physical_offset + size, claim.physical_offset)
        for segment in reversed(self.log.segments):
            if self.log.scan_one(segment.base, Check.RECORD)[0] is Stop.LIMIT:
                return LogEnd(segment.base, -1)
        return LogEnd(self.log.min_offset, -1)

    def _record_size(self, claim: Claim) -> int | None:
        """Size of the record at a claimed place, None if there is none.

        After a clean stop a record with the size that its unit says counts even if its body is
        damaged: it was there.
        """
        closed = self.state is StoreState.CLOSED and claim.size is not None
        check = Check.NONE if closed else Check.RECORD
        stop, columns = self.log.scan_one(claim.physical_offset, check)
        if stop is not Stop.LIMIT:
            return None
        size = columns.row(0)["size"]
        return size if claim.size in (None, size) else None

    def _follow(self, known: LogEnd, durable: int) -> LogEnd:
        """Go on from the newest known record as long as records verify."""
        walk = LogWalk(self.log, known.offset, self.log.limit, resync=False)
        last = [known.last_record]
        position = known.offset
        for part in walk:
            if not isinstance(part, Batch):
                return self._settle(part.physical_offset, last, position, durable)
            good = part.rows - 1 if part.failed else part.rows
            last += part.columns.column(col.PHYSICAL_OFFSET)[max(good - 2, 0) : good].tolist()
            position = part.segment.base + part.position
            if part.failed:
                end = part.failed.physical_offset
                return self._settle(end, last, end, durable)
        return self._settle(walk.position, last, position, durable)

    def _settle(self, end: int, last: list[int], behind_last: int, durable: int) -> LogEnd:
        """Leave out the last record of a store in use if nothing says that it is whole."""
        doubtful = self.state is StoreState.OPEN and len(last) > 1
        if doubtful and end == behind_last and end > durable:
            return LogEnd(last[-1], last[-2])
        return LogEnd(end, last[-1])

    # -- what there is to read ----------------------------------------------------------------

    def walk(
        self,
        start: int | None = None,
        check: Check = Check.RECORD,
        *,
        until: int | None = None,
    ) -> LogWalk:
        """Walk over the log from the record at ``start`` (or the oldest one) to its end, or with
        ``until`` to the end of the file before that place."""
        begin = self.log.min_offset if start is None else max(start, self.log.min_offset)
        live = self.state is StoreState.OPEN
        return LogWalk(self.log, begin, self.end, check, live=live, until=until)

    def relative(self, path: Path) -> str:
        """A file's name as messages give it: relative to the store."""
        return path.relative_to(self.root).as_posix()

    def foreign(self) -> list[str]:
        """Files and folders that are not those of a store, relative to it."""
        return sorted(foreign_names(self.system.files, self.root, self.queues.pairs()))
