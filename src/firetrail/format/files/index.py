"""The index file: a hash table on disk, from the keys of messages to log offsets.

::

    header   40 bytes
    slots    4 bytes each: number of the newest entry of the slot's chain, 0 for none
    entries  20 bytes each, numbered in order of arrival; number 0 is never used

A file of *n* entries holds *n - 1* keys. The file does not store its numbers of slots and entries;
:func:`find_geometry` infers them. Page: ``docs/format/index-file.md``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from firetrail.errors import FormatError
from firetrail.format.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from firetrail.format.values.integers import INT32_MAX
from firetrail.format.values.layout_codec import not_negative, pack_fields, size_of, unpack_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer

DEFAULT_SLOTS = 5_000_000
DEFAULT_ENTRIES = 20_000_000
ENTRIES_PER_SLOT = DEFAULT_ENTRIES // DEFAULT_SLOTS
ENTRY_SECONDS_MAX = INT32_MAX
CHAIN_READ_MAX = 1000
"""Maximum number of entries of a chain that are followed to confirm a geometry."""


class IndexHeader(NamedTuple):
    """Store times (ms) and log offsets of the first and last message with a key in the file."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    entry_count: int = 0

    @property
    def next_entry(self) -> int:
        """Return the number of the next entry; ``entry_count`` of a new file is 0."""
        return max(self.entry_count, 1)


class IndexEntry(NamedTuple):
    """One key: its hash, the message, seconds since the file's begin, the next older entry."""

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


class IndexGeometry(NamedTuple):
    """The numbers of slots and entries for which a file has space."""

    slots: int
    entries: int


def encode_index_header(header: IndexHeader) -> bytes:
    """40 bytes."""
    return pack_fields(INDEX_HEADER, "index header", header)


def decode_index_header(buffer: ReadableBuffer) -> IndexHeader:
    """The header at the start of ``buffer``."""
    values = unpack_fields(INDEX_HEADER, "index header", buffer, 0)
    not_negative(INDEX_HEADER, "index header", 0, values, IndexHeader._fields)
    return IndexHeader._make(values)


def decode_index_entry(buffer: ReadableBuffer, at: int = 0) -> IndexEntry:
    """The entry at byte ``at`` of ``buffer``."""
    values = unpack_fields(INDEX_ENTRY, "index entry", buffer, at)
    not_negative(INDEX_ENTRY, "index entry", at, values, IndexEntry._fields)
    return IndexEntry._make(values)


def decode_index_slot(buffer: ReadableBuffer, at: int) -> int:
    """Return the number of the newest entry in the chain of the slot at byte ``at``; 0 if empty."""
    values = unpack_fields(INDEX_SLOT, "index slot", buffer, at)
    not_negative(INDEX_SLOT, "index slot", at, values, tuple(INDEX_SLOT.offsets))
    newest: int = values[0]
    return newest


def slot_at(slot: int) -> int:
    """Return the position of slot number ``slot`` in the file."""
    return INDEX_HEADER.size + INDEX_SLOT.size * slot


def entry_at(slots: int, number: int) -> int:
    """Return the position of entry ``number`` in a file of ``slots`` slots."""
    return slot_at(slots) + INDEX_ENTRY.size * number


def index_file_size(slots: int, entries: int) -> int:
    """Return the length of a file with space for ``slots`` slots and ``entries`` entries."""
    return entry_at(slots, entries)


def entry_seconds(store_time: int, begin_timestamp: int) -> int:
    """Return the seconds field of a new entry, given the begin time in the header before it."""
    if begin_timestamp <= 0 or store_time < begin_timestamp:
        return 0
    return min((store_time - begin_timestamp) // 1000, ENTRY_SECONDS_MAX)


def infer_geometry(size: int) -> IndexGeometry:
    """Infer slots and entries of a file of ``size`` bytes.

    It has four entries per slot, or the default number of slots; otherwise raise FormatError.
    """
    slots, odd = divmod(size - INDEX_HEADER.size, INDEX_SLOT.size + 4 * INDEX_ENTRY.size)
    if slots > 0 and not odd:
        return IndexGeometry(slots, slots * ENTRIES_PER_SLOT)
    entries, odd = divmod(size - slot_at(DEFAULT_SLOTS), INDEX_ENTRY.size)
    if entries > 1 and not odd:
        return IndexGeometry(DEFAULT_SLOTS, entries)
    raise FormatError(
        "index file size", size, "fits neither 4 entries per slot nor the default slots"
    )


def find_geometry(buffer: ReadableBuffer) -> IndexGeometry:
    """Find slots and entries of a whole index file, confirmed by its content.

    The header has the physical offsets of the first and the last entry, and the slot of the last
    one points to it: all three agree only for the true end of the slot table. If they never do (in
    a torn file), the result is that of :func:`infer_geometry`.
    """
    header = decode_index_header(buffer)
    size = size_of(buffer)
    if header.next_entry > 1:
        for geometry in _candidates(buffer, size, header):
            if _agrees(buffer, header, geometry):
                return geometry
    return infer_geometry(size)


def _candidates(buffer: ReadableBuffer, size: int, header: IndexHeader) -> Iterator[IndexGeometry]:
    """Yield the usual geometry, then each whose last entry has the end offset of the header."""
    with suppress(FormatError):
        yield infer_geometry(size)
    last = header.next_entry - 1
    offset_in_last = entry_at(0, last) + INDEX_ENTRY.offsets["physical_offset"]
    wanted = re.escape(header.end_offset.to_bytes(8, "big"))
    for match in re.finditer(b"(?=" + wanted + b")", buffer):
        slots, odd_slots = divmod(match.start() - offset_in_last, INDEX_SLOT.size)
        entries, odd_entries = divmod(size - slot_at(slots), INDEX_ENTRY.size)
        if slots > 0 and entries > last and not odd_slots and not odd_entries:
            yield IndexGeometry(slots, entries)


def _agrees(buffer: ReadableBuffer, header: IndexHeader, geometry: IndexGeometry) -> bool:
    """Return whether the first and the last entry, and the last one's slot, match the header.

    In a file of zeros any position has physical offset 0, so the first entry must be in a chain.
    """
    slots = geometry.slots
    last = header.next_entry - 1
    try:
        first_entry = decode_index_entry(buffer, entry_at(slots, 1))
        last_entry = decode_index_entry(buffer, entry_at(slots, last))
        newest = decode_index_slot(buffer, slot_at(last_entry.key_hash % slots))
        chained = _is_chained(buffer, slots, first_entry.key_hash)
    except FormatError:
        return False
    return (
        first_entry.physical_offset == header.begin_offset
        and last_entry.physical_offset == header.end_offset
        and newest == last
        and chained
    )


def _is_chained(buffer: ReadableBuffer, slots: int, key_hash: int) -> bool:
    """Return whether the chain of a key ends at the first entry; only its newest part is read."""
    number = decode_index_slot(buffer, slot_at(key_hash % slots))
    for _ in range(CHAIN_READ_MAX):
        if number <= 1:
            return number == 1
        entry = decode_index_entry(buffer, entry_at(slots, number))
        if entry.previous >= number:
            return False
        number = entry.previous
    return True
