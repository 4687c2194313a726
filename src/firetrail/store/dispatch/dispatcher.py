"""The dispatcher: keeps consume queues and index up with the log, in the order of the log.

The thread waits until the log grows, takes what is there in one step, and tells the listeners which
queues have new messages. A range may be dispatched again: queues and index pass over what they
have.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from firetrail.errors import DiskFullError, StoreError
from firetrail.format.columns import Check, Stop
from firetrail.store.dispatch.deriver import Arrival, Deriver, OutOfTime
from firetrail.store.lifecycle.progress import INTERVAL_S, Progress
from firetrail.store.log.commit_log import Busy, CommitLog
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.system import NO_DESCRIPTOR

_LOGGER = logging.getLogger(__name__)
QUIET_ROUNDS = 20
"""After so many looks a millisecond apart that found nothing new, the log counts as quiet."""
HELP_S = 0.002
"""For so long somebody else than the dispatcher goes on with a step: making queues takes time."""
NEW_QUEUES_BEHIND_MAX = 128
"""So many queues may be still to be made, a message each in the log. Making one costs far more than
putting its first message, so who puts to yet another queue has to wait."""
BEHIND_MAX = 64 << 20
"""When so many bytes of the log are still to be dispatched, batches wait, and of other puts those
that need more than room in the active file: one in 32 MiB at least."""
PATIENCE_S = 0.2
"""Longest that a put waits for the dispatcher, and an event loop with it."""
DISK_FULL_PAUSE_S = 1.0
"""How long dispatch waits for space before it tries again."""


class Dispatcher:
    """The thread that keeps queues and index up with the log."""

    def __init__(
        self,
        log: CommitLog,
        deriver: Deriver,
        limit: Callable[[], int],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._deriver = deriver
        self._limit = limit
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._stopping = False
        self._quiet_rounds = QUIET_ROUNDS
        self._is_over: Callable[[], bool] | None = None
        self._stepping = threading.Lock()  # over steps: the thread's, and those of who helps
        self._announcing = 0  # the thread that listeners run in
        self._new_queues: deque[tuple[ConsumeQueue, int]] = deque(maxlen=NEW_QUEUES_BEHIND_MAX)
        self._thread = threading.Thread(target=self._run, name="firetrail-dispatch", daemon=True)
        self.listeners: list[Callable[[list[Arrival]], None]] = []
        self.idle = False
        """Whether the thread waits; who appends then calls :meth:`wake`."""
        self.position = 0
        """Everything in the log before it is in queues and index."""
        self.last_record_offset = -1
        self.last_store_time = 0
        self.starved = ""
        """Why dispatch cannot go on for now: want of disk space, descriptors or memory.

        Empty while it can.
        """

    @property
    def behind(self) -> int:
        """Bytes of the log that are readable and not dispatched."""
        return max(self._limit() - self.position, 0)

    def begin_at(self, position: int, last_record_offset: int, last_store_time: int) -> None:
        """The log is dispatched up to ``position``, behind the given record."""
        self.position = position
        self.last_record_offset = last_record_offset
        self.last_store_time = last_store_time

    def start(self) -> None:
        """Follow the log."""
        self._thread.start()

    def wake(self) -> None:
        """There is more to dispatch."""
        self.idle = False
        self._wake.set()

    def help(self, patience_s: float = 0.0) -> None:
        """Dispatch what is new in this thread, unless the dispatcher is at it for so long.

        A thread that has to be woken, or that looks once a millisecond, is later than that.
        """
        if self.starved or not self._stepping.acquire(timeout=patience_s):
            return
        clock = self._log.queue.system.clock
        over_at = clock.monotonic() + HELP_S

        def is_over() -> bool:
            return clock.monotonic() > over_at

        try:
            while not is_over() and self._step(is_over):
                pass
        except OutOfTime:
            pass  # the dispatcher goes on, from the queue that was to come next
        except Exception as error:
            _LOGGER.warning(
                "a message was not dispatched by its put; the dispatcher retries: %s", error
            )
            self.wake()
        finally:
            self._stepping.release()
        if self.behind:
            self.wake()

    def note_new_queue(self, queue: ConsumeQueue, end: int) -> None:
        """A message was put, up to ``end`` of the log, to a queue that is still to be made."""
        self._new_queues.append((queue, end))

    def wait_for_new_queues(self) -> None:
        """Return when fewer than NEW_QUEUES_BEHIND_MAX queues are still to be made.

        Raises Busy if that takes too long.
        """
        if len(self._new_queues) < NEW_QUEUES_BEHIND_MAX:
            return
        oldest, end = self._new_queues[0]

        def is_to_be_made() -> bool:  # and not waiting for a sync of the log, or without a unit
            return oldest.files.last is None and self.position < end <= self._limit()

        if not self._wait_while(is_to_be_made):
            raise Busy(f"{NEW_QUEUES_BEHIND_MAX} new queues are still to be made; try again")

    def wait_if_far_behind(self) -> None:
        """Return when at most BEHIND_MAX bytes are still to be dispatched, or after a while."""
        if self.behind > BEHIND_MAX:
            self._wait_while(lambda: self.behind > BEHIND_MAX)

    def _wait_while(self, holds: Callable[[], bool]) -> bool:
        """Let the dispatcher get on, as it does best while nobody else runs; False if in vain.

        A listener that puts is not held up: dispatch waits for it.
        """
        if self._announcing == threading.get_ident():
            return True
        clock = self._log.queue.system.clock
        over_at = clock.monotonic() + PATIENCE_S
        while holds() and not self.starved:
            if clock.monotonic() > over_at:
                return False
            if self.idle:
                self.wake()
            clock.sleep_ms(1)
        return True

    def stop(self, is_over: Callable[[], bool] | None = None) -> None:
        """Dispatch what is left, unless the time for it ``is_over`` before, and end the thread."""
        self._is_over = is_over
        self._stopping = True
        self._wake.set()
        clock = self._log.queue.system.clock
        progress = Progress(clock, "dispatching before the stop", self.position, self._limit())
        while self._thread.is_alive():
            self._thread.join(INTERVAL_S)
            progress.note(self.position)

    def _run(self) -> None:
        try:
            while True:
                try:
                    if self._advance():
                        self.starved = ""
                        self._quiet_rounds = 0
                        continue
                    if self._stopping:
                        return
                    self._wait()
                except (DiskFullError, OSError, MemoryError) as error:
                    if isinstance(error, OSError) and error.errno not in NO_DESCRIPTOR:
                        raise
                    self.starved = str(error) or "not enough memory"
                    if self._stopping:
                        return
                    self._wake.wait(DISK_FULL_PAUSE_S)
                    self._wake.clear()
        except OutOfTime:
            _LOGGER.info(
                "stopped with %d bytes of the log to dispatch; the next start does that",
                self.behind,
            )
        except Exception as error:
            self._on_failure(error)

    def _wait(self) -> None:
        """Wait for more: a little while the log is busy, else until somebody calls wake.

        Being woken costs the one who appends more than the append itself, so a busy log is looked
        at again every millisecond, and only a quiet one waits to be told.
        """
        if self._quiet_rounds < QUIET_ROUNDS:
            self._quiet_rounds += 1
            self._log.queue.system.clock.sleep_ms(1)
            return
        self._wake.clear()
        self.idle = True
        if self.behind:  # it came between the last look and the announcement
            self.idle = False
            return
        self._wake.wait()
        self.idle = False

    def _advance(self) -> bool:
        """Take one step; whether there was anything to do."""
        with self._stepping:
            return self._step(self._is_over)

    def _step(self, is_over: Callable[[], bool] | None) -> bool:
        limit = self._limit()
        position = max(self.position, self._log.min_offset)
        if position >= limit:
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
        if not step.rows and step.stop is not Stop.BLANK:
            raise StoreError(
                f"{segment.path}: no record at {step.position} ({step.stop.name}) although "
                f"{limit} bytes of the log are written; check the store: firetrail fsck"
            )
        return True

    def _announce(self, arrivals: list[Arrival]) -> None:
        """Tell the listeners; one that fails is no reason to stop dispatching."""
        self._announcing = threading.get_ident()
        for listener in self.listeners:
            try:
                listener(arrivals)
            except Exception:
                _LOGGER.exception("a listener for arriving messages failed: %r", listener)
        self._announcing = 0
