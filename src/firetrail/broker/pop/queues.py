"""The queues that pops of a group take from: which, in which order, and where each goes on."""

from __future__ import annotations

from collections.abc import Iterator

from firetrail.broker.filter.selection import MessageSelector, Selection
from firetrail.broker.services.long_polling import Queue
from firetrail.broker.state.offsets import OffsetTable
from firetrail.broker.state.topics import TopicTable
from firetrail.format.names import RETRY_PREFIX, pop_retry_topic
from firetrail.remoting.pop_headers import ANY_QUEUE
from firetrail.store.broker_store import BrokerStore
from firetrail.store.results import GetResult, GetStatus

RETRY_FIRST = 5
"""Every fifth pop looks first for messages that come again; the others if there is room left."""
FROM_FIRST = 0
"""The ``initMode`` of who wants a new group to begin with the oldest message."""
LOOKS_MAX = 4
"""How often one pop goes on in a queue behind messages that nobody wants."""

_GO_ON = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)
"""There may be something at the next offset."""


class PopQueues:
    """Reads queues for groups whose offsets the broker keeps."""

    def __init__(
        self,
        store: BrokerStore,
        topics: TopicTable,
        offsets: OffsetTable,
        selecting: MessageSelector,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._selecting = selecting
        self._turn = 0

    def of(
        self, group: str, topic: str, queue_id: int, *, in_order: bool = False
    ) -> Iterator[Queue]:
        """The queues to look at, in an order in which each has its turn.

        Messages of pops in order come again where they are, not in another topic.
        """
        self._turn += 1
        if in_order:
            yield from self._queues_of(topic, queue_id)
            return
        again = self._queues_of(pop_retry_topic(topic, group), ANY_QUEUE)
        if self._turn % RETRY_FIRST == 0:
            yield from again
        yield from self._queues_of(topic, queue_id)
        yield from again

    def _queues_of(self, name: str, queue_id: int) -> Iterator[Queue]:
        topic = self._topics.get(name)
        if topic is None:
            return
        if queue_id >= 0:
            yield name, queue_id
            return
        for number in range(topic.read_queue_nums):
            yield name, (number + self._turn) % topic.read_queue_nums

    def at(self, group: str, queue: Queue) -> int:
        """Where the group is; a new one at the first message."""
        offset = self._offsets.get(group, *queue)
        return self._store.min_offset(*queue) if offset is None else offset

    def begin(self, group: str, queue: Queue, mode: int) -> int:
        """Where the group is; a new one begins as it wants, or with all that is recent."""
        self._offsets.take_reset(group, *queue)  # whoever pops begins there in any case
        offset = self._offsets.get(group, *queue)
        if offset is not None:
            return offset
        offset = self._store.min_offset(*queue)
        from_first = mode == FROM_FIRST or queue[0].startswith(RETRY_PREFIX)
        if not from_first and (offset > 0 or not self._store.is_recent(*queue, 0)):
            offset = max(self._store.max_offset(*queue) - 1, 0)
        self._offsets.commit(group, *queue, offset)
        return offset

    def read(
        self, queue: Queue, offset: int, count: int, wanted: Selection
    ) -> tuple[int, GetResult]:
        """Up to so many wanted messages, and the offset behind all before that nobody wants."""
        for _ in range(LOOKS_MAX):
            result = self._selecting.get(*queue, offset, count, wanted)
            if result.status not in _GO_ON or result.next_offset == offset:
                break
            offset = result.next_offset
        return offset, result
