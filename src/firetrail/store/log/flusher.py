"""The flusher: it syncs appended messages, and wakes the callers that wait for it.

One thread syncs the log. With SYNC_FLUSH it syncs whenever a caller waits: all callers that append
while one sync is running share the next one. With ASYNC_FLUSH it syncs at intervals. With the
write-buffer pool it commits first. A failed sync is never repeated: the kernel may have dropped the
pages, and a second sync would report success for data that is lost.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident

from firetrail.settings.settings_table import Live
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.settings.store_config import FlushMode, StoreConfig
from firetrail.system import Threads

OUT_OF_MEMORY_PAUSE_MS = 100
"""Pause after a MemoryError."""


class Waiter:
    """A caller that waits until the log is safe up to an offset: on disk, or on replicas."""

    __slots__ = ("durable", "offset", "timed_out")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.durable = False
        self.timed_out = False

    def tell(self, durable: bool) -> None:
        """End the wait: the log is safe up to the offset, or never will be."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread that is blocked until :meth:`tell` is called."""

    __slots__ = ("_released",)

    def __init__(self, offset: int, threads: Threads) -> None:
        super().__init__(offset)
        self._released = threads.lock()
        self._released.acquire()

    def tell(self, durable: bool) -> None:
        self.durable = durable
        self._released.release()

    def wait(self, timeout_s: float) -> bool:
        """Block; return whether :meth:`tell` was called in time."""
        self.timed_out = not self._released.acquire(timeout=timeout_s)
        return not self.timed_out


class LoopWaiter(Waiter):
    """A caller in an event loop; it is created in the thread of the loop."""

    __slots__ = ("_thread", "loop")

    def __init__(self, offset: int, loop: AbstractEventLoop) -> None:
        super().__init__(offset)
        self.loop = loop
        self._thread = get_ident()

    def resolve(self, durable: bool) -> None:
        """End the wait, in the event loop."""
        raise NotImplementedError

    def tell(self, durable: bool) -> None:
        self.tell_all(self.loop, [self], durable)

    @staticmethod
    def tell_all(loop: AbstractEventLoop, waiters: list[LoopWaiter], durable: bool) -> None:
        """Notify several callers in a loop with one call."""
        is_inside = get_ident() == waiters[0]._thread
        call = loop.call_soon if is_inside else loop.call_soon_threadsafe
        with suppress(RuntimeError):  # the loop is closed, so no caller waits in it
            call(_resolve, waiters, durable)


def _resolve(waiters: list[LoopWaiter], durable: bool) -> None:
    for waiter in waiters:
        waiter.resolve(durable)


class FutureWaiter(LoopWaiter):
    """A coroutine of an event loop."""

    __slots__ = ("future",)

    def __init__(self, offset: int, loop: AbstractEventLoop) -> None:
        super().__init__(offset, loop)
        self.future: Future[bool | None] = loop.create_future()
        """Whether the log is safe up to the offset; None after a timeout."""

    def time_out(self) -> None:
        """Stop waiting; called in the event loop."""
        self.timed_out = True
        if not self.future.done():
            self.future.set_result(None)

    def resolve(self, durable: bool) -> None:
        if not self.future.done():
            self.future.set_result(durable)


class Waiters:
    """The callers that wait for one kind of progress, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, waiter: Waiter) -> None:
        """Let a caller wait until :meth:`tell` is called with its offset or a later one."""
        self._waiting.append(waiter)

    def drop_timed_out(self) -> None:
        """Forget the callers at the head that no longer wait. No other thread may call `tell`."""
        while self._waiting and self._waiting[0].timed_out:
            self._waiting.popleft()

    def tell(self, reached: int, *, ended: bool = False) -> bool:
        """Notify those whose offset is reached; all of them if there is no more progress.

        Returns whether some still wait.
        """
        loops: dict[AbstractEventLoop, list[LoopWaiter]] = {}
        for _ in range(len(self._waiting)):
            try:
                waiter = self._waiting.popleft()
            except IndexError:
                break  # another thread notifies them at the same time
            if waiter.offset > reached and not ended:
                self._waiting.append(waiter)
            elif isinstance(waiter, LoopWaiter) and waiter.offset <= reached:
                loops.setdefault(waiter.loop, []).append(waiter)
            else:
                waiter.tell(waiter.offset <= reached)
        for loop, waiters in loops.items():
            LoopWaiter.tell_all(loop, waiters, True)
        return bool(self._waiting)


class Signal:
    """An event for a single waiter: one lock, a fraction of the cost of an event."""

    __slots__ = ("_lock",)

    def __init__(self, threads: Threads) -> None:
        self._lock = threads.lock()
        self._lock.acquire()

    def set(self) -> None:
        """Release the current or the next waiter."""
        if self._lock.locked():  # not set yet
            with suppress(RuntimeError):  # another thread has set it just now
                self._lock.release()

    def clear(self) -> None:
        """Undo a :meth:`set` that has released no waiter."""
        self._lock.acquire(False)

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait for the next :meth:`set`, and clear it; return False if the time is over before."""
        return self._lock.acquire(timeout=timeout_s)


