"""What puts and gets answer with; the statuses are those of the Java store, name by name."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from firetrail.errors import (
    DiskFullError,
    FlushFailedError,
    IllegalMessageError,
    StoreError,
    StoreReadOnlyError,
)
from firetrail.format.hosts import Host
from firetrail.format.ids import encode_message_id
from firetrail.format.record import Blank, Record, decode_record


class PutStatus(Enum):
    """How a put ended."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"  # stored and visible, not known to be on disk
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"  # a sync failed: the store takes no more writes


_ERRORS: dict[PutStatus, type[StoreError]] = {
    PutStatus.SERVICE_NOT_AVAILABLE: StoreReadOnlyError,
    PutStatus.CREATE_MAPPED_FILE_FAILED: DiskFullError,
    PutStatus.FLUSH_DISK_TIMEOUT: FlushFailedError,
    PutStatus.UNKNOWN_ERROR: FlushFailedError,
}


class PutResult(NamedTuple):
    """Where a message, or the first of a batch, was stored. Sizes and times as in the record."""

    status: PutStatus
    queue_id: int = 0
    queue_offset: int = -1
    physical_offset: int = -1
    size: int = 0
    store_time: int = 0
    store_host: Host | None = None
    messages: int = 1
    detail: str = ""
    field: str = "message"

    @property
    def ok(self) -> bool:
        """Whether the message is stored as safely as the store was told to."""
        return self.status is PutStatus.PUT_OK

    @property
    def message_id(self) -> str | None:
        """The offset message id (of a batch: of its first message), None if nothing was stored."""
        if self.store_host is None:
            return None
        return encode_message_id(self.store_host, self.physical_offset)

    def require_ok(self) -> PutResult:
        """This result, or the error that its status stands for."""
        if self.ok:
            return self
        if self.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            raise IllegalMessageError(self.field, self.detail)
        raise _ERRORS.get(self.status, StoreError)(f"{self.status.value}: {self.detail}")


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
