"""The outcomes of puts: for each status the error, the response code, and whether to try again."""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from firetrail.errors import (
    DiskFullError,
    FlushFailedError,
    IllegalMessageError,
    NotReplicatedError,
    PropertiesTooLongError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreReadOnlyError,
)


class PutStatus(Enum):
    """The status of a put; the names are those of the Java store."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"  # stored and readable, not known to be on disk
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"  # stored, not confirmed in time
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"  # stored, but too few replicas are connected
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"  # the disk failed, before the store or in the sync after it


class PutOutcome(NamedTuple):
    """The meaning of a status for callers in the same process and for clients of a broker."""

    error: type[StoreError] | None
    """The error that a put raises; whether it is retriable is an attribute of its class."""
    code: int
    """The response code of a broker. If nothing is stored, it is that of the error, so that every
    request that fails with the error gets the same code, whether or not it is a send."""
    is_stored: bool = False
    """Whether the message is in the log although it is not confirmed."""


def _refused(error: type[StoreError]) -> PutOutcome:
    return PutOutcome(error, error.code)


_SUCCESS, _FLUSH_DISK_TIMEOUT, _SLAVE_NOT_AVAILABLE, _FLUSH_SLAVE_TIMEOUT = 0, 10, 11, 12

OUTCOMES: Mapping[PutStatus, PutOutcome] = {
    PutStatus.PUT_OK: PutOutcome(None, _SUCCESS, is_stored=True),
    PutStatus.FLUSH_DISK_TIMEOUT: PutOutcome(FlushFailedError, _FLUSH_DISK_TIMEOUT, is_stored=True),
    PutStatus.FLUSH_SLAVE_TIMEOUT: PutOutcome(
        NotReplicatedError, _FLUSH_SLAVE_TIMEOUT, is_stored=True
    ),
    PutStatus.SLAVE_NOT_AVAILABLE: PutOutcome(
        NotReplicatedError, _SLAVE_NOT_AVAILABLE, is_stored=True
    ),
    PutStatus.SERVICE_NOT_AVAILABLE: _refused(StoreReadOnlyError),
    PutStatus.CREATE_MAPPED_FILE_FAILED: _refused(DiskFullError),  # filled since it was measured
    PutStatus.MESSAGE_ILLEGAL: _refused(IllegalMessageError),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: _refused(PropertiesTooLongError),
    PutStatus.OS_PAGE_CACHE_BUSY: _refused(StoreBusyError),
    PutStatus.UNKNOWN_ERROR: _refused(FlushFailedError),
}
"""Whether the message of an UNKNOWN_ERROR is stored depends on when the disk failed: its result has
a store host if it is, and otherwise the put raises StoreError."""
UNCONFIRMED = frozenset(
    status
    for status, outcome in OUTCOMES.items()
    if outcome.is_stored and outcome.error is not None
)
"""The message is in the log, but the disk or the replicas have not confirmed it."""

_REFUSALS: Mapping[type, PutStatus] = {
    **{out.error: status for status, out in OUTCOMES.items() if out.error and not out.is_stored},
    StoreClosedError: PutStatus.SERVICE_NOT_AVAILABLE,
}


def refused_status(error: Exception) -> PutStatus:
    """Return the status of a put after which nothing was stored: that of its error's class."""
    known = (_REFUSALS[kind] for kind in type(error).__mro__ if kind in _REFUSALS)
    return next(known, PutStatus.UNKNOWN_ERROR)
