"""The store as a server uses it: it returns stored bytes, and puts and gets suit an event loop.

A put waits for the disk in a coroutine, and for replicas with a callback. It can block the event
loop for a limited time: for the append lock, for dispatch that is far behind, and while it helps to
dispatch (HELP_S). Calls that sync (``flush``, ``settle``) or delete files belong in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import get_ident
from typing import Any, Self

from firetrail.errors import StoreDamagedError
from firetrail.format.columns import Check
from firetrail.format.kernels.draft import Message
from firetrail.format.unit import ConsumeQueueUnit
from firetrail.store.admission.draft import Batch
from firetrail.store.admission.fence import Fence
from firetrail.store.admission.gate import Closure
from firetrail.store.checked_store import CheckedStore
from firetrail.store.dispatch.catch_ups import CatchUps
from firetrail.store.dispatch.dispatcher import HELP_S
from firetrail.store.engine import Engine
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.flusher import ThreadWaiter
from firetrail.store.log.log_records import store_time_at
from firetrail.store.log.replica_acks import ReplicaAcks
from firetrail.store.log_copy import LogCopy
from firetrail.store.put.pending_puts import PendingPuts
from firetrail.store.queues.filter_bits import FilterBits
from firetrail.store.results import GetResult, GetStatus, PutResult
from firetrail.store.settings.config import StoreConfig
from firetrail.store.settings.live_config import check_changes
from firetrail.system import System

SKIPPED_UNITS_MAX = 8
"""Damaged units that one read skips; it searches the log for the record of each."""
LATER_S = 0.01
"""The time that a message that is not urgent may wait to be dispatched with others."""


class BrokerStore(CheckedStore):
    """A store that a broker has open."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._dispatching: asyncio.Handle | None = None  # in this iteration of the loop
        self._dispatching_later: asyncio.TimerHandle | None = None
        self._is_urgent = True  # the put that is in progress in the loop
        self._pending: PendingPuts | None = None
        self._catch_ups: CatchUps | None = None
        self.is_quiet = False
        """Whether the services of the broker store nothing, because it is about to hand over."""

    @classmethod
    def loading(
        cls, path: Path, config: StoreConfig, *, system: System, in_group: bool = False
    ) -> Self:
        """Open a store as :meth:`open` does, with the messages that replicas have to confirm.

        They can be read until :meth:`withhold_unconfirmed` hides them. A broker that starts reads
        its own queues before that: they tell which transactions and pops are open.

        Args:
            path: The folder of the store.
            config: The settings.
            system: Files and clock.
            in_group: Whether the broker is a member of a group with failover. Then a master shows
                nothing more until it knows the in-sync set. Default: False.
        """
        return cls(Engine(path, config, system, in_group=in_group, loading=True))

    def withhold_unconfirmed(self) -> None:
        """Show messages that replicas have yet to confirm only when they have."""
        self._engine.withhold_tail()

    def dispatch_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Dispatch the messages that this thread puts in its event loop.

        All puts of one iteration of the loop are dispatched together, at its end. A request that a
        client makes after it has got the response to a send is handled after that. On a SYNC_MASTER
        the same is true of what replicas confirm to the loop.

        Args:
            loop: The running loop of this thread.
        """
        self._loop, self._loop_thread = loop, get_ident()
        self._acks.on_progress = self._confirmed
        self._pending = PendingPuts(
            loop, self._acks, lambda: self._live.current.slave_timeout_ms, self._outcome
        )
        self._catch_ups = CatchUps(loop, self._dispatcher)

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
        self._is_urgent = is_urgent
        try:
            return self._begin_put(message)
        finally:
            self._is_urgent = True

    def _wait_later(self, result: PutResult, started: float) -> PutResult | Awaitable[PutResult]:
        """Return what waits. If replicas are all there is to wait for, no coroutine is needed."""
        if self._sync or self._pending is None or get_ident() != self._loop_thread:
            return super()._wait_later(result, started)
        if not self._acks.are_enough(result.end_offset):
            self._note_latency(started)
            return self._without_replicas(result)
        return self._pending.add(result, started)

    def _outcome(self, stored: PutResult, confirmed: bool, started: float) -> PutResult:
        self._note_latency(started)
        return self._unless_fenced(self._confirmed_or_not(stored, confirmed))

    @property
    def commit_log(self) -> CommitLog:
        """The log, for sending it to replicas."""
        return self._log

    @property
    def replica_acks(self) -> ReplicaAcks:
        """The confirmations of replicas."""
        return self._acks

    @property
    def has_failed(self) -> bool:
        """Whether a write has failed, so that nothing is accepted until the store is reopened."""
        return self._engine.failure is not None

    @property
    def is_disk_full(self) -> bool:
        """Whether messages are refused because the disk is nearly full."""
        return self._gate.is_shut(Closure.DISK_FULL)

    @property
    def has_room(self) -> bool:
        """Whether the disk is far from being full, so that messages would be accepted for long."""
        return self.used_ratio() <= self._live.current.disk_clean_forcibly_ratio

    def set_fence(self, fence: Fence) -> None:
        """Acknowledge messages only as long as the fence allows it."""
        self._engine.fence = fence

    @property
    def fence_refusal(self) -> str:
        """The reason why the store may not be the master's now; empty if it may."""
        return self._engine.fence.refusal

    def log_copy(self) -> LogCopy:
        """Return the log for appending what a master sends; the store's role must be SLAVE."""
        return LogCopy(self._engine)

    def refuse_puts(self, closure: Closure, detail: str) -> None:
        """Refuse puts for this reason, in addition to others; reads continue."""
        self._gate.shut(closure, detail)

    def accept_puts(self, closure: Closure) -> None:
        """Accept puts again, if this was the only reason to refuse them."""
        self._gate.lift(closure)

    def _appended(self) -> None:
        """Dispatch the message in the event loop, or leave it to the dispatcher."""
        loop = self._loop
        if loop is None or self._waits or get_ident() != self._loop_thread:
            super()._appended()
        elif self._is_urgent:
            self._dispatch_soon(loop)
        elif self._dispatching is None and self._dispatching_later is None:
            self._dispatching_later = loop.call_later(LATER_S, self._dispatch)

    def _confirmed(self) -> None:
        """Dispatch what replicas have confirmed, as :meth:`_appended` does."""
        loop = self._loop
        if loop is None or get_ident() != self._loop_thread:
            self._dispatcher.wake_if_idle()
        else:
            self._dispatch_soon(loop)

    def _dispatch_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._dispatching is None:
            self._dispatching = loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatching = None
        if self._dispatching_later is not None:
            self._dispatching_later.cancel()
            self._dispatching_later = None
        self._dispatcher.relieve()

    def catch_up(self) -> Awaitable[None] | None:
        """Dispatch what consumers may see now; return what waits for the rest, None if that is all.

        Messages that a producer put without waiting (``WAIT=false``) are not part of it before they
        are synced, if the store has SYNC_FLUSH.
        """
        self._log.commit()  # bytes in a write buffer are not readable
        if self._dispatcher.behind:
            self._dispatcher.help()
        if not self._dispatcher.behind or self._catch_ups is None:
            return None
        return self._catch_ups.wait(self._log.dispatchable())

    def push(self) -> None:
        """Make messages readable soon that were put without waiting for the disk.

        With SYNC_FLUSH they would otherwise be synced, and therefore dispatched, only with the next
        put that waits, however late that is.
        """
        if self._sync:
            waiter = ThreadWaiter(self._log.max_offset, self._engine.system.threads)
            self._engine.flusher.add(waiter)

    def records_of(self, result: PutResult) -> memoryview:
        """Return the consecutive records that a put has stored; none if the store is closed."""
        if self._is_closed:
            return memoryview(b"")
        if self._engine.config.write_buffer_pool:
            self._log.commit()  # bytes in a write buffer are not readable
        segment = self._log.queue.find(result.physical_offset)
        if segment is None:
            return memoryview(b"")
        at = result.physical_offset - segment.base
        return segment.view[at : at + result.size]

    def get_hashed(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        tags: frozenset[int] | None = None,
        bits: FilterBits | None = None,
    ) -> GetResult:
        """Get messages as :meth:`get` does, for a caller that has hashed the tags.

        ``bits`` leaves out messages whose extended units rule them out.

        A message that cannot be delivered, because its unit points nowhere or no record begins
        there, is reported and skipped so that consumers make progress. After SKIPPED_UNITS_MAX of
        them the result is empty and its next offset is after them. A damaged record is such a
        message, unless it is being repaired: then the queue seems to end before it.
        """
        if self._dispatcher.behind and offset >= self.max_offset(topic, queue_id):
            self._dispatcher.help(HELP_S)  # an acknowledged message must be readable
        check = Check.RECORD if self._live.current.verify_reads else Check.NONE
        for _ in range(SKIPPED_UNITS_MAX):
            try:
                result = self._get(topic, queue_id, offset, max_count, tags, bits, check)
                return self._statistics.noted(result)
            except StoreDamagedError as error:  # about the message at this offset
                if self.damage.awaits_repair(error, (topic, queue_id)):
                    return self._nothing(GetStatus.OFFSET_OVERFLOW_ONE, topic, queue_id, offset)
                self._damage_reports.note(self._engine.queues.open(topic, queue_id), offset)
            offset += 1
        return self._nothing(GetStatus.NO_MATCHED_MESSAGE, topic, queue_id, offset)

    def _nothing(self, status: GetStatus, topic: str, queue_id: int, offset: int) -> GetResult:
        first, end = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        return GetResult(status, offset, first, end)

    def note_damaged(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        number: int,
        tags: frozenset[int] | None = None,
        bits: FilterBits | None = None,
    ) -> int:
        """Report message ``number`` (from 0) of a get at ``offset``; return its queue offset."""
        offset = self._engine.reader.offset_of(topic, queue_id, offset, number, tags, bits)
        self._damage_reports.note(self._engine.queues.open(topic, queue_id), offset)
        return offset

    def filter_by(self, bitmap_of: Callable[[str, memoryview], bytes] | None) -> None:
        """Store bitmaps of matching filters in new extended units.

        Args:
            bitmap_of: Returns the bitmap for a record of a topic; it is called by the dispatcher.
                None ends it.
        """
        self._engine.description.bitmap_of = bitmap_of

    def unit(self, topic: str, queue_id: int, offset: int) -> ConsumeQueueUnit | None:
        """Return the unit of the message at a queue offset, or None if there is none.

        Its tags code is that of the message, also in a store with extended units.
        """
        queue = self._engine.queues.find(topic, queue_id)
        return queue.plain_unit(offset) if queue is not None else None

    @property
    def missing_config(self) -> list[str]:
        """Files of the broker that the store had when it was last open and that are missing."""
        return self._engine.missing_config

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return :meth:`max_offset` in less time; the arguments are not checked.

        Args:
            topic: The topic of the queue.
            queue_id: The number of the queue.
        """
        self._check_open()
        queue = self._loaded.get((topic, queue_id))
        return queue.max_offset if queue is not None else self.max_offset(topic, queue_id)

    def reaches(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a queue has a message right before ``offset``, or had one."""
        return self._engine.queues.reaches(topic, queue_id, offset)

    def numbered_end(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next message; messages that are not shown yet count.

        A position up to here is valid, because messages that were shown before an unclean stop may
        have to be confirmed again.
        """
        queue = self._engine.queues.find(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    @property
    def confirmed_end(self) -> int:
        """The end of the part of the log that replicas are known to have confirmed."""
        return min(self._log.shown_offset, self._log.max_offset)

    @property
    def unconfirmed_ms(self) -> int:
        """The age of the oldest message that too few replicas have; 0 if there is none."""
        log, offset = self._log.queue, self._log.confirmed_offset
        if offset >= self._log.max_offset:
            return 0
        # The rest of a file may be filled up; then the next record begins the next file.
        places = offset, *(file.base for file in log.from_offset(offset) if file.base > offset)
        times = (time for at in places if (time := store_time_at(log, at)) is not None)
        now_ms = self._engine.system.clock.now_ms()
        return max(now_ms - next(times, now_ms), 0)

    def unconfirmed(self, topic: str) -> int:
        """Return how many messages of a topic lack the confirmation of replicas."""
        if self._log.shown_offset >= self._log.max_offset:
            return 0
        queues = [self._engine.queues.open(topic, queue_id) for queue_id in self.queues(topic)]
        return sum(max(queue.next_offset - queue.max_offset, 0) for queue in queues)

    def stored_bytes(self, topic: str, queue_id: int, first: int, end: int) -> int:
        """Return the bytes in the log of the messages from ``first`` up to before ``end``."""
        queue = self._engine.queues.find(topic, queue_id)
        return queue.record_bytes(first, end) if queue is not None else 0

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time (ms) of the message at a queue offset."""
        return self._engine.reader.store_time(topic, queue_id, offset)

    def is_recent(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a message is likely in memory; messages yet to come count as such."""
        return self._engine.reader.is_recent(topic, queue_id, offset)

    def used_ratio(self) -> float:
        """Return the used part of the store's file system, from 0.0 to 1.0."""
        return self._engine.used_ratio()

    def log_disks(self) -> dict[Path, float]:
        """Return the used part of the disk of each log folder, if the log is in several."""
        spread = self._log.queue.spread
        return spread.used_ratios() if spread is not None else {}

    def disk_space(self) -> tuple[int, int]:
        """Return the total and the free bytes of the store's file system."""
        return self._engine.system.files.disk_space(self._engine.root)

    def free_write_buffers(self) -> int | None:
        """Return how many write buffers await no commit; None without a buffer pool."""
        return self._log.free_buffers

    def configure(self, **changes: Any) -> None:
        """Change settings of the open store; a ConfigError means that none was changed."""
        self._engine.configure(check_changes(self.config, changes))

    def settle(self) -> int:
        """Sync everything and return the position: from now on, recovery begins there or later."""
        self.flush()
        settled = min(self._engine.housekeeper.settle_derived(), self._log.flushed_offset)
        self._engine.housekeeper.write_watermark(clean=False)
        return settled

    def remove_topic(self, topic: str, settled: int) -> bool:
        """Remove the queues of a topic, so that its next message is number 0 again.

        Its messages stay in the log until they expire. Returns False and removes nothing while
        queues are being synced, or while messages of the topic are not dispatched or not before
        ``settled``, the result of :meth:`settle`: recovery would add those to the topic's next
        queues. Call this in the thread that puts messages, so that no put comes in between.
        """
        engine = self._engine
        for queue_id in self.queues(topic):
            queue = engine.queues.open(topic, queue_id)
            unit = queue.last_unit
            if queue.next_offset != queue.max_offset or (
                unit is not None and unit.physical_offset >= settled
            ):
                return False
        engine.reader.forget_cursors()
        return engine.housekeeper.remove_topic(topic, settled)

    @property
    def dispatched_time(self) -> int:
        """The store time (ms) of the newest record in queues and index; 0 if there is none."""
        return self._dispatcher.last_store_time

    def oldest_time(self) -> int | None:
        """Return the store time (ms) of the log's first record; None if it is not readable."""
        return store_time_at(self._log.queue, self._log.min_offset)

    def newest_time(self, topic: str) -> int | None:
        """Return the store time (ms) of the newest message in a topic's queues."""
        ends = [(queue_id, self.max_offset(topic, queue_id) - 1) for queue_id in self.queues(topic)]
        times = (self.store_time(topic, queue_id, last) for queue_id, last in ends if last >= 0)
        return max((time for time in times if time is not None), default=None)

    def queue_pairs(self) -> list[tuple[str, int]]:
        """Return topic and queue id of every queue, in order."""
        return self._engine.queues.pairs()
