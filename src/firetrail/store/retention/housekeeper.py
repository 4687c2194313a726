"""Periodic work: flushing queues and index, writing the watermark, retention.

The cost of a round depends on the changes since the last one, not on the size of the store.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from firetrail.errors import DiskFullError
from firetrail.store.dispatch.dispatcher import Dispatcher
from firetrail.store.evidence.inventory import InventoryFile
from firetrail.store.retention.retention import Retention
from firetrail.store.root.store_parts import StoreParts
from firetrail.store.root.watermark import Watermark, WatermarkFile
from firetrail.system import NO_DESCRIPTOR

FEW_QUEUES = 64
FEW_QUEUES_INTERVAL_MS = 5_000
"""While at most FEW_QUEUES queues are dirty, all of them and the index are synced this often."""

NEW_QUEUES = 500
"""Maximum number of new queues that wait until all queues are synced; a round syncs the others. A
stop that had to sync tens of thousands of them would take too long."""

RELEASE_INTERVAL_MS = 5_000
NEWEST_KEPT = 64 << 20
"""Bytes at the end of the log that stay mapped; the other touched pages are unmapped.

They stay in the page cache, but the process does not grow to the size of its log.
"""


class Housekeeper:
    """The thread for the periodic work."""

    def __init__(
        self,
        parts: StoreParts,
        dispatcher: Dispatcher,
        watermark_file: WatermarkFile,
        retention: Retention,
        inventory: InventoryFile,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = parts.log
        self._queues = parts.queues
        self._index = index = parts.index
        self._dispatcher = dispatcher
        self._file = watermark_file
        self._retention = retention
        self._inventory = inventory
        self._live = parts.live
        self._on_failure = on_failure
        self._clock = parts.system.clock
        threads = parts.system.threads
        self._stop = threads.event()
        self._flushing = threads.lock()  # a flush must not count what another one still syncs
        self._failed = False
        self._last_thorough = self._clock.monotonic()
        self._last_clean = self._clock.monotonic()
        self._is_out_of_space = False
        self._last_release = self._clock.monotonic()
        self._dispatched_offset = dispatcher.position  # queues and index are synced up to here
        self._physic_time = watermark_file.checkpoint.physic_timestamp
        self._logics_time = dispatcher.last_store_time
        self._logics_offset = dispatcher.last_record_offset
        self._filled = index.filled if index is not None else None
        self.before_watermark: Callable[[], None] = lambda: None
        """Brings to disk what is to be as new as the watermark."""
        self._thread = threads.thread("firetrail-housekeeper", self._run)

    def start(self) -> None:
        """Start the rounds."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def note_full_disk(self) -> None:
        """Let the next round look at the disk: a message was refused for lack of space."""
        self._is_out_of_space = True

    def _run(self) -> None:
        pause = self._live.current.consume_queue_flush_interval_ms / 1000
        try:
            while not self._stop.wait(pause):
                try:
                    self.round()
                except (OSError, MemoryError) as error:
                    if isinstance(error, OSError) and error.errno not in NO_DESCRIPTOR:
                        raise  # otherwise nothing was synced, and the next round retries
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Give up: a failed sync is never retried, and nothing that depends on it is recorded."""
        self._failed = True
        self._on_failure(error)

    def round(self) -> None:
        """Flush files that are due, record the positions in the watermark, and delete expired
        files."""
        if self._failed:
            return
        now = self._clock.monotonic()
        config = self._live.current
        if self._is_time_to_finish((now - self._last_thorough) * 1000):
            self._last_thorough = now
            self.flush_derived(self._stop.is_set)  # a stop continues it, within its own time limit
        else:
            with self._flushing:
                self._queues.flush(config.consume_queue_flush_least_pages, self._stop.is_set)
                self._queues.sync_new(NEW_QUEUES, self._stop.is_set)
        with suppress(DiskFullError):  # the previous watermark stays valid; the next round retries
            self.write_watermark(clean=False)
        if (now - self._last_release) * 1000 >= RELEASE_INTERVAL_MS and not config.lock_memory:
            self._last_release = now
            self._log.queue.release_pages(self._log.flushed_offset - NEWEST_KEPT)
            if self._index is not None:
                self._index.release_pages()
        is_due = (now - self._last_clean) * 1000 >= config.clean_interval_ms
        if is_due or self._is_out_of_space:
            self._last_clean = now
            self._is_out_of_space = False
            self._retention.round()
        self._note_new_files()

    def _note_new_files(self) -> None:
        """Keep the inventory up to date, so that the next start misses new files as well."""
        with self._retention.guard, self._flushing:
            settled = min(self._dispatched_offset, self._log.flushed_offset)
            self._inventory.note_new(self._queues, self._index, self._log.queue, settled)

    def _is_time_to_finish(self, waited_ms: float) -> bool:
        """Return whether to sync queues and index completely, which shortens the next recovery.

        With few queues that is cheap: it is done when dispatch is idle, or every few seconds.
        """
        if waited_ms >= self._live.current.consume_queue_flush_thorough_interval_ms:
            return True
        if len(self._queues.dirty) > FEW_QUEUES:
            return False
        is_idle = self._dispatcher.idle and self._dispatcher.position > self._dispatched_offset
        return is_idle or waited_ms >= FEW_QUEUES_INTERVAL_MS

    def flush_derived(self, is_over: Callable[[], bool] | None = None) -> bool:
        """Sync queues and index, which then cover the log up to the dispatched position.

        Returns False if ``is_over`` returned True before everything was synced.
        """
        with self._flushing:
            position = self._dispatcher.position
            logics_time = self._dispatcher.last_store_time
            logics_offset = self._dispatcher.last_record_offset
            filled = self._index.filled if self._index is not None else None
            if not self._queues.flush(is_over=is_over):
                return False
            if self._index is not None:
                self._index.flush()
            self._dispatched_offset = position
            self._logics_time = logics_time
            self._logics_offset = logics_offset
            self._filled = filled
        return True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Sync no queue until the end of the block; all units are on disk."""
        with self._flushing:
            self._queues.flush()
            yield

    def settle_derived(self) -> int:
        """Sync queues and index; return the position up to which they contain the log on disk."""
        try:
            if not self._failed:
                self.flush_derived()
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:  # otherwise the last position is still valid
                self._fail(error)
        return self._dispatched_offset

    def remove_topic(self, topic: str, settled: int) -> bool:
        """Remove the queues of a topic; return False while a sync or retention is running.

        All messages of the topic are before ``settled``, up to which the log is on disk: a place
        that a crash could remove would later be that of messages of the topic's next queues.
        """
        with ExitStack() as held:
            for lock in (self._retention.guard, self._flushing):
                if not lock.acquire(blocking=False):
                    return False
                held.callback(lock.release)
            self._inventory.forget_topic(topic, settled)
            self._queues.remove(topic)
        return True

    def write_watermark(self, *, clean: bool) -> None:
        """Record durably which positions are on disk."""
        self.before_watermark()
        with self._flushing:
            durable = self._log.flushed_offset
            dispatched = min(self._dispatched_offset, durable)
            if durable >= self._dispatched_offset:
                self._physic_time = self._logics_time
            marks = self._derived_marks()
            watermark = Watermark(
                clean, durable, dispatched, self._logics_offset, self._logics_time
            )
        self._file.write(watermark, physic_timestamp=self._physic_time, **marks)

    def _derived_marks(self) -> dict[str, int]:
        """Return the fields of the checkpoint for queues and index, for a Java store that recovers.

        Queues could be marked up to what was flushed, but messages that Java does not dispatch
        again would be missing in the index files that it creates (:attr:`Index.filled`).
        """
        offset = max(self._logics_offset, 0)
        if self._filled is None:
            return {"logics_timestamp": self._logics_time, "logics_offset": offset}
        time, filled_offset = self._filled
        return {
            "logics_timestamp": min(self._logics_time, time),
            "index_timestamp": time,
            "logics_offset": min(offset, filled_offset),
        }
