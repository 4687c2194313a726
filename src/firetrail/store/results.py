"""What puts and gets answer with; the statuses are those of the Java store, name by name."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from firetrail.errors import StoreError
from firetrail.format.kernels.append import PutResult, PutStatus
from firetrail.format.record import Blank, Record, decode_record

__all__ = ["GetResult", "GetStatus", "PutResult", "PutStatus", "decode_message"]


class GetStatus(Enum):
    """How a get ended."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetResult(NamedTuple):
    """The records found, as slices of the log, and where to go on.

    Iterating over :meth:`messages` decodes them; ``buffers`` are the stored bytes as they are.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    buffers: tuple[memoryview, ...] | list[memoryview] = ()
    size: int = 0
    suggest_slave: bool = False

    def messages(self) -> Iterator[Record]:
        """The messages one after the other, each decoded and its body checked when asked for."""
        for buffer in self.buffers:
            yield decode_message(buffer)


def decode_message(buffer: memoryview) -> Record:
    """The message in a slice of the log that holds one whole record."""
    record = decode_record(buffer)
    if isinstance(record, Blank):
        raise StoreError("the slice holds the end mark of a file, not a message")
    return record
