"""The figures of a report, which Spark computes and the page shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil

TOPICS_SHOWN = 7
"""Number of topics with their own colour; the others share one, as class ``TOPICS_SHOWN``."""
BUCKETS = 140
"""Maximum number of steps of a time axis."""
MAP_ROWS = 32
"""Maximum number of rows of the segment map."""
MAP_CELLS = 72
"""Cells per row of the segment map."""
_WIDTHS_MS = [
    step * unit
    for unit, steps in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1_000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 28, 91, 182, 364)),
    )
    for step in steps
]


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Steps of equal width that cover a range of store times, in ms."""

    start: int
    width: int
    steps: int

    @classmethod
    def over(cls, first: int, last: int) -> TimeAxis:
        """Return the finest axis with round steps."""
        span = max(last - first, 0) + 1
        fitting = (width for width in _WIDTHS_MS if span / width <= BUCKETS - 1)
        width = next(fitting, ceil(span / (BUCKETS - 1) / _WIDTHS_MS[-1]) * _WIDTHS_MS[-1])
        start = first - first % width
        return cls(start, width, (last - start) // width + 1)

    def time(self, step: float) -> float:
        """Return the time at which a step begins."""
        return self.start + step * self.width


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue, by its records in the log."""

    topic: str
    queue_id: int
    messages: int
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """A topic, by its records in the log; ``queues`` are numbers of messages by queue id."""

    name: str
    messages: int
    size: int
    first: int
    last: int
    queues: dict[int, int]

    @property
    def skew(self) -> float:
        """Messages of the busiest queue, as a multiple of the mean."""
        return max(self.queues.values()) * len(self.queues) / self.messages


def by_topic(queues: list[QueueFigures]) -> list[TopicFigures]:
    """Sum up queues by topic; the topic with the most bytes comes first."""
    names = dict.fromkeys(queue.topic for queue in queues)
    grouped = {name: [queue for queue in queues if queue.topic == name] for name in names}
    topics = [
        TopicFigures(
            name,
            sum(queue.messages for queue in parts),
            sum(queue.size for queue in parts),
            min(queue.first for queue in parts),
            max(queue.last for queue in parts),
            {queue.queue_id: queue.messages for queue in parts},
        )
        for name, parts in grouped.items()
    ]
    return sorted(topics, key=lambda topic: (-topic.size, topic.name))


@dataclass(frozen=True, slots=True)
class FrequentValue:
    """A tag or key, and the number of messages of a topic that have it."""

    topic: str
    text: str
    messages: int


@dataclass(frozen=True, slots=True)
class MapAxis:
    """The log as rows of cells; a row covers ``row`` bytes, which are one or more segments."""

    start: int
    row: int
    rows: int
    segments_per_row: int
    cells: int = MAP_CELLS

    @classmethod
    def over(cls, start: int, end: int, segment_size: int) -> MapAxis:
        """Return the map of a log, with as many segments per row as MAP_ROWS requires."""
        if end <= start:
            return cls(start, max(segment_size, 1), 0, 1)
        first = start - start % segment_size
        segments = -(-(end - first) // segment_size)
        per_row = -(-segments // MAP_ROWS)
        return cls(first, per_row * segment_size, -(-segments // per_row), per_row)

    def cell_of(self, physical_offset: int) -> int:
        """Return the number of the cell that contains an offset."""
        row, inside = divmod(physical_offset - self.start, self.row)
        return row * self.cells + inside * self.cells // self.row


@dataclass(frozen=True, slots=True)
class ReportedDamage:
    """A damaged position in the log, or a file that cannot be read (without an offset)."""

    file: str
    position: int
    physical_offset: int | None
    kind: str
    detail: str


@dataclass(slots=True)
class Figures:
    """Everything that the page shows; the comments give the keys of the counters."""

    store: str
    state: str
    log_start: int
    log_end: int
    segments: int
    topics: list[TopicFigures]
    times: TimeAxis
    map: MapAxis
    messages: Counter[tuple[int, int]] = field(default_factory=Counter)  # topic class, time step
    bytes: Counter[tuple[int, int]] = field(default_factory=Counter)  # topic class, time step
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # topic class, size class
    latency: Counter[tuple[int, int]] = field(default_factory=Counter)  # time step, latency class
    stored_later: int = 0
    """Delayed, transactional and retried messages, which have no latency."""
    attempts: Counter[int] = field(default_factory=Counter)  # reconsume times
    cells: dict[int, int] = field(default_factory=dict)  # map cell: topic class with most bytes
    tags: list[FrequentValue] = field(default_factory=list)
    keys: list[FrequentValue] = field(default_factory=list)
    flaws: list[ReportedDamage] = field(default_factory=list)
    flaws_total: int = 0

    @property
    def shown(self) -> list[TopicFigures]:
        """The topics with their own colour."""
        return self.topics[:TOPICS_SHOWN]

    @property
    def total(self) -> int:
        """Number of all messages."""
        return sum(topic.messages for topic in self.topics)

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(topic.size for topic in self.topics)
