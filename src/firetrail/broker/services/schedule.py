"""Delayed messages. Each level has a queue, in which messages wait in the order of delivery.

``delayOffset.json`` says how far each queue has been delivered. After a crash, messages that were
delivered after the last save are delivered again: delivery is at least once.
"""

import asyncio
import logging
from collections.abc import Callable

from firetrail.broker.state.excess_positions import ExcessPosition, Overshoot, set_back_delays
from firetrail.broker.state.saver import Saver
from firetrail.broker.stored_messages import copy_record, destination_of
from firetrail.errors import IllegalMessageError, StoreDamagedError
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.record import Record
from firetrail.format.values.delay import DelayLevels
from firetrail.pace.periodic import repeat
from firetrail.remoting.messages.bodies import DelayOffsets
from firetrail.settings.config_file import ConfigFile
from firetrail.store.admission.drafter import DELAY_ELAPSED
from firetrail.store.broker_store import BrokerStore

POLL_S = 0.1
"""Longest pause between two polls of the queues."""
BATCH_SIZE = 256
"""Number of messages of one level that are delivered before the event loop runs other tasks."""

_log = logging.getLogger(__name__)


class ScheduleService:
    """Delivers delayed messages when they are due."""

    def __init__(
        self, file: ConfigFile, store: BrokerStore, levels: DelayLevels, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._levels = levels
        self._now_ms = now_ms
        self._next = dict(file.load(DelayOffsets).offset_table)
        self.saver = Saver(file, lambda: self.content().to_json())
        self._delivered = False
        self._task: asyncio.Task[None] | None = None

    def content(self) -> DelayOffsets:
        """Return the next queue offset of each level."""
        return DelayOffsets(dict(sorted(self._next.items())))

    def adopt(self, offsets: DelayOffsets) -> bool:
        """Replace the offsets by those of a master; return whether anything has changed."""
        if offsets.offset_table == self._next:
            return False
        self._next = dict(offsets.offset_table)
        self.saver.changed()
        return True

    def set_back(self, overshoot: Overshoot) -> list[ExcessPosition]:
        """Set the levels back whose offsets are beyond the end of their queues."""
        excess = set_back_delays(self._next, overshoot)
        if excess:
            self.saver.note_change()
        return excess

    def start(self) -> None:
        """Start delivering."""
        self._task = asyncio.get_running_loop().create_task(
            repeat(self.deliver, "delayed messages cannot be delivered now; will retry", _log)
        )

    async def stop(self) -> None:
        """Stop delivering, and save the progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.saver.stop()

    def deliver(self) -> float:
        """Deliver some due messages of each level; return the seconds until the next call."""
        pause = POLL_S
        if self._store.is_quiet:
            return pause
        for level in range(1, self._levels.max_level + 1):
            pause = min(pause, self._deliver_level(level))
        if self._delivered:
            self._delivered = False
            self._store.writer.push()
        return pause

    def _deliver_level(self, level: int) -> float:
        queue_id = level - 1
        end = self._store.queues.numbered_end(SCHEDULE_TOPIC, queue_id)
        if not end:
            return POLL_S
        first = self._store.queues.min_offset(SCHEDULE_TOPIC, queue_id)
        offset = min(max(self._next.get(level, 0), first), end)
        for _ in range(BATCH_SIZE):
            unit = self._store.queues.unit(SCHEDULE_TOPIC, queue_id, offset)
            if unit is None:
                self._advance(level, offset)
                return POLL_S
            now = self._now_ms()
            wait_ms = unit.tags_code - now
            # A clock that was set back must not make messages wait longer than their level.
            if 0 < wait_ms <= self._levels.wait_ms(level):
                self._advance(level, offset)
                return min(wait_ms / 1000, POLL_S)
            record = self._message(queue_id, offset)
            if record is not None and record.physical_offset != unit.physical_offset:
                # The unit is damaged, and says nothing about the time.
                wait_ms = record.store_time + self._levels.wait_ms(level) - now
                if wait_ms > 0:
                    self._advance(level, offset)
                    return min(wait_ms / 1000, POLL_S)
            if record is not None:
                self._put(record)
                self._delivered = True
            offset += 1
            self._advance(level, offset)
        return 0.0

    def _advance(self, level: int, offset: int) -> None:
        if self._next.get(level) != offset:
            self._next[level] = offset
            self.saver.note_change()

    def _message(self, queue_id: int, offset: int) -> Record | None:
        """Return a message; None if it is deleted or damaged, and skipped. Damage is logged."""
        try:
            return self._store.reads.message(SCHEDULE_TOPIC, queue_id, offset)
        except StoreDamagedError as error:
            _log.error("a delayed message is damaged and not delivered: %s", error)
            return None

    def _put(self, record: Record) -> None:
        destination = destination_of(record.properties)
        if destination is None:
            _log.error(
                "the delayed message at %d names no topic and queue to deliver it to; skipped",
                record.physical_offset,
            )
            return
        topic, queue_id = destination
        try:
            self._store.embedded.put(
                copy_record(
                    record,
                    topic,
                    queue_id,
                    record.raw_properties,
                    delay_level=DELAY_ELAPSED,
                    wait_for_flush=False,
                )
            )
        except IllegalMessageError as error:  # a retry would never help, and would block others
            _log.error(
                "the delayed message at %d for topic %s cannot be stored: %s; skipped",
                record.physical_offset,
                topic,
                error,
            )
