"""Extended units compared with the records that they are about."""

from contextlib import suppress

from firetrail.errors import SegmentSizeError, StoreDamagedError
from firetrail.format.files.extended_unit import ExtendedUnit, is_address
from firetrail.format.files.unit import ConsumeQueueUnit
from firetrail.format.names import extension_folder
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.log_records import store_time_at
from firetrail.store.queues.extension import QueueExtension
from firetrail.store.queues.queue_table import QueueKey


class ExtendedUnits:
    """The extended units of a store; the files of one queue at a time are open."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._open: tuple[QueueKey, QueueExtension] | None = None

    def describes(self, key: QueueKey, expected: ConsumeQueueUnit, unit: ConsumeQueueUnit) -> bool:
        """Return whether a unit differs from the expected one only by a valid address.

        The extended unit may be missing, as after a crash of RocketMQ: then every filter matches.
        """
        if unit[:2] != expected[:2] or not is_address(unit.tags_code):
            return False
        if self._view.queues.extensions is None:
            return False
        found = self._find(key, unit.tags_code)
        stored = store_time_at(self._view.log, unit.physical_offset)
        return found is None or found[:2] == (expected.tags_code, stored)

    def _find(self, key: QueueKey, address: int) -> ExtendedUnit | None:
        settings = self._view.queues.extensions
        if settings is None:
            return None
        if self._open is None or self._open[0] != key:
            self.close()
            folder = self._view.root / extension_folder(*key)
            files = SegmentQueue(self._view.system, folder, settings.file_size, writable=False)
            extension = QueueExtension(files)
            with suppress(SegmentSizeError, StoreDamagedError):  # then its units count as missing
                files.load()
            self._open = key, extension
        return self._open[1].get(address)

    def close(self) -> None:
        """Close the files."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
