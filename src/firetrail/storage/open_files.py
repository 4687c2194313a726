"""How many files may be open: a store can have more queues than a process may have open files.

A file that was opened longest ago is closed for the time being when another one needs its place. It
is opened again when it is used again, so only time depends on it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firetrail.storage.segment import Segment

LEAST = 64
MOST = 16_384
"""Each is also a mapping, of which Linux gives a process 65,530."""
PER_FILE = 2
"""Descriptors that an open file takes: its own and that of its mapping."""
OTHERS = 256
"""Descriptors that are left to everything else, connections above all; or half of all."""


class Residents:
    """The segments, of those that share it, whose files are open."""

    def __init__(self, descriptors: int) -> None:
        spare = max(OTHERS, descriptors // 2)
        self.most = min(max((descriptors - spare) // PER_FILE, LEAST), MOST)
        """So many may be open, if they can be closed."""
        self._open: deque[Segment] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Segment) -> None:
        """It is open from now on; others may have to be closed for it.

        One that is read just now, or that another thread has to do with, stays; so does each that
        this call has not the time to look at.
        """
        looks = 2 * (len(self._open) - self.most) + 2
        while len(self._open) >= self.most and looks > 0:
            looks -= 1
            try:
                oldest = self._open.popleft()
            except IndexError:  # another thread was quicker
                break
            if not oldest.rest():
                self._open.append(oldest)
        self._open.append(segment)
