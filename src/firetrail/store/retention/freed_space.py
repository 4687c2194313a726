"""The space of removed files that the file system does not count as free yet.

A file with readers keeps its space until they are done, and some file systems free space only when
they write their journal. Without this account, retention would delete file after file because the
figure does not move.
"""

from dataclasses import dataclass
from pathlib import Path

from firetrail.storage.segment import Segment
from firetrail.system import System

LATE_S = 60.0
"""The time that a file system may take to free the space of a file after its name is gone. Some
write their journal every 30 s. Space that is not free by then is no longer expected."""


@dataclass(slots=True)
class _RemovedFile:
    """A file whose space is expected."""

    path: Path
    share: float
    """Its part of its disk."""
    used: float
    """The used part of the disk when the file still had its name."""
    gone_at: float | None = None
    """The time at which the name was first found to be missing."""


class FreedSpace:
    """Knows the space that removed files are going to free.

    Args:
        system: Files and clock.
    """

    def __init__(self, system: System) -> None:
        self._files = system.files
        self._clock = system.clock
        self._removed: list[_RemovedFile] = []

    def expect(self, segment: Segment) -> None:
        """Expect the space of a segment. Call it before the segment is removed."""
        folder = segment.path.parent
        total, _ = self._files.disk_space(folder)
        share = segment.size / total if total else 0.0
        self._removed.append(_RemovedFile(segment.path, share, self._files.used_ratio(folder)))

    def late(self) -> float:
        """Return the part of the disk that is going to be free, from 0.0 to 1.0."""
        self._removed = [each for each in self._removed if self._is_late(each)]
        return sum(each.share for each in self._removed)

    def _is_late(self, removed: _RemovedFile) -> bool:
        used = self._files.used_ratio(removed.path.parent)
        if removed.path.exists():  # it has readers
            removed.used = used
            return True
        if used <= removed.used - removed.share / 2:
            return False
        now = self._clock.monotonic()
        if removed.gone_at is None:
            removed.gone_at = now
        return now - removed.gone_at < LATE_S
