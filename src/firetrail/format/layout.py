"""The fixed-size structures of a store, each declared once, one field per line.

All integers are big-endian two's complement, as Java's ``ByteBuffer`` writes them. Offsets are
computed from the declarations, so that codecs and kernels share one description of the bytes.
"""

from collections.abc import Mapping
from struct import Struct, calcsize
from types import MappingProxyType


class Layout:
    """A sequence of named big-endian fields without padding."""

    __slots__ = ("offsets", "size", "struct")

    def __init__(self, **fields: str) -> None:
        offsets = {}
        codes = ">"
        for name, code in fields.items():
            offsets[name] = calcsize(codes)
            codes += code
        self.struct = Struct(codes)
        self.size = self.struct.size
        self.offsets: Mapping[str, int] = MappingProxyType(offsets)


RECORD_HEAD = Layout(
    total_size="i",  # whole record, this field included
    magic="I",
    body_crc="i",  # crc32 of the body & 0x7FFFFFFF
    queue_id="i",
    flag="i",
    queue_offset="q",
    physical_offset="q",
    sys_flag="i",
    born_time="q",
)
"""The fields before the born host (8 or 20 bytes), the store time and the store host."""

STORE_TIME = Layout(store_time="q")

RECORD_MIDDLE = Layout(reconsume_times="i", prepared_offset="q", body_length="i")
"""The fields between the store host and the body."""

HOST_V4_SIZE = 8
HOST_V6_SIZE = 20

RECORD_SIZE_MIN = RECORD_HEAD.size + STORE_TIME.size + 2 * HOST_V4_SIZE + RECORD_MIDDLE.size + 1 + 2
"""A record with IPv4 hosts, a one-byte topic length and nothing in body, topic and properties."""

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

BLANK = Layout(
    size="i",  # bytes from here to the end of the file
    magic="I",
)

BATCH_ITEM = Layout(
    total_size="i",
    magic="i",  # 0, clients do not fill it
    body_crc="i",  # 0, clients do not fill it
    flag="i",
    body_length="i",
)
"""The fields before the body of a message of a client batch; int16 + properties follow the body."""

UNIT = Layout(physical_offset="q", size="i", tags_code="q")

INDEX_HEADER = Layout(
    begin_timestamp="q",
    end_timestamp="q",
    begin_offset="q",
    end_offset="q",
    slot_count="i",  # slots in use
    entry_count="i",  # the next entry's number: 1 in an empty file
)

INDEX_SLOT = Layout(newest_entry="i")

INDEX_ENTRY = Layout(key_hash="i", physical_offset="q", seconds="i", previous="i")

COMPRESSED = 0x1
COMPRESSION_MASK = 0x700
"""The bits with the method of a compressed body. They are 0 in messages of RocketMQ 4, whose method
is zlib."""
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300
ZLIB_OR_GZIP = 47
"""The argument ``wbits`` with which :mod:`zlib` decompresses both of its formats. Remoting clients
write zlib; gRPC clients may send gzip, which RocketMQ stores with the flags of zlib."""
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
NO_QUEUE_OFFSET = TRANSACTION_PREPARED & TRANSACTION_ROLLBACK
"""The bit that only prepared and rolled back transactions have: their records take no queue offset
and get no unit."""
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20

PROPERTY_CRC_NAME = b"__CRC32#"
PROPERTY_CRC_DIGITS = 10
PROPERTY_CRC_SIZE = len(PROPERTY_CRC_NAME) + 1 + PROPERTY_CRC_DIGITS + 1
"""``__CRC32#`` ``\\x01`` ten digits ``\\x02``: the last bytes of the properties, if present."""
PROPERTY_CRC_MARK = PROPERTY_CRC_NAME + b"\x01"

MAX_TOPIC_V1 = 127
MAX_TOPIC_V2 = 32767
MAX_PROPERTIES = 32767


def takes_queue_offset(sys_flag: int) -> bool:
    """Return whether a record with these flags takes a queue offset and gets a unit."""
    return not sys_flag & NO_QUEUE_OFFSET
