"""Checkpoints of pops whose messages are not all acknowledged, kept in an internal topic.

A pop is recorded as a message with the tag ``ck`` in the topic ``rmq_sys_REVIVE_LOG_<cluster>``. An
acknowledgement is recorded as a message with the tag ``ack`` or ``bAck`` after it in the same
queue. The committed offset of the group ``CID_RMQ_SYS_REVIVE_GROUP`` is the last one before which
no pop is open. A start reads all records after it, so no pop is forgotten after a crash or when a
Java broker takes over.

A Java broker writes the same messages through its timer when they are due, and so never sees one
early. It accepts them early as well, provided that their delivery time (``TIMER_DELIVER_MS``) is
not later than the time at which they are stored.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.topic_table import TopicTable
from firetrail.broker.stored_messages import internal_records, require_stored
from firetrail.errors import ProtocolError, RequestError
from firetrail.format.kernels.draft import Message
from firetrail.format.names import popped_topic
from firetrail.format.properties import TAGS, TIMER_DELIVER_MS, encode_properties
from firetrail.format.record import Record
from firetrail.remoting.connections.handlers import Answer
from firetrail.remoting.messages.pop.pop_bodies import (
    ACK,
    ACKS,
    CHECKPOINT,
    AckBody,
    CheckpointBody,
    encode_ack,
    encode_checkpoint,
)
from firetrail.remoting.servers.fair_shares import FairShares, ShareHolder, unknown_holder
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.broker_store import BrokerStore
from firetrail.store.results import PutResult

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
SEEN = "CID_RMQ_SYS_FIRETRAIL_POPS"
"""The group whose offsets in the internal topic say which pops the saved offset file includes.

A start advances the group offsets by the later pops, because the log is newer than the file.
"""
OPEN_MAX = 200_000
"""Maximum number of open pops; each takes about half a KiB of memory."""
INVISIBLE_MAX_MS = 3 * 86_400_000
"""Longest invisible time. RocketMQ's proxy allows 12 hours, its broker any time."""
FORGET_BATCH = 100
"""Number of pops of a deleted topic or group that are closed in the log before the event loop runs
other tasks."""
CLOSED_MAX = 10_000
"""Maximum number of closed pops in the heap of revive times before it is rebuilt."""

Key = tuple[str, str, int, int, int, str]
Pending = Coroutine[None, None, None]
"""Completes when a record of a pop or acknowledgement is on disk."""

