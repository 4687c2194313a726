"""Tags in an index: RocketMQ 5.5 adds them beside the keys, earlier versions do not.

The files do not record this, but a message with a tag shows it: all its entries are adjacent, and
either one of them is that of the tag or none is.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby

from firetrail.errors import FormatError
from firetrail.format.files.index import IndexEntry, decode_index_entry, entry_at
from firetrail.format.values.javahash import index_key_hash
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.index.index import Index
from firetrail.store.index.index_file import IndexFile
from firetrail.store.log.log_records import record_at
from firetrail.store.results import decode_message

TAG_PREFIX = "T#"
"""The prefix of a tag in place of a key: the hashed text is ``topic#T#tag``."""
ENTRIES_EXAMINED_MAX = 1000
"""Number of newest entries that are examined before the answer counts as unknown."""


def has_tag_entries(index: Index, log: SegmentQueue) -> bool | None:
    """Return whether the newest entries include tags; None if they do not show it."""
    left = ENTRIES_EXAMINED_MAX
    for file in reversed(index.files):
        for offset, hashes in _newest_messages(file, left):
            left -= len(hashes)
            tag_hash = _tag_hash(log, offset)
            if tag_hash is not None:
                return tag_hash in hashes
        if left <= 0:
            break
    return None


def _newest_messages(file: IndexFile, limit: int) -> Iterator[tuple[int, set[int]]]:
    """Yield physical offset and key hashes of the messages in a file, newest first.

    The first and the last one are skipped: their other entries may be in another file or missing.
    """
    last = min(file.header.next_entry, file.entries) - 1
    found: tuple[int, set[int]] | None = None
    for place, (offset, group) in enumerate(groupby(_entries(file, last, limit), _offset)):
        if place > 1 and found is not None:
            yield found
        found = offset, {entry.key_hash for entry in group}


def _entries(file: IndexFile, last: int, limit: int) -> Iterator[IndexEntry]:
    """Yield the newest entries, except damaged ones and zeros that a crash left."""
    for number in range(last, max(last - limit, 0), -1):
        with suppress(FormatError):
            entry = decode_index_entry(file.segment.view, entry_at(file.slots, number))
            if any(entry):
                yield entry


def _offset(entry: IndexEntry) -> int:
    return entry.physical_offset


def _tag_hash(log: SegmentQueue, offset: int) -> int | None:
    """Return the hash of a message's tag entry; None without a tag or a good record."""
    buffer = record_at(log, offset)
    if buffer is None:
        return None
    try:
        message = decode_message(buffer)
    except FormatError:
        return None
    return index_key_hash(message.topic, TAG_PREFIX + message.tags) if message.tags else None
