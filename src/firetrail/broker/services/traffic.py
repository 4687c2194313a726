"""How many messages went in and out by topic and group, in the last minute, hour and day.

Puts are taken from what the store announces as arrived, gets from the answers of pulls: nothing is
added to the way of a message but a sum for each answer. Every ten seconds all counters are noted;
a figure is the difference between now and the oldest note of a span.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from firetrail.remoting.admin_bodies import StatsItem
from firetrail.store.broker_store import BrokerStore
from firetrail.store.dispatch.deriver import Arrival


class Span(NamedTuple):
    """A stretch of time: how many notes it takes, and after how many samples each is made."""

    first: int
    """Place of its notes among those of all spans."""
    notes: int
    every: int


MINUTE = Span(0, 7, 1)
HOUR = Span(7, 7, 60)
DAY = Span(14, 25, 360)
SPANS = (MINUTE, HOUR, DAY)
_NOTES = sum(span.notes for span in SPANS)


class Count:
    """Messages and bytes since the broker was started, and what they were at earlier times."""

    __slots__ = ("bytes", "messages", "noted_bytes", "noted_messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.noted_messages = array("q", bytes(8 * _NOTES))
        self.noted_bytes = array("q", bytes(8 * _NOTES))

    def add(self, messages: int, size: int) -> None:
        """Count some more."""
        self.messages += messages
        self.bytes += size


class Traffic:
    """All counters. ``now`` is a clock that never jumps."""

    def __init__(self, store: BrokerStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self.put = Count()
        """All that was put, with what the broker itself puts."""
        self.got = Count()
        self.topics: dict[str, Count] = {}
        """What was put, by topic."""
        self.groups: dict[tuple[str, str], Count] = {}
        """What was got, by topic and group."""
        self.sent_back: dict[tuple[str, str], Count] = {}
        """What was given back to be consumed again, by topic and group."""
        self._tables: tuple[dict[Any, Count], ...] = (self.topics, self.groups, self.sent_back)
        self._times = array("d", [now()] * _NOTES)
        self._samples = 0
        self._arrived: dict[tuple[str, int], tuple[int, int]] = {}
        self._guard = threading.Lock()  # of what has arrived
        self._counting = threading.Lock()
        self._stopped = False
        store.on_arrival(self._heard)

    # -- counting -----------------------------------------------------------------------------

    def _heard(self, arrivals: Sequence[Arrival]) -> None:
        """In the dispatching thread: remember what is new, to be counted later."""
        with self._guard:
            for topic, queue_id, end, new in arrivals:
                first, _ = self._arrived.get((topic, queue_id), (end - new, 0))
                self._arrived[topic, queue_id] = first, end

    def note_get(self, topic: str, group: str, messages: int, size: int) -> None:
        """A group has got messages."""
        self.got.add(messages, size)
        key = topic, group
        count = self.groups.get(key)
        if count is None:
            count = self.groups[key] = Count()
        count.add(messages, size)

    def note_back(self, topic: str, group: str, size: int) -> None:
        """A group has given a message back."""
        self.sent_back.setdefault((topic, group), Count()).add(1, size)

    def count_puts(self) -> None:
        """Bring the counters of puts up to date; looks at what has arrived since the last time."""
        with self._counting:
            if self._stopped:
                return
            with self._guard:
                arrived, self._arrived = self._arrived, {}
            for (topic, queue_id), (first, end) in arrived.items():
                size = self._store.stored_bytes(topic, queue_id, first, end)
                self.put.add(end - first, size)
                self.topics.setdefault(topic, Count()).add(end - first, size)

    def stop(self) -> None:
        """Do not touch the store any more; waits for who does."""
        with self._counting:
            self._stopped = True

    def sample(self) -> None:
        """Note all counters; called every ten seconds, may be called in a thread."""
        self.count_puts()
        self._samples += 1
        for span in SPANS:
            if self._samples % span.every == 0:
                self._note(span.first + self._samples // span.every % span.notes)
        if self._samples % DAY.every == 0:
            self._forget_the_idle()

    def _note(self, place: int) -> None:
        self._times[place] = self._now()
        counts = [self.put, self.got]
        for table in self._tables:
            counts += list(table.values())
        for count in counts:
            count.noted_messages[place] = count.messages
            count.noted_bytes[place] = count.bytes

    def _forget_the_idle(self) -> None:
        """Drop counters on which nothing has happened for a day."""
        oldest = self._oldest(DAY)
        for table in self._tables:
            for key, count in list(table.items()):
                if count.messages == count.noted_messages[oldest]:
                    table.pop(key, None)

    # -- figures ------------------------------------------------------------------------------

    def messages(self, count: Count | None, span: Span) -> StatsItem:
        """How many messages in the last minute, hour or day, and a second."""
        return self._figure(count, span, "messages")

    def bytes(self, count: Count | None, span: Span) -> StatsItem:
        """The same in bytes."""
        return self._figure(count, span, "bytes")

    def _figure(self, count: Count | None, span: Span, unit: str) -> StatsItem:
        if count is None:
            return StatsItem()
        oldest = self._oldest(span)
        total = getattr(count, unit) - getattr(count, f"noted_{unit}")[oldest]
        messages = count.messages - count.noted_messages[oldest]
        seconds = max(self._now() - self._times[oldest], 1e-9)
        return StatsItem(total, total / seconds, total / messages if messages else 0.0)

    def _oldest(self, span: Span) -> int:
        made = self._samples // span.every
        return span.first + ((made + 1) % span.notes if made >= span.notes - 1 else 0)
