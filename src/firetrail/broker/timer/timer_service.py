"""The timer: it adds the records of its topic to the wheel, and delivers the slots that are due.

A slot is delivered when the clock has passed its end, so a message is never early and at most one
slot late. A slot is emptied when all of its messages are in the log. Work is done in small steps in
the event loop; the progress is saved in a thread (:mod:`firetrail.broker.timer.timer_saver`).
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.timer.clock_steps import STEP_MS, ClockSteps
from firetrail.broker.timer.delivery import CLOCK_MS, NEVER_ENQUEUED, TimerDelivery
from firetrail.broker.timer.due_gate import DueGate
from firetrail.broker.timer.due_slot import DueSlot, DueUnit
from firetrail.broker.timer.placement import SlotPlacement
from firetrail.broker.timer.timer_files import TimerFiles, TimerRecord, TimerShape, topic_hash
from firetrail.broker.timer.timer_saver import TimerProgress, TimerSaver
from firetrail.broker.timer.wheel import REBUILT, WheelDamagedError
from firetrail.errors import StoreDamagedError
from firetrail.format.files.timer import (
    DELETES,
    ROLLS,
    TIMER_QUEUE,
    TIMER_TOPIC,
    WAIT_MAX_MS,
    WAITS,
    WHEEL_SLOTS,
    TimerCheck,
)
from firetrail.format.files.unit import ConsumeQueueUnit
from firetrail.format.properties import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, get_property
from firetrail.format.record import Record
from firetrail.format.values.integers import number_in
from firetrail.pace.periodic import repeat
from firetrail.store.broker_store import BrokerStore
from firetrail.system import System
from firetrail.text import counted

POLL_S = 0.1
"""Longest pause between two steps."""
BATCH_SIZE = 256
"""Number of messages that are added or delivered before the event loop runs other tasks."""
GATHER_SIZE = 4096
"""Number of units of a slot that are read before the event loop runs other tasks."""
DISPATCH_S = 0.01
"""Pause while a slot is due and records that may belong to it are not dispatched yet."""

_log = logging.getLogger(__name__)


class TimerService:
    """Delivers messages at their time.

    Attributes:
        read_ms: The first slot that records can be added to; those before it are delivered, except
            perhaps the last one.
        enqueued: Records that were added since the start.
        delivered: Messages that were delivered since the start.
    """

    def __init__(
        self, system: System, root: Path, store: BrokerStore, config: BrokerConfig, revive: str
    ) -> None:
        """Create the timer.

        Args:
            system: Files and clock.
            root: The folder of the store.
            store: The open store.
            config: The settings.
            revive: The topic that records pops. Java's timer has messages for it, which are taken
                over in another way.
        """
        self.is_enabled = config.timer
        self._store = store
        self._now_ms = system.clock.now_ms
        self._steps = ClockSteps(system.clock)
        self._precision_ms = config.timer_precision_ms
        self._placement = SlotPlacement(
            store, config.timer_precision_ms, config.timer_roll_window_slots, WHEEL_SLOTS
        )
        self._floor = self._placement.floor
        self._longest_ms = self._placement.longest_ms
        self._revive = revive
        shape = TimerShape(config.timer_precision_ms, config.timer_log_file_size, WHEEL_SLOTS)
        self._files = TimerFiles(system, root, store, shape)
        self._saver = TimerSaver(self._files, self._progress)
        self._delivery = TimerDelivery(store, system.clock.now_ms)
        self.read_ms = 0
        self.enqueued = 0
        self.delivered = 0
        self._slot: DueSlot | None = None
        self._gate = DueGate()
        self._catch_up_to = 0  # deliver nothing before the records up to this offset are added
        self._rebuilding_to = 0  # a record before this offset may have a later copy
        self._done_to = 0  # records before this offset are delivered …
        self._done_before_ms = 0  # … if they were due before this time
        self._damage = ""  # why the files have to be rebuilt
        self._follow_to: int | None = None  # on a slave, the master's queue offset
        self._ahead: list[TimerCheck] = []  # on a slave, progress of which the log lacks something
        self._master_ms = 0  # on a slave, the master's clock when it had added these records
        self._put = False
        self._tasks: list[asyncio.Task[None]] = []

    # -- start and stop -----------------------------------------------------------------------

    def load(self, on_saved: Callable[[int], None]) -> None:
        """Recover the timer at the start of a master.

        Args:
            on_saved: Called with the queue offset up to which records were added, after each save.
        """
        self._saver.on_saved = on_saved
        if self.is_enabled and self._exists:
            self._recover()

    def load_copy(self) -> None:
        """Recover the timer at the start of a slave, which adds records and delivers nothing."""
        if self.is_enabled and self._exists:
            self._recover()
        self._follow_to = self._files.queue_offset

    @property
    def _exists(self) -> bool:
        return self._store.queues.numbered_end(TIMER_TOPIC, TIMER_QUEUE) > 0

    def _recover(self) -> None:
        problem = self._files.open()
        now = self._floor(self._now_ms())
        check = self._files.check
        self.read_ms = self._floor(check.read_ms)
        self._delivery.suspect_before_ms = max(now, self.read_ms)
        if not problem and self.read_ms < now - self._longest_ms:
            problem = "it was last saved so long ago that its wheel has no room for new messages"
        if not problem and self.read_ms > now + STEP_MS:
            _log.warning(
                "the clock is %.0f s behind the time at which the timer was last saved: waiting "
                "messages will be delivered that much later than expected when they were sent",
                (self.read_ms - now) / 1000,
            )
        if problem and self.read_ms > now + CLOCK_MS:  # a damaged number
            self.read_ms, check = 0, TimerCheck()
        if problem:
            self._rebuild(problem, check.queue_offset)
        self.read_ms = min(self.read_ms, now)
        self._catch_up_to = self._end

    def _rebuild(self, problem: str, known_to: int) -> None:
        """Read the topic again, from the oldest record on that may not be delivered yet.

        ``known_to`` is the queue offset up to which the timer had added or delivered all records.
        """
        _log.warning("the timer is rebuilt from the topic %s: %s", TIMER_TOPIC, problem)
        longest_ms = self._longest_ms
        now = self._floor(self._now_ms())
        first = self._store.queues.min_offset(TIMER_TOPIC, TIMER_QUEUE)
        if self.read_ms:
            since = self.read_ms - WAIT_MAX_MS
            first = max(first, self._store.embedded.offset_at(TIMER_TOPIC, TIMER_QUEUE, since))
        self._done_to, self._done_before_ms = known_to, self.read_ms
        self.read_ms = max(min(self.read_ms, now), now - longest_ms)
        self._delivery.suspect_before_ms = max(self._delivery.suspect_before_ms, now)
        self._delivery.rebuilt_to = self._store.log.max_offset
        self._slot = None
        self._files.reset(first)
        self._catch_up_to = self._rebuilding_to = self._end

    def start(self) -> None:
        """Start adding and delivering."""
        if not self.is_enabled:
            return
        loop = asyncio.get_running_loop()
        trouble = "timer messages cannot be delivered now; will retry"
        self._tasks = [
            loop.create_task(repeat(self.step, trouble, _log)),
            loop.create_task(self._saver.run()),
        ]

    async def save(self) -> None:
        """Save the progress, so that slaves get it."""
        if self._tasks:
            await self._saver.save()

    async def stop(self) -> None:
        """Stop delivering, and save the progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if self._tasks:
                await self._saver.save()
        finally:
            self._files.close()

    # -- figures ------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of waiting messages."""
        return max(self._files.wheel.waiting, 0)

    @property
    def offset_behind(self) -> int:
        """The number of records of the topic that are not in the wheel yet."""
        return max(self._end - self._files.queue_offset, 0) if self.is_enabled else 0

    @property
    def behind_ms(self) -> int:
        """The time in ms since the next slot to be read began."""
        return max(self._now_ms() - self.read_ms, 0) if self._files.is_open else 0

    @property
    def missing(self) -> int:
        """Messages that were gone from the commit log when they were due."""
        return self._delivery.missing

    @property
    def check(self) -> TimerCheck:
        """The progress that was last saved, for slaves; empty while the timer is off."""
        if not self._files.is_open:
            now = self._now_ms()
            return TimerCheck(self._floor(now), timestamp=now)
        check = self._files.check
        return check._replace(master_queue_offset=check.queue_offset)

    def _progress(self) -> TimerProgress:
        return TimerProgress(
            self.read_ms,
            self._delivered_ms,
            self.enqueued + self.delivered,
            is_rebuilding=self._files.queue_offset < self._rebuilding_to,
        )

    @property
    def _delivered_ms(self) -> int:
        return self.read_ms if self._slot is None else self._slot.time_ms

    def waiting_at(self, time_ms: int) -> int:
        """Return the number of messages that wait in a slot."""
        try:
            slot = self._files.wheel.get(time_ms) if self._files.is_open else None
        except WheelDamagedError as error:
            self._damage = str(error)
            return 0
        return 0 if slot is None else slot.waiting

    @property
    def _end(self) -> int:
        return self._store.queues.max_offset(TIMER_TOPIC, TIMER_QUEUE)

    # -- steps --------------------------------------------------------------------------------

    def step(self) -> float:
        """Add and deliver some messages; return the seconds until the next call."""
        if self._store.is_quiet:
            return POLL_S
        self._watch_clock()
        now = self._now_ms()
        current = self._floor(now)
        if self._damage and not self._saver.is_saving:
            self.read_ms = self._delivered_ms
            self._rebuild(self._damage, self._files.queue_offset)
            self._damage = ""
        self._take_over_progress()
        is_master = self._follow_to is None
        if is_master and self._slot is None:
            self.read_ms = min(self.read_ms, current)  # the clock may have been set back
        if not is_master:  # its slots of far messages are not earlier than those of the master
            current = max(current, self._master_ms)
        busy, readable = False, current
        may_add = self._may_add(current)
        try:
            if may_add:
                busy = self._add_some(current)
            if is_master and self._files.is_open:
                if may_add:
                    stored_to = self._store.queues.numbered_end(TIMER_TOPIC, TIMER_QUEUE)
                    readable = self._gate.open_ms(current, self._files.queue_offset, stored_to)
                busy |= self._deliver_some(readable)
        except WheelDamagedError as error:
            self._damage = str(error)
            busy = True
        finally:
            if self._put:
                self._put = False
                self._store.writer.push()
        if busy:
            return 0.0
        if readable < current:
            return DISPATCH_S
        return min(POLL_S, (current + self._precision_ms - now) / 1000)

    def _watch_clock(self) -> None:
        """Log that messages are delivered later, or at once, because the clock was set."""
        step_ms = self._steps.since_last()
        if step_ms and self.waiting:
            _log.warning(
                "the clock was set %s by %.0f s: the timer delivers %s at times of the new clock, "
                "%s than expected when they were sent",
                "back" if step_ms < 0 else "ahead",
                abs(step_ms) / 1000,
                counted(self.waiting, "waiting message"),
                "later" if step_ms < 0 else "earlier",
            )

    # -- adding -------------------------------------------------------------------------------

    def _may_add(self, current_ms: int) -> bool:
        """Whether a new record cannot get into a slot that is not delivered yet."""
        if self._slot is not None and self._slot.time_ms >= current_ms:  # the clock was set back
            return False
        is_far_behind = self._files.is_open and self.read_ms < current_ms - self._longest_ms
        return not is_far_behind or self._files.queue_offset < self._catch_up_to

    def _add_some(self, current_ms: int) -> bool:
        """Add records of the topic to the wheel; return whether there are more."""
        end = self._end if self._follow_to is None else min(self._end, self._follow_to)
        if self._files.queue_offset >= end:
            return False
        if not self._files.is_open:  # these are the first messages of this timer
            if self._follow_to is None:
                self.read_ms = current_ms
            self._files.reset(self._files.queue_offset)
        first = self._store.queues.min_offset(TIMER_TOPIC, TIMER_QUEUE)
        self._files.queue_offset = max(self._files.queue_offset, first)
        for _ in range(BATCH_SIZE):
            offset = self._files.queue_offset
            if offset >= end:
                return False
            unit = self._store.queues.unit(TIMER_TOPIC, TIMER_QUEUE, offset)
            if unit is None:
                return False
            self._add(unit, current_ms)
            self.enqueued += 1
        return True

    def _add(self, unit: ConsumeQueueUnit, current_ms: int) -> None:
        """Add a record, or deliver it at once if its slot was read before it arrived.

        While the timer catches up, such records go into the next slot to be read instead, because
        a mark that cancels them may follow.
        """
        offset = self._files.queue_offset
        try:
            record = self._store.reads.message(TIMER_TOPIC, TIMER_QUEUE, offset)
        except StoreDamagedError as error:
            _log.error("a record of the timer is damaged and not delivered: %s", error)
            record = None
        place, size = unit.physical_offset, unit.size
        if record is not None:  # the unit may be damaged
            place, size = record.physical_offset, record.size
        raw = b"" if record is None else record.raw_properties
        due = number_in(get_property(raw, TIMER_OUT_MS), 0)
        topic = get_property(raw, REAL_TOPIC) or ""
        past = current_ms - self._precision_ms
        entry = TimerRecord(place, size, topic_hash(topic), WAITS, past, current_ms)
        if record is None or due is None or topic == self._revive:
            self._files.pass_over(entry)
            return
        is_mark = get_property(raw, TIMER_DEL_UNIQKEY) is not None
        due = self._floor(due)
        if offset < self._done_to and due < self._done_before_ms:
            self._files.pass_over(entry)
        elif due < self.read_ms and offset >= self._catch_up_to:
            self._files.log.prepare()  # it must not fail after the delivery
            if not is_mark:
                self._put |= self._counted(self._delivery.deliver(record, due, NEVER_ENQUEUED))
            self._files.pass_over(entry)
        elif offset < self._rebuilding_to and self._delivery.was_rolled(record):
            self._files.pass_over(entry)  # also if the window has changed since it was stored again
        else:
            slot_ms, magic = self._placement.slot_of(max(due, self.read_ms), current_ms)
            magic |= DELETES if is_mark else 0
            self._files.add(entry._replace(slot_ms=slot_ms, magic=magic))

    # -- delivering ---------------------------------------------------------------------------

    def _deliver_some(self, end_ms: int) -> bool:
        """Deliver messages of slots before ``end_ms``; return whether there are more."""
        if self._files.queue_offset < self._catch_up_to:
            return False
        if self._slot is None:
            if self.read_ms >= end_ms:
                return False
            self.read_ms = self._files.wheel.next_used(self.read_ms, end_ms)
            slot = self._files.wheel.get(self.read_ms)
            if self.read_ms >= end_ms or slot is None:
                return self.read_ms < end_ms
            self._slot = DueSlot(self._files.log, self.read_ms, slot)
            self.read_ms += self._precision_ms  # no more records may be added to the slot
        if not self._slot.gather(GATHER_SIZE):
            return True
        if self._slot.is_broken:
            self._damage = f"the chain of units of slot {self._slot.time_ms} is damaged; {REBUILT}"
            return True
        if self._deliver_slot(self._slot):
            self._files.wheel.clear(self._slot.time_ms)
            self._slot = None
        return True

    def _deliver_slot(self, slot: DueSlot) -> bool:
        """Deliver some messages of a slot; return whether none is left."""
        for _ in range(BATCH_SIZE):
            mark = slot.next_mark()
            if mark is None:
                break
            record = self._record(mark)
            if record is not None:
                slot.recall(record)
            slot.mark_done()
        else:
            return False
        for _ in range(BATCH_SIZE):
            message = slot.next_message()
            if message is None:
                return True
            record = self._record(message)
            if record is not None:
                unit = message.unit
                deliver = self._delivery.roll if unit.magic & ROLLS else self._delivery.deliver
                if not slot.is_recalled(record):
                    self._put |= self._counted(deliver(record, slot.time_ms, unit.written_ms))
            slot.message_done()
        return False

    def _record(self, due: DueUnit) -> Record | None:
        """Return the record of a unit; None if it is gone. Raises WheelDamagedError."""
        record = self._delivery.record(self._files.record_offset(due.position))
        if record is not None and record.physical_offset != due.unit.physical_offset:
            raise self._files.log.damaged(due.position)
        return record

    def _counted(self, was_put: bool) -> bool:
        self.delivered += was_put
        return was_put

    # -- following a master -------------------------------------------------------------------

    def follow(self, check: TimerCheck) -> None:
        """Take over the progress of the master as soon as the log has all messages that the master
        had delivered.

        Otherwise these messages could be lost with the master. The oldest progress that waits for
        the log is kept besides the newest one.
        """
        if self._follow_to is not None and self.is_enabled:
            self._ahead = [*self._ahead[:1], check]
            self._take_over_progress()

    def _take_over_progress(self) -> None:
        while (
            self._ahead
            and self._store.dispatch.dispatcher.last_store_time > self._ahead[0].timestamp
        ):
            check = self._ahead.pop(0)
            self._follow_to = check.master_queue_offset
            self._master_ms = self._floor(check.timestamp)
            self._empty_up_to(self._floor(check.read_ms))
            self._done_to, self._done_before_ms = self._follow_to, self.read_ms

    def _empty_up_to(self, read_ms: int) -> None:
        """Empty the slots that the master has delivered: those before ``read_ms``."""
        time = max(self.read_ms, read_ms - self._longest_ms)
        try:
            while self._files.is_open and time < read_ms:
                self._files.wheel.clear(time)
                time = self._files.wheel.next_used(time + self._precision_ms, read_ms)
        except WheelDamagedError as error:
            self._damage = str(error)
        self.read_ms = read_ms
