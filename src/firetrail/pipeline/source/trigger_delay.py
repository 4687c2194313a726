"""The delay of micro-batches that are too small, as with Kafka's ``minOffsetsPerTrigger``."""

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from firetrail.pipeline.source.source_options import ReadOptions
from firetrail.system import SYSTEM


class TriggerDelay:
    """The decision whether a micro-batch waits for more messages.

    The first one after a start does not wait, nor does one that is to have everything.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._at_least = options.min_offsets_per_trigger
        self._delay_s = options.max_trigger_delay_ms / 1000
        self._last: float | None = None

    def applies(self, count: int, limit: ReadLimit) -> bool:
        """Return whether ``count`` new messages must wait; if not, the delay begins again."""
        if self._at_least is None or not count:
            return False
        now = SYSTEM.clock.monotonic()
        is_early = self._last is not None and now - self._last < self._delay_s
        if is_early and count < self._at_least and not isinstance(limit, ReadAllAvailable):
            return True
        self._last = now
        return False
