"""The offset at which a consumer group starts in a queue without a committed offset."""

import logging
from collections.abc import Iterable

from firetrail.client.cluster.offsets import Offsets
from firetrail.errors import ConfigError, FiretrailError
from firetrail.format.names import RETRY_PREFIX
from firetrail.format.values.arguments import number
from firetrail.remoting.messages.bodies import ConsumeFromWhere, MessageQueue
from firetrail.system import SYSTEM

DEFAULT_AGE_MS = 30 * 60 * 1000
"""The age of the messages at which a group starts with TIMESTAMP and no time, as in Java."""

_log = logging.getLogger(__name__)


class StartPosition:
    """The start position that the user of a consumer has chosen."""

    def __init__(self, where: ConsumeFromWhere, time_ms: int | None) -> None:
        if time_ms is not None and where is not ConsumeFromWhere.TIMESTAMP:
            allowed = "is allowed only with start=ConsumeFromWhere.TIMESTAMP"
            raise ConfigError("start_time_ms", time_ms, allowed)
        if time_ms is not None:
            number("start_time_ms", time_ms)
        self.where = where
        self._time_ms = time_ms

    async def offset(self, offsets: Offsets, queue: MessageQueue, *, is_new: bool) -> int:
        """Return the offset to start at. ``is_new``: the queue is younger than the group.

        A new queue, and the retry topic, contain only messages that are newer than the group.
        """
        if queue.topic.startswith(RETRY_PREFIX):
            return await offsets.lowest(queue)
        if self.where is ConsumeFromWhere.TIMESTAMP:
            default = SYSTEM.clock.now_ms() - DEFAULT_AGE_MS
            return await offsets.at_time(queue, default if self._time_ms is None else self._time_ms)
        if self.where is ConsumeFromWhere.LAST_OFFSET and not is_new:
            return await offsets.end(queue)
        return await offsets.lowest(queue)


async def has_consumed(offsets: Offsets, group: str, queues: Iterable[MessageQueue]) -> bool:
    """Return whether a group has consumed messages of one of the queues.

    Offset 0 proves nothing, because brokers before 5.x return it for a group without an offset,
    too.
    """
    for queue in queues:
        try:
            if await offsets.committed(group, queue):
                return True
        except (OSError, FiretrailError) as error:
            _log.warning("the offset of %s in %s could not be read: %s", group, queue, error)
    return False
