"""The checkpoint: the store times up to which log, queues and index are known to be on disk.

It consists of a few int64 at the start of a 4096-byte file; the rest is zero. Later versions added
fields at the end; older versions leave them zero. Page: ``docs/format/checkpoint.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from firetrail.format.layout import Layout
from firetrail.format.values.layout_codec import not_negative, pack_fields, require, unpack_fields

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CHECKPOINT = Layout(
    physic_timestamp="q",
    logics_timestamp="q",
    index_timestamp="q",
    master_flushed_offset="q",  # since 5.0
    confirm_offset="q",  # since 5.1
    logics_offset="q",  # since 5.5
)
CHECKPOINT_SIZE = 4096
SAFETY_MARGIN_MS = 3000
"""The time before the checkpoint at which recovery starts: its fields are not written
atomically."""


class Checkpoint(NamedTuple):
    """Store times (ms) of the newest flushed message per kind of file, and three log offsets.

    ``logics_offset`` is the offset of the newest message whose unit is on disk.
    """

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    logics_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Return the time before which every message is on disk, in the log and in its queue."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - SAFETY_MARGIN_MS)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """4096 bytes."""
    return pack_fields(CHECKPOINT, "checkpoint", checkpoint).ljust(CHECKPOINT_SIZE, b"\0")


def decode_checkpoint(buffer: ReadableBuffer) -> Checkpoint:
    """Decode the content of the file. Bytes after the known fields are ignored."""
    require(CHECKPOINT_SIZE, "checkpoint", buffer, 0)
    values = unpack_fields(CHECKPOINT, "checkpoint", buffer, 0)
    not_negative(CHECKPOINT, "checkpoint", 0, values, Checkpoint._fields)
    return Checkpoint._make(values)
