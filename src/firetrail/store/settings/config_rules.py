"""Rules between the settings of a store, and the limits that follow from the format."""

import enum
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from firetrail.format import layout
from firetrail.format.files.index import index_file_size
from firetrail.format.values.integers import INT32_MAX

RECORD_SLACK = 64 << 10
"""The bytes by which a whole record may exceed ``max_message_size``: topic, properties and
fields."""

_LEAST_RECORD = (
    layout.RECORD_HEAD.size
    + layout.STORE_TIME.size
    + layout.RECORD_MIDDLE.size
    + 2 * layout.HOST_V6_SIZE
    + 2  # topic length and a topic of one character
    + 2  # properties length
    + layout.PROPERTY_CRC_SIZE
)
"""Bytes around the body of a record with the shortest topic and no properties, at most."""


MOST_SLOTS = (INT32_MAX - index_file_size(0, 2)) // layout.INDEX_SLOT.size
"""Slots that leave room for one entry in a file that the Java store can still map."""


class FlushMode(enum.Enum):
    """The time at which a put is acknowledged: after the write, or after the sync."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


class BrokerRole(enum.Enum):
    """The replication role in RocketMQ; a slave refuses puts."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class Conflict(NamedTuple):
    """A setting that contradicts others, and the nearest value that does not."""

    name: str
    nearest: Any
    detail: str


def body_room(commit_log_file_size: int) -> int:
    """Return the longest body that fits into a log file, with hosts of any kind."""
    return commit_log_file_size - layout.BLANK.size - _LEAST_RECORD


def relocated(root: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return folders below the configured ``root`` as relative paths.

    A store is used in the folder that it is opened with, which may be a copy somewhere else.
    """
    below = PurePath(root.strip())
    return tuple(
        str(PurePath(folder).relative_to(below))
        if PurePath(folder).is_relative_to(below) and PurePath(folder) != below
        else folder
        for folder in folders
    )


def conflicts(values: Mapping[str, Any], shown: Callable[[str], str] = str) -> Iterator[Conflict]:
    """Yield the settings that are valid individually but not together.

    Args:
        values: The settings by name.
        shown: Returns the key of a setting for the reader. Default: its name.
    """
    log_size, slots = values["commit_log_file_size"], values["index_slots"]
    room = body_room(log_size)
    if values["max_message_size"] > room:
        yield Conflict(
            "max_message_size",
            room,
            f"a log file of {shown('commit_log_file_size')} = {log_size} bytes has room for {room}",
        )
    entries = (INT32_MAX - index_file_size(slots, 0)) // layout.INDEX_ENTRY.size
    if values["index_entries"] > entries:
        yield Conflict(
            "index_entries",
            entries,
            f"with {shown('index_slots')} = {slots} at most {entries}, or the Java store cannot "
            "map the file",
        )
    warning = values["disk_warning_ratio"]
    if values["disk_clean_forcibly_ratio"] > warning:
        yield Conflict(
            "disk_clean_forcibly_ratio",
            warning,
            f"at most {shown('disk_warning_ratio')} = {warning}; otherwise puts stop before files "
            "are deleted",
        )
    if values["write_buffer_pool"] and (
        values["flush"] is not FlushMode.ASYNC or values["role"] is BrokerRole.SLAVE
    ):
        yield Conflict("write_buffer_pool", False, "needs ASYNC_FLUSH and a master")
