"""What one task reads: small, picklable descriptions that name a store and ranges in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.options import RETRY_MS
from firetrail.pipeline.source.sight import Sight


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages of a queue from offset ``begin`` up to ``end``."""

    topic: str
    queue_id: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class RowSelection:
    """What a record must be for a reader to want it; everything by default.

    Store times (ms) from ``since`` up to ``until``; one of the ``tags``, if there are any; the
    ``key`` as one of its keys or its unique key; one of the ``topics``; ``dispatched`` leaves out
    what is in no queue: prepared and rolled back transactions.
    """

    since: int = TIME_MIN
    until: int = TIME_MAX
    tags: tuple[str, ...] = ()
    key: str = ""
    topics: tuple[str, ...] | None = None
    dispatched: bool = False


EVERYTHING = RowSelection()


@dataclass(frozen=True, slots=True)
class QueueSet:
    """Ranges of queues, and what it takes to open them."""

    ranges: tuple[QueueRange, ...]
    file_size: int  # of a queue's files; 0 if there are none at hand


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The records that begin in ``start`` up to ``end`` (physical offsets), in their order.

    With ``queues``, only those that are in these ranges.
    """

    store: str
    start: int
    end: int
    queues: QueueSet | None = None
    wanted: RowSelection = EVERYTHING
    sight: Sight | None = field(default=None, compare=False, repr=False)
    """What the planner saw; None for remote stores, which are the same for everybody."""

    @property
    def size(self) -> int:
        """Bytes of the log to read."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class UnitSplit:
    """The messages of ranges of queues, each looked up through its unit: for few of many."""

    store: str
    queues: QueueSet
    wanted: RowSelection = EVERYTHING
    sight: Sight | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PlaceSplit:
    """The records that begin at these physical offsets."""

    store: str
    places: tuple[int, ...]
    wanted: RowSelection = EVERYTHING
    sight: Sight | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """A range of a queue that a broker has."""

    broker: str
    range: QueueRange

    def __str__(self) -> str:
        return f"{self.range.topic}/{self.broker}/{self.range.queue_id}"


@dataclass(frozen=True, slots=True)
class WireSplit:
    """The messages of ranges of queues, asked of the brokers that have them."""

    namesrv: str
    group: str
    ranges: tuple[BrokerRange, ...]
    wanted: RowSelection = EVERYTHING
    retry_ms: int = RETRY_MS


StoreSplit = LogSplit | UnitSplit | PlaceSplit
Split = StoreSplit | WireSplit
