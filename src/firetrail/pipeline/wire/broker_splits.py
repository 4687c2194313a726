"""Splits of the queues of brokers, the work of one task each."""

from dataclasses import dataclass

from firetrail.pipeline.options import RETRY_MS
from firetrail.pipeline.source.plan.store_splits import (
    EVERYTHING,
    QueueRange,
    RowSelection,
    StoreSplit,
)


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """A range of a queue that a broker has."""

    broker: str
    range: QueueRange

    def __str__(self) -> str:
        return f"{self.range.topic}/{self.broker}/{self.range.queue_id}"


@dataclass(frozen=True, slots=True)
class WireSplit:
    """The messages of ranges of queues, pulled from their brokers."""

    namesrv: str
    group: str
    ranges: tuple[BrokerRange, ...]
    wanted: RowSelection = EVERYTHING
    retry_ms: int = RETRY_MS
    access_file: str = ""
    skip_lost: str = "read with failOnDataLoss=false to skip them"
    """What errors about lost messages advise."""

    @property
    def store(self) -> str:
        """The value of the column ``store``."""
        return f"namesrv={self.namesrv}"


Split = StoreSplit | WireSplit
