"""The delivery of a due message: a copy goes to its real topic, or to the timer topic once more.

After a crash, messages may be due that were delivered before it. Their copies are found in the
index by the unique key, and they are not delivered again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from firetrail.broker.stored_messages import copy_record, destination_of
from firetrail.errors import FormatError, IllegalMessageError, StoreDamagedError
from firetrail.format.files.timer import TIMER_QUEUE, TIMER_TOPIC
from firetrail.format.properties import (
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
    get_property,
    replace_properties,
    without_crc,
)
from firetrail.format.record import Record, decode_message
from firetrail.format.values.integers import INT32_MAX, number_in
from firetrail.store.admission.drafter import DELAY_ELAPSED
from firetrail.store.broker_store import BrokerStore

NEVER_ENQUEUED = 2**63 - 1
"""TIMER_ENQUEUE_MS of a message that was due when the timer got it."""
CHECKED_COPIES_MAX = 32
"""Maximum number of messages with the same key that are compared with one that may have been
delivered."""
CLOCK_MS = 3_600_000
"""How long before its time a copy may have been stored: the clock may have been set back."""
_COPIED = (TIMER_OUT_MS, TIMER_DEL_UNIQKEY)
"""The properties that a copy shares with its message, besides the unique key and the body. A recall
stores two marks, which have the unique key of the message."""

_log = logging.getLogger(__name__)


class TimerDelivery:
    """Puts copies of due messages."""

    def __init__(self, store: BrokerStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self.suspect_before_ms = 0
        """Messages that were due before this time may have been delivered already."""
        self.rebuilt_to = 0
        """Records before this physical offset may have a later copy in the timer topic: the timer
        was rebuilt, perhaps before that copy was in the index."""
        self.missing = 0
        """Messages that were removed from the commit log, or are damaged, before they were due."""

    def record(self, offset: int) -> Record | None:
        """Return the record at an offset of the timer topic; None if it is gone, which is logged.

        Raises StoreBusyError if it is being repaired.
        """
        reason = "the commit log was deleted up to a later position"
        try:
            record = self._store.reads.message(TIMER_TOPIC, TIMER_QUEUE, offset)
        except StoreDamagedError as error:
            record, reason = None, str(error)
        if record is None:
            self.missing += 1
            _log.error(
                "message %d of %s was to be delivered by the timer and is gone: %s",
                offset,
                TIMER_TOPIC,
                reason,
            )
        return record

    def deliver(self, record: Record, due_ms: int, enqueued_ms: int) -> bool:
        """Put a copy into the real topic; return False if the message is skipped.

        Args:
            record: The waiting message.
            due_ms: The time at which it was due.
            enqueued_ms: The time at which the timer got it.

        Raises:
            StoreError: It cannot be stored now.
        """
        topic, queue_id = destination_of(record.properties) or (TIMER_TOPIC, 0)
        if topic == TIMER_TOPIC:
            _log.error(
                "the timer message at %d names no topic and queue to deliver it to; skipped",
                record.physical_offset,
            )
            return False
        if due_ms < self.suspect_before_ms and self.has_copy(record, topic):
            return False
        if record.physical_offset < self.rebuilt_to and self.was_rolled(record):
            return False
        raw = self._with_times(record, enqueued_ms, {})
        return self._put(record, topic, queue_id, raw)

    def roll(self, record: Record, due_ms: int, enqueued_ms: int) -> bool:
        """Put a copy into the timer topic, for a message whose time is still too far away.

        Arguments, result and errors are those of :meth:`deliver`.
        """
        times = rolled_times(record) + 1
        if self.was_rolled(record):  # before a crash, or by the master that this one has replaced
            return False
        raw = self._with_times(record, enqueued_ms, {TIMER_ROLL_TIMES: str(times)})
        return self._put(record, TIMER_TOPIC, record.queue_id, raw)

    def _with_times(self, record: Record, enqueued_ms: int, more: dict[str, str]) -> bytes:
        changes: dict[str, str | None] = {
            TIMER_ENQUEUE_MS: str(enqueued_ms),
            TIMER_DEQUEUE_MS: str(self._now_ms()),
            **more,
        }
        return replace_properties(without_crc(record.raw_properties), changes)

    def _put(self, record: Record, topic: str, queue_id: int, raw: bytes) -> bool:
        message = copy_record(
            record, topic, queue_id, raw, delay_level=DELAY_ELAPSED, wait_for_flush=False
        )
        try:
            self._store.embedded.put(message)
        except IllegalMessageError as error:  # a retry would never help, and would block others
            _log.error(
                "the timer message at %d for topic %s cannot be stored: %s; skipped",
                record.physical_offset,
                topic,
                error,
            )
            return False
        return True

    def was_rolled(self, record: Record) -> bool:
        """Return whether a later copy of the message waits in the timer topic.

        A message of another topic does not count as a copy, even with the same key and body.
        """
        times = rolled_times(record)
        topic = get_property(record.raw_properties, REAL_TOPIC)

        def is_later(copy: Record) -> bool:
            same = get_property(copy.raw_properties, REAL_TOPIC) == topic
            return same and rolled_times(copy) > times

        return self.has_copy(record, TIMER_TOPIC, is_later)

    def has_copy(
        self, record: Record, topic: str, fits: Callable[[Record], bool] = lambda copy: True
    ) -> bool:
        """Return whether the index finds a later copy of a message in a topic."""
        key = get_property(record.raw_properties, UNIQ_KEY)
        if key is None:
            return False
        marks = [get_property(record.raw_properties, name) for name in _COPIED]
        begin = record.store_time - CLOCK_MS
        found = self._store.reads.query_buffers(
            topic, key, begin, max_count=CHECKED_COPIES_MAX, hidden=True
        )
        for buffer in found.buffers:
            try:
                copy = decode_message(buffer)
            except FormatError:
                continue
            if (
                copy.physical_offset > record.physical_offset
                and marks == [get_property(copy.raw_properties, name) for name in _COPIED]
                and copy.body_crc == record.body_crc
                and fits(copy)
            ):
                return True
        return False


def rolled_times(record: Record) -> int:
    """Return the number of times that a message was stored again, as its time was too far away."""
    return number_in(get_property(record.raw_properties, TIMER_ROLL_TIMES), 0, INT32_MAX) or 0
