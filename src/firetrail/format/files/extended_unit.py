"""The extended unit of a consume queue: tags code, store time and filter bitmap of a message.

With ``enableConsumeQueueExt`` the tags code in a unit is the address of such a unit. Page:
``docs/format/consume-queue-ext.md``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_INT64_MIN = -(2**63)
ADDRESS_MAX = -(2**31) - 1
"""The largest tags code that is an address: smaller ones cannot be hashes."""
HEAD = struct.Struct(">hqqh")
"""Size of the whole unit, tags code, store time, size of the bitmap; the bitmap follows."""
UNIT_MAX = 2**15 - 1
END_MARK = b"\xff\xff"
"""The value in place of the size of a unit after which the rest of the file is unused."""
END_ROOM = 4
"""Number of bytes that every file reserves for the end mark."""


class ExtendedUnit(NamedTuple):
    """An extended unit: Java's additional facts about a message, beside its unit."""

    tags_code: int
    store_time: int
    bitmap: bytes = b""
    """The Bloom filter of the consumer groups whose filter the message matches; may be empty."""

    @property
    def size(self) -> int:
        """The length of the encoded unit."""
        return HEAD.size + len(self.bitmap)


def is_address(tags_code: int) -> bool:
    """Return whether a tags code is the address of an extended unit."""
    return tags_code <= ADDRESS_MAX


def address_of(offset: int) -> int:
    """Return the address of the unit at an offset in the queue's extension files."""
    return offset + _INT64_MIN


def offset_of(address: int) -> int:
    """Return the offset of the unit at an address."""
    return address - _INT64_MIN


def encode_extended(unit: ExtendedUnit) -> bytes:
    """Return the bytes of a unit."""
    head = HEAD.pack(unit.size, unit.tags_code, unit.store_time, len(unit.bitmap))
    return head + unit.bitmap


def decode_extended(buffer: ReadableBuffer) -> ExtendedUnit | None:
    """Return the unit at the beginning of ``buffer``; None if there is none."""
    data = memoryview(buffer)
    if len(data) < HEAD.size:
        return None
    size, tags_code, store_time, length = HEAD.unpack_from(data)
    if length < 0 or size != HEAD.size + length or len(data) < size:
        return None
    return ExtendedUnit(tags_code, store_time, bytes(data[HEAD.size : size]))
