"""Firetrail's seal in ``timercheck``: who wrote the file last, and what the wheel contains.

The seal follows the fields that Java knows. Java leaves its bytes unchanged, so after Java has
written the fields, the checksum of the seal does not match. Page: ``docs/format/timer.md``.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from firetrail.format.files.timer import (
    CHECK_FIELDS,
    CHECK_SIZE,
    SLOT,
    TimerCheck,
    TimerSlot,
    decode_slot,
    encode_slot,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NEXT_SLOTS = 100
"""The number of slots, starting at the read time, that the seal repeats. A crash may have emptied
some of them in the wheel before the file with the seal was replaced."""

_HEAD = Struct(">8siQi")
"""Name, duration of a slot in ms, sum of the wheel, number of slots that follow."""
_NAME = b"FTTIMER2"
_CRC = Struct(">I")
"""CRC-32 of everything before it, at the end of the seal."""
_SUM_MASK = (1 << 64) - 1


class WheelSeal(NamedTuple):
    """The content of a wheel at the time at which the progress was saved.

    Attributes:
        total: The sum of the checksums of all slots in use (:func:`added`).
        following: The slots in use among the next :data:`NEXT_SLOTS` to be delivered.
    """

    total: int = 0
    following: tuple[TimerSlot, ...] = ()

    def fault(self, total: int) -> str | None:
        """Return why a wheel whose slots have this sum is another one; None if it is the same."""
        return None if total == self.total else "its slots are not those that were saved"


class FlippedBit(NamedTuple):
    """A flipped bit in a ``timercheck`` of Firetrail.

    Attributes:
        field: The field of :class:`~firetrail.format.files.timer.TimerCheck` that it changed.
        offset: The byte of the file that has it.
        corrected: The previous content of the file.
    """

    field: str
    offset: int
    corrected: bytes


def slot_sum(raw: ReadableBuffer) -> int:
    """Return the checksum of an encoded slot that is in use; it is never 0."""
    return zlib.crc32(raw) or 1


def added(total: int, change: int) -> int:
    """Return the sum of a wheel in which the checksum of one slot has changed."""
    return (total + change) & _SUM_MASK


def encode_check(check: TimerCheck, precision_ms: int, seal: WheelSeal) -> bytes:
    """4096 bytes, sealed as written by Firetrail for a timer with slots of ``precision_ms``."""
    assert len(seal.following) <= NEXT_SLOTS
    head = _HEAD.pack(_NAME, precision_ms, seal.total, len(seal.following))
    content = CHECK_FIELDS.pack(*check) + head + b"".join(map(encode_slot, seal.following))
    return (content + _CRC.pack(zlib.crc32(content))).ljust(CHECK_SIZE, b"\0")


def decode_seal(raw: ReadableBuffer, precision_ms: int | None = None) -> WheelSeal | None:
    """Return the seal of a ``timercheck`` that Firetrail wrote last; None if it has no such seal.

    With ``precision_ms``, it must be that of a timer with slots of this duration.
    """
    content = bytes(raw)
    if len(content) != CHECK_SIZE:
        return None
    name, precision, total, count = _HEAD.unpack_from(content, CHECK_FIELDS.size)
    if name != _NAME or not 0 <= count <= NEXT_SLOTS:
        return None
    if precision_ms not in (None, precision):
        return None
    start = CHECK_FIELDS.size + _HEAD.size
    end = start + count * SLOT.size
    if _CRC.unpack_from(content, end) != (zlib.crc32(content[:end]),):
        return None
    slots = (decode_slot(content, at) for at in range(start, end, SLOT.size))
    return WheelSeal(total, tuple(slots))


def flipped_bit(raw: ReadableBuffer) -> FlippedBit | None:
    """Find the bit of the fields without which the seal is good.

    Return None if the seal is good, or if no single bit explains why it is not: Java wrote the
    fields last, or more is damaged.
    """
    content = bytearray(raw)
    if len(content) != CHECK_SIZE or decode_seal(content) is not None:
        return None
    for offset in range(CHECK_FIELDS.size):
        for bit in range(8):
            content[offset] ^= 1 << bit
            if decode_seal(content) is not None:
                return FlippedBit(TimerCheck._fields[offset // 8], offset, bytes(content))
            content[offset] ^= 1 << bit
    return None


def sealed_precision_ms(raw: ReadableBuffer) -> int:
    """Return the duration of a slot in a ``timercheck`` with a good seal."""
    return int(_HEAD.unpack_from(raw, CHECK_FIELDS.size)[1])
