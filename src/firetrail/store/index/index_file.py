"""One index file: a hash table from keys to physical offsets.

The header, the slots and the entries are written in place. After a crash it is known only that the
last sync is on disk, so :meth:`IndexFile.cut` rebuilds the chains from the entries that are good.
"""

from __future__ import annotations

from array import array
from datetime import datetime, timedelta
from pathlib import Path
from struct import Struct

from firetrail.errors import FormatError, StoreDamagedError
from firetrail.format.files.index import (
    IndexGeometry,
    IndexHeader,
    decode_index_header,
    encode_index_header,
    entry_at,
    find_geometry,
    index_file_size,
)
from firetrail.format.kernels.index import append_entries, count_entries, cut_entries, walk
from firetrail.format.layout import INDEX_ENTRY, INDEX_HEADER
from firetrail.format.names import index_name, parse_index_name
from firetrail.storage.growth import Growth
from firetrail.storage.segment import Segment
from firetrail.store.problems import DERIVED_REMEDY
from firetrail.system import System

_END = Struct(">8xq8xq").unpack_from
_COUNT = Struct(">36xi").unpack_from
_GROWTH = Growth(64 << 10, 16 << 20)


class IndexFile:
    """Keys of messages, in the order of the log."""

    def __init__(self, segment: Segment, geometry: IndexGeometry) -> None:
        self.segment = segment
        self.slots = geometry.slots
        self.entries = geometry.entries

    @classmethod
    def create(
        cls, system: System, folder: Path, geometry: IndexGeometry, previous: IndexFile | None
    ) -> IndexFile:
        """Create a file that is named after the time and continues where ``previous`` ends.

        Raises DiskFullError and leaves no file then.
        """
        path = _free_path(system, folder, previous)
        return cls.create_at(system, path, geometry, previous.header if previous else None)

    @classmethod
    def create_at(
        cls, system: System, path: Path, geometry: IndexGeometry, before: IndexHeader | None
    ) -> IndexFile:
        """Create the file ``path``, which continues after a file with the header ``before``."""
        size = index_file_size(geometry.slots, geometry.entries)
        segment = Segment.create(system, path, 0, size, growth=_GROWTH)
        try:
            segment.allocate(entry_at(geometry.slots, 1))
        except BaseException:
            segment.destroy(0)
            raise
        if before is not None:
            header = IndexHeader(
                before.end_timestamp, before.end_timestamp, before.end_offset, before.end_offset
            )
            encoded = encode_index_header(header)
            segment.view[: len(encoded)] = encoded
        segment.wrote_to(entry_at(geometry.slots, 1))
        return cls(segment, geometry)

    @classmethod
    def load(
        cls, system: System, path: Path, expected: IndexGeometry, *, writable: bool
    ) -> IndexFile:
        """Open an existing file. If it has not the expected size, its content shows the geometry.

        Its space counts as not allocated, because the Java store creates files with holes.
        """
        size = system.files.size(path)
        segment = Segment(system, path, 0, size, writable=writable, growth=_GROWTH)
        try:
            if size == index_file_size(expected.slots, expected.entries):
                return cls(segment, expected)
            return cls(segment, find_geometry(segment.mapping))
        except ValueError as error:
            segment.close()
            raise _not_an_index_file(path, error) from error

    @property
    def header(self) -> IndexHeader:
        """The current header of the file."""
        try:
            return decode_index_header(self.segment.read(0, INDEX_HEADER.size))
        except FormatError as error:
            raise _not_an_index_file(self.segment.path, error) from error

    @property
    def end(self) -> tuple[int, int]:
        """Store time and physical offset of the last message, without decoding the header."""
        end: tuple[int, int] = _END(self.segment.read(0, INDEX_HEADER.size))
        return end

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another entry."""
        return self._next_entry() >= self.entries

    def _next_entry(self) -> int:
        """Return the number of the next entry, without decoding the rest of a sound header."""
        (count,) = _COUNT(self.segment.read(0, INDEX_HEADER.size))
        return max(count, 1) if count >= 0 else self.header.next_entry

    def append(self, entries: array[int] | memoryview, first: int, count: int) -> int:
        """Append entries from ``first`` on, as many as fit; return the index of the next one.

        After a DiskFullError none was appended.
        """
        number = self._next_entry()
        limit = min(number + count - first, self.entries)
        self.segment.allocate(entry_at(self.slots, limit))
        first = append_entries(self.segment.view, self.slots, limit, entries, first, count)
        self.segment.wrote_to(entry_at(self.slots, limit))
        return first

    def find(self, key_hash: int, begin: int, end: int, limit: int) -> list[int]:
        """Return physical offsets of messages whose key may have this hash, newest first."""
        try:
            return walk(self.segment.view, self.slots, key_hash, begin, end, limit)
        except FormatError as error:
            raise _not_an_index_file(self.segment.path, error) from error

    def kept_before(self, log_end: int) -> int:
        """Return the number of first entries that are whole and point before ``log_end``."""
        written = max(self.segment.data_end - entry_at(self.slots, 0), INDEX_ENTRY.size)
        limit = min(-(-written // INDEX_ENTRY.size), self.entries)
        return count_entries(self.segment.view, self.slots, limit, log_end)

    def offset_of(self, number: int) -> int:
        """Return the physical offset that entry ``number`` (from 1) points to."""
        at = entry_at(self.slots, number) + INDEX_ENTRY.offsets["physical_offset"]
        return int.from_bytes(self.segment.view[at : at + 8], "big", signed=True)

    def cut(self, keep: int, end_time: int | None) -> None:
        """Keep the first ``keep`` entries, link all chains again, and sync.

        ``end_time`` is the store time of the message that the last of them points to, None if it
        is not known. Only those fields of the header that the first entry has set are kept.
        """
        segment = self.segment
        used = self._written_after(keep)
        segment.set_position(0)
        segment.allocate(entry_at(self.slots, keep + 1 + used))
        cut_entries(segment.view, self.slots, keep + 1, keep + 1 + used)
        header = IndexHeader._make(INDEX_HEADER.struct.unpack_from(segment.view))
        if keep:
            end_time = header.begin_timestamp if end_time is None else end_time
            header = header._replace(end_offset=self.offset_of(keep), end_timestamp=end_time)
        else:
            header = IndexHeader(0, 0, 0, 0, header.slot_count, header.entry_count)
        encoded = encode_index_header(header)
        segment.view[: len(encoded)] = encoded
        segment.sync()
        segment.set_position(entry_at(self.slots, keep + 1))

    def _written_after(self, keep: int) -> int:
        """Return over how many entries after the kept ones something may have been written."""
        start = entry_at(self.slots, keep + 1)
        segment = self.segment
        ranges = segment.system.files.data_ranges(segment.descriptor, start, segment.size)
        end = max((end for _, end in ranges), default=start)
        return min(-(-(end - start) // INDEX_ENTRY.size), self.entries - keep - 1)


def _not_an_index_file(path: Path, error: ValueError) -> StoreDamagedError:
    return StoreDamagedError(str(path), 0, None, f"not an index file: {error}", DERIVED_REMEDY)


def _free_path(system: System, folder: Path, previous: IndexFile | None) -> Path:
    """Return a name that sorts after that of the previous file, even if the clock went back."""
    created = datetime.fromtimestamp(system.clock.now_ms() / 1000)
    if previous is not None:
        before = parse_index_name(previous.segment.path.name)
        if before is not None:
            created = max(created, before + timedelta(milliseconds=1))
    return folder / index_name(created)
