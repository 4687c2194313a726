"""A store opened for reading only, of any program and in any state.

Nothing is written and no lock is taken, so the store may be closed, crashed or in use, by another
process or by this one. Faults (a gap between files, a file of the wrong size, a damaged queue or
index file) are recorded, and the rest can be read.

Where the log ends
    The view looks up the newest record that a queue's last unit, the index or the watermark points
    to. From there it follows the log while records verify, including checksums. The cost depends
    on the length of the tail, not of the log.

    In a live store, records that are not in queues yet count only if another record follows them,
    or if the watermark says that they are on disk: the last one may be half written. They are
    complete then, but not necessarily synced.

Which queues are read
    All of them, or those of the requested topics. Then the log ends where the watermark, the index
    and these queues lead to; every message in these queues is before it. If that end is not certain
    (damage, or much log that none of them covers), the other queues are read as well.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from firetrail.errors import ConfigError, SegmentSizeError, StoreDamagedError, StoreError
from firetrail.format.columns import Check
from firetrail.format.files.index import IndexGeometry
from firetrail.format.files.unit import ConsumeQueueUnit
from firetrail.format.names import CONSUME_QUEUE, is_folder_name, parse_queue_id, queue_folder
from firetrail.settings.settings_table import Live
from firetrail.storage.parallel import map_in_threads
from firetrail.storage.segment_queue import usual_size
from firetrail.store.evidence.catalog import Catalog
from firetrail.store.evidence.inventory import Inventory, read_inventory
from firetrail.store.index.index import Index
from firetrail.store.inspect.foreign_files import foreign_names
from firetrail.store.inspect.readable_index import load_index_files
from firetrail.store.log.log_end import EndSearch, LogEnd, RecordPointer, newest_known
from firetrail.store.log.log_records import store_time_at
from firetrail.store.log.view_log import ViewLog, segment_sizes
from firetrail.store.log.walk import LogWalk
from firetrail.store.problems import Problem, ProblemKind
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.queue_table import QueueKey, QueueTable
from firetrail.store.reads.reader import Reader
from firetrail.store.root.folder import AbortFile, check_is_store, last_held_by_java, lock_owner
from firetrail.store.root.sizes import extension_file_size
from firetrail.store.root.watermark import Watermark, read_checkpoint, read_watermark
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import SYSTEM, System


class StoreState(Enum):
    """The state in which a store was left."""

    OPEN = "open"  # a process has it open for writing
    CLOSED = "closed"
    CRASHED = "crashed"  # its last user did not close it; the next one recovers it


class QueueTail(NamedTuple):
    """The end of a queue: its last unit (None if it has none), and the queue offset after it."""

    last: ConsumeQueueUnit | None
    max_offset: int
    bases: tuple[int, ...]
    """The start offsets of its files, up to the one with the last unit."""


class ViewFindings(NamedTuple):
    """The findings of one view about a store, so that other views see the same store."""

    state: StoreState
    owner: int | None
    queue_file_size: int
    tails: dict[QueueKey, QueueTail]
    queue_faults: dict[QueueKey, Problem]
    end: LogEnd


_UNITS_KEPT = 16 << 20
"""Maximum size of the units of all queues that a view caches."""
_TOPICS_SAMPLED = 16
"""Number of topics whose files are sampled for the size of all queue files."""
_QUEUE_FAULTS: dict[type[Exception], ProblemKind] = {
    SegmentSizeError: ProblemKind.FILE_SIZE,
    StoreDamagedError: ProblemKind.FILE_MISSING,
}


class StoreView:
    """A store opened for reading only; open it with :meth:`open`.

    Use it as a context manager, or close it. ``reader`` reads messages, :meth:`walk` the log.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        system: System,
        *,
        exclusive: bool = False,
        known: ViewFindings | None = None,
        topics: Iterable[str] | None = None,
    ) -> None:
        check_is_store(system, root)
        self.root = root
        self.system = system
        self.owner = None if exclusive or known else lock_owner(system, root)
        """Id of the process that has the store open for writing, or None."""
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
        """The requested queues."""
        self.queues.extend(extension_file_size(system, root) or config.extension_file_size, None)
        self.queue_faults: dict[QueueKey, Problem] = {}
        """The queues that cannot be read, and why."""
        self._windows: dict[QueueKey, tuple[int, bytes]] = {}
        # Ends of the other queues, None if they were not read.
        self._others: dict[QueueKey, QueueTail] | None = {} if topics is None else None
        # Before the log, which then reaches at least as far as they point.
        if known is None:
            self.queues.list_folders(topics)
            self.tails, self.queue_faults = self._read_tails(self.queues.pairs())
        else:
            self.tails, self.queue_faults = known.tails, known.queue_faults
        geometry = IndexGeometry(config.index_slots, config.index_entries)
        self.index = Index(system, root, geometry, writable=False)
        live = self.state is StoreState.OPEN
        self.index.files, self.index_faults = load_index_files(system, root, geometry, live=live)
        self.log = ViewLog(system, root)
        self.log.load()
        self.end, self.last_record = self._find_end() if known is None else known.end
        self.log.end_at(self.end)
        self.config = self._adopt_sizes(config, first=known is None)
        self.reader = Reader(self.log, self.queues, self.index, Live(self.config))

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        system: System | None = None,
        exclusive: bool = False,
        known: ViewFindings | None = None,
        topics: Iterable[str] | None = None,
    ) -> Self:
        """Open the store in a folder for reading.

        Args:
            path: The folder of the store.
            config: The settings for reading; the defaults of :class:`StoreConfig` if omitted.
            system: Files and clock, for tests; those of the operating system if omitted.
            exclusive: Whether the caller holds the lock of the store, so that it is not being
                written; False by default.
            known: The result of :meth:`known` of another view, which is not determined again.
            topics: Only the queues of these topics; the others are not opened. All by default.

        Raises:
            NotAStoreError: The folder is not a store.
            OSError: The folder cannot be read.
        """
        system, config = system or SYSTEM, config or StoreConfig()
        return cls(Path(path), config, system, exclusive=exclusive, known=known, topics=topics)

    def known(self, queues: Iterable[QueueKey] = ()) -> ViewFindings:
        """Return the findings with which another view sees the same store.

        Args:
            queues: The queues that the other view will read; none by default.
        """
        wanted = set(queues)
        return ViewFindings(
            self.state,
            self.owner,
            self.queue_file_size,
            {key: tail for key, tail in self.tails.items() if key in wanted},
            {key: fault for key, fault in self.queue_faults.items() if key in wanted},
            LogEnd(self.end, self.last_record),
        )

    def close(self) -> None:
        """Close the files; slices of the log stay valid."""
        self.log.close()
        self.queues.close()
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- queues -------------------------------------------------------------------------------

    def _find_queue_size(self) -> int:
        """Return the usual length of a queue file: of some queues, or of all if they differ.

        Without queues it is the one in the inventory, or 0.
        """
        files = self.system.files
        base = self.root / CONSUME_QUEUE
        topics = [base / name for name in files.folders(base) if is_folder_name(name)]
        some = topics[:: max(len(topics) // _TOPICS_SAMPLED, 1)]
        for chosen in (some, topics):
            sizes = [size for topic in chosen for size in self._queue_sizes(topic)]
            if chosen is topics or len(set(sizes)) == 1:
                break
        return usual_size(sizes) or read_inventory(self.system, self.root).sizes.queue_file

    def _queue_sizes(self, topic: Path) -> Iterator[int]:
        """Yield the length of the first file of each queue of a topic."""
        for name in self.system.files.folders(topic):
            if parse_queue_id(name) is not None:
                yield from (size for _, size in segment_sizes(self.system, topic / name)[:1])

    def queue_files(self, topic: str, queue_id: int) -> list[tuple[int, int]]:
        """Return start offset and length of the files of queue ``queue_id`` of ``topic``."""
        return segment_sizes(self.system, self.root / queue_folder(topic, queue_id))

    def _read_tails(
        self, queues: Iterable[QueueKey]
    ) -> tuple[dict[QueueKey, QueueTail], dict[QueueKey, Problem]]:
        """Return the ends of queues, and the errors of those that cannot be read.

        Their files are closed again, because there may be very many.
        """
        tails: dict[QueueKey, QueueTail] = {}
        faults: dict[QueueKey, Problem] = {}
        pairs = list(queues)
        room = _UNITS_KEPT
        results = map_in_threads(self.system.threads, self._read_tail, pairs)
        for pair, found in zip(pairs, results, strict=True):
            if isinstance(found, Problem):
                faults[pair] = found
                continue
            tails[pair], window = found
            room -= len(window[1])
            if room >= 0:
                self._windows[pair] = window
        return tails, faults

    def queue_end(self, topic: str, queue_id: int) -> int | None:
        """Return the end of queue ``queue_id`` of ``topic``; 0 if missing, None if damaged."""
        if (topic, queue_id) in self.queue_faults:
            return None
        tail = self.tails.get((topic, queue_id))
        return tail.max_offset if tail is not None else 0

    def _read_tail(self, pair: QueueKey) -> tuple[QueueTail, tuple[int, bytes]] | Problem:
        """Return the end of a queue, and the units that were read to find it."""
        try:
            with closing(self._load_queue(*pair)) as queue:
                bases = tuple(segment.base for segment in queue.files.segments)
                return QueueTail(queue.last_unit, queue.max_offset, bases), queue.window
        except (StoreError, OSError) as error:
            kind = _QUEUE_FAULTS.get(type(error), ProblemKind.FILE_UNREADABLE)
            return Problem(queue_folder(*pair), 0, None, kind, str(error))

    def open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Open queue ``queue_id`` of ``topic`` as of this view; the caller must close it.

        Raises StoreError if the queue is damaged.
        """
        tail = self.tails.get((topic, queue_id))
        if tail is None:
            return self._load_queue(topic, queue_id)
        queue = self._queue(topic, queue_id)
        queue.adopt(tail.bases, tail.max_offset, self._windows.get((topic, queue_id), (0, b"")))
        return queue

    def _load_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        try:
            return self._load_once(topic, queue_id)
        except FileNotFoundError:
            # Retention may delete a file after it was listed and before it is opened.
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

    def _adopt_sizes(self, config: StoreConfig, *, first: bool) -> StoreConfig:
        """Return the settings with the sizes of the files, as far as these are valid."""
        sizes = {
            "commit_log_file_size": self.log.segment_size,
            "consume_queue_file_size": self.queue_file_size,
        }
        if self.index.files:
            newest = self.index.files[-1]
            sizes |= {"index_slots": newest.slots, "index_entries": newest.entries}
        elif first:
            noted = read_inventory(self.system, self.root).sizes
            sizes |= {"index_slots": noted.index_slots, "index_entries": noted.index_entries}
        for name, size in sizes.items():
            if size:
                try:
                    config = config.for_files(**{name: size})
                except ConfigError:
                    continue  # a damaged file, which the check reports in detail
        return config

    # -- the end of the log -------------------------------------------------------------------

    def _find_end(self) -> LogEnd:
        """Return the end of the log; read all queues if the requested ones do not suffice."""
        search = EndSearch(self.log, self.state is StoreState.OPEN, self._has_unit)
        watermark = self.watermark
        durable = watermark.durable_offset if watermark is not None else 0
        if self.state is StoreState.CLOSED and watermark is not None and watermark.clean:
            search.clean_end = durable
        if self._others is None and self.state is StoreState.CRASHED:
            self._read_others()
        if self._others is None:
            vouched = any(tail.last is not None for tail in self.tails.values())
            found = search.short_way(self._newest_known(), durable, vouched=vouched)
            if found is not None:
                return found
            self._read_others()
        return search.run(self._newest_known(), durable)

    def _read_others(self) -> None:
        """Read the ends of the other queues, which may point to later records."""
        others = QueueTable(self.system, self.root, self.queue_file_size, writable=False)
        others.list_folders()
        self._others, _ = self._read_tails(set(others.pairs()) - self.tails.keys())

    def record_pointers(self) -> list[RecordPointer]:
        """Return the last records that queues, index and watermark point to, newest first."""
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
        """Return the newest record that is pointed to and exists.

        After a clean stop a record with the size in its unit counts even if its body is damaged,
        because it was there.
        """
        return newest_known(
            self.log, self.record_pointers(), trusted=self.state is StoreState.CLOSED
        )

    def _has_unit(self, physical_offset: int) -> bool:
        """Return whether the record there is in its queue and was therefore complete."""
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
        """Return the facts about topics in the broker's files."""
        is_java = last_held_by_java(self.system, self.root)
        known = Inventory() if is_java else read_inventory(self.system, self.root)
        closed = self.state is StoreState.CLOSED
        listed = known.is_current(closed, self.watermark)
        return Catalog(
            self.system.files,
            self.root,
            self.queues.pairs(),
            partial(store_time_at, self.log),
            known.listed_queues(listed=listed, closed=closed),
        )

    # -- reading ------------------------------------------------------------------------------

    def walk(
        self, start: int | None = None, check: Check = Check.RECORD, *, until: int | None = None
    ) -> LogWalk:
        """Return a walk over the records of the log.

        Args:
            start: The physical offset of the first record; the oldest one by default.
            check: The checksums to verify; by default all of them.
            until: End the walk after the file that holds the byte before this physical offset; by
                default at the end of the log.
        """
        begin = self.log.min_offset if start is None else max(start, self.log.min_offset)
        live = self.state is StoreState.OPEN
        return LogWalk(self.log, begin, self.end, check, live=live, until=until)

    def relative(self, path: Path) -> str:
        """Return ``path`` relative to the store, as messages show it."""
        return self.log.relative(path)

    def foreign(self) -> list[str]:
        """Return relative paths in the folder that do not belong to a store, in order."""
        return sorted(foreign_names(self.system.files, self.root, self.queues.pairs()))
