"""The space on the disks of an open store."""

from pathlib import Path

from firetrail.store.admission.gate import Closure, Gate
from firetrail.store.root.store_parts import StoreParts


class DiskSpace:
    """The space on the disk of a store's folder, and on those of its log if there are several."""

    def __init__(self, parts: StoreParts, gate: Gate) -> None:
        self._files = parts.system.files
        self._root = parts.root
        self._spread = parts.log.queue.spread
        self._live = parts.live
        self._gate = gate

    def used_ratio(self) -> float:
        """Return the used part of the store's disk, or of the log's if that one is fuller.

        If the log is on several disks, its emptiest one counts: it gets the next file.
        """
        used = self._files.used_ratio(self._root)
        return used if self._spread is None else max(used, self._spread.used_ratio())

    def log_disks(self) -> dict[Path, float]:
        """Return the used part of the disk of each log folder, if the log is in several."""
        return {} if self._spread is None else self._spread.used_ratios()

    def total_and_free(self) -> tuple[int, int]:
        """Return the total and the free bytes of the store's file system."""
        return self._files.disk_space(self._root)

    @property
    def is_full(self) -> bool:
        """Whether messages are refused because the disk is nearly full."""
        return self._gate.is_shut(Closure.DISK_FULL)

    @property
    def is_ample(self) -> bool:
        """Whether the disk is far from being full, so that messages would be accepted for long."""
        return self.used_ratio() <= self._live.current.disk_clean_forcibly_ratio
