"""The commit log: every message, in the order of arrival, in one sequence of segments.

Appends happen under one lock. Everything that can be done earlier (checks, sizes, encoding of
properties) is done before the lock is taken; under it a record gets its store time, queue offset
and position and is written. A record never spans two files: if it does not fit with 8 bytes to
spare, a BLANK record fills the file, and the record goes to the next one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import DiskFullError, StoreBusyError, StoreClosedError
from firetrail.format import layout
from firetrail.format.kernels.draft import Draft, DraftRules
from firetrail.format.kernels.encode import RecordFields, RecordWriter
from firetrail.format.names import COMMIT_LOG, OFFSET_MAX
from firetrail.storage.allocator import Allocator
from firetrail.storage.buffers import BUFFER_SIZE, WriteBuffer, WriteBufferPool
from firetrail.storage.growth import PAGE_SIZE
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.storage.spread import Spread
from firetrail.store.kernels.append import Appender, PutResult
from firetrail.store.log.log_records import store_time_at
from firetrail.store.problems import LOG_REMEDY
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.settings.store_config import BrokerRole, FlushMode, StoreConfig
from firetrail.system import System

_NOWHERE = RecordWriter(bytearray(1))


class BatchDraft(NamedTuple):
    """A validated client batch: one topic and queue, written in one piece."""

    common: RecordFields
    """The fields of all its records; the properties are those that every item gets."""
    items: bytes
    """The items of the batch."""
    messages: int
    """The number of items."""
    size: int
    """Bytes of all records."""


class CommitLog:
    """Appends to and reads from the segments of ``<root>/commitlog``, or of a ``spread``."""

    def __init__(
        self,
        system: System,
        root: Path,
        config: StoreConfig,
        rules: DraftRules,
        queues: dict[QueueKey, ConsumeQueue],
        spread: Spread | None = None,
    ) -> None:
        self._config = config
        self._sync = config.flush is FlushMode.SYNC
        self._lock = system.threads.lock()
        self._lock_patience = config.page_cache_busy_ms / 1000
        self.queue = SegmentQueue(
            system, root / COMMIT_LOG, config.commit_log_file_size, remedy=LOG_REMEDY, spread=spread
        )
        self._allocator = Allocator(
            self.queue,
            warm_up=config.warm_up,
            lock_memory=config.lock_memory,
            fault_in=config.role is not BrokerRole.SLAVE,  # which does not write to the mapping
        )
        self._pool: WriteBufferPool | None = None
        self._active: tuple[Segment | None, RecordWriter] = None, _NOWHERE
        self.appender = Appender(rules, config.store_host, queues, self._lock, system.clock.time_ns)
        """Stores messages that need only a write to the active file, and counts all puts."""
        self._accepting = True
        self.on_sendable: Callable[[], None] | None = None
        """Called when there is more to send to replicas; None while none is connected."""
        self.flushed_offset = 0
        """The offset up to which the log is on disk."""
        self.confirmed_offset = OFFSET_MAX
        """The offset up to which enough replicas have the log; the largest one if none is needed.

        It goes back when a replica disconnects.
        """
        self.once_confirmed = 0
        """The offset up to which enough replicas have had the log, now or at some time before."""
        self.is_confirmed_end_known = True
        """Whether ``confirmed_end`` is exact; after an unclean stop it may be too low."""
        self.keep_confirmed: Callable[[int], None] = lambda offset: None
        """Keeps the offset up to which replicas have confirmed the log; OFFSET_MAX if none has to,
        so that all of it counts."""

    # -- start and stop -----------------------------------------------------------------------

    def start(self, last_store_time: int) -> None:
        """Accept appends, once recovery has set the positions and found the last store time."""
        self.appender.last_store_time = last_store_time
        if self._config.write_buffer_pool:
            size = max(BUFFER_SIZE, self._config.max_record_size)
            self._pool = WriteBufferPool(self.queue.system, self._config.write_buffer_count, size)
            if self._config.lock_memory:
                self._pool.lock_memory()
        self.flushed_offset = self.readable_offset
        if self.queue.last is not None:
            self._activate(self.queue.last)
        self._allocator.start()

    def refuse_appends(self) -> None:
        """Accept no more appends: those in progress finish, later ones raise StoreClosedError."""
        with self._lock:
            self._accepting = False
            self.appender.detach()

    def stop(self) -> None:
        """Close the files, which were flushed before."""
        self._allocator.stop()
        self._active = None, _NOWHERE  # the writer would keep the mapping open
        self.appender.detach()
        self.queue.close()

    # -- positions ----------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest record."""
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """Physical offset of the next record."""
        return self.queue.wrote_offset

    @property
    def readable_offset(self) -> int:
        """Physical offset of the end of the last readable record."""
        return self.queue.readable_offset

    @property
    def confirmed_end(self) -> int:
        """The end of the part of the log that replicas are known to have confirmed."""
        return min(self.shown_offset, self.max_offset)

    @property
    def unconfirmed_ms(self) -> int:
        """The age of the oldest message that too few replicas have; 0 if there is none."""
        log, offset = self.queue, self.confirmed_offset
        if offset >= self.max_offset:
            return 0
        # The rest of a file may be filled up; then the next record begins the next file.
        places = offset, *(file.base for file in log.from_offset(offset) if file.base > offset)
        times = (time for at in places if (time := store_time_at(log, at)) is not None)
        now_ms = log.system.clock.now_ms()
        return max(now_ms - next(times, now_ms), 0)

    def oldest_time(self) -> int | None:
        """Return the store time (ms) of the first record; None if it is not readable."""
        return store_time_at(self.queue, self.min_offset)

    @property
    def sendable_offset(self) -> int:
        """The physical offset up to which replicas may get the log.

        With SYNC_FLUSH it is the end of the synced part: after a power cut a replica would
        otherwise have records that its master has lost, and could no longer follow it.
        """
        return self.flushed_offset if self._sync else self.readable_offset

    @property
    def needs_confirmation(self) -> bool:
        """Whether replicas have to confirm a message before consumers see it."""
        return self.confirmed_offset != OFFSET_MAX

    def announce(self) -> None:
        """Announce that ``sendable_offset`` has grown."""
        notify = self.on_sendable
        if notify is not None:
            notify()

    @property
    def shown_offset(self) -> int:
        """The offset before which consumers may see the log, as far as replicas are concerned.

        A confirmed message is shown even if a replica disconnects before that.
        """
        return max(self.confirmed_offset, self.once_confirmed)

    def dispatchable(self) -> int:
        """Return the end of the part that may be dispatched: consumers must not see messages that
        could be lost."""
        return min(self.sendable_offset, self.shown_offset)

    # -- append -------------------------------------------------------------------------------

    def append(self, draft: Draft, queue: ConsumeQueue) -> PutResult:
        """Write one record; after an error nothing has changed."""
        self._acquire()
        try:
            self._make_room(draft.size)
            return self.appender.append(draft, queue)
        finally:
            self._lock.release()

    def append_batch(self, draft: BatchDraft, queue: ConsumeQueue) -> PutResult:
        """Write the records of a batch in one piece; raises the errors of :meth:`append`."""
        self._acquire()
        try:
            self._make_room(draft.size)
            return self.appender.append_batch(draft, queue)
        finally:
            self._lock.release()

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=self._lock_patience):
            raise StoreBusyError(
                f"another put has held the lock for {self._config.page_cache_busy_ms} ms; try again"
            )

    def _make_room(self, size: int) -> None:
        """Attach the appender to the segment or the write buffer that takes the next bytes."""
        if not self._accepting:
            raise StoreClosedError("the store is closed")
        self.appender.pause()
        segment, writer = self._active
        if (
            segment is None
            or segment is not self.queue.last  # an earlier roll was interrupted
            or segment.wrote + size + layout.BLANK.size > segment.size
        ):
            segment, writer = self._roll(segment)
        end = segment.wrote + size
        if end > segment.allocated:
            segment.allocate(end)
        buffer = self._reserve_buffer(segment, size) if self._pool is not None else None
        if segment.base + end >= self._allocator.wake_at:
            self._allocator.wake()
        limit = min(
            segment.allocated,
            segment.size - layout.BLANK.size,
            self._allocator.wake_at - segment.base,
        )
        if buffer is None:
            self.appender.attach(segment, writer, segment.base, max(limit, end))
        else:
            limit = min(limit, buffer.start + buffer.size)
            self.appender.attach(
                segment, buffer.writer, segment.base, max(limit, end), buffer.start
            )

    def _reserve_buffer(self, segment: Segment, size: int) -> WriteBuffer:
        assert self._pool is not None
        buffer = self._pool.reserve(segment, size)
        if buffer is None:
            if self._config.fail_fast_without_buffer:
                raise DiskFullError(
                    f"all {self._config.write_buffer_count} write buffers are waiting for a commit"
                )
            self._pool.commit(segment)
            buffer = self._pool.reserve(segment, size)
            assert buffer is not None
        return buffer

    def _roll(self, full: Segment | None) -> tuple[Segment, RecordWriter]:
        """Fill ``full`` up with a BLANK record and continue in the next segment.

        All steps that can fail come first, so that a failure changes nothing. A full segment is the
        last one if a crash came before the first record of the next.
        """
        if full is not None and not full.is_full:
            if self._pool is not None:
                self._pool.commit(full)
            full.allocate(full.wrote + layout.BLANK.size)
        segment = self.queue.last
        if segment is None or segment is full:
            segment = self._allocator.next_segment()
        if full is not None and not full.is_full:
            self._fill_up(full)
        return self._activate(segment)

    def _fill_up(self, full: Segment) -> None:
        blank = layout.BLANK.struct.pack(full.size - full.wrote, layout.MAGIC_BLANK)
        full.view[full.wrote : full.wrote + len(blank)] = blank
        full.wrote_to(full.size)

    def _activate(self, segment: Segment) -> tuple[Segment, RecordWriter]:
        active = segment, RecordWriter(segment.view)
        self._active = active
        return active

    # -- copies of another log ----------------------------------------------------------------

    @property
    def file_size(self) -> int:
        """The length of the log's files."""
        return self.queue.segment_size

    @property
    def is_empty(self) -> bool:
        """Whether the log has no record yet; a crash may have left its first file."""
        last = self.queue.last
        return last is None or (last is self.queue.first and last.wrote == 0)

    def append_copied(self, offset: int, records: memoryview, store_time: int) -> None:
        """Append records as another log has them, at the same physical offset.

        Args:
            offset: The end of this log; if it is empty, the beginning of its first file.
            records: Whole records that have been checked, all in one file.
            store_time: The store time of the last record.
        """
        with self._lock:
            segment = self._segment_to_copy(offset)
            at = offset - segment.base
            end = at + len(records)
            segment.allocate(end)
            segment.write(at, records)
            segment.wrote_to(end)
            self.appender.last_store_time = store_time
            if segment.base + end >= self._allocator.wake_at:
                self._allocator.wake()

    def fill_up_copied(self, offset: int) -> None:
        """Append the BLANK record that fills up a file of another log from ``offset``."""
        with self._lock:
            segment = self._segment_to_copy(offset)
            segment.allocate(offset - segment.base + layout.BLANK.size)
            self._fill_up(segment)

    def _segment_to_copy(self, offset: int) -> Segment:
        """Return the segment for bytes at ``offset``, which is the end of the log."""
        if not self._accepting:
            raise StoreClosedError("the store is closed")
        self.appender.detach()
        if self.is_empty and self.max_offset != offset:
            self._active = None, _NOWHERE  # the writer would keep the mapping open
            self.queue.remove_only()
        segment = self.queue.last
        if segment is None:
            segment = self.queue.roll(offset)
        elif segment.is_full:
            segment = self._allocator.next_segment()
        if segment.base + segment.wrote != offset:
            raise ValueError(f"the log ends at {segment.base + segment.wrote}, not at {offset}")
        self._activate(segment)
        return segment

    # -- commit and flush ---------------------------------------------------------------------

    @property
    def free_buffers(self) -> int | None:
        """The number of free write buffers; None without a buffer pool."""
        return None if self._pool is None else self._pool.free

    def commit(self, least_pages: int = 0) -> bool:
        """Make messages in write buffers readable; return whether there were any."""
        if self._pool is None or self._active[0] is None:
            return False
        with self._lock:
            segment = self._active[0]
            assert segment is not None
            waiting = segment.wrote - segment.committed
            if waiting == 0 or waiting < least_pages * PAGE_SIZE:
                return False
            self._pool.commit(segment)
        return True

    def flush(self, least_pages: int = 0) -> bool:
        """Sync the segments that are due; return whether there were any. An OSError is final."""
        synced = False
        for segment in self.queue.from_offset(self.flushed_offset):
            if not segment.is_due(least_pages):
                break
            segment.flush()
            synced = True
            self.flushed_offset = segment.base + segment.flushed
            if segment.flushed < segment.size:  # it may have been filled up during the sync
                break
        return synced

    # -- read ---------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> memoryview | None:
        """Return ``size`` bytes at ``offset``, or None if they are not readable."""
        return self.queue.read(offset, size)
