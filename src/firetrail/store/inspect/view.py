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

Which queues are looked at
    All of them, or those of the topics that were asked for. Then the end of the log is as far as
    the watermark, the index and these queues lead to; every message that these queues have is
    before it. Where that is no sure end (damage, or much log that none of them knows) the other
    queues are looked at, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from firetrail.errors import ConfigError, SegmentSizeError, StoreDamagedError, StoreError
from firetrail.format.columns import Check
from firetrail.format.index import IndexGeometry
from firetrail.format.names import (
    CONSUME_QUEUE,
    INDEX,
    is_folder_name,
    parse_index_name,
    parse_queue_id,
    queue_folder,
)
from firetrail.format.unit import ConsumeQueueUnit
from firetrail.storage.parallel import each
from firetrail.storage.queue import usual_size
from firetrail.store.config import StoreConfig
from firetrail.store.index.file import IndexFile
from firetrail.store.index.index import Index
from firetrail.store.inspect.foreign import foreign_names
from firetrail.store.inspect.log_files import ViewLog, segment_sizes
from firetrail.store.inspect.problems import Problem, ProblemKind
from firetrail.store.lifecycle.catalog import Catalog
from firetrail.store.lifecycle.folder import (
    AbortFile,
    check_is_store,
    last_held_by_java,
    lock_owner,
)
from firetrail.store.lifecycle.inventory import read_inventory
from firetrail.store.lifecycle.watermark import Watermark, read_checkpoint, read_watermark
from firetrail.store.log.end import EndSearch, LogEnd, RecordPointer, newest_known
from firetrail.store.log.records import store_time_at
from firetrail.store.log.walk import LogWalk
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.table import QueueKey, QueueTable
from firetrail.store.reader import Reader
from firetrail.system import SYSTEM, System


class StoreState(Enum):
    """How a store was left."""

    OPEN = "open"  # some process has it open for writing
    CLOSED = "closed"
    CRASHED = "crashed"  # its last user did not close it; the next one recovers it


class QueueTail(NamedTuple):
    """How a queue ends: its last unit (None without any), and the queue offset behind it."""

    last: ConsumeQueueUnit | None
    max_offset: int
    bases: tuple[int, ...]
    """Where its files start, up to the one with the last unit."""


class Known(NamedTuple):
    """What one look at a store has found out, so that others see the same store."""

    state: StoreState
    owner: int | None
    queue_file_size: int
    tails: dict[QueueKey, QueueTail]
    queue_faults: dict[QueueKey, Problem]
    end: LogEnd


