"""One fixed-size file of a segment queue.

Life: created (full length, no space taken), grown (space allocated ahead of the writes, in steps),
written, flushed, destroyed. Three positions move through it::

    0 ........ flushed ........ committed ........ wrote ........ size
      on disk            readable         in memory only

Without a write buffer everything written is readable at once: committed equals wrote. Writes go to
the mapping, and only to the allocated part of the file, so a full disk is an error and not a
signal. The mapping is made at first use: a store of many files opens as fast as one of few. A file
can rest: it is closed, and open again at its next use.

Readers hold slices of the mapping. Python keeps it alive as long as one of them is: a destroyed
segment is closed to new readers at once, its file goes when the last reader has let go or the
grace time is over, and its memory when the last slice dies.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from firetrail.errors import DiskFullError, SegmentSizeError, StoreClosedError
from firetrail.storage.new_files import NewFiles
from firetrail.storage.open_files import Residents
from firetrail.system import NO_DESCRIPTOR, NO_SPACE, SyncError, System

T = TypeVar("T")
_NOTHING = bytes(1 << 16)
PAGE_SIZE = 4096
"""The unit of the least-pages rules, whatever the machine's pages are."""


class Growth:
    """How disk space is allocated ahead of the writes: as much again as is there, in bounds.

    ``scattered`` files are many and mostly holes: of their mappings only the pages that are
    touched are brought into memory.
    """

    __slots__ = ("largest", "scattered", "smallest")

    def __init__(self, smallest: int, largest: int, *, scattered: bool = False) -> None:
        self.smallest = smallest
        self.largest = largest
        self.scattered = scattered

    def step(self, wrote: int) -> int:
        """Bytes to allocate when ``wrote`` bytes are used."""
        return min(max(wrote, self.smallest), self.largest)


