"""The index: all index files of a store, oldest first, and queries over them.

Only the newest file is written. Its end offset shows how far the log is indexed, so a range of the
log can be passed again. Only records with keys move it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import StoreClosedError
from firetrail.format.files.index import IndexGeometry
from firetrail.format.kernels.single import KeyQuestion
from firetrail.format.names import INDEX, parse_index_name
from firetrail.store.index.index_file import IndexFile
from firetrail.system import System


class IndexCut(NamedTuple):
    """The number of files to keep and, of the last one, the number of entries."""

    files: int
    keep: int
    resume: int  # physical offset from which the log must be indexed again


class Index:
    """The files below ``<root>/index``."""

    def __init__(
        self, system: System, root: Path, geometry: IndexGeometry, *, writable: bool = True
    ) -> None:
        self._system = system
        self._folder = root / INDEX
        self.geometry = geometry
        self._writable = writable
        self.files: tuple[IndexFile, ...] = ()
        # Dispatch appends files, retention removes them, and a flush takes the unsynced ones: they
        # run in different threads and hold the guard. Opening a store does not, because it loads,
        # clears and cuts the index before these threads start.
        self._guard = system.threads.lock()
        self._unsynced: list[IndexFile] = []
        self._retired: list[IndexFile] = []  # used by retention, and by close when that has ended

    def load(self, *, torn: bool = False) -> None:
        """Find the existing files; other files in the folder are ignored.

        An empty file, which a crash right after its creation leaves, is removed if the index is
        writable. Only the newest file is read, and not even that if it may be ``torn``: then
        :meth:`cut` must follow.
        """
        loaded: list[IndexFile] = []
        try:
            for name in self._system.files.names(self._folder):
                path = self._folder / name
                if parse_index_name(name) is None:
                    continue
                if self._system.files.size(path):
                    loaded.append(
                        IndexFile.load(self._system, path, self.geometry, writable=self._writable)
                    )
                elif self._writable:
                    self._system.files.remove(path)
            if loaded and not torn:
                _ = loaded[-1].header  # raises if the file is not an index file
        finally:
            self.files = tuple(loaded)

    def clear(self) -> None:
        """Remove every file, loaded or not; no thread may use the index during the call."""
        files, self.files = self.files, ()
        for file in files:
            file.segment.destroy(0)
        for name in self._system.files.names(self._folder):
            if parse_index_name(name) is not None:
                self._system.files.remove(self._folder / name)

    @property
    def end_offset(self) -> int:
        """Physical offset of the last record with a key; 0 if there is none."""
        return self.end[1]

    @property
    def end(self) -> tuple[int, int]:
        """Store time and physical offset of the last record with a key."""
        return self.files[-1].end if self.files else (0, 0)

    @property
    def filled(self) -> tuple[int, int]:
        """Store time and physical offset of the last record in the files that are full.

        After an unclean stop the Java store deletes an index file that ends later than its
        checkpoint says, and indexes the log again from where the checkpoint lets it start. The
        file that is being filled is written to all the time: the checkpoint must end before it.
        """
        for file in reversed(self.files[-2:]):
            if file.is_full:
                return file.header.end_timestamp, file.header.end_offset
        return 0, 0

    def append(self, entries: array[int], first: int, count: int) -> int:
        """Append entries from ``first`` on, as many as fit; return the index of the next one.

        ``entries`` holds ``count`` entries, derived from the log after :attr:`end_offset`. After a
        DiskFullError none was appended.
        """
        if not self.files or self.files[-1].is_full:
            self._roll()
        return self.files[-1].append(entries, first, count)

    def _roll(self) -> None:
        previous = self.files[-1] if self.files else None
        created = IndexFile.create(self._system, self._folder, self.geometry, previous)
        with self._guard:
            if previous is not None:
                self._unsynced.append(previous)
            self.files = (*self.files, created)

    def flush(self) -> None:
        """Sync the newest file and those that were filled since the last flush."""
        with self._guard:
            filled, self._unsynced = self._unsynced, []
            newest = self.files[-1:]
        for file in (*filled, *newest):
            file.segment.sync()

    def release_pages(self) -> None:
        """Release all pages of the files from this process's memory."""
        for file in self.files:
            file.segment.release_pages(file.segment.size)

    def query(self, question: KeyQuestion, limit: int) -> list[int]:
        """Return physical offsets of at most ``limit`` messages that may match, newest first.

        The index contains only hashes and seconds; the caller must check the rest.
        """
        key_hash, begin, end = question.key_hash, question.begin, question.end
        found: list[int] = []
        for file in reversed(self.files):
            try:
                found += file.find(key_hash, begin, end, limit - len(found))
                if len(found) >= limit or (begin > 0 and file.header.begin_timestamp < begin):
                    break
            except StoreClosedError:
                if file.segment.is_open:
                    raise
                break  # deleted during the query, as were all before it
        return found

    def plan_cut(self, log_end: int, trusted: bool, has_record: Callable[[int], bool]) -> IndexCut:
        """Return the part of the newest files to keep: whole entries of records before ``log_end``.

        If ``trusted``, everything before ``log_end`` is known to have been synced. Otherwise only
        existing entries count, except for those of the last record, which may lack some of its
        keys. Bytes that a crash left after the last entry may look like one, but the log has no
        record where it points.
        """
        for number, file in reversed(list(enumerate(self.files))):
            keep = file.kept_before(log_end)
            while keep and not has_record(file.offset_of(keep)):
                keep -= 1
            if keep and not trusted:
                log_end = file.offset_of(keep)
                keep = file.kept_before(log_end)
            if keep:
                return IndexCut(number + 1, keep, log_end)
        return IndexCut(min(len(self.files), 1), 0, log_end if trusted else 0)

    def cut(self, plan: IndexCut, time_of: Callable[[int], int | None]) -> None:
        """Cut the index back to the plan; older files do not change."""
        while len(self.files) > plan.files:
            dropped, self.files = self.files[-1], self.files[:-1]
            dropped.segment.destroy(0)
        if self.files:
            newest = self.files[-1]
            newest.cut(plan.keep, time_of(newest.offset_of(plan.keep)) if plan.keep else None)

    def delete_expired(self, log_min: int, grace_ms: int) -> int:
        """Remove files, except the last, that point only before ``log_min``; return how many."""
        removed = 0
        while len(self.files) > 1 and self.files[0].header.end_offset < log_min:
            with self._guard:
                expired, self.files = self.files[0], self.files[1:]
                self._retired.append(expired)
                if expired in self._unsynced:
                    self._unsynced.remove(expired)
            removed += 1
        self.sweep(grace_ms)
        return removed

    def sweep(self, grace_ms: int) -> None:
        """Retry to remove the files that were still being read."""
        self._retired = [f for f in self._retired if not f.segment.destroy(grace_ms)]

    def close(self) -> None:
        """Close every file."""
        self.sweep(0)
        for file in self.files:
            file.segment.close()
