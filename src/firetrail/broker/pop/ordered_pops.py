"""Pops in order: a queue is closed for its group until the last pop is acknowledged.

The offset of the group stays at the first message that is not acknowledged. When the invisible time
of all such messages is over, the queue opens again, and the next pop begins there. The state is
kept in RocketMQ's ``consumerOrderInfo.json``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from firetrail.broker.state.excess_positions import ExcessPosition, Overshoot, drop_orders
from firetrail.broker.state.group_table import GroupTable
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.saver import Saver
from firetrail.broker.state.topic_table import TopicTable
from firetrail.errors import RequestError
from firetrail.format.light import is_light
from firetrail.format.names import group_key, parse_group_key
from firetrail.remoting.messages.pop.pop_bodies import OrderInfo, OrderInfos
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.settings.config_file import ConfigFile
from firetrail.store.queues.queue_table import QueueKey

IDLE_MAX_MS = 24 * 3600 * 1000
"""The time after which a pop whose messages are acknowledged or visible again is dropped."""


@dataclass(slots=True)
class OrderedPop:
    """Messages of a queue that were popped together, in order."""

    pop_time: int
    invisible_ms: int
    offsets: Sequence[int]
    attempt: str | None = None
    """The id of the attempt. A pop with the same id is a retry of one whose answer was lost."""
    visible: dict[int, int] = field(default_factory=dict)
    """By offset: the time at which a message becomes visible, if a consumer changed it."""
    counts: dict[int, int] = field(default_factory=dict)
    """By offset: how often the message was popped before."""
    done: set[int] = field(default_factory=set)
    began: int = field(init=False)
    """The start of the invisible time: the pop, or later a clock that was set back before it."""

    def __post_init__(self) -> None:
        self.began = self.pop_time

    @property
    def next(self) -> int:
        """The group's offset: the first message that is not acknowledged, or the end."""
        left = (offset for offset in self.offsets if offset not in self.done)
        return next(left, self.offsets[-1] + 1)

    def free_at(self) -> int:
        """Return when the last open message becomes visible; 0 if none is open."""
        end = self.began + self.invisible_ms
        return max(
            (self.visible.get(o, end) for o in self.offsets if o not in self.done), default=0
        )

    def adjust_to_clock(self, now: int) -> None:
        """If the clock was set back to before the pop, restart all invisible times with the same
        length."""
        late = self.began - now
        if late > 0:
            self.began = now
            self.visible = {offset: until - late for offset, until in self.visible.items()}