_UNITS_KEPT = 16 << 20
"""Bytes of units, of all queues together, that a view keeps: a short queue is not read again."""
_TOPICS_SAMPLED = 16
"""Topics whose files tell the size of all queue files."""
_QUEUE_FAULTS: dict[type[Exception], ProblemKind] = {
    SegmentSizeError: ProblemKind.FILE_SIZE,
    StoreDamagedError: ProblemKind.FILE_MISSING,
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
        topics: Iterable[str] | None = None,
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
        """The queues that were asked for."""
        self.queue_faults: dict[QueueKey, Problem] = {}
        """Those that cannot be read, and why."""
        self._windows: dict[QueueKey, tuple[int, bytes]] = {}
        # Ends of queues that were not asked for, None if they were not looked at.
        self._others: dict[QueueKey, QueueTail] | None = {} if topics is None else None
        # Before the log: it then reaches at least as far as they say.
        if known is None:
            self.queues.list_folders(topics)
            self.tails, self.queue_faults = self._read_tails(self.queues.pairs())
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
        topics: Iterable[str] | None = None,
    ) -> Self:
        """Look into the store in a folder. Raises NotAStoreError, or OSError for want of access.

        ``exclusive`` is for those who hold the store's lock themselves: nobody is writing it.
        ``known`` is what another view has found out, and is not looked for again. With ``topics``
        the view has the queues of these topics only, and does not open the others.
        """
        system, config = system or SYSTEM, config or StoreConfig()
        return cls(Path(path), config, system, exclusive=exclusive, known=known, topics=topics)

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
        """The usual length of a queue file: of some queues, or of all if these do not agree."""
        files = self.system.files
        base = self.root / CONSUME_QUEUE
        topics = [base / name for name in files.folders(base) if is_folder_name(name)]
        some = topics[:: max(len(topics) // _TOPICS_SAMPLED, 1)]
        for chosen in (some, topics):
            sizes = [size for topic in chosen for size in self._queue_sizes(topic)]
            if chosen is topics or len(set(sizes)) == 1:
                break
        return usual_size(sizes)

    def _queue_sizes(self, topic: Path) -> Iterator[int]:
        """The length of the first file of each queue of a topic."""
        for name in self.system.files.folders(topic):
            if parse_queue_id(name) is not None:
                yield from (size for _, size in segment_sizes(self.system, topic / name)[:1])

    def queue_files(self, topic: str, queue_id: int) -> list[tuple[int, int]]:
        """(start offset, length) of the files of a queue."""
        return segment_sizes(self.system, self.root / queue_folder(topic, queue_id))

    def _read_tails(
        self, queues: Iterable[QueueKey]
    ) -> tuple[dict[QueueKey, QueueTail], dict[QueueKey, Problem]]:
        """The ends of queues, and what is wrong with those that cannot be read.

        Their files are closed again: there may be very many.
        """
        tails: dict[QueueKey, QueueTail] = {}
        faults: dict[QueueKey, Problem] = {}
        pairs = list(queues)
        room = _UNITS_KEPT
        for pair, found in zip(pairs, each(self._read_tail, pairs), strict=True):
            if isinstance(found, Problem):
                faults[pair] = found
                continue
            tails[pair], window = found
            room -= len(window[1])
            if room >= 0:
                self._windows[pair] = window
        return tails, faults

    def queue_end(self, topic: str, queue_id: int) -> int | None:
        """Queue offset behind the last unit; 0 without such a queue, None if it is damaged."""
        if (topic, queue_id) in self.queue_faults:
            return None
        tail = self.tails.get((topic, queue_id))
        return tail.max_offset if tail is not None else 0

    def _read_tail(self, pair: QueueKey) -> tuple[QueueTail, tuple[int, bytes]] | Problem:
        """The end of a queue, and the units that were read to find it."""
        try:
            with closing(self._load_queue(*pair)) as queue:
                bases = tuple(segment.base for segment in queue.files.segments)
                return QueueTail(queue.last_unit, queue.max_offset, bases), queue.window
        except (StoreError, OSError) as error:
            kind = _QUEUE_FAULTS.get(type(error), ProblemKind.FILE_UNREADABLE)
            return Problem(queue_folder(*pair), 0, None, kind, str(error))

    def open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue of its own, as this view has found it; close it. Raises StoreError if it is
        damaged."""
        tail = self.tails.get((topic, queue_id))
        if tail is None:
            return self._load_queue(topic, queue_id)
        queue = self._queue(topic, queue_id)
        queue.adopt(tail.bases, tail.max_offset, self._windows.get((topic, queue_id), (0, b"")))
        return queue

    def _load_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue as it is now."""
        try:
            return self._load_once(topic, queue_id)
        except FileNotFoundError:
            # Retention may delete a file between its listing and its opening.
            return self._load_once(topic, queue_id)

    def _load_once(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queue(topic, queue_id)
        try:
            queue.load()
        except BaseException:
            queue.close()
            raise
        return queue

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(
            self.system, self.root, topic, queue_id, self.queue_file_size, writable=False
        )

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
        kind, file = ProblemKind.INDEX_FILE, None
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
            kind, detail = ProblemKind.FILE_UNREADABLE, str(error.strerror)
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
        """The end that what was looked at leads to; if that is not sure, all queues are."""
        search = EndSearch(self.log, self.state is StoreState.OPEN, self._has_unit)
        watermark = self.watermark
        durable = watermark.durable_offset if watermark is not None else 0
        if self.state is StoreState.CLOSED and watermark is not None and watermark.clean:
            search.clean_end = durable
        if self._others is None and self.state is StoreState.CRASHED:
            self._look_at_others()
        if self._others is None:
            vouched = any(tail.last is not None for tail in self.tails.values())
            found = search.short_way(self._newest_known(), durable, vouched=vouched)
            if found is not None:
                return found
            self._look_at_others()
        return search.run(self._newest_known(), durable)

    def _look_at_others(self) -> None:
        """Read the ends of the queues that were not asked for: they may know of later records."""
        others = QueueTable(self.system, self.root, self.queue_file_size, writable=False)
        others.list_folders()
        self._others, _ = self._read_tails(set(others.pairs()) - self.tails.keys())

    def record_pointers(self) -> list[RecordPointer]:
        """What queues, index and watermark say about the end of the log, newest first."""
        pointers = [
            RecordPointer(tail.last.physical_offset, tail.last.size)
            for tail in (*self.tails.values(), *(self._others or {}).values())
            if tail.last is not None
        ]
        if self.index.files:
            pointers.append(RecordPointer(self.index.end_offset, None))
        if self.watermark is not None and self.watermark.last_record_offset >= 0:
            pointers.append(RecordPointer(self.watermark.last_record_offset, None))
        return sorted(pointers, key=lambda pointer: pointer.physical_offset, reverse=True)

    def _newest_known(self) -> LogEnd:
        """The newest record that is known of and is there.

        After a clean stop a record with the size that its unit says counts even if its body is
        damaged: it was there.
        """
        return newest_known(
            self.log, self.record_pointers(), trusted=self.state is StoreState.CLOSED
        )

    def _has_unit(self, physical_offset: int) -> bool:
        """Whether the record there is in its queue, and so was whole before."""
        topic, queue_id, offset = self.log.queue_place(physical_offset)
        if not is_folder_name(topic):
            return False
        try:
            with closing(self._load_queue(topic, queue_id)) as queue:
                unit = queue.unit(offset)
        except (StoreError, OSError):
            return False
        return unit is not None and unit.physical_offset == physical_offset

    def catalog(self) -> Catalog:
        """What the broker's files say about the topics."""
        known = read_inventory(self.system, self.root)
        ours = not last_held_by_java(self.system, self.root)
        closed = ours and self.state is StoreState.CLOSED and known.durable_offset == self.end
        complete = closed and known.is_current(True, self.watermark)
        queues = {*self.queues.pairs(), *(known.queues if complete else ())}
        removed = known.removed if ours else {}
        time_at = partial(store_time_at, self.log)
        files = self.system.files
        return Catalog(files, self.root, queues, time_at, complete=complete, removed=removed)

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