LOG_GROWTH = Growth(1 << 20, 32 << 20)
QUEUE_GROWTH = Growth(PAGE_SIZE, 1 << 20, scattered=True)


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
        "path",
        "residents",
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
        residents: Residents | None = None,
    ) -> None:
        self.system = system
        self.path = path
        self.base = base
        self.size = size
        self.writable = writable
        self.growth = growth
        self.residents = residents
        self._guard = threading.Lock()  # over opening, mapping and closing the file, and its use
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
        residents: Residents | None = None,
        later: NewFiles | None = None,
    ) -> Segment:
        """A new file of zeros with its first step allocated, in a folder that is made if need be.

        Its length and its name are durable, or ``later`` sees to that.

        It appears with its full length: the Java store refuses a folder with a shorter file.
        Raises DiskFullError or OSError, and then there is no file.
        """
        segment = cls(system, path, base, size, growth=growth, residents=residents)
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
            segment._is_open_now()  # not before it has a name, under which it is opened again
        except BaseException as error:
            segment.close()
            with suppress(OSError):
                files.remove(path)
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise DiskFullError(f"{path}: no space for a file of {size} bytes") from error
            raise
        return segment

    def _sync_new(self) -> None:
        """Make a new file durable: its length first, or its name could last longer."""
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
        """Where the next segment starts."""
        return self.base + self.size

    @property
    def is_full(self) -> bool:
        """Whether every byte counts as written."""
        return self.wrote == self.size

    @property
    def is_open(self) -> bool:
        """Whether new readers are let in."""
        return self._retired_at is None

    @property
    def view(self) -> memoryview:
        """The whole mapping; slices of it stay valid even after the segment is destroyed."""
        view = self._view
        return view if view is not None else self._map()

    def look(self) -> memoryview | None:
        """The whole mapping for a reader, None if the segment was destroyed meanwhile."""
        view = self._view
        return view if view is not None else self._unless_gone(self._map)

    def read(self, at: int, size: int) -> bytes | memoryview:
        """A few bytes: of the mapping if there is one, else read without making one.

        A mapping costs more than the read, and may bring far more than these bytes into memory.
        """
        view = self._view
        if view is not None:
            return view[at : at + size]
        with self._guard:  # or the descriptor could become that of another file
            content = self.system.files.read_at(self._opened(), at, size)
        if len(content) != size:
            raise SegmentSizeError(f"{self.path}: no longer {self.size} bytes long")
        return content

    def peek(self, at: int, size: int) -> bytes | memoryview | None:
        """A few bytes for a reader, None if the segment was destroyed meanwhile."""
        return self._unless_gone(partial(self.read, at, size))

    def _unless_gone(self, access: Callable[[], T]) -> T | None:
        try:
            return access()
        except StoreClosedError:
            if self.is_open:
                raise  # not this segment alone: its queue is closed
            return None
        except FileNotFoundError:
            if self.writable:
                raise
            return None  # whoever has the store open for writing has removed it

    @property
    def mapping(self) -> mmap.mmap:
        """The mapping itself, for what the operating system does with it."""
        if self._mapping is None:
            self._map()
        assert self._mapping is not None
        return self._mapping

    @property
    def descriptor(self) -> int:
        """The open file."""
        descriptor = self._descriptor
        if descriptor is None:
            with self._guard:
                return self._opened()
        return descriptor

    def _opened(self) -> int:
        if self._descriptor is None:
            if self._closed or self._retired_at is not None:
                raise StoreClosedError(
                    f"{self.path}: the file was {'closed' if self.is_open else 'removed'}"
                )
            self._descriptor = self.system.files.open(self.path, writable=self.writable)
            self._is_open_now()
        return self._descriptor

    def _is_open_now(self) -> None:
        if self.residents is not None:
            self.residents.opened(self)

    def _map(self) -> memoryview:
        with self._guard:
            if self._view is None:
                if self._retired_at is not None:
                    raise StoreClosedError(f"{self.path}: the file was removed")
                descriptor = self._opened()
                length = self.system.files.size(self.path)
                if length != self.size:
                    raise SegmentSizeError(
                        f"{self.path}: {length} bytes long instead of {self.size}"
                    )
                self._mapping = self.system.files.map(descriptor, self.size, writable=self.writable)
                if self.growth.scattered:
                    self.system.files.expect_scattered(self._mapping)
                self._view = memoryview(self._mapping)
            return self._view

    def set_position(self, position: int) -> None:
        """Everything up to ``position`` is written, readable and on disk; nothing beyond is."""
        self.wrote = self.committed = self.flushed = position
        self.allocated = position

    def wrote_to(self, position: int) -> None:
        """Note that the mapping was written up to ``position``."""
        self.wrote = position
        self.committed = position

    def allocate(self, end: int) -> None:
        """Have disk space for everything before ``end``, or raise DiskFullError."""
        if end <= self.allocated:
            return
        start = self.allocated
        target = min(max(end, start + self.growth.step(self.wrote)), self.size)
        try:
            with self._guard:
                self.system.files.allocate(self._opened(), start, target - start)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise DiskFullError(
                f"{self.path}: no space for {target - start} bytes more at {start}; "
                "free some or let retention delete older files"
            ) from error
        self.allocated = target

    def fill_in(self) -> None:
        """Fault in the allocated pages that are still to be written."""
        if self.allocated > self.wrote:
            self.system.files.populate(self.view, self.wrote, self.allocated - self.wrote)

    def let_go(self, end: int) -> None:
        """Keep nothing before ``end`` in this process's memory; it is read again when needed."""
        mapping = self._mapping
        if mapping is not None and self.writable and end > 0:
            with suppress(ValueError):  # closed meanwhile
                self.system.files.let_go(mapping, 0, end)

    def is_due(self, least_pages: int) -> bool:
        """Whether enough was committed since the last flush; a full file always counts."""
        if least_pages > 0 and not self.is_full:
            return self.committed // PAGE_SIZE - self.flushed // PAGE_SIZE >= least_pages
        return self.committed > self.flushed

    def flush(self) -> None:
        """Sync if anything was committed since the last flush."""
        if self.committed > self.flushed:
            self.sync()

    def sync(self) -> None:
        """Sync what is committed now, and all that was changed in place."""
        with self._guard:
            self._sync()

    def _sync(self) -> None:
        if self._sync_failure is not None:
            raise self._sync_failure  # the kernel says so only once
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
        """Behind it the file holds nothing but a hole.

        Where the file system is memory, reading a hole through the mapping takes a page, and ends
        the process if there is none left: so who looks for the end of what was written stops here.
        """
        ranges = self.system.files.data_ranges(self.descriptor, 0, self.size)
        return max((end for _, end in ranges), default=0)

    def data_size(self, position: int) -> int:
        """Over how many bytes behind ``position`` something other than zeros was found."""
        return sum(end - start for start, end in self._data_behind(position))

    def truncate(self, position: int) -> int:
        """Forget all beyond ``position``: zeroed and synced. Returns how many bytes held data."""
        files = self.system.files
        removed = 0
        for start, end in self._data_behind(position):
            files.write_zeros(self.descriptor, start, end)
            removed += end - start
        if removed:
            files.sync(self.descriptor)
        self.set_position(position)
        return removed

    def _data_behind(self, position: int) -> Iterator[tuple[int, int]]:
        for start, end in self.system.files.data_ranges(self.descriptor, position, self.size):
            if any_data(self.view, start, end):
                yield start, end

    def rest(self) -> bool:
        """Close the file until it is used again; False if somebody is using it now.

        What is not on disk is synced before: the next one to open the file might not learn that
        it failed. A failure is kept for who flushes, and the file stays open: who needs its place
        has nothing to do with it.
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
        """Let go of the file, for good. Slices that readers hold stay valid."""
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
        """Drop the mapping; False while somebody else still reads it."""
        self._view = None  # not released: a reader may be about to slice it
        if self._mapping is not None:
            try:
                self._mapping.close()
            except BufferError:
                return False
            self._mapping = None
        return True

    def destroy(self, grace_ms: int) -> bool:
        """Remove the file: now if nobody reads it, else once ``grace_ms`` are over.

        True when it is gone. Call again until then; new readers are refused from the first call.
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
    """Whether any byte of a range is not zero."""
    step = len(_NOTHING)
    for at in range(start, end, step):
        part = view[at : min(at + step, end)]
        if part.tobytes() != _NOTHING[: len(part)]:
            return True
    return False
