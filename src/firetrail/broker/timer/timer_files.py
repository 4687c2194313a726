"""Wheel, log and progress of the timer together: adding records, saving, recovery.

Each record of the timer topic gets exactly one unit, in the order of the queue. The files are saved
in this order: commit log, timer log, wheel, ``timercheck``. So all progress in ``timercheck`` is on
disk, and the wheel never refers to units that are not. Recovery undoes later changes, and the timer
continues with the records of the topic from there.

If a file is missing or damaged, or if a Java broker wrote them last, all of them are rebuilt: they
are removed, and the timer reads its topic again, starting with the oldest record that may still
wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from firetrail.broker.timer.timer_log import TimerLog
from firetrail.broker.timer.wheel import TimerWheel
from firetrail.errors import FormatError, StoreError
from firetrail.format.files.timer import (
    CHECK,
    LOG,
    NONE,
    TIMER_QUEUE,
    TIMER_TOPIC,
    UNIT,
    VOID,
    WHEEL,
    TimerCheck,
    TimerUnit,
    decode_check,
    encode_unsealed,
)
from firetrail.format.files.timer_seal import decode_seal, encode_check, flipped_bit
from firetrail.format.names import CONFIG
from firetrail.format.values.javahash import java_hash
from firetrail.store.broker_store import BrokerStore
from firetrail.system import System

MASTER_UNLIMITED = 1 << 62
"""The queue offset of the master in ``timercheck``. A Java broker that takes over does not go back
before it, so after a crash it continues after the last unit, and adds no record twice."""

_log = logging.getLogger(__name__)


class TimerShape(NamedTuple):
    """The sizes of the files, and the duration of a slot."""

    precision_ms: int
    log_file_size: int
    wheel_slots: int


class TimerRecord(NamedTuple):
    """A record of the timer topic, to be added to the timer."""

    physical_offset: int
    size: int
    topic_hash: int
    magic: int
    slot_ms: int
    written_ms: int


class TimerFiles:
    """The files of one timer.

    Attributes:
        wheel: The slots.
        log: The units.
        check: The progress that was last saved.
        queue_offset: The queue offset of the next record to add.
        is_open: Whether there are files; they are created with the first message.
    """

    def __init__(self, system: System, root: Path, store: BrokerStore, shape: TimerShape) -> None:
        self._files = system.files
        self._now_ms = system.clock.now_ms
        self._root = root
        self._store = store
        self._path = root / CONFIG / CHECK
        self._precision_ms = shape.precision_ms
        self.wheel = TimerWheel(system.files, root / WHEEL, shape.precision_ms, shape.wheel_slots)
        self.log = TimerLog(system, root / LOG, shape.log_file_size)
        self.check = TimerCheck()
        self.queue_offset = 0
        self.is_open = False
        self._saving = self.check

    # -- opening ------------------------------------------------------------------------------

    def open(self) -> str:
        """Recover the files; return why they have to be rebuilt, nothing if they are good."""
        try:
            raw = self._files.read(self._path)
        except FileNotFoundError:
            return f"{self._path} is missing"
        flipped = flipped_bit(raw)
        if flipped is not None:
            _log.warning("%s: corrected a flipped bit in %s", self._path, flipped.field)
            raw = flipped.corrected
        try:
            self.check = decode_check(raw)
        except FormatError as error:
            return f"{self._path}: {error}"
        seal = decode_seal(raw, self._precision_ms)
        if seal is None:
            return f"{self._path} was written by a Java broker, or with another timerPrecisionMs"
        if not self.wheel.has_file:
            return f"{self._root / WHEEL} is missing, or has another size"
        try:
            self.log.load(self.check.log_position)
            self.wheel.open()
            self._undo_unsaved()
            self.wheel.verify(seal)
            self._undo_lost_records()
        except StoreError as error:
            return str(error)
        if problem := self._mismatch():
            return problem
        self.is_open = True
        return ""

    def _undo_unsaved(self) -> None:
        """Remove the units that were appended after the last save."""
        end = self.check.log_position
        for position in reversed(list(self.log.found_after(end))):
            self._undo(position)
        self._cut(end)
        self.queue_offset = self.check.queue_offset

    def _undo_lost_records(self) -> None:
        """Remove the units of records that a crash or a failover took from the commit log."""
        records = self._store.queues.numbered_end(TIMER_TOPIC, TIMER_QUEUE)
        end = self.log.end
        while self.queue_offset > records and end > self.log.first:
            end = self.log.before(end)
            self._undo(end)
            self.queue_offset -= 1
        self._cut(end)
        self.queue_offset = min(self.queue_offset, records)

    def _cut(self, end: int) -> None:
        """Remove the units from ``end`` on, once no slot on disk refers to them."""
        self.wheel.begin_writing()
        self.wheel.write()
        self.wheel.end_writing()
        self.log.truncate(end)

    def _undo(self, position: int) -> None:
        unit = self.log.unit(position)
        slot = self.wheel.get(unit.slot_ms) if unit is not None else None
        if unit is None or slot is None or slot.last != position:
            return
        if unit.previous == NONE:
            self.wheel.clear(unit.slot_ms)
        else:
            waiting = slot.waiting - unit.weight
            self.wheel.put(unit.slot_ms, slot.first, unit.previous, waiting)

    def _mismatch(self) -> str:
        """Return the difference of the last unit from the last record; empty if there is none."""
        last = self._store.queues.unit(TIMER_TOPIC, TIMER_QUEUE, self.queue_offset - 1)
        if self.log.end <= self.log.first or last is None:
            return ""
        unit = self.log.unit(self.log.before(self.log.end))
        if unit is not None and unit.physical_offset == last.physical_offset:
            return ""
        return f"the end of {self._root / LOG} belongs to another commit log"

    def reset(self, queue_offset: int) -> None:
        """Remove all units and slots, to read the topic again from a queue offset on.

        First of all ``timercheck`` loses its seal, so that a rebuild that is interrupted begins
        again: only a save at its end restores the seal.
        """
        self.is_open = False
        if self._path.exists():
            self._files.replace(self._path, encode_unsealed(self.check))
        self.wheel.remove()
        self.log.remove()
        self.wheel.create()
        self.queue_offset = queue_offset
        self.is_open = True

    # -- adding -------------------------------------------------------------------------------

    def add(self, entry: TimerRecord) -> None:
        """Add the record at :attr:`queue_offset` to its slot."""
        slot = self.wheel.get(entry.slot_ms)
        previous = NONE if slot is None else slot.last
        unit = self._unit(entry, previous, entry.magic)
        position = self.log.append(unit)
        first = position if slot is None else slot.first
        waiting = (0 if slot is None else slot.waiting) + unit.weight
        self.wheel.put(entry.slot_ms, first, position, waiting)
        self.queue_offset += 1

    def pass_over(self, entry: TimerRecord) -> None:
        """Append a unit without effect for the record at :attr:`queue_offset`.

        Java finds the next queue offset by the last unit, so that every record has to have one.
        """
        self.log.append(self._unit(entry, NONE, VOID))
        self.queue_offset += 1

    def _unit(self, entry: TimerRecord, previous: int, magic: int) -> TimerUnit:
        return TimerUnit(
            size=UNIT.size,
            previous=previous,
            magic=magic,
            written_ms=entry.written_ms,
            delay_ms=entry.slot_ms - entry.written_ms,
            physical_offset=entry.physical_offset,
            record_size=entry.size,
            topic_hash=entry.topic_hash,
        )

    def record_offset(self, position: int) -> int:
        """Return the queue offset of the record for which a unit was appended."""
        return self.queue_offset - self.log.count_from(position)

    # -- saving -------------------------------------------------------------------------------

    def begin_save(self, read_ms: int) -> Callable[[], None]:
        """Return a function that saves the current state; it may run in a thread.

        Everything that was delivered is in the commit log by now; all slots before ``read_ms`` are.
        """
        self.wheel.begin_writing()
        seal = self.wheel.seal(read_ms)
        self._saving = check = TimerCheck(
            read_ms=read_ms,
            log_position=self.log.end,
            queue_offset=self.queue_offset,
            master_queue_offset=MASTER_UNLIMITED,
            state_version=self.check.state_version,
            timestamp=self._now_ms(),
            counter=self.check.counter + 1,
        )

        def save() -> None:
            self._store.embedded.flush()
            self.log.flush()
            self.wheel.write()
            self._files.make_folder(self._path.parent)
            self._files.replace(self._path, encode_check(check, self._precision_ms, seal))

        return save

    def end_save(self) -> None:
        """Note that the function of :meth:`begin_save` has succeeded."""
        self.wheel.end_writing()
        self.check = self._saving
        self.log.delete_expired(self._store.log.min_offset)

    def close(self) -> None:
        """Close the files."""
        self.wheel.close()
        self.log.close()


@lru_cache(maxsize=4096)
def topic_hash(topic: str) -> int:
    """Return the hash of a topic in units."""
    return java_hash(topic)
