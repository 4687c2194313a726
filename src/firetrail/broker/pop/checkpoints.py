"""What was popped and is not acknowledged yet: check-points, kept in a topic of the broker's own.

A pop is noted as a message ``ck`` of the topic ``rmq_sys_REVIVE_LOG_<cluster>``, an acknowledgement
as a message ``ack`` or ``bAck`` behind it in the same queue. The committed offset of the group
``CID_RMQ_SYS_REVIVE_GROUP`` is the last up to which nothing is open. What is behind it is read at
the start, so nothing is forgotten, neither by a crash nor by a change to a Java broker.

Java writes the same messages when they are due, by a timer, and so never sees one before its time.
It understands them earlier as well, as long as their delivery time (``TIMER_DELIVER_MS``) is not
later than their being there.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from firetrail.broker.state.offsets import OffsetTable
from firetrail.broker.state.topics import TopicTable
from firetrail.broker.stored import internal_records
from firetrail.errors import ProtocolError
from firetrail.format.kernels.draft import Message
from firetrail.format.properties import TIMER_DELIVER_MS
from firetrail.format.record import Record
from firetrail.remoting.pop_bodies import AckBody, CheckpointBody
from firetrail.store.broker_store import BrokerStore
from firetrail.store.results import PutResult

GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
SEEN = "CID_RMQ_SYS_FIRETRAIL_POPS"
"""The group whose offsets in the broker's own topic say which pops are in the offsets beside them.

Of later ones a start takes over how far they went: the log is newer than the file.
"""
CHECKPOINT, ACK, ACKS = "ck", "ack", "bAck"
"""The tags of the three kinds of messages."""
OPEN_MAX = 200_000
"""So many pops may be open; each takes about half a KiB of memory."""
IDLE_MAX = 10_000
"""Closed pops that may stand in the order of times until their time has come."""

Key = tuple[str, str, int, int, int, str]
Pending = Coroutine[None, None, None]
"""What to await until something noted is on the disk."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PopCheckpoint:
    """Messages of a queue that were popped together, and those of them that are still open."""

    topic: str
    group: str
    queue_id: int
    start: int
    """The offset that the pop began at; the first message can be behind it."""
    pop_time: int
    invisible_ms: int
    broker_name: str
    open: set[int]
    queue: int
    """The queue of the broker's own topic that it is noted in."""
    place: int = -1
    """Its offset there, or one before it."""

    @property
    def key(self) -> Key:
        """What acknowledgements name it by."""
        return (
            self.topic,
            self.group,
            self.queue_id,
            self.start,
            self.pop_time,
            self.broker_name,
        )

    revive_time: int = field(init=False)
    """When what is open becomes visible again."""

    def __post_init__(self) -> None:
        self.revive_time = self.pop_time + self.invisible_ms


class _Ack(NamedTuple):
    """Messages of a check-point that are done with."""

    key: Key
    offsets: list[int]


