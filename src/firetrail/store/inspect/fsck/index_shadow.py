"""One index file under check, beside a shadow of it that is built from the log.

Entries are appended to the shadow with the kernel that writes index files, so its links, slots and
header are what they should be. The shadow keeps its slots and drops entries that were compared, so
it needs far less memory than the size of the file.
"""

from __future__ import annotations

import mmap
from array import array
from struct import iter_unpack
from typing import NamedTuple

from firetrail.format.files.index import (
    IndexEntry,
    IndexHeader,
    encode_index_header,
    entry_at,
    entry_seconds,
    index_file_size,
    slot_at,
)
from firetrail.format.kernels.index import append_entries
from firetrail.format.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from firetrail.store.index.index_file import IndexFile
from firetrail.store.inspect.fsck.report import Findings
from firetrail.store.problems import ProblemKind

_UNPACK_ENTRY = INDEX_ENTRY.struct.unpack_from
_PACK_SLOT = INDEX_SLOT.struct.pack_into
_HASH_MASK = 0x7FFFFFFF
SLOTS_PER_STEP = 1 << 16
FORGET_BYTES = 4 << 20
"""Maximum number of bytes of compared entries that the shadow keeps."""


class ExpectedEntry(NamedTuple):
    """An entry that is derived from the log."""

    key_hash: int
    physical_offset: int
    store_time: int


