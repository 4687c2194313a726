"""Compares the files of a closed store with each other; it shares no code with the store.

Log: consecutive records, each at its physical offset, BLANK at the end of a full file, and only
zeros after the last record. Queues: a unit for each record that belongs in one, in the order of the
log, then zeros. Index: an entry for each key, found through its chain.
"""

import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from tests.crash.oracle import Violation

V1, BLANK = 0xDAA320A7, 0xCBD43194
HEAD = struct.Struct(">iIiiiqqiq")
UNIT = struct.Struct(">qiq")
ENTRY = struct.Struct(">iqii")
HEADER = struct.Struct(">qqqqii")


class Raw(NamedTuple):
    """A record as the bytes have it."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_time: int
    properties: dict[str, str]
    body: bytes


EXTENSIONS = "consumequeue_ext"
EXTENDED = struct.Struct(">hqqh")
SECOND_DISK = "disk2/commitlog"
"""The second folder of a log that is in two."""


def check_files(root: Path, slots: int, deleted: Collection[str] = ()) -> int:
    """Raise a Violation if the files disagree; how many records the log has.

    Of topics that may have been deleted the log can hold more than the queues.
    """
    records, log_min = read_log(root / "commitlog", root / SECOND_DISK)
    _check_queues(root / "consumequeue", records, log_min, deleted)
    _check_index(root / "index", records, log_min, slots)
    return len(records)


def read_log(*folders: Path) -> tuple[list[Raw], int]:
    """Return every record of the log, and where it begins."""
    records: list[Raw] = []
    found = (path for folder in folders if folder.is_dir() for path in folder.iterdir())
    paths = sorted(found, key=lambda path: path.name)
    ended = False
    for number, path in enumerate(paths):
        content = path.read_bytes()
        base = int(path.name)
        if number and base != int(paths[number - 1].name) + len(content):
            raise Violation(f"I1: a gap in the log before {path.name}")
        at = 0
        while not ended and at + 8 <= len(content):
            size, magic = struct.unpack_from(">iI", content, at)
            if magic == BLANK:
                if at + size != len(content) or any(content[at + 8 :]):
                    raise Violation(f"I2: BLANK of {size} at {base + at} with bytes after it")
                at = len(content)
            elif magic == V1:
                records.append(_raw(content[at : at + size], base + at))
                at += size
            else:
                ended = True
        if any(content[at:]):
            raise Violation(f"I6: {path.name} has bytes after the end of the log at {base + at}")
    return records, int(paths[0].name) if paths else 0


def readable(folder: Path) -> list[Raw]:
    """Return the records of a log up to the first bytes that are not a record.

    The log may be in use, or may not have been recovered yet.
    """
    records: list[Raw] = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        at = 0
        while at + 8 <= len(content):
            size, magic = struct.unpack_from(">iI", content, at)
            if magic == BLANK:
                break
            try:
                if magic != V1:
                    return records
                records.append(_raw(content[at : at + size], int(path.name) + at))
            except (Violation, struct.error, IndexError, ValueError):
                return records
            at += size
    return records


def pulled(content: bytes) -> list[Raw]:
    records: list[Raw] = []
    at = 0
    while at < len(content):
        size, *_, physical, _, _ = HEAD.unpack_from(content, at)
        records.append(_raw(content[at : at + size], physical))
        at += size
    return records


def _raw(content: bytes, offset: int) -> Raw:
    size, _, crc, queue_id, _, queue_offset, physical, sys_flag, _ = HEAD.unpack_from(content)
    if physical != offset or size != len(content):
        raise Violation(f"I2: a record of {size} bytes at {offset} says it is at {physical}")
    at = HEAD.size + (20 if sys_flag & 0x10 else 8)
    (store_time,) = struct.unpack_from(">q", content, at)
    at += 8 + (20 if sys_flag & 0x20 else 8) + 12
    (body_size,) = struct.unpack_from(">i", content, at)
    body = content[at + 4 : at + 4 + body_size]
    if zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise Violation(f"I8: the body at {offset} has another checksum")
    at += 4 + body_size
    topic = content[at + 1 : at + 1 + content[at]].decode()
    at += 1 + content[at]
    (properties_size,) = struct.unpack_from(">h", content, at)
    if at + 2 + properties_size != size:
        raise Violation(f"I2: the fields of the record at {offset} do not fill it")
    items = content[at + 2 :].decode().split("\x02")
    properties = dict(item.split("\x01", 1) for item in items if "\x01" in item)
    return Raw(offset, size, topic, queue_id, queue_offset, sys_flag, store_time, properties, body)


def _tags_code(record: Raw) -> int:
    """Return the hash of the tag; units of delayed messages have a time, which is not checked."""
    value = 0
    for unit in record.properties.get("TAGS", ""):
        value = (31 * value + ord(unit)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _check_queues(folder: Path, records: list[Raw], log_min: int, deleted: Collection[str]) -> None:
    expected: dict[tuple[str, int], dict[int, Raw]] = {}
    for record in records:
        if record.sys_flag & 0xC in (0, 8):
            queue = expected.setdefault((record.topic, record.queue_id), {})
            queue[record.queue_offset] = record
    found = {}
    for topic in sorted(folder.iterdir()) if folder.is_dir() else []:
        for queue_id in sorted(topic.iterdir()):
            name = f"{topic.name}/{queue_id.name}"
            found[topic.name, int(queue_id.name)] = _read_queue(queue_id, name)
    for key in expected.keys() | found.keys():
        if key[0] in deleted:
            continue
        units = {number: unit for number, unit in found.get(key, {}).items() if unit[0] >= log_min}
        wanted = expected.get(key, {})
        if units.keys() != wanted.keys():
            raise Violation(
                f"I4: queue {key} has units {sorted(units)}, the log {sorted(wanted)} for it"
            )
        for number, (offset, size, code) in units.items():
            record = wanted[number]
            if code < -(2**31):
                code = _extended_code(folder.with_name(EXTENSIONS), key, code, record)
            delayed = record.topic.startswith("SCHEDULE")
            if (offset, size) != (record.offset, record.size) or (
                not delayed and code != _tags_code(record)
            ):
                raise Violation(f"I4: unit {number} of {key} is {(offset, size, code)}: {record}")


def _extended_code(folder: Path, key: tuple[str, int], address: int, record: Raw) -> int:
    """Return the tags code in the extended unit of a record, which must have its store time."""
    queue = folder / key[0] / str(key[1])
    offset = address + 2**63
    for path in sorted(queue.iterdir()) if queue.is_dir() else []:
        content, at = path.read_bytes(), offset - int(path.name)
        if 0 <= at <= len(content) - EXTENDED.size:
            size, code, time, bits = EXTENDED.unpack_from(content, at)
            if (size, time) == (EXTENDED.size + bits, record.store_time):
                return int(code)
    raise Violation(f"I4: {record} of {key} has no extended unit at {offset}")


def _read_queue(folder: Path, name: str) -> dict[int, tuple[int, int, int]]:
    """Return the units by queue offset, without the filler units at the beginning."""
    units: dict[int, tuple[int, int, int]] = {}
    ended = False
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for at in range(0, len(content), UNIT.size):
            offset, size, code = UNIT.unpack_from(content, at)
            if (offset, size, code) == (0, 0, 0):
                ended = True
            elif ended:
                raise Violation(f"I6: queue {name} has a unit after its end, {path.name}:{at}")
            elif size != 0x7FFFFFFF:
                units[(int(path.name) + at) // UNIT.size] = offset, size, code
    return units


def _check_index(folder: Path, records: list[Raw], log_min: int, slots: int) -> None:
    expected: list[tuple[int, int]] = []
    for record in records:
        if record.sys_flag & 0xC != 0xC:
            named = record.properties.get("UNIQ_KEY", ""), record.properties.get("KEYS", "")
            keys = [key for key in " ".join(named).split(" ") if key]
            expected += [(_hash(f"{record.topic}#{key}"), record.offset) for key in keys]
    found: list[tuple[int, int]] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        found += _read_index(path, slots)
    found = [entry for entry in found if entry[1] >= log_min]
    if found != expected:
        pairs = enumerate(zip(found, expected, strict=False))
        at = next((k for k, (one, other) in pairs if one != other), min(len(found), len(expected)))
        raise Violation(
            f"I4: {len(found)} entries in the index, {len(expected)} keys in the log; entry {at} "
            f"begins what is different: {found[at:][:3]}, {expected[at:][:3]}"
        )


def _hash(text: str) -> int:
    value = 0
    for unit in text:
        value = (31 * value + ord(unit)) & 0xFFFFFFFF
    value = value - (1 << 32) if value >> 31 else value
    return 0 if value == -(1 << 31) else abs(value)


def _read_index(path: Path, slots: int) -> list[tuple[int, int]]:
    """Hash and offset of each entry; every one must be in the chain of its slot."""
    content = path.read_bytes()
    *_, used, count = HEADER.unpack_from(content)
    base = HEADER.size + 4 * slots
    entries = [ENTRY.unpack_from(content, base + 20 * k) for k in range(1, max(count, 1))]
    if any(content[base + 20 * max(count, 1) :]):
        raise Violation(f"I6: {path.name} has bytes after its {count} entries")
    chained = set()
    heads = struct.unpack_from(f">{slots}i", content, HEADER.size)
    for slot, number in enumerate(heads):
        while number:
            key_hash, _, _, previous = entries[number - 1]
            if key_hash % slots != slot or not 0 <= previous < number:
                raise Violation(f"I4: entry {number} of {path.name} is in the wrong chain")
            chained.add(number)
            number = previous
    if len(chained) != len(entries) or used != sum(1 for head in heads if head):
        raise Violation(f"I4: {path.name}: {len(chained)} of {len(entries)} entries are chained")
    return [(key_hash, offset) for key_hash, offset, _, _ in entries]
