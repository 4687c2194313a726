"""Messages and logs made without the kernels, to hold the kernels against.

Everything here is written the slow and obvious way, with ``struct`` and ``zlib`` alone.
"""

from __future__ import annotations

import ctypes
import mmap
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import pack

from hypothesis import strategies as st

from firetrail.format import layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.derive import ENTRIES_PER_RECORD_MAX
from firetrail.format.kernels.encode import RecordFields, RecordWriter
from firetrail.format.kernels.scan import scan
from firetrail.format.properties import DELAY, KEYS, TAGS, UNIQ_KEY, decode_properties
from firetrail.format.record import Record, decode_record
from firetrail.format.values.javahash import java_hash, java_text

ANY_RECORD = (Check.NONE, Check.BODY, Check.RECORD)
"""The checks that records with and without a property CRC pass."""
V4 = bytes([10, 1, 2, 3]) + pack(">i", 50001)
V6 = bytes(range(16)) + pack(">i", 65535)


@dataclass(frozen=True)
class Draft:
    """The parts of a record, except for its position."""

    body: bytes = b"body"
    topic: bytes = b"topic"
    properties: bytes = b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02"
    queue_id: int = 3
    flag: int = 7
    queue_offset: int = 5
    sys_flag: int = 0
    born_time: int = 1_600_000_000_123
    born_host: bytes = V4
    store_time: int = 1_700_000_000_456
    store_host: bytes = V4
    reconsume_times: int = 2
    prepared_offset: int = 11
    property_crc: bool = False

    @property
    def flags(self) -> int:
        return (
            self.sys_flag
            | (layout.BORN_HOST_V6 if len(self.born_host) == 20 else 0)
            | (layout.STORE_HOST_V6 if len(self.store_host) == 20 else 0)
        )

    @property
    def size(self) -> int:
        return len(self.pack(0))

    def pack(self, offset: int) -> bytes:
        """Return the record for the physical ``offset``."""
        properties = self.properties + (bytes(20) if self.property_crc else b"")
        long_topic = len(self.topic) > 127
        tail = b"".join(
            (
                pack(">iqqi", self.flag, self.queue_offset, offset, self.flags),
                pack(">q", self.born_time),
                self.born_host,
                pack(">q", self.store_time),
                self.store_host,
                pack(">iqi", self.reconsume_times, self.prepared_offset, len(self.body)),
                self.body,
                pack(">H" if long_topic else ">B", len(self.topic)),
                self.topic,
                pack(">H", len(properties)),
                properties,
            )
        )
        magic = layout.MAGIC_V2 if long_topic else layout.MAGIC_V1
        crc = zlib.crc32(self.body) & 0x7FFFFFFF
        record = pack(">IIii", 16 + len(tail), magic, crc, self.queue_id) + tail
        return self._sealed(record) if self.property_crc else record

    @staticmethod
    def _sealed(record: bytes) -> bytes:
        digits = f"{zlib.crc32(record[:-20]) & 0x7FFFFFFF:010d}"[::-1]
        return record[:-20] + f"__CRC32#\x01{digits}\x02".encode()

    def fields(self, offset: int) -> RecordFields:
        return RecordFields(
            self.topic,
            self.born_host,
            self.store_host,
            body=self.body,
            properties=self.properties + (bytes(20) if self.property_crc else b""),
            queue_id=self.queue_id,
            flag=self.flag,
            queue_offset=self.queue_offset,
            physical_offset=offset,
            sys_flag=self.flags,
            born_time=self.born_time,
            store_time=self.store_time,
            reconsume_times=self.reconsume_times,
            prepared_offset=self.prepared_offset,
        )

    def write(self, writer: RecordWriter, at: int, offset: int) -> int:
        fields = self.fields(offset)
        size: int = fields.size
        writer.write(at, fields)
        if self.property_crc:
            writer.seal(at, size)
        return size


def pack_log(drafts: Sequence[Draft], base: int = 0) -> bytes:
    """Return the records one after the other, the first at physical offset ``base``."""
    log = bytearray()
    for draft in drafts:
        log += draft.pack(base + len(log))
    return bytes(log)


def scan_all(
    data: bytes | bytearray | memoryview,
    base: int = 0,
    check: Check = Check.BODY,
    capacity: int = 64,
) -> tuple[Columns, int, int, Stop]:
    """(columns, rows, position, stop) of a scan over all of ``data``."""
    columns = Columns(capacity)
    rows, at, stop = scan(data, 0, len(data), base, columns.table, check)
    return columns, rows, at, Stop(stop)


