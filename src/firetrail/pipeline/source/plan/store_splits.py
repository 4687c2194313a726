"""Splits of stores, the work of one task each: small, picklable descriptions of ranges."""

from dataclasses import dataclass, field

from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.plan.fingerprint import LogFingerprint


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages of a queue from offset ``begin`` up to ``end``."""

    topic: str
    queue_id: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The conditions for records that a reader returns; by default there are none.

    A record must have a store time (ms) from ``since`` up to ``until``, one of the ``tags`` if
    there are any, ``key`` as unique key or one of its keys, and one of the ``topics``.
    ``dispatched`` excludes records that are in no queue: prepared and rolled back transactions.
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
    """Ranges of queues, and the size of their files."""

    ranges: tuple[QueueRange, ...]
    file_size: int  # 0 if there are no queue files


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The records that begin from ``start`` up to ``end`` (physical offsets), in order.

    With ``queues``, only the records in these ranges.
    """

    store: str
    start: int
    end: int
    queues: QueueSet | None = None
    wanted: RowSelection = EVERYTHING
    fingerprint: LogFingerprint | None = field(default=None, compare=False, repr=False)
    """The store as the driver saw it; None for remote stores, which all workers see alike."""

    @property
    def size(self) -> int:
        """Bytes of the log to read."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class UnitSplit:
    """The messages of ranges of queues, each looked up through its unit: a few of many messages."""

    store: str
    queues: QueueSet
    wanted: RowSelection = EVERYTHING
    fingerprint: LogFingerprint | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OffsetSplit:
    """The records that begin at these physical offsets."""

    store: str
    physical_offsets: tuple[int, ...]
    wanted: RowSelection = EVERYTHING
    fingerprint: LogFingerprint | None = field(default=None, compare=False, repr=False)


StoreSplit = LogSplit | UnitSplit | OffsetSplit
