"""The store as a server uses it: stored bytes instead of messages, and nothing that blocks."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from firetrail.errors import StoreDamagedError
from firetrail.format.kernels.draft import Message
from firetrail.format.record import Record
from firetrail.format.unit import ConsumeQueueUnit
from firetrail.store.dispatch.dispatcher import HELP_S
from firetrail.store.engine import Engine
from firetrail.store.inspect.damage import DamageReports, record_damage
from firetrail.store.live_config import check_changes
from firetrail.store.log.flusher import ThreadWaiter
from firetrail.store.log.records import store_time_at
from firetrail.store.put.draft import Batch
from firetrail.store.reader import TIME_MAX, QueryResult
from firetrail.store.results import GetResult, GetStatus, PutResult
from firetrail.store.store import Store

PASSED_OVER_MAX = 8
"""Damaged units that one read passes over: the log was looked through for each of them."""


CALM_S = 0.000_3
"""A put that comes so long after the one before dispatches its message itself, for a consumer that
asks right after the answer. Busy producers are not held up by it."""


class BrokerStore(Store):
    """A store that is open for a broker."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._damage_reports = DamageReports(engine.log.queue)
        self._monotonic = engine.system.clock.monotonic
        self._last_put = 0.0

    def begin_put(self, message: Message | Batch) -> PutResult | Coroutine[None, None, PutResult]:
        """Store a message or batch at once, for an event loop that may have to wait for the disk.

        The outcome, in its status; with SYNC_FLUSH, what to await for it. Whatever is begun before
        the first is awaited shares one sync.
        """
        return self._begin_put(message)

    def _appended(self) -> None:
        """Dispatch what was put if little is, and else leave it to the dispatcher."""
        if self._sync:
            return
        now = self._monotonic()
        if now - self._last_put > CALM_S:
            self._dispatcher.help()
        elif self._dispatcher.idle:
            self._dispatcher.wake()
        self._last_put = now

    def push(self) -> None:
        """Let messages be read soon that were put without waiting for the disk.

        With SYNC_FLUSH they are otherwise on disk, and so in the queues, with the next put that
        waits, however late that is.
        """
        if self._sync:
            self._engine.flusher.add(ThreadWaiter(self._log.max_offset))

    def records_of(self, result: PutResult) -> memoryview:
        """The records of what was put, one behind the other."""
        if self._engine.config.write_buffer_pool:
            self._log.commit()  # what waits in a buffer cannot be read
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
    ) -> GetResult:
        """As :meth:`get`, for who has the hashes of the tags already.

        A message that cannot be sent to anybody, because its unit leads nowhere or no record begins
        there, is reported and passed over: consumers get on. After some of them the answer is
        empty, and who asks goes on behind them. Bodies are not looked at.
        """
        if self._dispatcher.behind and offset >= self.max_offset(topic, queue_id):
            self._dispatcher.help(HELP_S)  # what was acknowledged can be read
        for _ in range(PASSED_OVER_MAX):
            try:
                result = self._get(topic, queue_id, offset, max_count, tags)
                bad = result.first_bad()
                if bad > 0:
                    result = self._get(topic, queue_id, offset, bad, tags)
                if bad != 0:
                    return self._statistics.noted(result)
                offset = self.note_damaged(topic, queue_id, offset, 0, tags)
            except StoreDamagedError:  # of the message at this very offset
                self._damage_reports.note(self._engine.queues.open(topic, queue_id), offset)
            offset += 1
        first, end = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        return GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, first, end)

    def note_damaged(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        number: int,
        tags: frozenset[int] | None = None,
    ) -> int:
        """Report message ``number``, from 0, of a get from ``offset`` on; its queue offset."""
        offset = self._engine.reader.offset_of(topic, queue_id, offset, number, tags)
        self._damage_reports.note(self._engine.queues.open(topic, queue_id), offset)
        return offset

    def buffer_at(self, physical_offset: int) -> memoryview | None:
        """The stored bytes of the message that begins at this offset of the log."""
        return self._engine.reader.at_offset(physical_offset)

    def stored(self, physical_offset: int) -> Record | None:
        """As :meth:`at`, of a message that was there: None if it has expired.

        StoreDamagedError if no record begins where it was.
        """
        record = self.at(physical_offset)
        segment = self._log.queue.find(physical_offset)
        if record is None and segment is not None:
            raise record_damage(segment, physical_offset)
        return record

    def query_buffers(
        self,
        topic: str,
        key: str,
        begin: int = 0,
        end: int = TIME_MAX,
        max_count: int | None = None,
    ) -> QueryResult:
        """As :meth:`query`, of what is indexed by now: stored bytes, and how far the index is."""
        return self._engine.reader.query(topic, key, begin, end, max_count)

    def unit(self, topic: str, queue_id: int, offset: int) -> ConsumeQueueUnit | None:
        """Where the message at a queue offset stands, None if there is none."""
        queue = self._engine.queues.find(topic, queue_id)
        return queue.unit(offset) if queue is not None else None

    @property
    def missing_config(self) -> list[str]:
        """Files of the broker that the store had before it was opened, and that are not there."""
        return self._engine.missing_config

    def reaches(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a queue has a message right before ``offset``, or had one that has expired."""
        return self._engine.queues.reaches(topic, queue_id, offset)

    def stored_bytes(self, topic: str, queue_id: int, first: int, end: int) -> int:
        """Bytes in the log of the messages from queue offset ``first`` to before ``end``."""
        queue = self._engine.queues.find(topic, queue_id)
        return queue.record_bytes(first, end) if queue is not None else 0

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Store time (ms) of the message at a queue offset."""
        return self._engine.reader.store_time(topic, queue_id, offset)

    def is_recent(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message at a queue offset is likely in memory; so is one to come."""
        return self._engine.reader.is_recent(topic, queue_id, offset)

    def used_ratio(self) -> float:
        """Used part of the file system that holds the store, from 0.0 to 1.0."""
        return self._engine.system.files.used_ratio(self._engine.root)

    def disk_space(self) -> tuple[int, int]:
        """Bytes of that file system: all of them, and those that are free."""
        return self._engine.system.files.disk_space(self._engine.root)

    def free_write_buffers(self) -> int | None:
        """How many write buffers wait for nothing; None without a pool of them."""
        return self._log.free_buffers

    def configure(self, **changes: Any) -> None:
        """Change settings while the store is open; ConfigError, and no change, if one cannot be."""
        self._engine.configure(check_changes(self.config, changes))

    def settle(self) -> int:
        """Sync all and note it; a recovery would begin there, at the earliest, from now on."""
        self.flush()
        settled = min(self._engine.housekeeper.settle_derived(), self._log.flushed_offset)
        self._engine.housekeeper.write_watermark(clean=False)
        return settled

    def remove_topic(self, topic: str, settled: int) -> bool:
        """Remove the queues of a topic, so that its next message is number 0 again.

        Its messages stay in the log until they expire. False, and nothing removed, while some of
        them are not in the queues or not before ``settled``, which :meth:`settle` gave (a recovery
        would add them to the topic's next queues), or while queues are being synced. Call it where
        messages are put, or one might come in between.
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
        return engine.housekeeper.remove_topic(topic)

    def oldest_time(self) -> int | None:
        """Store time (ms) of the log's first record; None if there is none, or it is damaged."""
        return store_time_at(self._log.queue, self._log.min_offset)

    def newest_time(self, topic: str) -> int | None:
        """Store time (ms) of the newest message in a topic's queues."""
        ends = [(queue_id, self.max_offset(topic, queue_id) - 1) for queue_id in self.queues(topic)]
        times = (self.store_time(topic, queue_id, last) for queue_id, last in ends if last >= 0)
        return max((time for time in times if time is not None), default=None)

    def queue_pairs(self) -> list[tuple[str, int]]:
        """Topic and queue id of every queue, in order."""
        return self._engine.queues.pairs()