def java_level(text: str) -> int:
    """Return the level that ``Integer.parseInt`` reads, or 0 if it reads none."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        return 0
    level = int(text)
    return level if 0 < level < 2**31 else 0


def assert_row(data: bytes, at: int, row: dict[str, int]) -> int:
    """Check a row against the record at ``at``; the record's end."""
    record = decode_record(data, at, check_crc=False)
    assert isinstance(record, Record)
    for name in (
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
    ):
        assert row[name] == getattr(record, name), name

    def part(name: str) -> bytes:
        return data[row[f"{name}_at"] : row[f"{name}_at"] + row[f"{name}_size"]]

    assert part("body") == record.body
    assert java_text(part("topic")) == record.topic
    assert row["topic_hash"] == java_hash(record.topic)
    assert part("properties") == record.raw_properties
    found = decode_properties(record.raw_properties)
    for column, name in (("tags", TAGS), ("keys", KEYS), ("unique_key", UNIQ_KEY)):
        if row[f"{column}_size"]:
            assert java_text(part(column)) == found[name]
        else:
            assert name not in found
    assert row["tags_hash"] == java_hash(found.get(TAGS, ""))
    assert row["delay_level"] == java_level(found.get(DELAY, ""))
    return at + record.size


def entry_room(count: int = ENTRIES_PER_RECORD_MAX) -> array[int]:
    """An empty array for the index entries of a scan."""
    return array("q", bytes(24 * count))


def fenced(data: bytes | bytearray, *, front: bool = False) -> memoryview:
    """Return a copy of ``data`` at the edge of accessible memory.

    An access to the byte after it (with ``front``: before it) crashes the process.
    """
    page = mmap.PAGESIZE
    room = -(-max(len(data), 1) // page) * page
    area = mmap.mmap(-1, room + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(start, page, 0) == protect(start + page + room, page, 0) == 0
    at = page if front else page + room - len(data)
    inside = memoryview(area)[at : at + len(data)]
    inside[:] = data
    return inside


int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12
)
short_bytes = st.binary(max_size=40)
_hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
_names = st.one_of(
    st.sampled_from(
        ["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "KEY", "TAGSX", "UNIQ_KEX", "DELAX", "WAIT", ""]
    ),
    texts,
)
_values = st.one_of(
    texts,
    st.sampled_from(["k1 k2", " a  b ", "3", "18", "0", "-4", "+2", "2147483647", "2147483648"]),
    st.text("0123456789", max_size=12),
)
_items = st.one_of(
    st.tuples(_names, _values).map(lambda item: f"{item[0]}\x01{item[1]}\x02".encode()),
    st.tuples(_names, st.binary(max_size=6)).map(lambda item: item[0].encode() + b"\x01" + item[1]),
    st.binary(max_size=12),
    st.just(b"\x02"),
)
properties = st.lists(_items, max_size=6).map(b"".join)
topics = st.one_of(
    st.sampled_from([b"T1", b"T2", b"SCHEDULE_TOPIC_XXXX", b"", b"T" * 127, b"T" * 128]),
    texts.map(str.encode),
    st.binary(max_size=6),
)
drafts = st.builds(
    Draft,
    body=st.one_of(short_bytes, st.binary(min_size=200, max_size=300)),
    topic=topics,
    properties=properties,
    queue_id=int32,
    flag=int32,
    queue_offset=int64,
    sys_flag=int32.map(lambda flags: flags & ~(layout.BORN_HOST_V6 | layout.STORE_HOST_V6)),
    born_time=int64,
    born_host=_hosts,
    store_time=int64,
    store_host=_hosts,
    reconsume_times=int32,
    prepared_offset=int64,
    property_crc=st.booleans(),
)
few_queues = st.builds(
    replace,
    drafts,
    topic=st.sampled_from([b"T1", b"T2", b"SCHEDULE_TOPIC_XXXX"]),
    queue_id=st.integers(0, 2),
    queue_offset=st.integers(0, 4),
    sys_flag=st.sampled_from([0, 1, 4, 8, 12, 13]),
    store_time=st.integers(0, 2**42),
    property_crc=st.just(False),  # without a separator before it, it is part of the last value
)
"""Drafts that meet in the same queues."""
