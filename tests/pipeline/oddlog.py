"""A log of unusual records, which no put writes but other stores may have written."""

from pathlib import Path
from typing import Any

from firetrail.format.kernels.encode import RecordFields, RecordWriter
from firetrail.format.names import COMMIT_LOG, segment_name

V4 = bytes([10, 1, 2, 3]) + (10911).to_bytes(4, "big")
V6 = bytes(range(16)) + (10911).to_bytes(4, "big")
BORN_V6, STORE_V6 = 0x10, 0x20
DAY_MS = 86_400_000

PLAIN_RECORDS: list[dict[str, Any]] = [
    {"properties": b""},
    {"properties": b"KEYS\x01a b\x02TAGS\x01t\x02"},
    {"properties": b"KEYS\x01a b\x02TAGS\x01t"},
    {"properties": "ключ\x01значение\x02".encode()},
    {"properties": b"a\x01b\x01c\x02"},
    {"topic": b"%RETRY%" + b"g" * 200},
    {"topic": "темы".encode()},
    {"topic": b"123", "body": b""},
    {"sys_flag": BORN_V6, "born_host": V6},
    {"sys_flag": BORN_V6 | STORE_V6, "born_host": V6, "store_host": V6},
    {"born_time": 0, "store_time": DAY_MS - 1},
    {"store_time": DAY_MS, "flag": -1, "reconsume_times": 16, "prepared_offset": 2**62},
    {"sys_flag": 0x4, "queue_offset": 0},
]
ODD_RECORDS: list[dict[str, Any]] = [
    {"properties": b"a\x01b\x02a\x01c\x02"},
    {"properties": b"a\x01\x02b\x01c\x02"},
    {"properties": b"\x01b\x02"},
    {"properties": b"no separator"},
    {"properties": b"\x02"},
    {"properties": b"a\x01b\x02\x02"},
    {"properties": b"a\x01\xff\xfe\x02"},
    {"properties": b"a\x01\xed\xa0\x80\x02"},
    {"properties": b"".join(b"p%d\x01v\x02" % n for n in range(70))},
    {"topic": b"\xff\xff"},
    {"born_time": 2**62},
    {"store_time": -(2**63)},
    {"born_host": bytes(4) + (70_000).to_bytes(4, "big")},
    {"store_host": bytes(4) + b"\xff\xff\xff\xff"},
]


def write_log(root: Path, records: list[dict[str, Any]], size: int = 64 << 10) -> None:
    """Write a log of one file with these records; fields that are not given have usual values."""
    buffer = bytearray(size)
    writer = RecordWriter(buffer)
    at = 0
    for number, given in enumerate(records):
        fields: dict[str, Any] = {
            "queue_id": number,
            "flag": 0,
            "queue_offset": 0,
            "physical_offset": at,
            "sys_flag": 0,
            "born_time": 1_700_000_000_000,
            "born_host": V4,
            "store_time": 1_700_000_000_001,
            "store_host": V4,
            "reconsume_times": 0,
            "prepared_offset": 0,
            "body": b"body %d" % number,
            "topic": b"T",
            "properties": b"",
        } | given
        record = RecordFields(**fields)
        writer.write(at, record)
        at += record.size
    (root / COMMIT_LOG).mkdir(parents=True)
    (root / COMMIT_LOG / segment_name(0)).write_bytes(buffer)
