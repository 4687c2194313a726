"""The result of a scan of the log: one row per record, one int64 column per field.

Positions (``*_at``) count from the start of the scanned buffer, so that a reader slices topic,
body and properties out of it without decoding the rest.
"""

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
    """The extent to which a scan verifies the checksums of a record."""

    NONE = 0
    BODY = 1
    RECORD = 2  # the property CRC over the whole record where there is one, else the body's
    SEALED = 3  # the property CRC, which no record lacks


class Stop(IntEnum):
    """The reason why a scan ended. MAGIC and the reasons after it mean that a record is damaged."""

    LIMIT = 0  # the end of the range
    FULL = 1  # no row left in the columns
    BLANK = 2  # the record that fills a file: continue with the next file
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
        """Return whether the scan ended at bytes that are neither a record nor unwritten."""
        return self >= Stop.MAGIC


class Columns:
    """A table of ``capacity`` rows, which is reused from scan to scan.

    ``table`` contains the columns in sequence: cell ``column * capacity + row``. A capacity that is
    a multiple of 64 gets a few more rows: otherwise the columns would compete for the same lines of
    the processor's first-level cache, and a scan would take twice as long.
    """

    __slots__ = ("capacity", "table")

    def __init__(self, capacity: int) -> None:
        if capacity % 64 == 0 and capacity:
            capacity += 8
        self.capacity = capacity
        self.table = memoryview(array("q", bytes(8 * len(COLUMN_NAMES) * capacity)))

    def column(self, column: int) -> memoryview:
        """Return all rows of one column."""
        return self.table[column * self.capacity : (column + 1) * self.capacity]

    def row(self, index: int) -> dict[str, int]:
        """Return the fields of one record by name."""
        cells = self.table[index :: self.capacity]
        return dict(zip(COLUMN_NAMES, cells, strict=True))