class OrderedPops:
    """The last pop of each group and queue."""

    def __init__(
        self,
        file: ConfigFile,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        now_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._now_ms = now_ms
        self.saver = Saver(file, self._saved_content)
        self._batches: dict[str, dict[int, OrderedPop]] = {
            key: {queue_id: _read(info) for queue_id, info in queues.items() if info.offsets}
            for key, queues in file.load(OrderInfos).table.items()
        }

    def is_closed(self, group: str, queue: QueueKey, attempt: str | None) -> bool:
        """Whether pops have to wait for acknowledgements or for the end of the invisible time."""
        batch = self._find(group, queue)
        if batch is None or (attempt and attempt == batch.attempt):
            return False
        now = self._now_ms()
        batch.adjust_to_clock(now)
        return now < batch.free_at()

    def add(self, group: str, queue: QueueKey, batch: OrderedPop) -> None:
        """Record a pop, which closes the queue."""
        topic, queue_id = queue
        before = self._find(group, queue)
        if before is not None:
            more = 0 if batch.attempt and batch.attempt == before.attempt else 1
            batch.counts = {
                offset: before.counts.get(offset, 0) + more
                for offset in batch.offsets
                if offset in before.offsets
            }
        self._offsets.commit(group, *queue, batch.next)
        self._batches.setdefault(group_key(topic, group), {})[queue_id] = batch
        self.saver.note_change()

    def set_back(self, overshoot: Overshoot) -> list[ExcessPosition]:
        """Drop pops of messages that their queues no longer have."""
        excess = drop_orders(self._batches, lambda batch: max(batch.offsets), overshoot)
        if excess:
            self.saver.note_change()
        return excess

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the pops of a topic, of a group, or of a group in a topic."""
        for key in list(self._batches):
            name, owner = parse_group_key(key)
            if topic in (None, name) and group in (None, owner):
                del self._batches[key]
                self.saver.note_change()

    async def saved(self) -> None:
        """Return when all changes so far are in the file."""
        await self.saver.saved()

    def popped(self, group: str, queue: QueueKey, pop_time: int) -> Sequence[int]:
        """Return the offsets of a pop, none if it was not the last one."""
        batch = self._find_popped(group, queue, pop_time)
        return batch.offsets if batch is not None else ()

    def ack(self, group: str, queue: QueueKey, offset: int, pop_time: int) -> bool:
        """Acknowledge a message; return whether this opens the queue."""
        batch = self._find_popped(group, queue, pop_time)
        if batch is None or offset < batch.next:
            return False
        if offset not in batch.offsets:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message at {queue[0]} queue {queue[1]} offset {offset} is not part of the "
                f"pop at {pop_time} that the receipt names",
            )
        batch.done.add(offset)
        self._offsets.commit(group, *queue, batch.next)
        self.saver.note_change()
        return batch.free_at() <= self._now_ms()

    def change(
        self, group: str, queue: QueueKey, offset: int, pop_time: int, until: int
    ) -> int | None:
        """Change the end of a message's invisible time; return when the queue opens then.

        Return None if the message is acknowledged or visible again.
        """
        batch = self._find_popped(group, queue, pop_time)
        if batch is None or offset not in batch.offsets or offset in batch.done:
            return None
        batch.visible[offset] = until
        self.saver.note_change()
        return batch.free_at()

    def _find(self, group: str, queue: QueueKey) -> OrderedPop | None:
        """Return the last pop, None if the group's offset was reset after it."""
        topic, queue_id = queue
        batch = self._batches.get(group_key(topic, group), {}).get(queue_id)
        if batch is None or self._offsets.get(group, *queue) != batch.next:
            return None
        return batch

    def _find_popped(self, group: str, queue: QueueKey, pop_time: int) -> OrderedPop | None:
        batch = self._find(group, queue)
        return batch if batch is not None and batch.pop_time == pop_time else None

    # -- the file -----------------------------------------------------------------------------

    def content(self) -> OrderInfos:
        """Return the whole table."""
        return OrderInfos(
            {
                key: {queue_id: _written(batch) for queue_id, batch in queues.items()}
                for key, queues in self._batches.items()
            }
        )

    def _saved_content(self) -> OrderInfos:
        self._drop_idle()
        return self.content()

    def _drop_idle(self) -> None:
        """Drop pops that have been over for long, and those of topics and groups that are gone."""
        oldest = self._now_ms() - IDLE_MAX_MS
        for key, queues in list(self._batches.items()):
            topic, group = parse_group_key(key)
            has_topic = self._topics.get(topic) is not None or is_light(topic)
            is_gone = not has_topic or self._groups.get(group) is None
            for queue_id, batch in list(queues.items()):
                if is_gone or max(batch.pop_time, batch.free_at()) <= oldest:
                    del queues[queue_id]
            if not queues:
                del self._batches[key]

    async def stop(self) -> None:
        """Save unsaved changes."""
        await self.saver.stop()


def _read(info: OrderInfo) -> OrderedPop:
    first, *differences = info.offsets
    offsets = [first, *(first + difference for difference in differences)]
    return OrderedPop(
        pop_time=info.pop_time,
        invisible_ms=info.invisible_ms or 0,
        offsets=offsets,
        attempt=info.attempt,
        visible=dict(info.visible or {}),
        counts=dict(info.counts or {}),
        done={offset for n, offset in enumerate(offsets) if info.bits >> n & 1},
    )


def _written(batch: OrderedPop) -> OrderInfo:
    first, *rest = batch.offsets
    bits = sum(1 << n for n, offset in enumerate(batch.offsets) if offset in batch.done)
    return OrderInfo(
        pop_time=batch.pop_time,
        invisible_ms=batch.invisible_ms,
        offsets=[first, *(offset - first for offset in rest)],
        visible=batch.visible,
        counts=batch.counts,
        consumed_time=batch.pop_time,
        bits=bits,
        attempt=batch.attempt,
    )
