"""What the store's settings must have in common, and the limits that follow from the format."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from firetrail.format import layout
from firetrail.format.index import index_file_size
from firetrail.settings.table import INT32_MAX

RECORD_SLACK = 64 << 10
"""How much longer than ``max_message_size`` a whole record may be: topic, properties and fields."""

_LEAST_RECORD = (
    layout.RECORD_HEAD.size
    + layout.STORE_TIME.size
    + layout.RECORD_MIDDLE.size
    + 2 * layout.HOST_V6_SIZE
    + 2  # topic length and a topic of one character
    + 2  # properties length
    + layout.PROPERTY_CRC_SIZE
)
"""Longest that a record without properties and with the shortest topic is around its body."""


MOST_SLOTS = (INT32_MAX - index_file_size(0, 2)) // layout.INDEX_SLOT.size
"""Slots that leave room for one entry in a file that the Java store can still map."""


class FlushMode(enum.Enum):
    """When a put is acknowledged: once it is written, or only once it is on the disk."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


class BrokerRole(enum.Enum):
    """A slave takes no puts of its own."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class Conflict(NamedTuple):
    """A setting that does not go with the others, and the nearest value that would."""

    name: str
    nearest: Any
    detail: str


def body_room(commit_log_file_size: int) -> int:
    """Longest body that a log file has room for, whatever the hosts."""
    return commit_log_file_size - layout.BLANK.size - _LEAST_RECORD


def conflicts(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """What is wrong with settings that are each allowed, but not together."""
    log_size, slots = values["commit_log_file_size"], values["index_slots"]
    room = body_room(log_size)
    if values["max_message_size"] > room:
        yield Conflict(
            "max_message_size",
            room,
            f"a log file of commit_log_file_size = {log_size} bytes has room for {room}",
        )
    entries = (INT32_MAX - index_file_size(slots, 0)) // layout.INDEX_ENTRY.size
    if values["index_entries"] > entries:
        yield Conflict(
            "index_entries",
            entries,
            f"with index_slots = {slots} at most {entries}, for the Java store to map the file",
        )
    warning = values["disk_warning_ratio"]
    if values["disk_clean_forcibly_ratio"] > warning:
        yield Conflict(
            "disk_clean_forcibly_ratio",
            warning,
            f"at most disk_warning_ratio = {warning}, or puts stop before room is made for them",
        )
    if values["write_buffer_pool"] and (
        values["flush"] is not FlushMode.ASYNC or values["role"] is BrokerRole.SLAVE
    ):
        yield Conflict("write_buffer_pool", False, "needs ASYNC_FLUSH and a master")
