"""Counters of messages in and out, by topic and group, for the last minute, hour and day.

Puts are counted from the arrivals that the store announces, gets from the answers to pulls: the hot
path gets no more than one addition per answer. Every ten seconds a sample of all counters is taken.
A figure is the difference between a counter and the oldest sample of a span.
"""

import threading
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from firetrail.remoting.messages.admin.admin_bodies import StatsItem
from firetrail.store.broker_store import BrokerStore
from firetrail.store.dispatch.derivation import Arrival


class SampledSpan(NamedTuple):
    """A stretch of time that is covered by samples."""

    first: int
    """Index of its first sample among those of all spans."""
    samples: int
    """The number of samples that it keeps."""
    every: int
    """It keeps every n-th sample that is taken."""


MINUTE = SampledSpan(0, 7, 1)
HOUR = SampledSpan(7, 7, 60)
DAY = SampledSpan(14, 25, 360)
SPANS = (MINUTE, HOUR, DAY)
COUNTS_MAX = 100_000
"""Maximum number of pairs of a topic and a group that are counted separately: about 90 MiB. Further
ones count only in the totals. A counter that has not changed for a day is dropped."""
_SAMPLES = sum(span.samples for span in SPANS)


class TrafficCount:
    """Messages and bytes since the start of the broker, and samples of both."""

    __slots__ = ("bytes", "messages", "sampled_bytes", "sampled_messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.sampled_messages = array("q", bytes(8 * _SAMPLES))
        self.sampled_bytes = array("q", bytes(8 * _SAMPLES))

    def add(self, messages: int, size: int) -> None:
        """Add to both counters."""
        self.messages += messages
        self.bytes += size


class Traffic:
    """All counters. ``now`` is a monotonic clock."""

    def __init__(self, store: BrokerStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self.put = TrafficCount()
        """All puts, including those of the broker itself."""
        self.got = TrafficCount()
        self.topics: dict[str, TrafficCount] = {}
        """Puts by topic."""
        self.groups: dict[tuple[str, str], TrafficCount] = {}
        """Gets by topic and group."""
        self.sent_back: dict[tuple[str, str], TrafficCount] = {}
        """Messages that consumers sent back for a retry, by topic and group."""
        self._tables: tuple[dict[Any, TrafficCount], ...] = (
            self.topics,
            self.groups,
            self.sent_back,
        )
        self._times = array("d", [now()] * _SAMPLES)
        self._samples = 0
        self._arrived: dict[tuple[str, int], tuple[int, int]] = {}
        self._deleted: Counter[str] = Counter()  # arrived, and deleted before they were counted
        self._guard = threading.Lock()  # protects _arrived and _deleted
        self._counting = threading.Lock()
        self._stopped = False
        store.embedded.on_arrival(self._announced)

    # -- counting -----------------------------------------------------------------------------

    def _announced(self, arrivals: Sequence[Arrival]) -> None:
        """Note arrivals to count later. Runs in the dispatcher, or in a thread that helps it."""
        with self._guard:
            for topic, queue_id, end, new in arrivals:
                key, begin = (topic, queue_id), end - new
                first, last = self._arrived.get(key, (begin, begin))
                if begin < last:  # the topic was deleted and created again, and begins at 0
                    self._deleted[topic] += last - first
                    first = begin
                self._arrived[key] = first, end

    def count_get(self, topic: str, group: str, messages: int, size: int) -> None:
        """Count messages that a group has received."""
        self.got.add(messages, size)
        key = topic, group
        count = self.groups.get(key)
        if count is None:
            if len(self.groups) >= COUNTS_MAX:
                return
            count = self.groups[key] = TrafficCount()
        count.add(messages, size)

    def count_sent_back(self, topic: str, group: str, size: int) -> None:
        """Count a message that a group has sent back."""
        key = topic, group
        if key in self.sent_back or len(self.sent_back) < COUNTS_MAX:
            self.sent_back.setdefault(key, TrafficCount()).add(1, size)

    def count_puts(self) -> None:
        """Count the puts that have arrived since the last call."""
        with self._counting:
            if self._stopped:
                return
            with self._guard:
                arrived, self._arrived = self._arrived, {}
                deleted, self._deleted = self._deleted, Counter()
            for (topic, queue_id), (first, end) in arrived.items():
                size = self._store.queues.stored_bytes(topic, queue_id, first, end)
                self._count_put(topic, end - first, size)
            for topic, messages in deleted.items():
                self._count_put(topic, messages, 0)  # their size is no longer known

    def _count_put(self, topic: str, messages: int, size: int) -> None:
        self.put.add(messages, size)
        self.topics.setdefault(topic, TrafficCount()).add(messages, size)

    def stop(self) -> None:
        """Stop reading from the store; wait for a thread that is reading."""
        with self._counting:
            self._stopped = True

    def sample(self) -> None:
        """Take a sample of all counters. Called every ten seconds, in any thread."""
        self.count_puts()
        self._samples += 1
        for span in SPANS:
            if self._samples % span.every == 0:
                self._keep(span.first + self._samples // span.every % span.samples)
        if self._samples % DAY.every == 0:
            self._drop_idle()

    def _keep(self, index: int) -> None:
        self._times[index] = self._now()
        counts = [self.put, self.got]
        for table in self._tables:
            counts += list(table.values())
        for count in counts:
            count.sampled_messages[index] = count.messages
            count.sampled_bytes[index] = count.bytes

    def _drop_idle(self) -> None:
        """Drop counters that have not changed for a day."""
        oldest = self._oldest(DAY)
        for table in self._tables:
            for key, count in list(table.items()):
                if count.messages == count.sampled_messages[oldest]:
                    table.pop(key, None)

    # -- figures ------------------------------------------------------------------------------

    def messages(self, count: TrafficCount | None, span: SampledSpan) -> StatsItem:
        """Return the number of messages in the last minute, hour or day, and per second."""
        return self._figure(count, span, "messages")

    def bytes(self, count: TrafficCount | None, span: SampledSpan) -> StatsItem:
        """Return the number of bytes in the last minute, hour or day, and per second."""
        return self._figure(count, span, "bytes")

    def _figure(self, count: TrafficCount | None, span: SampledSpan, unit: str) -> StatsItem:
        if count is None:
            return StatsItem()
        oldest = self._oldest(span)
        total = getattr(count, unit) - getattr(count, f"sampled_{unit}")[oldest]
        messages = count.messages - count.sampled_messages[oldest]
        seconds = max(self._now() - self._times[oldest], 1e-9)
        return StatsItem(total, total / seconds, total / messages if messages else 0.0)

    def _oldest(self, span: SampledSpan) -> int:
        kept = self._samples // span.every
        return span.first + ((kept + 1) % span.samples if kept >= span.samples - 1 else 0)
