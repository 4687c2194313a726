"""The numbers of ``layout`` and ``columns`` that kernels use, by short names.

Uncompiled kernels import them from here. For compiled ones, ``setup.py`` writes them as an enum of
C, where they cost nothing.
"""

from __future__ import annotations

from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.columns import Check, Stop
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.properties import DELAY, KEYS, TAGS, UNIQ_KEY


def _int32(value: int) -> int:
    """Return the signed number with the same 32 bits, as the kernels load it."""
    return value - 2**32 if value >= 2**31 else value


def _word(text: bytes) -> int:
    return int.from_bytes(text, "big")


MAGIC_V1 = _int32(layout.MAGIC_V1)
MAGIC_V2 = _int32(layout.MAGIC_V2)
MAGIC_BLANK = _int32(layout.MAGIC_BLANK)

# Record: its head, its middle (positions count from the start of each), limits and flags.
RECORD_MIN = layout.RECORD_SIZE_MIN
HEAD = layout.RECORD_HEAD.size
AT_MAGIC = layout.RECORD_HEAD.offsets["magic"]
AT_BODY_CRC = layout.RECORD_HEAD.offsets["body_crc"]
AT_QUEUE_ID = layout.RECORD_HEAD.offsets["queue_id"]
AT_FLAG = layout.RECORD_HEAD.offsets["flag"]
AT_QUEUE_OFFSET = layout.RECORD_HEAD.offsets["queue_offset"]
AT_PHYSICAL_OFFSET = layout.RECORD_HEAD.offsets["physical_offset"]
AT_SYS_FLAG = layout.RECORD_HEAD.offsets["sys_flag"]
AT_BORN_TIME = layout.RECORD_HEAD.offsets["born_time"]
STORE_TIME = layout.STORE_TIME.size
MIDDLE = layout.RECORD_MIDDLE.size
AT_PREPARED_OFFSET = layout.RECORD_MIDDLE.offsets["prepared_offset"]
AT_BODY_LENGTH = layout.RECORD_MIDDLE.offsets["body_length"]
HOST_V4 = layout.HOST_V4_SIZE
HOST_V6 = layout.HOST_V6_SIZE
BLANK = layout.BLANK.size
TOPIC_V1_MAX = layout.MAX_TOPIC_V1
TOPIC_V2_MAX = layout.MAX_TOPIC_V2
PROPERTIES_MAX = layout.MAX_PROPERTIES
BORN_V6 = layout.BORN_HOST_V6
STORE_V6 = layout.STORE_HOST_V6
TRANSACTION = layout.TRANSACTION_MASK
NO_QUEUE_OFFSET = layout.NO_QUEUE_OFFSET
ROLLBACK = layout.TRANSACTION_ROLLBACK

# Properties: the names that a scan looks for, in words of four letters and what is left.
NAME_KEYS = _word(KEYS.encode())
NAME_TAGS = _word(TAGS.encode())
NAME_DELA = _word(DELAY.encode()[:4])
NAME_Y_END = _word(DELAY.encode()[4:] + b"\x01")
NAME_UNIQ = _word(UNIQ_KEY.encode()[:4])
NAME__KEY = _word(UNIQ_KEY.encode()[4:])
CRC_SIZE = layout.PROPERTY_CRC_SIZE
CRC_DIGITS = layout.PROPERTY_CRC_DIGITS
CRC_NAME_1 = _word(layout.PROPERTY_CRC_NAME[:4])
CRC_NAME_2 = _word(layout.PROPERTY_CRC_NAME[4:])

SCHEDULE_SIZE = len(SCHEDULE_TOPIC)

# Item of a client batch
ITEM_HEAD = layout.BATCH_ITEM.size
ITEM_FLAG = layout.BATCH_ITEM.offsets["flag"]
ITEM_BODY_LENGTH = layout.BATCH_ITEM.offsets["body_length"]