class LogFlusher:
    """The thread that commits and syncs the log."""

    def __init__(
        self,
        log: CommitLog,
        config: Live[StoreConfig],
        on_progress: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._live = config
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._clock = log.queue.system.clock
        self._waiters = Waiters()
        threads = log.queue.system.threads
        self._wake = Signal(threads)
        self._stopping = False
        self._ended = False  # whether no more syncs will follow
        self._awake = False  # whether the thread will check the waiters again without a wake-up
        self._last_thorough = 0.0
        self._last_commit = 0.0
        self._thread = threads.thread("firetrail-flush", self._run)

    def start(self) -> None:
        """Start syncing."""
        self._thread.start()

    def stop(self) -> None:
        """Commit and sync everything, and end the thread; raise the error of a failed sync."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        if self._ended:
            return
        try:
            self._log.commit()
            self._log.flush()
        finally:
            self.give_up()

    def add(self, waiter: Waiter) -> None:
        """Notify ``waiter`` when the log is durable up to its offset."""
        self._waiters.add(waiter)
        if not self._awake:
            self._wake.set()
        if self._ended:  # the thread has ended and will not notify it
            self._tell_waiters()

    def _run(self) -> None:
        sync_mode = self._live.current.flush is FlushMode.SYNC
        try:
            while not self._stopping:
                try:
                    self._round(sync_mode)
                except MemoryError:  # no sync has failed, so it can be retried
                    self._clock.sleep_ms(OUT_OF_MEMORY_PAUSE_MS)
        except Exception as error:
            self._on_failure(error)
            self.give_up()

    def _round(self, sync_mode: bool) -> None:
        if sync_mode:
            self._wait_for_waiters()
            synced = self._log.flush()
        else:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            synced = self._commit_and_flush()
        self._tell_waiters()
        if synced:
            self._on_progress()
            self._log.announce()

    def give_up(self) -> None:
        """Stop syncing; notify current and later waiters."""
        self._ended = True
        self._tell_waiters()

    def _wait_for_waiters(self) -> None:
        self._awake = False
        if not self._waiters and not self._stopping:  # a later waiter sees that this is not awake
            self._wake.wait()
        self._awake = True

    def _pause_s(self) -> float:
        config = self._live.current
        if config.write_buffer_pool:
            return min(config.commit_interval_ms, config.flush_interval_ms) / 1000
        return config.flush_interval_ms / 1000

    def _commit_and_flush(self) -> bool:
        """Commit and sync the bytes that are due; all of them at the thorough interval or for a
        waiter."""
        config = self._live.current
        now = self._clock.monotonic()
        thorough = (now - self._last_thorough) * 1000 >= config.flush_thorough_interval_ms
        if thorough or self._waiters:
            self._last_thorough = now
            committed = self._log.commit()
            return self._log.flush() or committed
        committed = self._log.commit(self._least_pages_to_commit(now))
        return self._log.flush(config.flush_least_pages) or committed

    def _least_pages_to_commit(self, now: float) -> int:
        if (now - self._last_commit) * 1000 < self._live.current.commit_thorough_interval_ms:
            return self._live.current.commit_least_pages
        self._last_commit = now
        return 0

    def _tell_waiters(self) -> None:
        if self._waiters.tell(self._log.flushed_offset, ended=self._ended):
            self._wake.set()
