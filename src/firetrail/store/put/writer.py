"""The puts of a store: single messages and batches, for threads and for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from firetrail.errors import (
    DiskFullError,
    IllegalMessageError,
    PropertiesTooLongError,
    StoreClosedError,
    StoreError,
    WrongTypeError,
)
from firetrail.format.arguments import instance
from firetrail.format.kernels.draft import Draft, Message
from firetrail.format.names import QUEUE_ID_MAX, check_topic
from firetrail.store.admission.draft import Batch
from firetrail.store.engine import Engine
from firetrail.store.log.commit_log import Busy
from firetrail.store.log.flusher import FutureWaiter, LogFlusher, ThreadWaiter
from firetrail.store.log.replica_acks import ReplicaAcks
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.results import PutResult, PutStatus
from firetrail.store.settings.config import FlushMode
from firetrail.store.store_status import StoreStatus
from firetrail.system import SyncError


class Writer(StoreStatus):
    """The half of a :class:`Store` that stores messages."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._quick_put = engine.log.appender.put
        self._loaded = engine.queues.loaded
        self._rules = engine.drafter.rules
        self._live = engine.live
        self._sync = engine.config.flush is FlushMode.SYNC
        self._acks = engine.acks
        self._now = engine.system.clock.monotonic

    @property
    def _waits(self) -> bool:
        """Whether a put has to wait: for the disk, for replicas, or for both."""
        return self._sync or self._acks.are_needed

    def put(self, message: Message) -> PutResult:
        """Store a message; with SYNC_FLUSH, return when it is on disk.

        Without SYNC_FLUSH this takes microseconds, but it can wait for other puts (at most
        ``page_cache_busy_ms``), for dispatch (0.2 s), or for space in the log.

        Args:
            message: The message to store.

        Returns:
            Where the message was stored.

        Raises:
            WrongTypeError: The argument is not a :class:`Message`.
            IllegalMessageError: The message cannot be stored.
            StoreReadOnlyError: The store refuses messages; ``refusal`` says why.
            StoreBusyError: The disk or dispatch cannot keep up at the moment.
            DiskFullError: There is no space for the message.
            FlushFailedError: The message was stored but is not known to be on disk: a sync failed,
                or did not end within ``sync_flush_timeout_ms``.
            StoreError: Nothing was stored, because a file operation failed.
        """
        if self._sync or self._acks.are_needed:
            return self.try_put(message).require_ok()
        result = self._append(message)
        return result if result.ok else result.require_ok()

    def try_put(self, message: Message) -> PutResult:
        """Store a message and return its status where :meth:`put` would raise an error.

        Args:
            message: The message to store.
        """
        started = self._now()
        result = self._append(message)
        if self._waits and result.ok and message.wait_for_flush:
            return self._wait_durable(result, started)
        return result

    async def put_async(self, message: Message) -> PutResult:
        """Store a message as :meth:`put` does, without blocking the event loop during a sync.

        Args:
            message: The message to store.
        """
        result = self._begin_put(message)
        if isinstance(result, PutResult):
            return result.require_ok()
        return (await result).require_ok()

    def _begin_put(self, message: Message | Batch) -> PutResult | Awaitable[PutResult]:
        """Store a message at once; return the result, or what waits for disk and replicas."""
        started = self._now()
        result = (
            self._append_batch(message) if isinstance(message, Batch) else self._append(message)
        )
        if self._waits and result.ok and message.wait_for_flush:
            return self._wait_later(result, started)
        return result

    def _wait_later(self, result: PutResult, started: float) -> PutResult | Awaitable[PutResult]:
        """Return what waits for the disk, then for replicas."""
        return self._wait_durable_async(result, started)

    def put_batch(self, batch: Batch | Sequence[Message]) -> PutResult:
        """Store messages of one topic and queue in one piece.

        Args:
            batch: A :class:`Batch`, or messages for :meth:`Batch.of`.

        Returns:
            Where the first message was stored.

        Raises:
            As :meth:`put`.
        """
        if not isinstance(batch, Batch):
            batch = Batch.of(batch)
        return self.try_put_batch(batch).require_ok()

    def try_put_batch(self, batch: Batch) -> PutResult:
        """Store a batch and return its status where :meth:`put_batch` would raise an error.

        Args:
            batch: The batch to store.
        """
        started = self._now()
        result = self._append_batch(batch)
        if self._waits and result.ok and batch.wait_for_flush:
            return self._wait_durable(result, started)
        return result

    def _append(self, message: Message) -> PutResult:
        if not isinstance(message, Message):
            raise WrongTypeError("message", message, "expected a Message")
        refusal = self._gate.refusal or self._dispatcher.starved or self._engine.fence.refusal
        if refusal:
            return self._unavailable(refusal)
        try:
            result = self._quick_put(message) or self._append_slowly(message)
        except (StoreError, Busy, OSError) as error:
            return self._refused_by(error)
        self._appended()
        return result

    def _appended(self) -> None:
        """Make sure that the message is dispatched, or sent to the replicas before that.

        With SYNC_FLUSH, both follow the sync.
        """
        if self._sync:
            return
        if self._acks.are_needed:
            self._log.announce()
        elif self._dispatcher.idle:
            self._dispatcher.wake()

    def _append_slowly(self, message: Message) -> PutResult:
        """Store a message that takes more than a write to the active file."""
        self._dispatcher.wait_if_far_behind()
        queue = self._target(message)
        draft = Draft(message, queue.encoded_topic, self._rules)
        if draft.may_delay:
            draft, queue = self._delayed(message, draft, queue)
        if draft.names_light_queues:
            return self._append_numbered(message, draft, queue)
        return self._stored(self._log.append(draft, queue), queue)

    def _append_numbered(self, message: Message, draft: Draft, queue: ConsumeQueue) -> PutResult:
        """Store a message that is in light queues as well, unless it was delayed."""
        numbers = self._engine.light_numbers
        light: list[ConsumeQueue] = []
        self._dispatcher.wait_for_new_queues()
        with numbers.guard:
            if queue.topic == message.topic:
                message, light = numbers.numbered(message)
                draft = Draft(message, queue.encoded_topic, self._rules)
            result = self._log.append(draft, queue)
            for found in light:
                self._note_if_new(found, found.next_offset, result.end_offset)
                found.next_offset += 1
        return self._stored(result, queue)

    def _target(self, message: Message | Batch) -> ConsumeQueue:
        """Return the queue of a message; create it if its topic may have one."""
        queue = self._loaded.get((message.topic, message.queue_id))
        if queue is not None:
            return queue
        check_topic(message.topic)
        if not 0 <= message.queue_id <= QUEUE_ID_MAX:
            raise IllegalMessageError("queue_id", f"{message.queue_id} is not in 0..{QUEUE_ID_MAX}")
        if message.topic in self._engine.batched:
            detail = f"{message.topic} has batch queues, which only RocketMQ can append to"
            raise IllegalMessageError("topic", detail)
        self._dispatcher.wait_for_new_queues()
        return self._engine.queues.open(message.topic, message.queue_id)

    def _delayed(
        self, message: Message, draft: Draft, queue: ConsumeQueue
    ) -> tuple[Draft, ConsumeQueue]:
        """Return draft and queue of a message that may have a delay level."""
        waiting = self._engine.drafter.delayed(message, draft)
        if waiting is message:
            return draft, queue
        queue = self._target(waiting)
        return Draft(waiting, queue.encoded_topic, self._rules), queue

    def _append_batch(self, batch: Batch) -> PutResult:
        instance("batch", batch, Batch)
        refusal = self._gate.refusal or self._dispatcher.starved or self._engine.fence.refusal
        if refusal:
            return self._unavailable(refusal)
        try:
            self._dispatcher.wait_if_far_behind()
            queue = self._target(batch)
            draft = self._engine.drafter.draft_batch(batch)
            result = self._log.append_batch(draft, queue)
        except (StoreError, Busy, OSError) as error:
            return self._refused_by(error)
        self._appended()
        return self._stored(result, queue)

    def _stored(self, result: PutResult, queue: ConsumeQueue) -> PutResult:
        self._note_if_new(queue, result.queue_offset, result.end_offset)
        return result

    def _note_if_new(self, queue: ConsumeQueue, offset: int, end: int) -> None:
        """Tell the dispatcher if a message at ``offset`` is the first one of a new queue."""
        if offset == 0 and queue.files.last is None:
            self._dispatcher.note_new_queue(queue, end)

    def _refused(self, status: PutStatus, detail: str, field: str = "message") -> PutResult:
        self._statistics.put_refused += 1
        return PutResult(status, detail=detail, field=field)

    def _unavailable(self, refusal: str) -> PutResult:
        self._statistics.put_refused += 1
        is_temporary = not self._gate.refusal or self._gate.is_temporary
        status = PutStatus.SERVICE_NOT_AVAILABLE
        return PutResult(status, detail=refusal, is_temporary=is_temporary)

    def _refused_by(self, error: Exception) -> PutResult:
        if isinstance(error, PropertiesTooLongError):
            return self._refused(PutStatus.PROPERTIES_SIZE_EXCEEDED, error.detail, error.field)
        if isinstance(error, IllegalMessageError):
            return self._refused(PutStatus.MESSAGE_ILLEGAL, error.detail, error.field)
        if isinstance(error, DiskFullError):
            self._engine.housekeeper.note_full_disk()
            return self._refused(PutStatus.CREATE_MAPPED_FILE_FAILED, str(error))
        if isinstance(error, Busy):
            return self._refused(PutStatus.OS_PAGE_CACHE_BUSY, str(error))
        if isinstance(error, StoreClosedError):
            return self._refused(PutStatus.SERVICE_NOT_AVAILABLE, str(error))
        if isinstance(error, SyncError):
            self._engine.fail(error)
        return self._refused(PutStatus.UNKNOWN_ERROR, f"nothing was stored: {error}")

    def _wait_durable(self, result: PutResult, started: float) -> PutResult:
        """Wait for the disk, then for replicas."""
        try:
            if self._sync:
                waiter = ThreadWaiter(result.end_offset, self._engine.system.threads)
                self._engine.flusher.add(waiter)
                in_time = waiter.wait(self._live.current.sync_flush_timeout_ms / 1000)
                result = self._flushed_or_not(result, in_time, waiter.durable)
            if not result.ok or not self._acks.are_needed:
                return self._unless_fenced(result)
            if not self._acks.are_enough(result.end_offset):
                return self._without_replicas(result)
            waiter = ThreadWaiter(result.end_offset, self._engine.system.threads)
            self._acks.add(waiter)
            in_time = waiter.wait(self._live.current.slave_timeout_ms / 1000)
            return self._unless_fenced(self._confirmed_or_not(result, in_time and waiter.durable))
        finally:
            self._note_latency(started)

    async def _wait_durable_async(self, result: PutResult, started: float) -> PutResult:
        try:
            if self._sync:
                timeout_ms = self._live.current.sync_flush_timeout_ms
                durable = await self._wait_async(self._engine.flusher, result, timeout_ms)
                result = self._flushed_or_not(result, durable is not None, bool(durable))
            if not result.ok or not self._acks.are_needed:
                return self._unless_fenced(result)
            if not self._acks.are_enough(result.end_offset):
                return self._without_replicas(result)
            timeout_ms = self._live.current.slave_timeout_ms
            confirmed = await self._wait_async(self._acks, result, timeout_ms)
            return self._unless_fenced(self._confirmed_or_not(result, bool(confirmed)))
        finally:
            self._note_latency(started)

    async def _wait_async(
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
        self._statistics.note_latency(self._now() - started)

    def _without_replicas(self, result: PutResult) -> PutResult:
        missing = self._acks.missing
        if missing:
            return result.with_status(
                PutStatus.SLAVE_NOT_AVAILABLE,
                f"stored, but not confirmed: members of the in-sync set are not connected: "
                f"{missing}; consumers get the message when these members have confirmed it, or "
                "have left the set",
            )
        connected, needed = self._acks.in_sync(result.end_offset), self._acks.needed
        return result.with_status(
            PutStatus.SLAVE_NOT_AVAILABLE,
            f"stored, but not confirmed: {connected} of {needed - 1} required replicas in sync; "
            "consumers get the message when enough replicas have confirmed it",
        )

    def _confirmed_or_not(self, result: PutResult, confirmed: bool) -> PutResult:
        if confirmed:
            return result
        if self._acks.missing:
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
        refusal = self._engine.fence.refusal
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
