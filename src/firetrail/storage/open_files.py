"""The limit of open files: a store can have more queues than a process may have open files.

At the limit, the least recently opened file is closed when another one is opened. It is reopened
when it is used again, so this affects only speed.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

LEAST = 64
MOST = 16_384
"""Every open file is also a mapping, and Linux allows a process 65,530 of them."""
PER_FILE = 2
"""Descriptors per open file: its own and that of its mapping."""
OTHERS = 256
"""Descriptors reserved for everything else, mainly connections; at least half of all."""


class OpenFile(Protocol):
    """A segment whose file is open."""

    def close_if_idle(self) -> bool:
        """Close the file unless it is in use; return whether it is closed."""


class OpenSegments:
    """The segments whose files are open, of all queues that share the limit."""

    def __init__(self, descriptors: int) -> None:
        spare = max(OTHERS, descriptors // 2)
        self.most = min(max((descriptors - spare) // PER_FILE, LEAST), MOST)
        """Files that may be open; more only if all of them are in use."""
        self._open: deque[OpenFile] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: OpenFile) -> None:
        """Add a segment that was opened; close the least recently opened ones above the limit.

        Files in use are kept open. The number of attempts is limited, so that one call does not
        try all files if most of them are in use.
        """
        attempts = 2 * (len(self._open) - self.most) + 2
        while len(self._open) >= self.most and attempts > 0:
            attempts -= 1
            try:
                oldest = self._open.popleft()
            except IndexError:  # other threads closed them
                break
            if not oldest.close_if_idle():
                self._open.append(oldest)
        self._open.append(segment)
