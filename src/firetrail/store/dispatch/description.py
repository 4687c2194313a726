"""The content of an extended unit: the store time of a record, and the filters that it matches."""

from collections.abc import Callable

from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.log.log_records import store_time_at


class RecordDescription:
    """Describes records of the log for extended units."""

    def __init__(self, log: SegmentQueue) -> None:
        self._log = log
        self.bitmap_of: Callable[[str, memoryview], bytes] | None = None
        """Returns the bitmap for a record of a topic; None if there are no filters."""

    def __call__(self, topic: str, offset: int, size: int) -> tuple[int, bytes]:
        """Return store time and bitmap of the record at a physical offset."""
        bitmap = b""
        segment = self._log.find(offset) if self.bitmap_of is not None else None
        if segment is not None and self.bitmap_of is not None:
            at = offset - segment.base
            bitmap = self.bitmap_of(topic, segment.view[at : at + size])
        return store_time_at(self._log, offset) or 0, bitmap
