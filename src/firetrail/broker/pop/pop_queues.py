"""The queues that a pop takes from: which ones, in which order, and from which offsets."""

from collections.abc import Mapping

from firetrail.broker.filter.message_selector import MessageFilter, MessageSelector
from firetrail.broker.state.attributes import priority_factor
from firetrail.broker.state.group_table import GroupTable
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.topic_table import TopicTable
from firetrail.format.message_types import MessageType, type_of_topic
from firetrail.format.names import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2
from firetrail.remoting.messages.pop.pop_headers import ANY_QUEUE
from firetrail.store.broker_store import BrokerStore
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.results import GetResult, GetStatus

RETRY_FIRST = 5
"""Every fifth pop takes redelivered messages first; the others take them last."""
SPREAD = 37
"""Distributes a percentage of pops evenly over them; it has no common factor with 100."""
FROM_FIRST = 0
"""The ``initMode`` with which a new group begins at the oldest message."""
READS_MAX = 4
"""How many times one pop reads a queue, at most, to get past messages that do not match."""

_CONTINUE = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)
"""Statuses after which there may be a message at the next offset."""


class PopQueues:
    """Reads queues for pops, from the offsets that the broker keeps for a group."""

    def __init__(
        self,
        store: BrokerStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        selector: MessageSelector,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._selector = selector
        self._turn = 0

    def of(
        self, group: str, topic: str, queue_id: int, *, in_order: bool = False
    ) -> list[QueueKey]:
        """Return the queues to read, beginning with another one each time.

        Pops in order have no retry topic: their messages are redelivered from the same queue. Pops
        by priority begin with the last queue of the topic, and end with its retry topics.
        """
        self._turn += 1
        queues = self._queues_of(topic, queue_id)
        if in_order:
            return queues
        retries: list[QueueKey] = []
        for name in self.retry_topics(group, topic):
            retries += self._queues_of(name, ANY_QUEUE)
        if self._is_by_priority(group, topic):
            return sorted(queues, reverse=True) + retries
        return retries + queues if self._turn % RETRY_FIRST == 0 else queues + retries

    def positions(
        self, group: str, topic: str, queue_id: int, mode: int, *, in_order: bool = False
    ) -> list[tuple[QueueKey, int, int]]:
        """Return the queues of :meth:`of`, the offset of the group, and the end of the queue.

        The offset of a new group is chosen here. All are chosen before anything is taken, because
        one may be refused.

        Raises:
            RequestError: There are too many offsets of groups in queues.
        """
        offsets = self._offsets
        end_of = self._store.queues.max_offset
        name = ""
        known: Mapping[int, int] = {}
        found = []
        for queue in self.of(group, topic, queue_id, in_order=in_order):
            if queue[0] != name:
                name = queue[0]
                known = offsets.in_topic(group, name)
            offset = None if offsets.has_resets else known.get(queue[1])
            if offset is None:
                offset = self._begin(group, queue, mode)
            found.append((queue, offset, end_of(*queue)))
        return found

    def _is_by_priority(self, group: str, topic: str) -> bool:
        """Whether this pop takes messages with high priorities first."""
        config = self._topics.get(topic)
        if config is None or type_of_topic(config.attributes) is not MessageType.PRIORITY:
            return False
        settings = self._groups.get(group)
        factor = priority_factor(settings.attributes if settings else None)
        return self._turn * SPREAD % 100 < factor

    def retry_topics(self, group: str, topic: str) -> list[str]:
        """Return the topics with redelivered messages of a group.

        Redelivered messages go to the first one, which may not exist yet. The second one exists if
        a Java broker with ``enableRetryTopicV2`` had the folder.
        """
        second = pop_retry_topic_v2(topic, group)
        found = [pop_retry_topic(topic, group)]
        return found if self._topics.get(second) is None else [*found, second]

    def _queues_of(self, name: str, queue_id: int) -> list[QueueKey]:
        topic = self._topics.get(name)
        if topic is None:
            return []
        if queue_id >= 0:
            return [(name, queue_id)]
        count, turn = topic.read_queue_nums, self._turn
        return [(name, (number + turn) % count) for number in range(count)]

    def at(self, group: str, queue: QueueKey) -> int:
        """Return the offset of the group; a new one is at the first message.

        A peek may show older messages than the first pop returns, as in RocketMQ.
        """
        offset = self._offsets.get(group, *queue)
        return self._store.queues.min_offset(*queue) if offset is None else offset

    def _begin(self, group: str, queue: QueueKey, mode: int) -> int:
        """Return the offset of the group, after choosing one for a new group.

        A new group begins at the first message if ``mode`` says so or if all messages are recent,
        else at the last one.
        """
        self._offsets.take_reset(group, *queue)  # pops use the new offset without a notice
        offset = self._offsets.get(group, *queue)
        if offset is not None:
            return offset
        offset = self._store.queues.min_offset(*queue)
        from_first = mode == FROM_FIRST or queue[0].startswith(RETRY_PREFIX)
        if not from_first and (offset > 0 or not self._store.queues.is_recent(*queue, 0)):
            offset = max(self._store.queues.max_offset(*queue) - 1, 0)
        self._offsets.commit(group, *queue, offset)
        return offset

    def read(
        self, queue: QueueKey, offset: int, count: int, selection: MessageFilter
    ) -> tuple[int, GetResult]:
        """Read at most ``count`` matching messages; return the offset read from, and the result.

        The offset is after the messages before them that do not match.
        """
        for _ in range(READS_MAX):
            result = self._selector.get(*queue, offset, count, selection)
            if result.status not in _CONTINUE or result.next_offset == offset:
                break
            offset = result.next_offset
        return offset, result
