"""The write-buffer pool: appends are collected in memory, committed with one write, then synced.

A buffer holds consecutive bytes of one segment. Its content is not readable until it is committed
to the file, and a killed process loses it. This is the price for appends that never touch a cold
page of the file.
"""

import mmap

from firetrail.format.kernels.encode import RecordWriter
from firetrail.storage.segment import Segment
from firetrail.system import System

BUFFER_SIZE = 8 << 20


class WriteBuffer:
    """Memory for the bytes of a segment that start at position ``start``."""

    __slots__ = ("memory", "segment", "size", "start", "used", "view", "writer")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.view = memoryview(self.memory)
        self.writer = RecordWriter(self.view)
        self.size = size
        self.segment: Segment | None = None
        self.start = 0
        self.used = 0

    @property
    def is_committed(self) -> bool:
        """Return whether the whole content is in the file."""
        return self.segment is None or self.start + self.used <= self.segment.committed


class WriteBufferPool:
    """A fixed number of buffers, and the list of those that wait for their commit, oldest first.

    The position of its segment determines how far a buffer is committed, and each change is a
    single assignment, so an interrupt leaves no change half done.
    """

    def __init__(self, system: System, count: int, size: int = BUFFER_SIZE) -> None:
        self._system = system
        self._buffers = [WriteBuffer(size) for _ in range(count)]
        self._waiting: list[WriteBuffer] = []
        self.size = size

    def lock_memory(self) -> None:
        """Lock all buffers in memory."""
        for buffer in self._buffers:
            self._system.files.lock_memory(buffer.memory)

    @property
    def free(self) -> int:
        """Count the buffers whose content is committed."""
        return sum(buffer.is_committed for buffer in self._buffers)

    @property
    def current(self) -> WriteBuffer:
        """Return the buffer that was reserved last; it receives the writes to its segment."""
        return self._waiting[-1]

    def reserve(self, segment: Segment, size: int) -> WriteBuffer | None:
        """Return the buffer for the next ``size`` bytes of the segment; None if all are in use.

        The caller writes them to ``buffer.view[segment.wrote - buffer.start]``; they count once
        ``segment.wrote`` is advanced past them.
        """
        self._count_written(segment)
        if self._waiting:
            current = self.current
            if current.segment is segment and current.used + size <= current.size:
                return current
        waiting = [buffer for buffer in self._waiting if not buffer.is_committed]
        if size > self.size:
            fresh = WriteBuffer(size)
        else:
            free = [buffer for buffer in self._buffers if buffer not in waiting]
            if not free:
                return None
            fresh = free[0]
        fresh.used, fresh.segment, fresh.start = 0, segment, segment.wrote
        self._waiting = [*waiting, fresh]
        return fresh

    def _count_written(self, segment: Segment) -> None:
        if self._waiting and self.current.segment is segment:
            self.current.used = segment.wrote - self.current.start

    def commit(self, segment: Segment) -> None:
        """Write all buffered bytes of the segment to its file, which makes them readable."""
        self._count_written(segment)
        done = segment.committed
        parts = [
            buffer.view[max(done - buffer.start, 0) : buffer.used]
            for buffer in self._waiting
            if buffer.segment is segment
        ]
        segment.committed = self._system.files.write(segment.descriptor, parts, done)
