"""Making appended messages durable, and those who wait for it.

One thread syncs the log. With SYNC_FLUSH it syncs whenever somebody waits: all who appended while
the sync before was running share the next one. With ASYNC_FLUSH it syncs at intervals. With the
write-buffer pool it commits first. A sync that fails is never tried again: the kernel may have
dropped the pages, and a second sync would report success for data that is gone.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from firetrail.store.commitlog import CommitLog
from firetrail.store.config import FlushMode, StoreConfig

OnDurable = Callable[[], None]


class Waiter:
    """Somebody who waits for the log to be durable up to an offset."""

    __slots__ = ("durable", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.durable = False

    def tell(self, durable: bool) -> None:
        """The wait is over: the log is durable up to the offset, or never will be."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread, blocked until it is told."""

    __slots__ = ("_told",)

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self._told = threading.Lock()
        self._told.acquire()

    def tell(self, durable: bool) -> None:
        self.durable = durable
        self._told.release()

    def wait(self, timeout_s: float) -> bool:
        """Block; whether it was told in time."""
        return self._told.acquire(timeout=timeout_s)


class LoopWaiter(Waiter):
    """A coroutine of an event loop."""

    __slots__ = ("_loop", "future")

    def __init__(self, offset: int, loop: AbstractEventLoop) -> None:
        super().__init__(offset)
        self._loop = loop
        self.future: Future[bool] = loop.create_future()

    def tell(self, durable: bool) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._resolve, durable)

    def _resolve(self, durable: bool) -> None:
        if not self.future.done():
            self.future.set_result(durable)


class LogFlusher:
    """The thread that commits and syncs the log."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        on_progress: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._config = config
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._clock = log.queue.system.clock
        self._waiters: deque[Waiter] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._ended = False  # nothing will be synced any more
        self._last_thorough = 0.0
        self._last_commit = 0.0
        self._thread = threading.Thread(target=self._run, name="firetrail-flush", daemon=True)

    def start(self) -> None:
        """Begin to sync."""
        self._thread.start()

    def stop(self) -> None:
        """Commit and sync everything, and end the thread. Raises what the sync raised."""
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
        """Tell ``waiter`` when the log is durable up to its offset."""
        self._waiters.append(waiter)
        self._wake.set()
        if self._ended:  # and the thread with it
            self._tell_waiters()

    def _run(self) -> None:
        sync_mode = self._config.flush is FlushMode.SYNC
        try:
            while not self._stopping:
                if sync_mode:
                    self._wake.wait()
                    self._wake.clear()
                    synced = self._log.flush()
                else:
                    self._wake.wait(self._pause_s())
                    self._wake.clear()
                    synced = self._commit_and_flush()
                self._tell_waiters()
                if synced:
                    self._on_progress()
        except Exception as error:
            self._on_failure(error)
            self.give_up()

    def give_up(self) -> None:
        """Nothing will be synced any more: tell those who wait, now and later."""
        self._ended = True
        self._tell_waiters()

    def _pause_s(self) -> float:
        config = self._config
        if config.write_buffer_pool:
            return min(config.commit_interval_ms, config.flush_interval_ms) / 1000
        return config.flush_interval_ms / 1000

    def _commit_and_flush(self) -> bool:
        """Commit and sync what is due; everything at the thorough interval or if one waits."""
        config = self._config
        now = self._clock.monotonic()
        thorough = (now - self._last_thorough) * 1000 >= config.flush_thorough_interval_ms
        if thorough or self._waiters:
            self._last_thorough = now
            committed = self._log.commit()
            return self._log.flush() or committed
        committed = self._log.commit(self._least_pages_to_commit(now))
        return self._log.flush(config.flush_least_pages) or committed

    def _least_pages_to_commit(self, now: float) -> int:
        if (now - self._last_commit) * 1000 < self._config.commit_thorough_interval_ms:
            return self._config.commit_least_pages
        self._last_commit = now
        return 0

    def _tell_waiters(self) -> None:
        durable = self._log.flushed_offset
        for _ in range(len(self._waiters)):
            try:
                waiter = self._waiters.popleft()
            except IndexError:
                return  # after the end, those who wait tell themselves
            if waiter.offset <= durable:
                waiter.tell(True)
            elif self._ended:
                waiter.tell(False)
            else:
                self._waiters.append(waiter)
                self._wake.set()
