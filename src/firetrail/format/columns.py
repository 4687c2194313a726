"""What a scan of the log yields: one row a record, one int64 column a field.

Positions (``*_at``) count from the start of the scanned buffer, so that a reader slices topic,
body and properties out of it without decoding the rest.
"""

from __future__ import annotations

from array import array
from enum import IntEnum

COLUMN_NAMES = (
    "physical_offset",
    "size",
    "queue_id",
    "queue_offset",
    "store_time",
    "born_time",
    "sys_flag",
    "flag",
    "reconsume_times",
    "prepared_offset",
    "body_crc",
    "topic_at",
    "topic_size",
    "topic_hash",
    "body_at",
    "body_size",
    "properties_at",
    "properties_size",
    "tags_at",
    "tags_size",
    "tags_hash",
    "keys_at",
    "keys_size",
    "unique_key_at",
    "unique_key_size",
    "delay_level",
)
(
    PHYSICAL_OFFSET,
    SIZE,
    QUEUE_ID,
    QUEUE_OFFSET,
    STORE_TIME,
    BORN_TIME,
    SYS_FLAG,
    FLAG,
    RECONSUME_TIMES,
    PREPARED_OFFSET,
    BODY_CRC,
    TOPIC_AT,
    TOPIC_SIZE,
    TOPIC_HASH,
    BODY_AT,
    BODY_SIZE,
    PROPERTIES_AT,
    PROPERTIES_SIZE,
    TAGS_AT,
    TAGS_SIZE,
    TAGS_HASH,
    KEYS_AT,
    KEYS_SIZE,
    UNIQUE_KEY_AT,
    UNIQUE_KEY_SIZE,
    DELAY_LEVEL,
) = range(len(COLUMN_NAMES))


class Check(IntEnum):
    """How much of a record's checksums a scan verifies."""

    NONE = 0
    BODY = 1
    RECORD = 2  # the property CRC over the whole record where there is one, else the body's
    SEALED = 3  # the property CRC, which no record lacks


class Stop(IntEnum):
    """Why a scan ended. From MAGIC on, the bytes there are not a good record."""

    LIMIT = 0  # the end of the range
    FULL = 1  # no row left in the columns
    BLANK = 2  # the record that fills up a file: go on with the next one
    EMPTY = 3  # zeros: nothing was written here
    MAGIC = 4
    SIZE = 5
    CUT = 6  # the record reaches beyond the range
    PHYSICAL_OFFSET = 7
    BODY_LENGTH = 8
    TOPIC_LENGTH = 9
    PROPERTIES_LENGTH = 10
    BODY_CRC = 11
    PROPERTY_CRC = 12

    @property
    def is_damage(self) -> bool:
        """Whether the scan met bytes that are neither a record nor unwritten."""
        return self >= Stop.MAGIC


class Columns:
    """Room for ``capacity`` rows; reused from scan to scan.

    ``table`` holds the columns one behind the other: cell ``column * capacity + row``. A large
    round capacity gets a few rows more: columns at distances of many powers of two would push each
    other out of the processor's first cache, and a scan take twice as long.
    """

    __slots__ = ("capacity", "table")

    def __init__(self, capacity: int) -> None:
        if capacity % 64 == 0 and capacity:
            capacity += 8
        self.capacity = capacity
        self.table = memoryview(array("q", bytes(8 * len(COLUMN_NAMES) * capacity)))

    def column(self, column: int) -> memoryview:
        """All rows of one column."""
        return self.table[column * self.capacity : (column + 1) * self.capacity]

    def row(self, index: int) -> dict[str, int]:
        """One record's fields by name."""
        cells = self.table[index :: self.capacity]
        return dict(zip(COLUMN_NAMES, cells, strict=True))
