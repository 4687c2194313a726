"""Delayed messages: each level has a queue, in which messages wait in the order of their time.

How far each queue has been delivered is kept in ``delayOffset.json``. What was delivered after the
last save is delivered again after a crash: at least once, as all else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from firetrail.broker.services.repeat import repeat
from firetrail.broker.state.config_file import ConfigFile
from firetrail.broker.state.overruns import Overrun, Overshoot, set_back_delays
from firetrail.broker.state.saver import Saver
from firetrail.broker.state.topics import HALF_TOPIC
from firetrail.broker.stored import copy_record
from firetrail.errors import IllegalMessageError, StoreDamagedError
from firetrail.format.delay import DelayLevels
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.properties import REAL_QID, REAL_TOPIC
from firetrail.format.record import Record
from firetrail.remoting.bodies import DelayOffsets
from firetrail.store.broker_store import BrokerStore
from firetrail.store.put.draft import DELAY_ELAPSED

LOOK_S = 0.1
"""Longest pause between two looks at the queues."""
AT_ONCE = 256
"""Messages of a level that are delivered before others get their turn."""

_log = logging.getLogger(__name__)


class Schedule:
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
        """The next queue offset of each level."""
        return DelayOffsets(dict(sorted(self._next.items())))

    def set_back(self, overshoot: Overshoot) -> list[Overrun]:
        """Set levels back that are beyond the end of their queues."""
        overruns = set_back_delays(self._next, overshoot)
        if overruns:
            self.saver.note_change()
        return overruns

    def start(self) -> None:
        """Begin to deliver."""
        self._task = asyncio.get_running_loop().create_task(
            repeat(self.deliver, "delayed messages have to wait", _log)
        )

    async def stop(self) -> None:
        """Deliver no more, and save how far it went."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.saver.stop()

    def deliver(self) -> float:
        """Deliver what is due, some messages of each level; in how many seconds to look again."""
        pause = LOOK_S
        for level in range(1, self._levels.max_level + 1):
            pause = min(pause, self._deliver_level(level))
        if self._delivered:
            self._delivered = False
            self._store.push()
        return pause

    def _deliver_level(self, level: int) -> float:
        queue_id = level - 1
        end = self._store.max_offset(SCHEDULE_TOPIC, queue_id)
        if not end:
            return LOOK_S
        first = self._store.min_offset(SCHEDULE_TOPIC, queue_id)
        offset = min(max(self._next.get(level, 0), first), end)
        for _ in range(AT_ONCE):
            unit = self._store.unit(SCHEDULE_TOPIC, queue_id, offset)
            if unit is None:
                self._advance(level, offset)
                return LOOK_S
            now = self._now_ms()
            wait_ms = unit.tags_code - now
            # A clock that was set back must not make messages wait longer than their level.
            if 0 < wait_ms <= self._levels.wait_ms(level):
                self._advance(level, offset)
                return min(wait_ms / 1000, LOOK_S)
            self._delivered |= self._put_stored(unit.physical_offset)
            offset += 1
            self._advance(level, offset)
        return 0.0

    def _advance(self, level: int, offset: int) -> None:
        if self._next.get(level) != offset:
            self._next[level] = offset
            self.saver.note_change()

    def _put_stored(self, physical_offset: int) -> bool:
        """Whether the message was there and could be read; all behind a damaged one are."""
        try:
            record = self._store.stored(physical_offset)
        except StoreDamagedError as error:
            _log.error("a delayed message is damaged and not delivered: %s", error)
            return False
        if record is not None:
            self._put(record)
        return record is not None

    def _put(self, record: Record) -> None:
        properties = record.properties
        topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QID, "")
        if topic is None or topic == HALF_TOPIC or not queue_id.isdigit():
            _log.error(
                "the delayed message at %d has no topic to go to; left out", record.physical_offset
            )
            return
        raw = record.raw_properties
        try:
            self._store.put(
                copy_record(
                    record,
                    topic,
                    int(queue_id),
                    raw,
                    delay_level=DELAY_ELAPSED,
                    wait_for_flush=False,
                )
            )
        except IllegalMessageError as error:  # it will not become legal; others have their turn
            _log.error(
                "the delayed message at %d for %s cannot be stored: %s; left out",
                record.physical_offset,
                topic,
                error,
            )
