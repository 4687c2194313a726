"""The consume-queue unit: 20 bytes with the position of message *n* of a queue in the log.

Unit *n* is at byte ``20 * n`` of the queue. Page: ``docs/format/consume-queue.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from firetrail.format.layout import UNIT
from firetrail.format.values.layout_codec import pack_fields, unpack_fields

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

UNIT_SIZE = UNIT.size


class ConsumeQueueUnit(NamedTuple):
    """The position of a message (``physical_offset``, ``size``), and its tags code.

    The tags code is the hash of the TAGS property, or 0 without one. For a message that waits in
    the schedule topic it is the time (ms) when the message is due.
    """

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_written(self) -> bool:
        """Return whether this is a unit; zeros mark the end of the written units."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def end_offset(self) -> int:
        """Return the physical offset after the message."""
        return self.physical_offset + self.size


PRE_BLANK = ConsumeQueueUnit(physical_offset=0, size=0x7FFFFFFF, tags_code=0)
"""The unit that fills a queue's first file up to its first unit, if that is not unit 0 of the
file."""


def encode_unit(unit: ConsumeQueueUnit) -> bytes:
    """20 bytes."""
    return pack_fields(UNIT, "unit", unit)


def decode_unit(buffer: ReadableBuffer, at: int = 0) -> ConsumeQueueUnit:
    """Decode the unit at byte ``at``. Any 20 bytes decode; ``is_written`` is True if they are a
    unit."""
    return ConsumeQueueUnit._make(unpack_fields(UNIT, "unit", buffer, at))