class PopCheckpoints:
    """All open check-points. ``name`` is the broker's."""

    def __init__(
        self,
        store: BrokerStore,
        topics: TopicTable,
        offsets: OffsetTable,
        name: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._name = name
        self._now_ms = now_ms
        self._open: dict[Key, PopCheckpoint] = {}
        self._by_queue: dict[int, dict[Key, PopCheckpoint]] = {}
        self._last: dict[int, int] = {}
        self._times: list[tuple[int, int, PopCheckpoint]] = []
        self._numbers = count()
        offsets.before_saving = self._save_seen

    @property
    def queues(self) -> int:
        """How many queues the topic has."""
        return self._topics.require(self._topics.revive).write_queue_nums

    @property
    def is_full(self) -> bool:
        """Whether no more pops can be noted."""
        return len(self._open) >= OPEN_MAX

    def find(self, key: Key) -> PopCheckpoint | None:
        """The check-point, None if all of it is acknowledged, or visible again."""
        return self._open.get(key)

    def pops(self) -> Iterable[tuple[str, int]]:
        """The group and the time of each pop that is open."""
        return ((point.group, point.pop_time) for point in self._open.values())

    # -- changes ------------------------------------------------------------------------------

    def add(self, point: PopCheckpoint, *, wait: bool = True) -> Pending | None:
        """Note a pop. Its time is moved if there is one that would be taken for the same."""
        while point.key in self._open:
            point.pop_time += 1
            point.revive_time += 1
        offsets = sorted(point.open)
        body = CheckpointBody(
            point.topic,
            point.group,
            point.queue_id,
            point.start,
            point.pop_time,
            point.invisible_ms,
            len(offsets),
            differences=[offset - point.start for offset in offsets],
            broker_name=point.broker_name,
        )
        point.place = self._last.get(point.queue, -1) + 1
        pending = self._write(CHECKPOINT, body, point.queue, point, wait=wait)
        self._remember(point)
        return pending

    def ack(
        self, point: PopCheckpoint, offsets: Iterable[int], *, wait: bool = True
    ) -> Pending | None:
        """Note that messages are done with, as far as they are open."""
        done = point.open.intersection(offsets)
        if not done:
            return None
        several = sorted(done) if len(done) > 1 else None
        body = AckBody(
            point.topic,
            point.group,
            point.queue_id,
            point.start,
            point.pop_time,
            -1 if several else min(done),
            several,
            point.broker_name,
        )
        pending = self._write(ACKS if several else ACK, body, point.queue, wait=wait)
        self._close(point, done)
        return pending

    def drop(self, point: PopCheckpoint) -> None:
        """Nobody can have its messages any more."""
        self._close(point, set(point.open))

    def _write(
        self,
        tag: str,
        body: CheckpointBody | AckBody,
        queue: int,
        point: PopCheckpoint | None = None,
        *,
        wait: bool = True,
    ) -> Pending | None:
        message = Message(
            self._topics.revive,
            body.encode(standard=True),
            tags=tag,
            properties={TIMER_DELIVER_MS: str(self._now_ms())},
            queue_id=queue,
            wait_for_flush=wait,
        )
        result = self._store.begin_put(message)
        if isinstance(result, PutResult):
            self._written(result, queue, point)
            return None
        return self._finish(result, queue, point)

    async def _finish(
        self, result: Coroutine[None, None, PutResult], queue: int, point: PopCheckpoint | None
    ) -> None:
        self._written(await result, queue, point)

    def _written(self, result: PutResult, queue: int, point: PopCheckpoint | None) -> None:
        place = result.require_ok().queue_offset
        self._last[queue] = max(self._last.get(queue, -1), place)
        if point is not None:
            point.place = place

    def _remember(self, point: PopCheckpoint) -> None:
        key = point.key
        self._open[key] = self._by_queue.setdefault(point.queue, {})[key] = point
        heapq.heappush(self._times, (point.revive_time, next(self._numbers), point))

    def _close(self, point: PopCheckpoint, done: Collection[int]) -> None:
        point.open.difference_update(done)
        if point.open or self._open.pop(point.key, None) is None:
            return
        del self._by_queue[point.queue][point.key]
        if len(self._times) > 2 * len(self._open) + IDLE_MAX:
            self._sort_times()

    def _sort_times(self) -> None:
        self._times = [
            (point.revive_time, next(self._numbers), point) for point in self._open.values()
        ]
        heapq.heapify(self._times)

    # -- time ---------------------------------------------------------------------------------

    def earliest(self) -> PopCheckpoint | None:
        """The open check-point whose messages become visible first."""
        while self._times:
            point = self._times[0][2]
            if point.open:
                return point
            heapq.heappop(self._times)
        return None

    def clock_set_back(self) -> None:
        """Let nothing wait longer from now on than was asked for."""
        now = self._now_ms()
        for point in self._open.values():
            point.revive_time = min(point.revive_time, now + point.invisible_ms)
        self._sort_times()

    def save_progress(self) -> None:
        """Let a start read no more than is needed."""
        for queue, last in self._last.items():
            oldest = next(iter(self._by_queue.get(queue, {}).values()), None)
            done = last if oldest is None else min(oldest.place - 1, last)
            self._offsets.commit(GROUP, self._topics.revive, queue, done)

    def _save_seen(self) -> None:
        for queue, last in self._last.items():
            if last >= 0:
                self._offsets.mark(SEEN, self._topics.revive, queue, last)

    # -- start --------------------------------------------------------------------------------

    def load(self) -> None:
        """Find what is open, after a start, and how far pops went that no saved offset knows of."""
        for queue in range(self.queues):
            done = self._offsets.get(GROUP, self._topics.revive, queue)
            first = self._store.min_offset(self._topics.revive, queue)
            self._read(queue, max((-1 if done is None else done) + 1, first))
        self.clock_set_back()  # perhaps, while nobody was looking

    def _read(self, queue: int, offset: int) -> None:
        self._last[queue] = offset - 1
        seen = self._offsets.get(SEEN, self._topics.revive, queue)
        # Offsets that a Java broker has saved may be newer than its notes, and groups set back.
        is_behind = self._offsets.is_ours and not self._store.recovery.clean
        for record in internal_records(self._store, self._topics.revive, queue, offset):
            note = self._note(record, queue)
            if isinstance(note, PopCheckpoint):
                note.place = record.queue_offset
                if is_behind and note.place > (-1 if seen is None else seen):
                    self._catch_up(note)
                self._remember(note)
            elif note is not None and note.key in self._open:
                self._close(self._open[note.key], note.offsets)
            self._last[queue] = record.queue_offset

    def _catch_up(self, point: PopCheckpoint) -> None:
        """Let a group not begin before what was popped already."""
        behind = max(point.open, default=-1) + 1
        known = self._offsets.get(point.group, point.topic, point.queue_id) or 0
        if known < behind <= self._store.max_offset(point.topic, point.queue_id):
            self._offsets.commit(point.group, point.topic, point.queue_id, behind)

    def take_over(self, records: Iterable[tuple[Record, int]]) -> None:
        """Note anew what a Java broker has noted elsewhere, as far as it is open.

        With each record comes the queue that it is for.
        """
        taken: dict[Key, PopCheckpoint] = {}
        for record, queue in records:
            note = self._note(record, queue % self.queues)
            if isinstance(note, PopCheckpoint):
                if note.key not in self._open:
                    taken[note.key] = note
            elif note is not None and note.key in self._open:
                self.ack(self._open[note.key], note.offsets, wait=False)
            elif note is not None and note.key in taken:
                taken[note.key].open.difference_update(note.offsets)
        for point in taken.values():
            if point.open:
                self.add(point, wait=False)

    def _note(self, record: Record, queue: int) -> PopCheckpoint | _Ack | None:
        """What a message of the broker's own topic says; what makes no sense is left out."""
        try:
            if record.tags == CHECKPOINT:
                body = CheckpointBody.decode(record.body)
                return PopCheckpoint(
                    body.topic,
                    body.group,
                    body.queue_id,
                    body.start,
                    body.pop_time,
                    body.invisible_ms,
                    body.broker_name or self._name,
                    set(body.offsets),
                    queue,
                )
            if record.tags in (ACK, ACKS):
                ack = AckBody.decode(record.body)
                where = (ack.topic, ack.group, ack.queue_id, ack.start, ack.pop_time)
                name = ack.broker_name or self._name
                return _Ack((*where, name), ack.offsets or [ack.offset])
        except ProtocolError as error:
            _log.error(
                "%s queue %d offset %d: %s; left out",
                record.topic,
                queue,
                record.queue_offset,
                error,
            )
        return None
