"""A store's messages as rows, decoded with ``struct`` only, without any code of Firetrail."""

import struct
from pathlib import Path
from typing import Any

_FIXED = struct.Struct(">iIiiiqqiq4siq4siiqi")
_MESSAGE, _BLANK = 0xDAA320A7, 0xCBD43194
_TRANSACTION = 12
Row = dict[str, Any]


def log_rows(store: Path) -> list[Row]:
    rows = []
    for path in sorted((store / "commitlog").iterdir()):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic != _MESSAGE:
                assert magic in (_BLANK, 0), f"{path.name}: {magic:x} at {at}"
                break
            rows.append(_row(data[at : at + size]))
            at += size
    return rows


def queue_rows(store: Path) -> list[Row]:
    """Return the records that are in a queue: neither prepared nor rolled back."""
    return [row for row in log_rows(store) if row["sys_flag"] & _TRANSACTION in (0, 8)]


def _row(record: bytes) -> Row:
    fields = _FIXED.unpack_from(record)
    (size, _, _, queue_id, flag, queue_offset, physical_offset, sys_flag, born_time) = fields[:9]
    (_, _, store_time, host, port, reconsume_times, prepared_offset, body_size) = fields[9:]
    at = _FIXED.size + body_size
    topic = record[at + 1 : at + 1 + record[at]].decode()
    at += 1 + record[at]
    (length,) = struct.unpack_from(">h", record, at)
    text = record[at + 2 : at + 2 + length].decode()
    pairs = [pair.split("\x01", 1) for pair in text.split("\x02") if pair]
    properties = {name: value for name, value in pairs}
    place = host + struct.pack(">iq", port, physical_offset)
    return {
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "physical_offset": physical_offset,
        "msg_id": properties.get("UNIQ_KEY", place.hex().upper()),
        "tags": properties.get("TAGS"),
        "born_time": born_time * 1000,  # µs, as Spark has it
        "store_time": store_time * 1000,
        "sys_flag": sys_flag,
        "flag": flag,
        "reconsume_times": reconsume_times,
        "prepared_offset": prepared_offset,
        "size": size,
    }
