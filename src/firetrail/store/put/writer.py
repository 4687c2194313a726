"""The puts of a store: one at a time, in batches, for threads and for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from time import perf_counter

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
from firetrail.store.config import FlushMode
from firetrail.store.engine import Engine
from firetrail.store.log.commit_log import BatchDraft, Busy, Place
from firetrail.store.log.flusher import LoopWaiter, ThreadWaiter
from firetrail.store.put.draft import Batch
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.results import PutResult, PutStatus
from firetrail.store.stats import Statistics
from firetrail.system import SyncError


class Writer:
    """The half of a :class:`Store` that takes messages."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._log = engine.log
        self._gate = engine.gate
        self._dispatcher = engine.dispatcher
        self._statistics = Statistics(engine.log.appender)
        self._quick_put = engine.log.appender.put
        self._loaded = engine.queues.loaded
        self._rules = engine.drafter.rules
        self._sync = engine.config.flush is FlushMode.SYNC

    def put(self, message: Message) -> PutResult:
        """Store a message; with SYNC_FLUSH, return when it is on the disk.

        Raises IllegalMessageError for a message that cannot be stored, StoreReadOnlyError or
        DiskFullError if the store takes none for now, FlushFailedError if it was stored and is
        not known to be on disk.
        """
        if self._sync:
            return self.try_put(message).require_ok()
        result = self._append(message)
        return result if result.ok else result.require_ok()

    def try_put(self, message: Message) -> PutResult:
        """As :meth:`put`, with the outcome in the status instead of an error."""
        started = perf_counter()
        result = self._append(message)
        if self._sync and result.ok and message.wait_for_flush:
            result = self._wait_durable(result)
        self._statistics.note_latency(perf_counter() - started)
        return result

    async def put_async(self, message: Message) -> PutResult:
        """As :meth:`put` for an event loop: others run while the disk is waited for."""
        result = self._begin_put(message)
        if isinstance(result, PutResult):
            return result.require_ok()
        return (await result).require_ok()

    def _begin_put(self, message: Message | Batch) -> PutResult | Coroutine[None, None, PutResult]:
        """Store it at once; the outcome, or what to await for it."""
        started = perf_counter()
        result = (
            self._append_batch(message) if isinstance(message, Batch) else self._append(message)
        )
        if self._sync and result.ok and message.wait_for_flush:
            return self._wait_durable_async(result, started)
        return result

    def put_batch(self, batch: Batch | Sequence[Message]) -> PutResult:
        """Store messages of one topic and queue in one piece; errors as for :meth:`put`."""
        if not isinstance(batch, Batch):
            batch = Batch.of(batch)
        return self.try_put_batch(batch).require_ok()

    def try_put_batch(self, batch: Batch) -> PutResult:
        """As :meth:`put_batch`, with the outcome in the status."""
        started = perf_counter()
        result = self._append_batch(batch)
        if self._sync and result.ok and batch.wait_for_flush:
            result = self._wait_durable(result)
            self._statistics.note_latency(perf_counter() - started)
        return result

    def _append(self, message: Message) -> PutResult:
        if not isinstance(message, Message):
            raise WrongTypeError("message", message, "expected a Message")
        refusal = self._gate.refusal or self._dispatcher.starved
        if refusal:
            return self._refused(PutStatus.SERVICE_NOT_AVAILABLE, refusal)
        try:
            result = self._quick_put(message) or self._append_slowly(message)
        except (StoreError, Busy, OSError) as error:
            return self._refused_by(error)
        self._appended()
        return result

    def _appended(self) -> None:
        """Have dispatched what was put."""
        if self._dispatcher.idle and not self._sync:
            self._dispatcher.wake()

    def _append_slowly(self, message: Message) -> PutResult:
        """A put that takes more than writing to the active file."""
        self._dispatcher.wait_if_far_behind()
        queue = self._target(message)
        draft = Draft(message, queue.encoded_topic, self._rules)
        if draft.may_delay:
            draft, queue = self._delayed(message, draft, queue)
        if draft.names_light_queues:
            return self._append_numbered(message, draft, queue)
        return self._stored(self._log.append(draft, queue), queue, draft, 1)

    def _append_numbered(self, message: Message, draft: Draft, queue: ConsumeQueue) -> PutResult:
        """A put of a message that is in light queues as well, unless it was delayed."""
        numbers = self._engine.light_numbers
        light: list[ConsumeQueue] = []
        self._dispatcher.wait_for_new_queues()
        with numbers.guard:
            if queue.topic == message.topic:
                message, light = numbers.numbered(message)
                draft = Draft(message, queue.encoded_topic, self._rules)
            place = self._log.append(draft, queue)
            for found in light:
                self._note_if_new(found, found.next_offset, place[0] + draft.size)
                found.next_offset += 1
        return self._stored(place, queue, draft, 1)

    def _target(self, message: Message | Batch) -> ConsumeQueue:
        """The queue that a message goes to; a new one if its topic may have one."""
        queue = self._loaded.get((message.topic, message.queue_id))
        if queue is not None:
            return queue
        check_topic(message.topic)
        if not 0 <= message.queue_id <= QUEUE_ID_MAX:
            raise IllegalMessageError("queue_id", f"{message.queue_id} is not in 0..{QUEUE_ID_MAX}")
        if message.topic in self._engine.batched:
            what = f"{message.topic} has queues of batches, which only RocketMQ can continue"
            raise IllegalMessageError("topic", what)
        self._dispatcher.wait_for_new_queues()
        return self._engine.queues.open(message.topic, message.queue_id)

    def _delayed(
        self, message: Message, draft: Draft, queue: ConsumeQueue
    ) -> tuple[Draft, ConsumeQueue]:
        """Draft and queue of a message that may have to wait in the schedule."""
        waiting = self._engine.drafter.delayed(message, draft)
        if waiting is message:
            return draft, queue
        queue = self._target(waiting)
        return Draft(waiting, queue.encoded_topic, self._rules), queue

    def _append_batch(self, batch: Batch) -> PutResult:
        instance("batch", batch, Batch)
        refusal = self._gate.refusal or self._dispatcher.starved
        if refusal:
            return self._refused(PutStatus.SERVICE_NOT_AVAILABLE, refusal)
        try:
            self._dispatcher.wait_if_far_behind()
            queue = self._target(batch)
            draft = self._engine.drafter.draft_batch(batch)
            place = self._log.append_batch(draft, queue)
        except (StoreError, Busy, OSError) as error:
            return self._refused_by(error)
        self._appended()
        return self._stored(place, queue, draft, draft.items)

    def _stored(
        self, place: Place, queue: ConsumeQueue, draft: Draft | BatchDraft, messages: int
    ) -> PutResult:
        physical_offset, queue_offset, store_time = place
        self._note_if_new(queue, queue_offset, physical_offset + draft.size)
        return PutResult(
            PutStatus.PUT_OK,
            draft.queue_id,
            queue_offset,
            physical_offset,
            draft.size,
            store_time,
            self._engine.config.store_host,
            messages,
        )

    def _note_if_new(self, queue: ConsumeQueue, offset: int, end: int) -> None:
        """Have it counted if a message, its ``offset`` in the queue, needs a queue to be made."""
        if offset == 0 and queue.files.last is None:
            self._dispatcher.note_new_queue(queue, end)

    def _refused(self, status: PutStatus, detail: str, field: str = "message") -> PutResult:
        self._statistics.put_refused += 1
        return PutResult(status, detail=detail, field=field)

    def _refused_by(self, error: Exception) -> PutResult:
        if isinstance(error, PropertiesTooLongError):
            return self._refused(PutStatus.PROPERTIES_SIZE_EXCEEDED, error.detail, error.field)
        if isinstance(error, IllegalMessageError):
            return self._refused(PutStatus.MESSAGE_ILLEGAL, error.detail, error.field)
        if isinstance(error, DiskFullError):
            return self._refused(PutStatus.CREATE_MAPPED_FILE_FAILED, str(error))
        if isinstance(error, Busy):
            return self._refused(PutStatus.OS_PAGE_CACHE_BUSY, str(error))
        if isinstance(error, StoreClosedError):
            return self._refused(PutStatus.SERVICE_NOT_AVAILABLE, str(error))
        if isinstance(error, SyncError):
            self._engine.fail(error)
        return self._refused(PutStatus.UNKNOWN_ERROR, f"nothing was stored: {error}")

    def _wait_durable(self, result: PutResult) -> PutResult:
        waiter = ThreadWaiter(result.physical_offset + result.size)
        self._engine.flusher.add(waiter)
        in_time = waiter.wait(self._engine.config.sync_flush_timeout_ms / 1000)
        return self._flushed_or_not(result, in_time, waiter.durable)

    async def _wait_durable_async(self, result: PutResult, started: float) -> PutResult:
        loop = asyncio.get_running_loop()
        waiter = LoopWaiter(result.physical_offset + result.size, loop)
        timeout_s = self._engine.config.sync_flush_timeout_ms / 1000
        timer = loop.call_later(timeout_s, waiter.time_out)
        self._engine.flusher.add(waiter)
        try:
            durable = await waiter.future
        finally:
            timer.cancel()
            self._statistics.note_latency(perf_counter() - started)
        return self._flushed_or_not(result, durable is not None, bool(durable))

    def _flushed_or_not(self, result: PutResult, in_time: bool, durable: bool) -> PutResult:
        if in_time and durable:
            return result
        if in_time:
            return result.with_status(PutStatus.UNKNOWN_ERROR, self._gate.refusal or "not synced")
        timeout_ms = self._engine.config.sync_flush_timeout_ms
        return result.with_status(
            PutStatus.FLUSH_DISK_TIMEOUT,
            f"stored, but the disk has not confirmed it within {timeout_ms} ms",
        )