class ExpectedIndex:
    """The expected content of an index file."""

    def __init__(self, file: IndexFile, before: IndexHeader | None) -> None:
        self._slots = file.slots
        self._entries = file.entries
        self._map = mmap.mmap(
            -1,
            index_file_size(file.slots, file.entries),
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        )
        self.view = memoryview(self._map)
        self._kept_from = entry_at(file.slots, 0)
        if before is not None:
            end = (before.end_timestamp, before.end_timestamp, before.end_offset, before.end_offset)
            self.view[: INDEX_HEADER.size] = encode_index_header(IndexHeader(*end))

    def append(self, triples: array[int], first: int, count: int) -> None:
        """Append entries; there must be room for them."""
        append_entries(self.view, self._slots, self._entries, triples, first, count)

    def take_back(self, header: bytes, first: int, end: int) -> None:
        """Undo the append of entries ``first`` to ``end``; ``header`` is the one from before it."""
        for number in range(end - 1, first - 1, -1):
            at = entry_at(self._slots, number)
            key_hash, _, _, previous = _UNPACK_ENTRY(self.view, at)
            _PACK_SLOT(self.view, slot_at(key_hash % self._slots), previous)
            self.view[at : at + INDEX_ENTRY.size] = bytes(INDEX_ENTRY.size)
        self.view[: INDEX_HEADER.size] = header

    def forget_before(self, number: int) -> None:
        """Drop entries below ``number``, which are no longer needed."""
        page = mmap.PAGESIZE
        start = -(-self._kept_from // page) * page
        end = entry_at(self._slots, number) // page * page
        if end - start >= FORGET_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
            self._kept_from = end

    def close(self) -> None:
        """Release the memory."""
        self.view.release()
        self._map.close()


class FileCheck:
    """The check of one index file; ``number`` is the next entry to compare."""

    def __init__(
        self, file: IndexFile, name: str, before: IndexHeader | None, findings: Findings
    ) -> None:
        self.name = name
        self.file = file
        self._view = file.segment.view
        self._findings = findings
        self._has_predecessor = before is not None
        self.header = file.header
        self.last = min(self.header.next_entry, file.entries) - 1
        """Number of the last entry."""
        self.number = 1
        self.shadow = ExpectedIndex(file, before)
        self._end_time_known = True
        self._one = array("q", (0, 0, 0))

    @property
    def left(self) -> int:
        """The number of entries that are left to compare."""
        return self.last + 1 - self.number

    def entry(self, number: int) -> IndexEntry | None:
        """Return the entry with a number, or None if there is none."""
        if not 0 < number <= self.last:
            return None
        return IndexEntry._make(_UNPACK_ENTRY(self._view, entry_at(self.file.slots, number)))

    def entry_after_last(self) -> IndexEntry | None:
        """Return the bytes after the last entry as an entry, or None if the file ends there."""
        number = self.last + 1
        if number >= self.file.entries:
            return None
        return IndexEntry._make(_UNPACK_ENTRY(self._view, self.position(number)))

    def position(self, number: int) -> int:
        """Return the position of an entry in the file."""
        return entry_at(self.file.slots, number)

    def note(
        self, position: int, physical_offset: int | None, kind: ProblemKind, detail: str
    ) -> None:
        """Report a problem in this file."""
        self._findings.add(self.name, position, physical_offset, kind, detail)

    # -- entries ------------------------------------------------------------------------------

    def accept(self, triples: array[int], first: int, end: int) -> bool:
        """Return whether the next entries are exactly these; if not, nothing has changed."""
        header = bytes(self.shadow.view[: INDEX_HEADER.size])
        number = self.number
        self.shadow.append(triples, first, end)
        self.number += end - first
        low, high = self.position(number), self.position(self.number)
        if self._view[low:high].tobytes() == self.shadow.view[low:high].tobytes():
            self._end_time_known = True
            self.shadow.forget_before(self.number)
            return True
        self.shadow.take_back(header, number, self.number)
        self.number = number
        return False

    def take_expected(self, entry: IndexEntry, expected: ExpectedEntry) -> None:
        """Accept the next entry as the expected one, and compare its other fields."""
        should = self._append(expected)
        self._end_time_known = True
        # By the begin in the header: if that is wrong, the header is wrong and not every entry.
        by_header = entry_seconds(expected.store_time, self.header.begin_timestamp)
        unknown = self.number == 2 and not self._has_predecessor
        if entry.seconds not in (should.seconds, by_header) and not unknown:
            detail = f"{entry.seconds} seconds after the file's begin instead of {should.seconds}"
            self._note_entry(entry, ProblemKind.INDEX_ENTRY, detail)
        self._compare_link(entry, should)

    def is_linked_by(self, key_hash: int, entry: IndexEntry) -> bool:
        """Return whether link and slot put the next entry into the chain of a key hash."""
        at = slot_at((key_hash & _HASH_MASK) % self.file.slots)
        (before,) = INDEX_SLOT.struct.unpack_from(self.shadow.view, at)
        (newest,) = INDEX_SLOT.struct.unpack_from(self._view, at)
        return bool(before == entry.previous and newest >= self.number)

    def take_as_it_is(self, entry: IndexEntry) -> None:
        """Accept an entry that cannot be compared with a record; only its chain is checked."""
        begin = self.header.begin_timestamp
        time = begin if self.number == 1 else begin + max(entry.seconds, 0) * 1000
        should = self._append(
            ExpectedEntry(entry.key_hash & _HASH_MASK, entry.physical_offset, time)
        )
        self._end_time_known = False
        self._compare_link(entry, should)

    def take_many(self, end: int) -> None:
        """Accept the entries up to number ``end``, which cannot be compared with records."""
        if end == self.number:
            return
        begin = self.header.begin_timestamp
        view = self._view[self.position(self.number) : self.position(end)]
        triples = array("q")
        for key_hash, offset, seconds, _ in iter_unpack(INDEX_ENTRY.struct.format, view):
            triples.extend((key_hash & _HASH_MASK, offset, begin + max(seconds, 0) * 1000))
        if self.number == 1 and triples:
            triples[2] = begin
        if not self.accept(triples, 0, end - self.number):
            for number in range(self.number, end):
                entry = self.entry(number)
                assert entry is not None
                self.take_as_it_is(entry)
        self._end_time_known = False

    def _append(self, expected: ExpectedEntry) -> IndexEntry:
        """Append to the shadow; return the entry as it should be."""
        self._one[0], self._one[1], self._one[2] = expected
        self.shadow.append(self._one, 0, 1)
        self.number += 1
        should = _UNPACK_ENTRY(self.shadow.view, self.position(self.number - 1))
        return IndexEntry._make(should)

    def _compare_link(self, entry: IndexEntry, should: IndexEntry) -> None:
        if entry.previous != should.previous:
            detail = f"points to entry {entry.previous} of its chain instead of {should.previous}"
            self._note_entry(entry, ProblemKind.INDEX_CHAIN, detail)

    def _note_entry(self, entry: IndexEntry, kind: ProblemKind, detail: str) -> None:
        number = self.number - 1
        self.note(self.position(number), entry.physical_offset, kind, f"entry {number} {detail}")

    # -- the whole file -----------------------------------------------------------------------

    def finish(self) -> None:
        """Compare header and slots after all entries were compared."""
        should = INDEX_HEADER.struct.unpack_from(self.shadow.view)
        actual = INDEX_HEADER.struct.unpack_from(self._view)
        for (field, at), got, wanted in zip(
            INDEX_HEADER.offsets.items(), actual, should, strict=True
        ):
            doubtful = field == "end_timestamp" and not self._end_time_known
            empty = field == "entry_count" and wanted == 0 and got == 1
            if got != wanted and not doubtful and not empty:
                detail = f"{field.replace('_', ' ')} is {got} instead of {wanted}"
                self.note(at, None, ProblemKind.INDEX_HEADER, detail)
        for first in range(0, self.file.slots, SLOTS_PER_STEP):
            self._compare_slots(first, min(first + SLOTS_PER_STEP, self.file.slots))

    def _compare_slots(self, first: int, end: int) -> None:
        low, high = slot_at(first), slot_at(end)
        if self._view[low:high].tobytes() == self.shadow.view[low:high].tobytes():
            return
        for slot in range(first, end):
            at = slot_at(slot)
            (got,) = INDEX_SLOT.struct.unpack_from(self._view, at)
            (wanted,) = INDEX_SLOT.struct.unpack_from(self.shadow.view, at)
            if got != wanted:
                detail = f"slot {slot} points to entry {got} instead of {wanted}"
                self.note(at, self._offset_of(wanted), ProblemKind.INDEX_SLOT, detail)

    def _offset_of(self, number: int) -> int | None:
        entry = self.entry(number)
        return entry.physical_offset if entry is not None else None

    def close(self) -> None:
        """Release the memory of the shadow."""
        self.shadow.close()
