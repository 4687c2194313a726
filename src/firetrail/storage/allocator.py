"""Allocation of disk space and new files ahead of the writes, in the background.

Touching a page for the first time costs more than everything else in an append, and creating a file
requires a sync of its folder. One thread does both before the appender gets there: it allocates and
faults in the next step of the active segment, and creates the next segment when the active one is
half full. The appender itself allocates space that is not ready in time. A failure in the
background is therefore not reported: the appender meets the same error when it needs the space.
"""

from firetrail.errors import StoreError
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.system import SyncError

_NEVER = 1 << 62


class Allocator:
    """Prepares the segments of one queue."""

    def __init__(
        self, queue: SegmentQueue, *, warm_up: bool, lock_memory: bool, fault_in: bool = True
    ) -> None:
        """Prepare to work for a queue.

        Args:
            queue: The queue.
            warm_up: Whether to allocate and fault in whole files.
            lock_memory: Whether to lock the next file in memory.
            fault_in: Whether the writes go to mappings, which are faster if their pages are there.
        """
        self._queue = queue
        self._warm_up = warm_up
        self._lock_memory = lock_memory
        self._fault_in = fault_in or warm_up
        threads = queue.system.threads
        self._wake = threads.event()
        self._guard = threads.lock()  # over _ready, and over the creation of files
        self._ready: Segment | None = None
        self._failure: SyncError | None = None
        self._stopping = False
        self._thread = threads.thread("firetrail-allocator", self._run)
        self.wake_at = 0
        """Offset in the queue at which an appender should call :meth:`wake`."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Make the thread check the position of the writes."""
        self.wake_at = _NEVER  # the thread sets it when it is done
        self._wake.set()

    def next_segment(self) -> Segment:
        """Append the next segment to the queue: the prepared one, or one created now.

        Raises a SyncError that occurred in the background, because a failed sync is never retried.
        """
        if self._failure is not None:
            raise self._failure
        with self._guard:
            ready, self._ready = self._ready, None
            if ready is not None:
                self._queue.append(ready)
            segment = ready or self._queue.roll()
        self.wake()
        return segment

    def stop(self) -> None:
        """Stop the thread, and remove a file that was prepared but not used."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._guard:
            ready, self._ready = self._ready, None
        if ready is not None:
            ready.destroy(0)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._work_ahead()
            except (StoreError, OSError, MemoryError) as error:
                self.wake_at = _NEVER  # the appender meets the same failure, and reports it
                if isinstance(error, SyncError):
                    self._failure = error

    def _work_ahead(self) -> None:
        active = self._queue.last
        if active is None:
            return
        ahead = active.size if self._warm_up else active.growth.step(active.wrote)
        if active.allocated < min(active.wrote + ahead, active.size):
            active.allocate(active.size if self._warm_up else active.allocated + 1)
            self._fill_in(active)
        if active.wrote * 2 >= active.size:
            self._prepare_next(active)
        self.wake_at = active.base + min(
            active.size // 2 if active.wrote * 2 < active.size else active.size,
            max(active.allocated - active.growth.step(active.wrote) // 2, active.wrote + 1),
        )

    def _prepare_next(self, active: Segment) -> None:
        with self._guard:
            if self._ready is not None or self._queue.last is not active:
                return
            queue = self._queue
            segment = self._ready = queue.create(active.end)
        if self._warm_up:
            segment.allocate(segment.size)
        self._fill_in(segment)
        if self._lock_memory:
            queue.system.files.lock_memory(segment.mapping)

    def _fill_in(self, segment: Segment) -> None:
        if self._fault_in:
            segment.fill_in()
