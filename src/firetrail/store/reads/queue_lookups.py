"""Positions, times and sizes of the queues of an open store."""

from collections.abc import Callable

from firetrail.format.files.unit import ConsumeQueueUnit
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.queues.queue_table import QueueKey, QueueTable
from firetrail.store.reads.reader import Reader


class QueueLookups:
    """Finds out about queues by their names; the arguments are not checked.

    A queue that does not exist is empty and begins at 0.
    """

    def __init__(
        self, table: QueueTable, log: CommitLog, reader: Reader, check_open: Callable[[], None]
    ) -> None:
        self._table = table
        self._loaded = table.loaded
        self._log = log
        self._reader = reader
        self._check_open = check_open

    def topics(self) -> list[str]:
        """Return every topic that has a queue, in order."""
        self._check_open()
        return self._table.topics()

    def pairs(self) -> list[QueueKey]:
        """Return topic and queue id of every queue, in order."""
        return self._table.pairs()

    def of(self, topic: str) -> list[int]:
        """Return the queue ids of a topic, in order."""
        self._check_open()
        return [queue_id for name, queue_id in self._table.pairs() if name == topic]

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the oldest message."""
        self._check_open()
        queue = self._table.find(topic, queue_id)
        return queue.min_offset(self._log.min_offset) if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return one past the last queue offset that consumers see."""
        self._check_open()
        queue = self._loaded.get((topic, queue_id)) or self._table.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def numbered_end(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next message; messages that are not shown yet count.

        A position up to here is valid, because messages that were shown before an unclean stop may
        have to be confirmed again.
        """
        queue = self._table.find(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    def reaches(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a queue has a message right before ``offset``, or had one."""
        return self._table.reaches(topic, queue_id, offset)

    def unit(self, topic: str, queue_id: int, offset: int) -> ConsumeQueueUnit | None:
        """Return the unit of the message at a queue offset, or None if there is none.

        Its tags code is that of the message, also in a store with extended units.
        """
        queue = self._table.find(topic, queue_id)
        return queue.plain_unit(offset) if queue is not None else None

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time (ms) of the message at a queue offset."""
        return self._reader.store_time(topic, queue_id, offset)

    def newest_time(self, topic: str) -> int | None:
        """Return the store time (ms) of the newest message in a topic's queues."""
        ends = [(queue_id, self.max_offset(topic, queue_id) - 1) for queue_id in self.of(topic)]
        times = (self.store_time(topic, queue_id, last) for queue_id, last in ends if last >= 0)
        return max((time for time in times if time is not None), default=None)

    def is_recent(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a message is likely in memory; messages yet to come count as such."""
        return self._reader.is_recent(topic, queue_id, offset)

    def stored_bytes(self, topic: str, queue_id: int, first: int, end: int) -> int:
        """Return the bytes in the log of the messages from ``first`` up to before ``end``."""
        queue = self._table.find(topic, queue_id)
        return queue.record_bytes(first, end) if queue is not None else 0

    def unconfirmed(self, topic: str) -> int:
        """Return the number of messages of a topic that lack the confirmation of replicas."""
        if self._log.shown_offset >= self._log.max_offset:
            return 0
        queues = [self._table.open(topic, queue_id) for queue_id in self.of(topic)]
        return sum(max(queue.next_offset - queue.max_offset, 0) for queue in queues)
