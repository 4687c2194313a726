"""Redelivery of popped messages that were not acknowledged in time.

Each is copied to ``%RETRY%<group>_<topic>``, where the next pops of the group find it, with one
more attempt counted. If it is popped from there and not acknowledged either, it goes to the end of
that topic. The same happens to messages of ``%RETRY%<group>+<topic>``, which Java brokers with
``enableRetryTopicV2`` write.
"""

import asyncio
import logging
from collections.abc import Callable

from firetrail.broker.pop.pop_checkpoints import PopCheckpoint, PopCheckpoints
from firetrail.broker.state.group_table import GroupTable
from firetrail.broker.state.topic_table import TopicTable
from firetrail.broker.stored_messages import copy_record, origin_of
from firetrail.errors import IllegalMessageError, StoreDamagedError
from firetrail.format.layout import MAX_PROPERTIES
from firetrail.format.names import RETRY_PREFIX, is_retry_topic_v2, pop_retry_topic, popped_topic
from firetrail.format.properties import (
    FIRST_POP_TIME,
    ORIGIN_GROUP,
    POP_CK,
    RETRY_TOPIC,
    replace_properties,
)
from firetrail.format.record import Record
from firetrail.pace.periodic import repeat
from firetrail.store.broker_store import BrokerStore

POLL_S = 0.1
"""Longest pause between two searches for due checkpoints."""
BATCH_SIZE = 32
"""Number of checkpoints that are revived before the event loop runs other tasks; each has up to 32
messages."""
PROPERTIES_MAX = MAX_PROPERTIES - 512
"""Maximum size of the properties in bytes; the rest is for the receipt of the next pop."""

_log = logging.getLogger(__name__)


class ReviveService:
    """Redelivers popped messages whose invisible time is over."""

    def __init__(
        self,
        store: BrokerStore,
        topics: TopicTable,
        groups: GroupTable,
        checkpoints: PopCheckpoints,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._checkpoints = checkpoints
        self._now_ms = now_ms
        self._task: asyncio.Task[None] | None = None
        self._last_ms = 0

    def start(self) -> None:
        """Start redelivering."""
        self._task = asyncio.get_running_loop().create_task(
            repeat(
                self.revive, "unacknowledged messages cannot be redelivered now; will retry", _log
            )
        )

    async def stop(self) -> None:
        """Stop redelivering, and commit the offset before which no pop is open."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._checkpoints.save_progress()

    def revive(self) -> float:
        """Revive some due checkpoints; return the seconds until the next call."""
        if self._store.is_quiet:
            return POLL_S
        now = self._now_ms()
        if now < self._last_ms:
            self._checkpoints.clock_set_back()
        self._last_ms = now
        for revived in range(BATCH_SIZE):
            point = self._checkpoints.earliest()
            wait_ms = None if point is None else point.revive_time - self._now_ms()
            if point is None or wait_ms is None or wait_ms > 0:
                if revived:
                    self._store.writer.push()
                self._checkpoints.save_progress()
                return POLL_S if wait_ms is None else min(wait_ms / 1000, POLL_S)
            self._revive(point)
        return 0.0

    def _revive(self, point: PopCheckpoint) -> None:
        topic = self._topics.get(popped_topic(point.topic, point.group))
        if topic is None or self._groups.get(point.group) is None:
            self._checkpoints.drop(point)
            return
        offsets = sorted(point.open)
        found = [self._message(point, offset) for offset in offsets]  # all, or none is redelivered
        for record in found:
            if record is not None:
                self._redeliver(point, record)
        self._checkpoints.ack(point, offsets, wait=False)

    def _message(self, point: PopCheckpoint, offset: int) -> Record | None:
        """Return a message, or None if it was deleted or is damaged; damage is logged."""
        try:
            return self._store.reads.message(point.topic, point.queue_id, offset)
        except StoreDamagedError as error:
            _log.error(
                "a popped message of group %s is damaged and not redelivered: %s",
                point.group,
                error,
            )
            return None

    def _redeliver(self, point: PopCheckpoint, record: Record) -> None:
        name = point.topic
        if not name.startswith(RETRY_PREFIX) or is_retry_topic_v2(name):
            name = pop_retry_topic(popped_topic(name, point.group), point.group)
        self._topics.ensure(name, 1)
        properties = record.properties
        changes: dict[str, str | None] = {
            RETRY_TOPIC: origin_of(record)[0],
            FIRST_POP_TIME: properties.get(FIRST_POP_TIME, str(point.pop_time)),
            ORIGIN_GROUP: point.group,
            POP_CK: None,
        }
        raw = replace_properties(record.raw_properties, changes)
        try:
            if len(raw) > PROPERTIES_MAX:
                raise IllegalMessageError(
                    "properties", f"{len(raw)} bytes leave no room for a receipt"
                )
            self._store.embedded.put(
                copy_record(record, name, 0, raw, more_attempts=1, wait_for_flush=False)
            )
        except IllegalMessageError as error:  # a retry would never help, and would block others
            _log.error(
                "the popped message at %d cannot be redelivered to group %s: %s; skipped",
                record.physical_offset,
                point.group,
                error,
            )
