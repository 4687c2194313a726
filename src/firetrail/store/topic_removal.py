"""Removal of topics: their queues go, and their messages expire with the log."""

from firetrail.store.engine import Engine


class TopicRemoval:
    """Removes the queues of a topic, in two steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def settle(self) -> int:
        """Sync everything and return the position: from now on, recovery begins there or later."""
        self._engine.flush()
        settled = min(self._engine.housekeeper.settle_derived(), self._engine.log.flushed_offset)
        self._engine.housekeeper.write_watermark(clean=False)
        return settled

    def remove(self, topic: str, settled: int) -> bool:
        """Remove the queues of a topic, so that its next message is number 0 again.

        Its messages stay in the log until they expire. Returns False and removes nothing while
        queues are being synced, or while messages of the topic are not dispatched or not before
        ``settled``, the result of :meth:`settle`: recovery would add those to the topic's next
        queues. Call this in the thread that puts messages, so that no put comes in between.
        """
        engine = self._engine
        for queue_id in engine.lookups.of(topic):
            queue = engine.queues.open(topic, queue_id)
            unit = queue.last_unit
            if queue.next_offset != queue.max_offset or (
                unit is not None and unit.physical_offset >= settled
            ):
                return False
        engine.reader.forget_cursors()
        return engine.housekeeper.remove_topic(topic, settled)
