"""The puts of a store: single messages and batches, for threads and for event loops."""

import asyncio
from collections.abc import Awaitable, Callable
from threading import get_ident

from firetrail.errors import (
    DiskFullError,
    IllegalMessageError,
    StoreError,
    WrongTypeError,
)
from firetrail.format.kernels.draft import Message
from firetrail.format.values.arguments import instance
from firetrail.store.admission.drafter import Batch
from firetrail.store.admission.gate import Gate
from firetrail.store.dispatch.loop_dispatch import LoopDispatch
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.flusher import FutureWaiter, LogFlusher, ThreadWaiter
from firetrail.store.log.replica_acks import ReplicaAcks
from firetrail.store.outcomes import refused_status
from firetrail.store.put.pending_puts import PendingPuts
from firetrail.store.put.queue_appends import QueueAppends
from firetrail.store.results import PutResult, PutStatus
from firetrail.store.root.store_parts import StoreParts
from firetrail.store.settings.store_config import FlushMode
from firetrail.store.stats import Statistics
from firetrail.system import SyncError


class Durability:
    """Waits for the disk and replicas in threads, coroutines, and with callbacks of a loop."""

    def __init__(
        self,
        parts: StoreParts,
        gate: Gate,
        flusher: LogFlusher,
        acks: ReplicaAcks,
        dispatch: LoopDispatch,
        statistics: Statistics,
    ) -> None:
        self._live = parts.live
        self.now = parts.system.clock.monotonic
        """The clock that measures how long puts wait."""
        self._gate = gate
        self._flusher = flusher
        self.acks = acks
        """The confirmations of replicas."""
        self.is_synced = parts.live.current.flush is FlushMode.SYNC
        """Whether puts wait for the disk."""
        self._dispatch = dispatch
        self.statistics = statistics
        """Counts puts."""
        self._threads = parts.system.threads
        self._pending: PendingPuts | None = None

    def wait_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for replicas with callbacks, if this event loop puts the messages."""
        self._pending = PendingPuts(
            loop, self.acks, lambda: self._live.current.slave_timeout_ms, self._outcome
        )

    def sync_soon(self, end: int) -> None:
        """Have the log synced up to ``end``."""
        self._flusher.add(ThreadWaiter(end, self._threads))

    def begin(self, result: PutResult, started: float) -> PutResult | Awaitable[PutResult]:
        """Return the waiting result. If it waits for replicas only, it needs no coroutine.

        Args:
            result: Where the message was stored.
            started: The time at which its put began.
        """
        if self.is_synced or self._pending is None or get_ident() != self._dispatch.thread:
            return self._wait_async(result, started)
        if not self.acks.are_enough(result.end_offset):
            self._note_latency(started)
            return self._without_replicas(result)
        return self._pending.add(result, started)

    def _outcome(self, stored: PutResult, confirmed: bool, started: float) -> PutResult:
        self._note_latency(started)
        return self._unless_fenced(self._confirmed_or_not(stored, confirmed))

    def wait(self, result: PutResult, started: float) -> PutResult:
        """Wait in this thread, for the disk, then for replicas."""
        try:
            if self.is_synced:
                waiter = ThreadWaiter(result.end_offset, self._threads)
                self._flusher.add(waiter)
                in_time = waiter.wait(self._live.current.sync_flush_timeout_ms / 1000)
                result = self._flushed_or_not(result, in_time, waiter.durable)
            if not result.ok or not self.acks.are_needed:
                return self._unless_fenced(result)
            if not self.acks.are_enough(result.end_offset):
                return self._without_replicas(result)
            waiter = ThreadWaiter(result.end_offset, self._threads)
            self.acks.add(waiter)
            in_time = waiter.wait(self._live.current.slave_timeout_ms / 1000)
            return self._unless_fenced(self._confirmed_or_not(result, in_time and waiter.durable))
        finally:
            self._note_latency(started)

    async def _wait_async(self, result: PutResult, started: float) -> PutResult:
        try:
            if self.is_synced:
                timeout_ms = self._live.current.sync_flush_timeout_ms
                durable = await self._wait_for(self._flusher, result, timeout_ms)
                result = self._flushed_or_not(result, durable is not None, bool(durable))
            if not result.ok or not self.acks.are_needed:
                return self._unless_fenced(result)
            if not self.acks.are_enough(result.end_offset):
                return self._without_replicas(result)
            timeout_ms = self._live.current.slave_timeout_ms
            confirmed = await self._wait_for(self.acks, result, timeout_ms)
            return self._unless_fenced(self._confirmed_or_not(result, bool(confirmed)))
        finally:
            self._note_latency(started)

    async def _wait_for(
        self, progress: LogFlusher | ReplicaAcks, result: PutResult, timeout_ms: int
    ) -> bool | None:
        """Return whether the message is safe, or None after the timeout."""
        loop = asyncio.get_running_loop()
        waiter = FutureWaiter(result.end_offset, loop)
        timer = loop.call_later(timeout_ms / 1000, waiter.time_out)
        progress.add(waiter)
        try:
            return await waiter.future
        finally:
            timer.cancel()

    def _note_latency(self, started: float) -> None:
        self.statistics.note_latency(self.now() - started)

    def _without_replicas(self, result: PutResult) -> PutResult:
        missing = self.acks.missing
        if missing:
            return result.with_status(
                PutStatus.SLAVE_NOT_AVAILABLE,
                f"stored, but not confirmed: members of the in-sync set are not connected: "
                f"{missing}; consumers get the message when these members have confirmed it, or "
                "have left the set",
            )
        connected, needed = self.acks.in_sync(result.end_offset), self.acks.needed
        return result.with_status(
            PutStatus.SLAVE_NOT_AVAILABLE,
            f"stored, but not confirmed: {connected} of {needed - 1} required replicas in sync; "
            "consumers get the message when enough replicas have confirmed it",
        )

    def _confirmed_or_not(self, result: PutResult, confirmed: bool) -> PutResult:
        if confirmed:
            return result
        if self.acks.missing:
            return self._without_replicas(result)
        timeout_ms = self._live.current.slave_timeout_ms
        return result.with_status(
            PutStatus.FLUSH_SLAVE_TIMEOUT,
            f"stored, but not confirmed by enough replicas within {timeout_ms} ms; consumers get "
            "the message when they have confirmed it",
        )

    def _unless_fenced(self, result: PutResult) -> PutResult:
        """Return the result, unless this store ceased to be the master during the wait.

        The message is in the log, so the status is not that of a refused one: a client that sends
        it again must know that there may be two then.
        """
        refusal = self._gate.fence.refusal
        if not refusal or not result.ok:
            return result
        detail = f"stored, but it may be removed again: {refusal}"
        return result.with_status(PutStatus.FLUSH_SLAVE_TIMEOUT, detail)

    def _flushed_or_not(self, result: PutResult, in_time: bool, durable: bool) -> PutResult:
        if in_time and durable:
            return result
        if in_time:
            return result.with_status(PutStatus.UNKNOWN_ERROR, self._gate.refusal or "not synced")
        timeout_ms = self._live.current.sync_flush_timeout_ms
        return result.with_status(
            PutStatus.FLUSH_DISK_TIMEOUT,
            f"stored, but the disk has not confirmed it within {timeout_ms} ms",
        )


class Writer:
    """Stores messages, and has them dispatched when they are safe."""

    def __init__(
        self,
        log: CommitLog,
        gate: Gate,
        appends: QueueAppends,
        durability: Durability,
        dispatch: LoopDispatch,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._log = log
        self._gate = gate
        self._quick_put = log.appender.put
        self._appends = appends
        self._durability = durability
        self._acks = durability.acks
        self._now = durability.now
        self._sync = durability.is_synced
        self._dispatch = dispatch
        self._dispatcher = dispatch.dispatcher
        self._statistics = durability.statistics
        self._on_error = on_error

    @property
    def refusal(self) -> str:
        """The reason why messages are refused; empty while they are accepted."""
        return self._gate.refusal or self._dispatcher.starved or self._gate.fence.refusal

    def put(self, message: Message) -> PutResult:
        """Store a message, and wait until it is safe."""
        if not (self._sync or self._acks.are_needed):
            return self._append(message)
        started = self._now()
        result = self._append(message)
        if result.ok and message.wait_for_flush:
            return self._durability.wait(result, started)
        return result

    def put_batch(self, batch: Batch) -> PutResult:
        """Store a batch, and wait until it is safe."""
        started = self._now()
        result = self._append_batch(batch)
        if (self._sync or self._acks.are_needed) and result.ok and batch.wait_for_flush:
            return self._durability.wait(result, started)
        return result

    def begin_put(
        self, message: Message | Batch, *, is_urgent: bool = True
    ) -> PutResult | Awaitable[PutResult]:
        """Store a message or batch at once; the event loop need not block for disk and replicas.

        Returns the result with its status. If it has to wait for replicas only, returns a
        :class:`PendingPut`; with SYNC_FLUSH a coroutine. All puts that begin before the first
        coroutine is awaited share one sync.

        Args:
            message: The message or batch.
            is_urgent: Whether it is to be dispatched at once. Otherwise it is dispatched with the
                next urgent one, or after LATER_S. Default: True.
        """
        started = self._now()
        if isinstance(message, Batch):
            result = self._append_batch(message, is_urgent)
        else:
            result = self._append(message, is_urgent)
        if (self._sync or self._acks.are_needed) and result.ok and message.wait_for_flush:
            return self._durability.begin(result, started)
        return result

    def push(self) -> None:
        """Make messages readable soon that were put without waiting for the disk.

        With SYNC_FLUSH they would otherwise be synced, and therefore dispatched, only with the next
        put that waits, however late that is.
        """
        if self._sync:
            self._durability.sync_soon(self._log.max_offset)

    def _append(self, message: Message, is_urgent: bool = True) -> PutResult:
        if not isinstance(message, Message):
            raise WrongTypeError("message", message, "expected a Message")
        refusal = self._gate.refusal or self._dispatcher.starved or self._gate.fence.refusal
        if refusal:
            return self._unavailable(refusal)
        try:
            result = self._quick_put(message) or self._appends.append(message)
        except (StoreError, OSError) as error:
            return self._refused_by(error)
        self._appended(is_urgent)
        return result

    def _append_batch(self, batch: Batch, is_urgent: bool = True) -> PutResult:
        instance("batch", batch, Batch)
        refusal = self.refusal
        if refusal:
            return self._unavailable(refusal)
        try:
            result = self._appends.append_batch(batch)
        except (StoreError, OSError) as error:
            return self._refused_by(error)
        self._appended(is_urgent)
        return result

    def _appended(self, is_urgent: bool) -> None:
        """Have a message dispatched, or sent to the replicas before that.

        With SYNC_FLUSH, both follow the sync. A message of the event loop is dispatched there.
        """
        if self._sync:
            return
        if self._acks.are_needed:
            self._log.announce()
        elif self._dispatch.thread and get_ident() == self._dispatch.thread:
            self._dispatch.appended(is_urgent)
        elif self._dispatcher.idle:
            self._dispatcher.wake()

    def _unavailable(self, refusal: str) -> PutResult:
        self._statistics.put_refused += 1
        is_temporary = not self._gate.refusal or self._gate.is_temporary
        status = PutStatus.SERVICE_NOT_AVAILABLE
        return PutResult(status, detail=refusal, is_temporary=is_temporary)

    def _refused_by(self, error: Exception) -> PutResult:
        self._statistics.put_refused += 1
        if isinstance(error, DiskFullError | SyncError):
            self._on_error(error)
        status = refused_status(error)
        if isinstance(error, IllegalMessageError):
            return PutResult(status, detail=error.detail, field=error.field)
        unforeseen = "nothing was stored: " if status is PutStatus.UNKNOWN_ERROR else ""
        return PutResult(status, detail=f"{unforeseen}{error}")
