"""The dispatcher: it keeps consume queues and index up to date with the log, in its order.

The thread waits until the log grows, processes new records in one step, and notifies the listeners
of queues with new messages. A range may be dispatched again: queues and index skip entries that
they have.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from firetrail.errors import DiskFullError, StoreBusyError, StoreError
from firetrail.format.columns import Check, Stop
from firetrail.store.dispatch.derivation import Arrival, DeadlineExceeded, Deriver
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.progress_log import INTERVAL_S, ProgressLog
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.system import NO_DESCRIPTOR

_log = logging.getLogger(__name__)
QUIET_ROUNDS = 20
"""The number of unsuccessful checks, a millisecond apart, after which the log counts as quiet."""
RELIEVED_S = 0.1
"""The time for which the thread leaves the log to an event loop that has dispatched messages."""
HELP_S = 0.002
"""Maximum time of a step in a thread other than the dispatcher; creating queues takes time."""
NEW_QUEUES_BEHIND_MAX = 128
"""Maximum number of queues that have messages in the log and wait to be created.

The creation of a queue costs far more than the put of its first message, so a put to one more new
queue has to wait.
"""
BEHIND_MAX = 64 << 20
"""Number of bytes that may wait to be dispatched before puts are slowed down.

Batches wait then, and single puts that need more than room in the active file: at least one per
32 MiB.
"""
PUT_WAIT_S = 0.2
"""Maximum time that a put, and its event loop, waits for the dispatcher."""
DISK_FULL_PAUSE_S = 1.0
"""The time that dispatch waits for space before it retries."""


class Dispatcher:
    """The thread that keeps queues and index up to date with the log."""

    def __init__(
        self, log: CommitLog, deriver: Deriver, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._log = log
        self._deriver = deriver
        self._limit = log.dispatchable
        self._on_failure = on_failure
        threads = log.queue.system.threads
        self._wake = threads.event()
        self._stopping = False
        self._quiet_rounds = QUIET_ROUNDS
        self._relieved_at = -RELIEVED_S
        self._is_over: Callable[[], bool] | None = None
        self._stepping = threads.lock()  # held during a step of this thread or of a helper
        self._announcing = 0  # id of the thread that is calling the listeners
        self._cut_limit = 0  # the last limit that ended within the next record
        self._new_queues: deque[tuple[ConsumeQueue, int]] = deque(maxlen=NEW_QUEUES_BEHIND_MAX)
        self._thread = threads.thread("firetrail-dispatch", self._run)
        self.listeners: list[Callable[[list[Arrival]], None]] = []
        self.idle = False
        """Whether the thread waits; after an append, call :meth:`wake` then."""
        self.position = 0
        """The position up to which queues and index contain the log."""
        self.last_record_offset = -1
        self.last_store_time = 0
        self.starved = ""
        """The reason why dispatch is blocked: no disk space, descriptors or memory; empty if it is
        not."""

    @property
    def behind(self) -> int:
        """Bytes of the log that may be dispatched and are not."""
        limit = self._limit()
        return max(limit - self.position, 0) if limit > self._cut_limit else 0

    @property
    def is_stuck(self) -> bool:
        """Whether dispatch makes no progress: it lacks a resource, or has ended with an error."""
        return bool(self.starved) or not self._thread.is_alive()

    def begin_at(self, position: int, last_record_offset: int, last_store_time: int) -> None:
        """Set the position up to which the log is dispatched, and the record before it."""
        self.position = position
        self.last_record_offset = last_record_offset
        self.last_store_time = last_store_time

    def start(self) -> None:
        """Start following the log."""
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread, because there is more to dispatch."""
        self.idle = False
        self._wake.set()

    def wake_if_idle(self) -> None:
        """Wake the thread if it waits: a thread that is busy checks the log again by itself."""
        if self.idle:
            self.wake()

    def relieve(self) -> None:
        """Dispatch new messages in the calling event loop, which does so after all its puts.

        The thread checks the log less often for a while. Checks once per millisecond would make
        the loop wait for the interpreter lock again and again.
        """
        self._relieved_at = self._log.queue.system.clock.monotonic()
        self.help()

    def help(self, patience_s: float = 0.0) -> None:
        """Dispatch new messages in the calling thread, and call the listeners there.

        Waits at most ``patience_s`` if the dispatcher is working. This is faster than the
        dispatcher, which has to be woken or checks once per millisecond.
        """
        if self.starved or self._stopping or not self._stepping.acquire(timeout=patience_s):
            return
        clock = self._log.queue.system.clock
        over_at = clock.monotonic() + HELP_S

        def is_over() -> bool:
            return clock.monotonic() > over_at

        try:
            while not self._stopping and not is_over() and self._step(is_over):
                pass
        except DeadlineExceeded:
            pass  # the dispatcher continues with the next queue
        except Exception as error:
            _log.warning(
                "a put or pull could not dispatch messages; the dispatcher will retry: %s", error
            )
            self.wake()
        finally:
            self._stepping.release()
        if not self._stopping and self.behind:
            self.wake()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take no step until the end of the block."""
        with self._stepping:
            yield

    def note_new_queue(self, queue: ConsumeQueue, end: int) -> None:
        """Note that a message ending at ``end`` was put to a queue that is not created yet."""
        self._new_queues.append((queue, end))

    def wait_for_new_queues(self) -> None:
        """Return when fewer than NEW_QUEUES_BEHIND_MAX queues wait to be created.

        Raises StoreBusyError if that takes too long.
        """
        if len(self._new_queues) < NEW_QUEUES_BEHIND_MAX:
            return
        oldest, end = self._new_queues[0]

        def is_awaited() -> bool:  # not if it waits for a sync, or its message has no unit
            return oldest.files.last is None and self.position < end <= self._limit()

        if not self._wait_while(is_awaited):
            raise StoreBusyError(
                f"{NEW_QUEUES_BEHIND_MAX} new queues wait to be created; try again"
            )

    def wait_if_far_behind(self) -> None:
        """Return when at most BEHIND_MAX bytes wait to be dispatched, or after PUT_WAIT_S."""
        if self.behind > BEHIND_MAX:
            self._wait_while(lambda: self.behind > BEHIND_MAX)

    def _wait_while(self, holds: Callable[[], bool]) -> bool:
        """Wait for the dispatcher while ``holds`` returns True; return False after PUT_WAIT_S.

        A listener that puts messages does not wait, because dispatch waits for it.
        """
        if self._announcing == get_ident():
            return True
        clock = self._log.queue.system.clock
        over_at = clock.monotonic() + PUT_WAIT_S
        while holds() and not self.starved:
            if clock.monotonic() > over_at:
                return False
            if self.idle:
                self.wake()
            clock.sleep_ms(1)
        return True

    def stop(self, is_over: Callable[[], bool] | None = None) -> None:
        """Dispatch the rest unless ``is_over`` returns True before that, and end the thread."""
        self._is_over = is_over
        self._stopping = True
        self._wake.set()
        clock = self._log.queue.system.clock
        progress = ProgressLog(clock, "dispatching before the stop", self.position, self._limit())
        while self._thread.is_alive():
            self._thread.join(INTERVAL_S)
            progress.note(self.position)
        with self._stepping:  # a helper may be in the middle of a step
            pass

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except DeadlineExceeded:
            _log.info(
                "stopped with %d bytes of the log left to dispatch; the next start dispatches them",
                self.behind,
            )
        except Exception as error:
            self._on_failure(error)

    def _round(self) -> bool:
        """Dispatch the rest of the log, or wait for more; return False after the last round.

        A stop that is requested during a round does not make it the last one: messages may have
        been appended between its check of the log and the stop.
        """
        is_last = self._stopping
        try:
            if self._advance():
                self.starved = ""
                self._quiet_rounds = 0
            elif is_last:
                return False
            else:
                self._wait()
        except (DiskFullError, OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno not in NO_DESCRIPTOR:
                raise
            self.starved = str(error) or "not enough memory"
            if is_last:
                _log.warning(
                    "stopped with %d bytes of the log left to dispatch, which the next start has "
                    "to recover: %s",
                    self.behind,
                    self.starved,
                )
                return False
            self._wake.wait(DISK_FULL_PAUSE_S)
            self._wake.clear()
        return True

    def _wait(self) -> None:
        """Wait for more: briefly while the log is busy, otherwise until :meth:`wake` is called.

        Waking this thread costs more than the append itself, so a busy log is checked every
        millisecond, and only a quiet one is waited for. A log that an event loop dispatches is left
        alone for RELIEVED_S: whenever this thread wakes up, it waits for the interpreter lock, and
        the loop has to pass the lock on at each system call.
        """
        clock = self._log.queue.system.clock
        is_relieved = clock.monotonic() - self._relieved_at < RELIEVED_S
        if self._quiet_rounds < QUIET_ROUNDS and not is_relieved:
            self._quiet_rounds += 1
            clock.sleep_ms(1)
            return
        self.idle = True
        # If it is behind, a message was appended before idle was set, and nobody called wake.
        if not self.behind and self._wake.wait(RELIEVED_S if is_relieved else None):
            self._wake.clear()  # not before the wait, so that no call is lost
        self.idle = False

    def _advance(self) -> bool:
        """Take one step; return whether there was anything to do."""
        with self._stepping:
            return self._step(self._is_over)

    def _step(self, is_over: Callable[[], bool] | None) -> bool:
        limit = self._limit()
        position = max(self.position, self._log.min_offset)
        if position >= limit or limit <= self._cut_limit:
            return False
        segment = self._log.queue.find(position)
        if segment is None:
            return False
        end = min(limit, segment.end) - segment.base
        step = self._deriver.step(segment, position - segment.base, end, Check.NONE, is_over)
        if step.rows:
            self.last_store_time = step.last_store_time
            self.last_record_offset = step.last_record_offset
        self.position = segment.end if step.stop is Stop.BLANK else segment.base + step.position
        if step.arrivals:
            self._announce(step.arrivals)
        if not self._log.needs_confirmation:  # otherwise it was sent before
            self._log.announce()
        if not step.rows and step.stop is not Stop.BLANK:
            if limit < self._log.readable_offset and step.stop in (Stop.CUT, Stop.LIMIT):
                self._cut_limit = limit  # a replica may have confirmed a part of the record
                return False
            raise StoreError(
                f"{segment.path}: no record at {step.position} ({step.stop.name}) although "
                f"{limit} bytes of the log are written; check the store with 'firetrail fsck'"
            )
        return True

    def _announce(self, arrivals: list[Arrival]) -> None:
        """Call the listeners; a failing listener does not stop dispatch."""
        self._announcing = get_ident()
        for listener in self.listeners:
            try:
                listener(arrivals)
            except Exception:
                _log.exception("a listener for arriving messages failed: %r", listener)
        self._announcing = 0
