"""The write-buffer pool: collect in memory, commit with one write, then sync.

A buffer holds consecutive bytes of one segment. What is in it is not readable until it was
committed to the file, and a killed process loses it: the price for appends that never touch a
cold page of the file.
"""

from __future__ import annotations

import mmap

from firetrail.format.kernels.encode import RecordWriter
from firetrail.storage.segment import Segment
from firetrail.storage.system import System

BUFFER_SIZE = 8 << 20


class WriteBuffer:
    """Memory for bytes of a segment from position ``start`` on."""

    __slots__ = ("memory", "size", "start", "used", "view", "writer", "written")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.view = memoryview(self.memory)
        self.writer = RecordWriter(self.view)
        self.size = size
        self.start = 0
        self.used = 0
        self.written = 0

    def restart(self, start: int) -> None:
        """Hold the bytes from position ``start`` of a segment on."""
        self.start = start
        self.used = self.written = 0


class WriteBufferPool:
    """A fixed number of buffers, and those that wait for their commit, oldest first."""

    def __init__(self, system: System, count: int, size: int = BUFFER_SIZE) -> None:
        self._system = system
        self._free = [WriteBuffer(size) for _ in range(count)]
        self._waiting: list[WriteBuffer] = []
        self.size = size

    def lock_memory(self) -> None:
        """Keep all buffers in memory."""
        for buffer in self._free:
            self._system.files.lock_memory(buffer.memory)

    def reserve(self, segment: Segment, size: int) -> WriteBuffer | None:
        """The buffer in which the next ``size`` bytes of the segment go, None if all are in use.

        They go to ``buffer.view[segment.wrote - buffer.start]``; call :meth:`wrote` when they are.
        """
        if self._waiting:
            current = self._waiting[-1]
            if (
                current.start + current.used == segment.wrote
                and current.used + size <= current.size
            ):
                return current
            if current.used == current.written:
                self._release(current)
        if size > self.size:
            fresh = WriteBuffer(size)
        elif self._free:
            fresh = self._free.pop()
        else:
            return None
        fresh.restart(segment.wrote)
        self._waiting.append(fresh)
        return fresh

    def wrote(self, segment: Segment, size: int) -> None:
        """Note that the bytes that were reserved last are written."""
        self._waiting[-1].used += size
        segment.wrote += size

    def commit(self, segment: Segment) -> None:
        """Write all that waits to the segment's file, which makes it readable."""
        waiting = self._waiting[:]
        parts = [(buffer, buffer.used) for buffer in waiting]
        end = self._system.files.write(
            segment.descriptor,
            [buffer.view[buffer.written : used] for buffer, used in parts],
            segment.committed,
        )
        for buffer, used in parts:
            buffer.written = used
        segment.committed = end
        for buffer in waiting[:-1]:
            self._release(buffer)

    def _release(self, buffer: WriteBuffer) -> None:
        self._waiting.remove(buffer)
        if buffer.size == self.size:
            self._free.append(buffer)
