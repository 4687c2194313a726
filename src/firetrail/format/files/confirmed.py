"""The confirmed end: up to where replicas have had the log of a store.

The file has two slots, which are written in turn, so that a torn write leaves the other one. The
rest of a slot is zero. Page: ``docs/format/replication.md``.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from firetrail.format.layout import Layout

SLOT_SIZE = 512
SLOTS = 2
CONFIRMED_SIZE = SLOTS * SLOT_SIZE
BOOT_SIZE = 16
NO_BOOT = bytes(BOOT_SIZE)
"""The id of a boot that is not known."""
NO_DOUBT = -1
_MAGIC = int.from_bytes(b"FTCE", "big")
_VERSION = 1
_SLOT = Layout(
    magic="I",
    version="I",
    sequence="q",  # the slot with the higher one counts
    offset="q",
    is_all="i",
    doubtful_from="q",
    boot=f"{BOOT_SIZE}s",
)


class ConfirmedEnd(NamedTuple):
    """The content of a slot."""

    offset: int = 0
    """The log before this offset was confirmed."""
    is_all: bool = False
    """Whether everything in the log counts as confirmed, because no replica had to confirm it."""
    doubtful_from: int = NO_DOUBT
    """The offset at which a power failure may have cut the log; NO_DOUBT if it has not."""
    boot: bytes = NO_BOOT
    """The id of the machine's boot in which the file was last written."""


def encode_slot(end: ConfirmedEnd, sequence: int) -> bytes:
    """Return the bytes of the slot that are not zero."""
    fields = _SLOT.struct.pack(_MAGIC, _VERSION, sequence, *end)
    return fields + zlib.crc32(fields).to_bytes(4, "big")


def decode_slot(slot: bytes) -> tuple[int, ConfirmedEnd] | None:
    """Return sequence and content of a slot; None if it is torn or was never written."""
    fields, crc = slot[: _SLOT.size], slot[_SLOT.size : _SLOT.size + 4]
    if len(crc) < 4 or zlib.crc32(fields) != int.from_bytes(crc, "big"):
        return None
    magic, version, sequence, offset, is_all, doubtful_from, boot = _SLOT.struct.unpack(fields)
    if (magic, version) != (_MAGIC, _VERSION) or offset < 0:
        return None
    return sequence, ConfirmedEnd(offset, bool(is_all), doubtful_from, boot)


def decode_slots(content: bytes) -> list[tuple[int, ConfirmedEnd] | None]:
    """Return what :func:`decode_slot` returns for each slot of a file."""
    parts = (content[at : at + SLOT_SIZE] for at in range(0, CONFIRMED_SIZE, SLOT_SIZE))
    return [decode_slot(part) for part in parts]


def decode_confirmed(content: bytes) -> tuple[int, ConfirmedEnd] | None:
    """Return sequence and content of the newest slot of a file; None if there is none."""
    whole = [slot for slot in decode_slots(content) if slot is not None]
    return max(whole, key=lambda slot: slot[0]) if whole else None