_PROPERTIES = encode_properties({TAGS: "%s", TIMER_DELIVER_MS: "%d"})
"""The properties of the records, without their values."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PopCheckpoint:
    """Messages of a queue that were popped together, and which of them are still open."""

    topic: str
    group: str
    queue_id: int
    start: int
    """The offset at which the pop began reading; the first message may have a later one."""
    pop_time: int
    invisible_ms: int
    broker_name: str
    open: set[int]
    """Queue offsets of the messages that are not acknowledged."""
    revive_queue: int
    """The queue of the internal topic that holds the record of the pop."""
    revive_offset: int = -1
    """The offset of that record, or an earlier one."""
    holder: ShareHolder | None = None
    """The caller who has popped them; None if that is not known: the record does not name it."""

    key: Key = field(init=False)
    """The fields by which acknowledgements refer to the checkpoint."""
    revive_time: int = field(init=False)
    """The time at which the open messages become visible again."""

    def __post_init__(self) -> None:
        self.set_time(self.pop_time)

    def set_time(self, pop_time: int) -> None:
        """Change the time of the pop."""
        self.pop_time = pop_time
        self.key = (self.topic, self.group, self.queue_id, self.start, pop_time, self.broker_name)
        self.revive_time = pop_time + self.invisible_ms


class _Ack(NamedTuple):
    """Acknowledged messages of a checkpoint."""

    key: Key
    offsets: list[int]


class PopCheckpoints:
    """All open checkpoints.

    Args:
        store: The store.
        topics: The topics.
        offsets: The offsets of consumers.
        name: The name of the broker.
        now_ms: The wall clock.
        now: A monotonic clock.
    """

    def __init__(
        self,
        store: BrokerStore,
        topics: TopicTable,
        offsets: OffsetTable,
        name: str,
        now_ms: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._name = name
        self._now_ms = now_ms
        self._open: dict[Key, PopCheckpoint] = {}
        self._by_queue: dict[int, dict[Key, PopCheckpoint]] = {}
        self._last: dict[int, int] = {}
        self._forgotten: list[tuple[PopCheckpoint, list[int]]] = []  # not in the log yet
        self._shares = FairShares(
            "open pops",
            "Acknowledge messages, pop more of them at once, or shorten invisibleTime.",
            lambda: OPEN_MAX,
            now,
        )
        self._times: list[tuple[int, int, PopCheckpoint]] = []
        self._numbers = count()
        offsets.before_saving = self._save_seen

    @property
    def queues(self) -> int:
        """The number of queues of the internal topic."""
        return self._topics.require(self._topics.revive).write_queue_nums

    def excess(self, holder: ShareHolder) -> str | None:
        """Return why a consumer may not have more open pops; None if it may."""
        return self._shares.excess(holder)

    def find(self, key: Key) -> PopCheckpoint | None:
        """Return the checkpoint; None if all its messages are acknowledged or visible again."""
        return self._open.get(key)

    def pops(self) -> Iterable[tuple[str, int]]:
        """Return the group and the time of each open pop."""
        return ((point.group, point.pop_time) for point in self._open.values())

    # -- changes ------------------------------------------------------------------------------

    def add(self, point: PopCheckpoint, *, wait: bool = True) -> Pending | None:
        """Record a pop. Its time is moved if an open checkpoint has the same key."""
        while point.key in self._open:
            point.set_time(point.pop_time + 1)
        topic, group, queue_id, start, pop_time, name = point.key
        offsets = sorted(point.open)
        body = encode_checkpoint(
            topic, group, queue_id, start, pop_time, point.invisible_ms, offsets, name
        )
        point.revive_offset = self._last.get(point.revive_queue, -1) + 1
        pending = self._write(CHECKPOINT, body, point.revive_queue, point, wait=wait)
        self._remember(point)
        return pending

    def ack(
        self, point: PopCheckpoint, offsets: Iterable[int], *, wait: bool = True
    ) -> Pending | None:
        """Record the acknowledgement of those messages that are open."""
        done = point.open.intersection(offsets)
        if not done:
            return None
        pending = self._write_ack(point, sorted(done), wait=wait)
        self._close(point, done)
        return pending

    def drop(self, point: PopCheckpoint) -> None:
        """Close a checkpoint whose messages consumers can no longer receive."""
        self._close(point, set(point.open))

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Close the pops of a topic, of a group, or of a group in a topic.

        Pops of a topic that redelivers messages of ``topic`` are closed as well.
        """
        for point in list(self._open.values()):
            names = (None, point.topic, popped_topic(point.topic, point.group))
            if topic in names and group in (None, point.group):
                self._forgotten.append((point, sorted(point.open)))
                self._close(point, set(point.open))
        self._sort_times()

    async def saved(self) -> None:
        """Return when the log tells which pops were closed by :meth:`forget`."""
        while self._forgotten:
            batch, self._forgotten = self._forgotten[:FORGET_BATCH], self._forgotten[FORGET_BATCH:]
            pending = [self._write_ack(point, offsets) for point, offsets in batch]
            await asyncio.gather(*(each for each in pending if each is not None))
            await asyncio.sleep(0)
        self.save_progress()

    def _write_ack(
        self, point: PopCheckpoint, offsets: Sequence[int], *, wait: bool = True
    ) -> Pending | None:
        topic, group, queue_id, start, pop_time, name = point.key
        body = encode_ack(topic, group, queue_id, start, pop_time, offsets, name)
        tag = ACKS if len(offsets) > 1 else ACK
        return self._write(tag, body, point.revive_queue, wait=wait)

    def _write(
        self,
        tag: str,
        body: bytes,
        queue: int,
        point: PopCheckpoint | None = None,
        *,
        wait: bool = True,
    ) -> Pending | None:
        message = Message(
            self._topics.revive,
            body,
            queue_id=queue,
            raw_properties=_PROPERTIES % (tag.encode(), self._now_ms()),
            wait_for_flush=wait,
        )
        # Only a start reads these records.
        result = self._store.writer.begin_put(message, is_urgent=False)
        if isinstance(result, PutResult):
            self._written(result, queue, point)
            return None
        return self._finish(result, queue, point)

    async def _finish(
        self, result: Awaitable[PutResult], queue: int, point: PopCheckpoint | None
    ) -> None:
        self._written(await result, queue, point)

    def _written(self, result: PutResult, queue: int, point: PopCheckpoint | None) -> None:
        offset = require_stored(result).queue_offset
        self._last[queue] = max(self._last.get(queue, -1), offset)
        if point is not None:
            point.revive_offset = offset

    def _remember(self, point: PopCheckpoint) -> None:
        key = point.key
        before = self._open.get(key)
        if before is not None:  # the same pop was recorded again; the later record counts
            self._shares.give_back(_holder_of(before))
            del self._by_queue[before.revive_queue][key]
        self._shares.take(_holder_of(point))
        self._open[key] = self._by_queue.setdefault(point.revive_queue, {})[key] = point
        heapq.heappush(self._times, (point.revive_time, next(self._numbers), point))

    def _close(self, point: PopCheckpoint, done: Collection[int]) -> None:
        point.open.difference_update(done)
        if point.open or self._open.pop(point.key, None) is None:
            return
        del self._by_queue[point.revive_queue][point.key]
        self._shares.give_back(_holder_of(point))
        if len(self._times) > 2 * len(self._open) + CLOSED_MAX:
            self._sort_times()

    def _sort_times(self) -> None:
        self._times = [
            (point.revive_time, next(self._numbers), point) for point in self._open.values()
        ]
        heapq.heapify(self._times)

    # -- time ---------------------------------------------------------------------------------

    def earliest(self) -> PopCheckpoint | None:
        """Return the open checkpoint whose messages become visible first."""
        while self._times:
            point = self._times[0][2]
            if point.open:
                return point
            heapq.heappop(self._times)
        return None

    def clock_set_back(self) -> None:
        """Limit the remaining wait of every checkpoint to its invisible time."""
        now = self._now_ms()
        for point in self._open.values():
            longest = min(point.invisible_ms, INVISIBLE_MAX_MS)
            point.revive_time = min(point.revive_time, now + longest)
        self._sort_times()

    def save_progress(self) -> None:
        """Commit the offset before which no pop is open, so that a start reads no more than
        necessary."""
        for queue, last in self._last.items():
            oldest = next(iter(self._by_queue.get(queue, {}).values()), None)
            done = last if oldest is None else min(oldest.revive_offset - 1, last)
            self._offsets.keep(REVIVE_GROUP, self._topics.revive, queue, done)

    def _save_seen(self) -> None:
        for queue, last in self._last.items():
            if last >= 0:
                self._offsets.mark(SEEN, self._topics.revive, queue, last)

    # -- start --------------------------------------------------------------------------------

    def load(self, *, state_lags: bool) -> None:
        """Read the open checkpoints at the start.

        With ``state_lags``, the saved offsets may be older than the log, so they are advanced by
        the pops that the log has.
        """
        for queue in range(self.queues):
            done = self._offsets.get(REVIVE_GROUP, self._topics.revive, queue)
            first = self._store.queues.min_offset(self._topics.revive, queue)
            self._read(queue, max((-1 if done is None else done) + 1, first), state_lags)
        self.clock_set_back()  # this may have happened while the broker was stopped

    def _read(self, queue: int, offset: int, state_lags: bool) -> None:
        self._last[queue] = offset - 1
        seen = self._offsets.get(SEEN, self._topics.revive, queue)
        # Not for files of a Java broker: its offsets may be newer than its records of pops, and
        # its groups may have been reset.
        catches_up = self._offsets.is_ours and state_lags
        for record in internal_records(self._store, self._topics.revive, queue, offset):
            entry = self._decode(record, queue)
            if isinstance(entry, PopCheckpoint):
                entry.revive_offset = record.queue_offset
                if catches_up and entry.revive_offset > (-1 if seen is None else seen):
                    self._catch_up(entry)
                self._remember(entry)
            elif entry is not None and entry.key in self._open:
                self._close(self._open[entry.key], entry.offsets)
            self._last[queue] = record.queue_offset

    def _catch_up(self, point: PopCheckpoint) -> None:
        """Advance the offset of a group past the messages of a pop, which it has received."""
        end = max(point.open, default=-1) + 1
        known = self._offsets.get(point.group, point.topic, point.queue_id) or 0
        if known < end <= self._store.queues.max_offset(point.topic, point.queue_id):
            self._offsets.keep(point.group, point.topic, point.queue_id, end)

    def take_over(self, records: Iterable[tuple[Record, int]]) -> None:
        """Record the open pops that a Java broker has recorded in another topic.

        Each record comes with the id of the queue that it is for. Records may be repeated in any
        order: Java's timer stores those again that wait for longer than its window.
        """
        taken: dict[Key, PopCheckpoint] = {}
        acknowledged: dict[Key, set[int]] = defaultdict(set)
        for record, queue in records:
            entry = self._decode(record, queue % self.queues)
            if isinstance(entry, PopCheckpoint):
                if entry.key not in self._open:
                    taken[entry.key] = entry
            elif entry is not None and entry.key in self._open:
                self.ack(self._open[entry.key], entry.offsets, wait=False)
            elif entry is not None:
                acknowledged[entry.key].update(entry.offsets)
        for key, point in taken.items():
            point.open.difference_update(acknowledged.get(key, ()))
            if point.open:
                self.add(point, wait=False)

    def _decode(self, record: Record, queue: int) -> PopCheckpoint | _Ack | None:
        """Decode a record of the internal topic; log one that cannot be decoded, and skip it."""
        try:
            if record.tags == CHECKPOINT:
                body = CheckpointBody.decode(record.body)
                return PopCheckpoint(
                    topic=body.topic,
                    group=body.group,
                    queue_id=body.queue_id,
                    start=body.start,
                    pop_time=body.pop_time,
                    invisible_ms=body.invisible_ms,
                    broker_name=body.broker_name or self._name,
                    open=set(body.offsets),
                    revive_queue=queue,
                )
            if record.tags in (ACK, ACKS):
                ack = AckBody.decode(record.body)
                where = (ack.topic, ack.group, ack.queue_id, ack.start, ack.pop_time)
                name = ack.broker_name or self._name
                return _Ack((*where, name), ack.offsets or [ack.offset])
        except ProtocolError as error:
            _log.error(
                "%s queue %d offset %d: this record of a pop or an acknowledgement cannot be "
                "decoded and is skipped: %s",
                record.topic,
                queue,
                record.queue_offset,
                error,
            )
        return None


def _holder_of(point: PopCheckpoint) -> ShareHolder:
    return unknown_holder(point.group) if point.holder is None else point.holder


def check_invisible_time(invisible_ms: int) -> None:
    """Raise RequestError if a message would be hidden for too long."""
    if invisible_ms > INVISIBLE_MAX_MS:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {invisible_ms} ms, it must be at most {INVISIBLE_MAX_MS} (3 days)",
        )


def answer_when_stored(pending: Sequence[Pending], answer: RemotingCommand) -> Answer:
    """Return the answer, or a coroutine that returns it once all its records are on disk."""
    if not pending:
        return answer

    async def wait() -> RemotingCommand:
        await asyncio.gather(*pending)
        return answer

    return wait()
