"""One fixed-size file of a segment queue.

A segment is created (with its full length, but without disk space), grown (space is allocated ahead
of the writes, in steps), written, flushed and destroyed. Three positions move through it::

    0 ........ flushed ........ committed ........ wrote ........ size
      on disk            readable         in memory only

Without a write buffer everything written is readable at once: committed equals wrote. Writes go to
the mapping, and only to the allocated part of the file, so a full disk raises an error instead of
SIGBUS. The file is mapped at its first use, so a store of many files opens as fast as one of few.
An idle file can be closed; it is reopened at its next use.

Readers hold slices of the mapping, and Python keeps the mapping alive as long as a slice exists. A
destroyed segment accepts no new readers. Its file is removed when the last reader is done or the
grace time is over, and its memory is freed with the last slice.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from firetrail.errors import DiskFullError, SegmentSizeError, StoreClosedError
from firetrail.storage.growth import LOG_GROWTH, PAGE_SIZE, Growth
from firetrail.storage.new_files import NewFiles
from firetrail.storage.open_files import OpenSegments
from firetrail.system import NO_DESCRIPTOR, NO_SPACE, SyncError, System

T = TypeVar("T")
_ZEROS = bytes(1 << 16)


class Segment:
    """A file that starts at ``base`` of its queue's byte range and is ``size`` bytes long."""

    __slots__ = (
        "_closed",
        "_descriptor",
        "_guard",
        "_mapping",
        "_retired_at",
        "_sync_failure",
        "_view",
        "allocated",
        "base",
        "committed",
        "flushed",
        "growth",
        "open_segments",
        "path",
        "size",
        "system",
        "writable",
        "wrote",
    )

    def __init__(
        self,
        system: System,
        path: Path,
        base: int,
        size: int,
        *,
        writable: bool = True,
        growth: Growth = LOG_GROWTH,
        filled: int = 0,
        open_segments: OpenSegments | None = None,
    ) -> None:
        self.system = system
        self.path = path
        self.base = base
        self.size = size
        self.writable = writable
        self.growth = growth
        self.open_segments = open_segments
        # Held while the descriptor is opened, mapped, used or closed.
        self._guard = system.threads.lock()
        self._closed = False
        self._descriptor: int | None = None
        self._mapping: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._retired_at: float | None = None
        self._sync_failure: OSError | None = None
        self.set_position(filled)

    @classmethod
    def create(
        cls,
        system: System,
        path: Path,
        base: int,
        size: int,
        growth: Growth = LOG_GROWTH,
        open_segments: OpenSegments | None = None,
        later: NewFiles | None = None,
    ) -> Segment:
        """Create a file of zeros with its first step allocated, and its folder if it is missing.

        Its length and its name are durable on return, unless ``later`` is given, whose next sync
        makes them durable. The file appears with its full length, because the Java store refuses a
        folder with a shorter file. Raises DiskFullError or OSError, and then leaves no file.
        """
        segment = cls(system, path, base, size, growth=growth, open_segments=open_segments)
        files = system.files
        try:
            (later or files).make_folder(path.parent)
            segment._descriptor = files.open_new(path)
            files.set_size(segment._descriptor, size)
            segment.allocate(1)
            if later is None:
                segment._sync_new()
            else:
                files.give_name(segment._descriptor, path)
                later.add(segment)
            segment._count_as_open()  # only now: a file without a name could not be reopened
        except BaseException as error:
            segment.close()
            with suppress(OSError):
                files.remove(path)
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise DiskFullError(
                    f"{path}: no space for a file of {size} bytes; free some or let retention "
                    "delete older files"
                ) from error
            raise
        return segment

    def _sync_new(self) -> None:
        """Make a new file durable: its length before its name, which must not exist without it."""
        files = self.system.files
        try:
            files.sync(self.descriptor)
            files.give_name(self.descriptor, self.path)
            files.sync_folder(self.path.parent)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise
            raise SyncError(error.errno, error.strerror, str(self.path)) from error

    @property
    def end(self) -> int:
        """Return the offset at which the next segment starts."""
        return self.base + self.size

    @property
    def is_full(self) -> bool:
        """Return whether every byte counts as written."""
        return self.wrote == self.size

    @property
    def is_open(self) -> bool:
        """Return whether new readers are accepted."""
        return self._retired_at is None

    @property
    def view(self) -> memoryview:
        """Return the whole mapping; slices of it stay valid after the segment is destroyed."""
        view = self._view
        return view if view is not None else self._map()

    def look(self) -> memoryview | None:
        """Return the whole mapping for a reader; None if the segment is destroyed."""
        view = self._view
        return view if view is not None else self._unless_gone(self._map)

    def read(self, at: int, size: int) -> bytes | memoryview:
        """Return a few bytes, from the mapping if there is one, else from the file.

        Mapping the file costs more than the read, and may read far more than these bytes.
        """
        view = self._view
        if view is not None:
            return view[at : at + size]
        with self._guard:  # otherwise the descriptor could be closed, and reused by another file
            content = self.system.files.read_at(self._opened(), at, size)
        if len(content) != size:
            raise SegmentSizeError(
                f"{self.path}: the file was truncated and no longer has {self.size} bytes; put it "
                "back from a copy"
            )
        return content

    def peek(self, at: int, size: int) -> bytes | memoryview | None:
        """Return a few bytes for a reader; None if the segment is destroyed."""
        return self._unless_gone(partial(self.read, at, size))

    def _unless_gone(self, access: Callable[[], T]) -> T | None:
        try:
            return access()
        except StoreClosedError:
            if self.is_open:
                raise  # the segment is not destroyed: its queue is closed
            return None
        except FileNotFoundError:
            if self.writable:
                raise
            return None  # the process that writes the store removed it

    @property
    def mapping(self) -> mmap.mmap:
        """Return the mapping itself, for calls of the operating system."""
        if self._mapping is None:
            self._map()
        assert self._mapping is not None
        return self._mapping

    @property
    def descriptor(self) -> int:
        """Return the descriptor of the file; open the file if it is closed."""
        descriptor = self._descriptor
        if descriptor is None:
            with self._guard:
                return self._opened()
        return descriptor

    def _opened(self) -> int:
        if self._descriptor is None:
            if self._closed or self._retired_at is not None:
                what = "was closed; open the store again" if self.is_open else "was removed"
                raise StoreClosedError(f"{self.path}: the file {what}")
            self._descriptor = self.system.files.open(self.path, writable=self.writable)
            self._count_as_open()
        return self._descriptor

    def _count_as_open(self) -> None:
        if self.open_segments is not None:
            self.open_segments.opened(self)

    def _map(self) -> memoryview:
        with self._guard:
            if self._view is None:
                if self._retired_at is not None:
                    raise StoreClosedError(f"{self.path}: the file was removed")
                descriptor = self._opened()
                length = self.system.files.size(self.path)
                if length != self.size:
                    raise SegmentSizeError(
                        f"{self.path}: the file has {length} bytes instead of {self.size}; put it "
                        "back from a copy"
                    )
                self._mapping = self.system.files.map(descriptor, self.size, writable=self.writable)
                if self.growth.scattered:
                    self.system.files.expect_scattered(self._mapping)
                self._view = memoryview(self._mapping)
            return self._view

    def set_position(self, position: int) -> None:
        """Set all positions: the bytes before ``position`` are on disk, the others unwritten."""
        self.wrote = self.committed = self.flushed = position
        self.allocated = position

    def wrote_to(self, position: int) -> None:
        """Record that the mapping is written up to ``position``."""
        self.wrote = position
        self.committed = position

    def write(self, at: int, content: memoryview) -> None:
        """Write bytes to the file, without the mapping; the caller calls :meth:`wrote_to`.

        For large parts this is several times as fast: a new page of the mapping would first be
        filled with zeros, under the GIL. Raises DiskFullError or OSError; some of the bytes may be
        written then.
        """
        try:
            self.system.files.write(self.descriptor, [content], at)
        except OSError as error:
            raise self._with_path(error, at, len(content)) from error

    def rewrite(self, at: int, content: memoryview) -> None:
        """Replace bytes that were written before, and sync them.

        Readers see the new bytes through the mapping. Raises StoreClosedError if the file is
        closed or removed, and OSError; some of the bytes may be replaced then.
        """
        with self._guard:
            try:
                self.system.files.write(self._opened(), [content], at)
            except OSError as error:
                raise self._with_path(error, at, len(content)) from error
            self._sync()

    def allocate(self, end: int) -> None:
        """Allocate disk space for everything before ``end``, or raise DiskFullError."""
        if end <= self.allocated:
            return
        start = self.allocated
        target = min(max(end, start + self.growth.step(self.wrote)), self.size)
        try:
            with self._guard:
                self.system.files.allocate(self._opened(), start, target - start)
        except OSError as error:
            raise self._with_path(error, start, target - start) from error
        self.allocated = target

    def _with_path(self, error: OSError, at: int, size: int) -> Exception:
        """Return a DiskFullError if ``error`` means that, else an error with the path."""
        if error.errno not in NO_SPACE:
            return OSError(error.errno, error.strerror, str(self.path))
        return DiskFullError(
            f"{self.path}: no space for {size} more bytes at {at}; "
            "free some or let retention delete older files"
        )

    def fill_in(self) -> None:
        """Fault in the allocated pages that are not written yet."""
        begin = self.wrote  # read once, because an appender may write at the same time
        size = self.allocated - begin
        if size > 0:
            self.system.files.populate(self.view, begin, size)

    def release_pages(self, end: int) -> None:
        """Unmap the pages before ``end`` from the memory of this process, until the next access."""
        mapping = self._mapping
        if mapping is not None and self.writable and end > 0:
            with suppress(ValueError):  # closed in the meantime
                self.system.files.release_pages(mapping, 0, end)

    def is_due(self, least_pages: int) -> bool:
        """Return whether enough was committed since the last flush; a full file always is due."""
        if least_pages > 0 and not self.is_full:
            return self.committed // PAGE_SIZE - self.flushed // PAGE_SIZE >= least_pages
        return self.committed > self.flushed

    def flush(self) -> None:
        """Sync if anything was committed since the last flush."""
        if self.committed > self.flushed:
            self.sync()

    def sync(self) -> None:
        """Sync the committed bytes, and those that were changed in place."""
        with self._guard:
            self._sync()

    def _sync(self) -> None:
        if self._sync_failure is not None:
            raise self._sync_failure  # the kernel reports a failure only once
        committed = self.committed
        descriptor = self._opened()
        try:
            self.system.files.sync(descriptor)
        except OSError as error:
            self._sync_failure = error
            raise
        self.flushed = committed

    @property
    def data_end(self) -> int:
        """Return the position after which the file has nothing but a hole.

        A search for the end of the written data must stop here: on a file system in memory, reading
        a hole through the mapping allocates a page, and kills the process if none is left.
        """
        ranges = self.system.files.data_ranges(self.descriptor, 0, self.size)
        return max((end for _, end in ranges), default=0)

    def data_size(self, position: int) -> int:
        """Return the size of the ranges after ``position`` that contain other bytes than zeros."""
        return sum(end - start for start, end in self._data_after(position))

    def truncate(self, position: int) -> int:
        """Zero and sync everything after ``position``; return how many bytes held data."""
        files = self.system.files
        removed = 0
        for start, end in self._data_after(position):
            files.write_zeros(self.descriptor, start, end)
            removed += end - start
        if removed:
            files.sync(self.descriptor)
        self.set_position(position)
        return removed

    def _data_after(self, position: int) -> Iterator[tuple[int, int]]:
        for start, end in self.system.files.data_ranges(self.descriptor, position, self.size):
            if any_data(self.view, start, end):
                yield start, end

    def close_if_idle(self) -> bool:
        """Close the file until its next use, and return True; False if it is in use.

        Committed bytes are synced first, because the kernel might not report a failed sync to the
        next descriptor of the file. If the sync fails, the file stays open, and the next flush
        raises the error: the caller, which needs a descriptor for another file, cannot handle it.
        """
        if not self._guard.acquire(blocking=False):
            return False
        try:
            if self._descriptor is not None and self.committed > self.flushed:
                try:
                    self._sync()
                except OSError:
                    return False
            if not self._release():
                assert self._mapping is not None
                self._view = memoryview(self._mapping)
                return False
            self._close_descriptor()
            return True
        finally:
            self._guard.release()

    def close(self) -> None:
        """Close the file permanently. Slices that readers hold stay valid."""
        with self._guard:
            self._closed = True
            self._release()
            self._mapping = None
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self.system.files.close(descriptor)

    def _release(self) -> bool:
        """Close the mapping; return False if a reader still holds a slice of it."""
        self._view = None  # without view.release(): a reader may be about to slice it
        if self._mapping is not None:
            try:
                self._mapping.close()
            except BufferError:
                return False
            self._mapping = None
        return True

    def destroy(self, grace_ms: int) -> bool:
        """Remove the file if it has no readers, or ``grace_ms`` after the first call.

        Returns True when the file is removed; call it again until then. The segment accepts no new
        readers after the first call.
        """
        now = self.system.clock.monotonic()
        with self._guard:
            if self._retired_at is None:
                self._retired_at = now
            waited_ms = (now - self._retired_at) * 1000
            if not self._release() and waited_ms < grace_ms:
                return False
        self.close()
        if self.path.exists():
            self.system.files.remove(self.path)
        return True


def any_data(view: memoryview, start: int, end: int) -> bool:
    """Return whether any byte of a range is not zero."""
    step = len(_ZEROS)
    for at in range(start, end, step):
        part = view[at : min(at + step, end)]
        if part.tobytes() != _ZEROS[: len(part)]:
            return True
    return False
