"""The positions known to be on disk: Java's checkpoint and Firetrail's watermark.

The checkpoint of RocketMQ contains store times; recovery by them depends on the clock. The
watermark (``firetrail.watermark``, which the Java store ignores) contains offsets::

    slot 0   512 bytes  ┐ written in turn, so a torn write leaves the other one;
    slot 1   512 bytes  ┘ the higher sequence number counts

    slot     magic "FTWM", version, sequence, clean, durable offset, dispatched offset, last
             record, last store time, the three times of the checkpoint, CRC-32 of all before

All records before the durable offset are on disk and were good. Queues and index on disk cover all
records before the dispatched offset. A watermark is valid only if no other program has written the
store since: the checkpoint then still holds the times that the watermark repeats.
"""

import zlib
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import DiskFullError, FormatError
from firetrail.format.files.checkpoint import (
    CHECKPOINT_SIZE,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from firetrail.format.layout import Layout
from firetrail.format.names import CHECKPOINT, WATERMARK
from firetrail.system import NO_SPACE, System

SLOT_SIZE = 512
_MAGIC = int.from_bytes(b"FTWM", "big")
_VERSION = 1
_SLOT = Layout(
    magic="I",
    version="I",
    sequence="q",
    clean="i",
    durable_offset="q",
    dispatched_offset="q",
    last_record_offset="q",
    last_store_time="q",
    physic_timestamp="q",
    logics_timestamp="q",
    index_timestamp="q",
)


class Watermark(NamedTuple):
    """The position up to which the store is known to be on disk, and whether it was closed."""

    clean: bool = False
    durable_offset: int = 0
    dispatched_offset: int = 0
    last_record_offset: int = -1
    last_store_time: int = 0


def encode_watermark(watermark: Watermark, checkpoint: Checkpoint, sequence: int) -> bytes:
    """Return the bytes of one slot."""
    fields = _SLOT.struct.pack(
        _MAGIC, _VERSION, sequence, watermark.clean, *watermark[1:], *checkpoint[:3]
    )
    return (fields + zlib.crc32(fields).to_bytes(4, "big")).ljust(SLOT_SIZE, b"\0")


class WatermarkSlot(NamedTuple):
    """The content of a slot; of two slots, the one with the higher sequence number is valid."""

    sequence: int
    watermark: Watermark
    times: tuple[int, ...]  # the three times of the checkpoint that it belongs to


def decode_slot(slot: bytes) -> WatermarkSlot | None:
    """Return the content of a slot, or None if it is torn or was never written."""
    fields = slot[: _SLOT.size]
    if len(fields) < _SLOT.size:
        return None
    if zlib.crc32(fields) != int.from_bytes(slot[_SLOT.size : _SLOT.size + 4], "big"):
        return None
    magic, version, sequence, clean, *offsets = _SLOT.struct.unpack(fields)
    if (magic, version) != (_MAGIC, _VERSION):
        return None
    return WatermarkSlot(sequence, Watermark(bool(clean), *offsets[:4]), tuple(offsets[4:]))


def decode_watermark(slot: bytes, checkpoint: Checkpoint) -> tuple[int, Watermark] | None:
    """Return sequence and watermark of a slot; None if torn or of another checkpoint."""
    found = decode_slot(slot)
    return found[:2] if found is not None and found.times == checkpoint[:3] else None


def read_checkpoint(system: System, root: Path) -> Checkpoint:
    """Return the checkpoint of a store; all zero if it is missing or unreadable."""
    try:
        return decode_checkpoint(system.files.read(root / CHECKPOINT))
    except (FileNotFoundError, FormatError):
        return Checkpoint()


def shortened_checkpoint(old: Checkpoint, end: int, last_record: int, newest: int) -> Checkpoint:
    """Return the checkpoint of a log that was cut.

    Args:
        old: The checkpoint before.
        end: Where the log ends now.
        last_record: The physical offset of its last record; -1 if there is none.
        newest: The store time of that record; 0 if there is none.
    """
    times = {name: min(getattr(old, name), newest) for name in Checkpoint._fields[:3]}
    return old._replace(
        **times,
        confirm_offset=min(old.confirm_offset, end),
        logics_offset=min(old.logics_offset, max(last_record, 0)),
    )


def read_watermark(system: System, root: Path) -> Watermark | None:
    """Return the newest watermark, or None if none is valid."""
    found = _read_slots(system, root, read_checkpoint(system, root))
    return max(found)[1] if found else None


def _read_slots(system: System, root: Path, checkpoint: Checkpoint) -> list[tuple[int, Watermark]]:
    try:
        content = system.files.read(root / WATERMARK)
    except FileNotFoundError:
        return []
    slots = (content[at : at + SLOT_SIZE] for at in (0, SLOT_SIZE))
    return [slot for slot in (decode_watermark(s, checkpoint) for s in slots) if slot]


class WatermarkFile:
    """Writes checkpoint and watermark."""

    def __init__(self, system: System, root: Path) -> None:
        self._files = system.files
        self.checkpoint = read_checkpoint(system, root)
        found = _read_slots(system, root, self.checkpoint)
        self._sequence = max(found)[0] if found else 0
        self._checkpoint_file = self._open(root / CHECKPOINT, CHECKPOINT_SIZE)
        try:
            self._watermark_file = self._open(root / WATERMARK, 2 * SLOT_SIZE)
        except BaseException:
            self._files.close(self._checkpoint_file)
            raise
        self._written: tuple[Watermark, Checkpoint] | None = None

    def _open(self, path: Path, size: int) -> int:
        descriptor = self._files.open(path, writable=True, create=True)
        try:
            self._files.set_size(descriptor, size)
            self._files.allocate(descriptor, 0, size)
            self._files.sync_folder(path.parent)
        except BaseException:
            self._files.close(descriptor)
            raise
        return descriptor

    def write(self, watermark: Watermark, **marks: int) -> None:
        """Make the watermark and these fields of the checkpoint durable, if they have changed.

        After a DiskFullError the previous ones are still valid; an OSError of the sync is final.
        """
        checkpoint = self.checkpoint._replace(**marks)
        if self._written == (watermark, checkpoint):
            return
        # The watermark comes first: until the checkpoint follows, the previous slot is valid.
        sequence = self._sequence + 1
        slot = encode_watermark(watermark, checkpoint, sequence)
        self._write(self._watermark_file, slot, sequence % 2 * SLOT_SIZE)
        if checkpoint != self.checkpoint or self._written is None:
            self._write(self._checkpoint_file, encode_checkpoint(checkpoint), 0)
            self.checkpoint = checkpoint
        self._sequence = sequence  # only now: the other slot must not be overwritten before
        self._written = (watermark, checkpoint)

    def _write(self, descriptor: int, content: bytes, offset: int) -> None:
        try:
            self._files.write(descriptor, [content], offset)
        except OSError as error:
            if error.errno in NO_SPACE:  # some file systems need space to overwrite
                raise DiskFullError(f"no space to write the watermark: {error}") from error
            raise
        self._files.sync(descriptor)

    def close(self) -> None:
        """Close both files."""
        self._files.close(self._checkpoint_file)
        self._files.close(self._watermark_file)
