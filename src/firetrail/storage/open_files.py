"""The limit of open files: a store can have more queues than a process may have open files.

At the limit, the least recently opened file is closed when another one is opened. It is reopened
when it is used again, so this affects only speed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Protocol

from firetrail.settings.descriptors import files_max


class OpenFile(Protocol):
    """A segment whose file is open."""

    def flush(self) -> None:
        """Sync committed bytes; raise OSError, also at the next call, if that fails."""

    def close_if_idle(self) -> bool:
        """Close the file unless it is in use; return whether it is closed."""


class OpenSegments:
    """The segments whose files are open, of all queues that share the limit."""

    def __init__(self, descriptors: int) -> None:
        self.most = files_max(descriptors)
        """Files that may be open; more only if all of them are in use."""
        self._open: deque[OpenFile] = deque()
        self._run_all: Callable[[Sequence[Callable[[], None]]], object] | None = None
        self._synced = 0  # files that can be closed before others have to be synced
        self._is_syncing = False

    @contextmanager
    def opening_all(
        self, run_all: Callable[[Sequence[Callable[[], None]]], object]
    ) -> Iterator[None]:
        """Expect that the block uses all files, one after the other, as in a recovery.

        A file is synced before it is closed. One by one, that takes minutes for tens of thousands
        of files, so those that will be closed next are synced together.

        Args:
            run_all: Runs calls that wait for the disk, several at a time.
        """
        self._run_all, self._synced = run_all, 0
        try:
            yield
        finally:
            self._run_all = None

    def _sync_next(self) -> None:
        """Sync the files that will be closed next, unless another thread does so or they are."""
        if self._run_all is None or self._is_syncing:
            return
        self._is_syncing = True  # if two threads get here at once, both sync, which does no harm
        try:
            if self._synced <= 0:
                self._synced = max(self.most // 2, 1)
                oldest = list(islice(self._open.copy(), self._synced))
                self._run_all([partial(_flush, each) for each in oldest])
            self._synced -= 1
        finally:
            self._is_syncing = False

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: OpenFile) -> None:
        """Add a segment that was opened; close the least recently opened ones above the limit.

        Files in use are kept open. The number of attempts is limited, so that one call does not
        try all files if most of them are in use.
        """
        attempts = 2 * (len(self._open) - self.most) + 2
        if len(self._open) >= self.most:
            self._sync_next()
        while len(self._open) >= self.most and attempts > 0:
            attempts -= 1
            try:
                oldest = self._open.popleft()
            except IndexError:  # other threads closed them
                break
            if not oldest.close_if_idle():
                self._open.append(oldest)
        self._open.append(segment)


def _flush(segment: OpenFile) -> None:
    with suppress(OSError):  # the segment stays open, and its next flush raises the error again
        segment.flush()
