"""Whether an index holds tags: RocketMQ 5.5 enters them beside the keys, earlier versions do not.

Nothing in the files says so. It shows at a message that has a tag: all its entries stand together,
and one of them is the tag's or none is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby

from firetrail.errors import FormatError
from firetrail.format.index import IndexEntry, decode_index_entry, entry_at
from firetrail.format.javahash import index_key_hash
from firetrail.storage.queue import SegmentQueue
from firetrail.store.index.file import IndexFile
from firetrail.store.index.index import Index
from firetrail.store.log.records import record_at
from firetrail.store.results import decode_message

TAG_PREFIX = "T#"
"""What stands before a tag where a key would stand: ``topic#T#tag`` is hashed."""
ENTRIES_LOOKED_AT = 1000
"""If so many entries, the newest ones, do not tell, nothing does."""


def has_tag_entries(index: Index, log: SegmentQueue) -> bool | None:
    """Whether the newest entries of the index are with tags, None if they do not tell."""
    left = ENTRIES_LOOKED_AT
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
    """(Physical offset, key hashes) of the messages in a file, newest first.

    Not of the first and the last one, whose other entries may be in another file or missing.
    """
    last = min(file.header.next_entry, file.entries) - 1
    found: tuple[int, set[int]] | None = None
    for place, (offset, group) in enumerate(groupby(_entries(file, last, limit), _offset)):
        if place > 1 and found is not None:
            yield found
        found = offset, {entry.key_hash for entry in group}


def _entries(file: IndexFile, last: int, limit: int) -> Iterator[IndexEntry]:
    """The newest entries; those that are damaged tell nothing, nor do zeros that a crash left."""
    for number in range(last, max(last - limit, 0), -1):
        with suppress(FormatError):
            entry = decode_index_entry(file.segment.view, entry_at(file.slots, number))
            if any(entry):
                yield entry


def _offset(entry: IndexEntry) -> int:
    return entry.physical_offset


def _tag_hash(log: SegmentQueue, offset: int) -> int | None:
    """Hash of the tag entry of the message at ``offset``, None without a tag or a good record."""
    buffer = record_at(log, offset)
    if buffer is None:
        return None
    try:
        message = decode_message(buffer)
    except FormatError:
        return None
    return index_key_hash(message.topic, TAG_PREFIX + message.tags) if message.tags else None