# Consume-queue unit
UNIT = layout.UNIT.size
UNIT_SIZE = layout.UNIT.offsets["size"]
UNIT_TAGS_CODE = layout.UNIT.offsets["tags_code"]

# Index file
INDEX_HEADER = layout.INDEX_HEADER.size
INDEX_BEGIN_TIME = layout.INDEX_HEADER.offsets["begin_timestamp"]
INDEX_END_TIME = layout.INDEX_HEADER.offsets["end_timestamp"]
INDEX_BEGIN_OFFSET = layout.INDEX_HEADER.offsets["begin_offset"]
INDEX_END_OFFSET = layout.INDEX_HEADER.offsets["end_offset"]
INDEX_SLOT_COUNT = layout.INDEX_HEADER.offsets["slot_count"]
INDEX_ENTRY_COUNT = layout.INDEX_HEADER.offsets["entry_count"]
SLOT = layout.INDEX_SLOT.size
ENTRY = layout.INDEX_ENTRY.size
ENTRY_OFFSET = layout.INDEX_ENTRY.offsets["physical_offset"]
ENTRY_SECONDS = layout.INDEX_ENTRY.offsets["seconds"]
ENTRY_PREVIOUS = layout.INDEX_ENTRY.offsets["previous"]

# Columns of a scan
COLUMNS = len(col.COLUMN_NAMES)
COL_PHYSICAL_OFFSET = col.PHYSICAL_OFFSET
COL_SIZE = col.SIZE
COL_QUEUE_ID = col.QUEUE_ID
COL_QUEUE_OFFSET = col.QUEUE_OFFSET
COL_STORE_TIME = col.STORE_TIME
COL_BORN_TIME = col.BORN_TIME
COL_SYS_FLAG = col.SYS_FLAG
COL_FLAG = col.FLAG
COL_RECONSUME_TIMES = col.RECONSUME_TIMES
COL_PREPARED_OFFSET = col.PREPARED_OFFSET
COL_BODY_CRC = col.BODY_CRC
COL_TOPIC_AT = col.TOPIC_AT
COL_TOPIC_SIZE = col.TOPIC_SIZE
COL_TOPIC_HASH = col.TOPIC_HASH
COL_BODY_AT = col.BODY_AT
COL_BODY_SIZE = col.BODY_SIZE
COL_PROPERTIES_AT = col.PROPERTIES_AT
COL_PROPERTIES_SIZE = col.PROPERTIES_SIZE
COL_TAGS_AT = col.TAGS_AT
COL_TAGS_SIZE = col.TAGS_SIZE
COL_TAGS_HASH = col.TAGS_HASH
COL_KEYS_AT = col.KEYS_AT
COL_KEYS_SIZE = col.KEYS_SIZE
COL_UNIQUE_KEY_AT = col.UNIQUE_KEY_AT
COL_UNIQUE_KEY_SIZE = col.UNIQUE_KEY_SIZE
COL_DELAY_LEVEL = col.DELAY_LEVEL

CHECK_NONE = int(Check.NONE)
CHECK_RECORD = int(Check.RECORD)
CHECK_SEALED = int(Check.SEALED)

STOP_LIMIT = int(Stop.LIMIT)
STOP_FULL = int(Stop.FULL)
STOP_BLANK = int(Stop.BLANK)
STOP_EMPTY = int(Stop.EMPTY)
STOP_MAGIC = int(Stop.MAGIC)
STOP_SIZE = int(Stop.SIZE)
STOP_CUT = int(Stop.CUT)
STOP_PHYSICAL_OFFSET = int(Stop.PHYSICAL_OFFSET)
STOP_BODY_LENGTH = int(Stop.BODY_LENGTH)
STOP_TOPIC_LENGTH = int(Stop.TOPIC_LENGTH)
STOP_PROPERTIES_LENGTH = int(Stop.PROPERTIES_LENGTH)
STOP_BODY_CRC = int(Stop.BODY_CRC)
STOP_PROPERTY_CRC = int(Stop.PROPERTY_CRC)
