"""The CommitLog record: the bytes of one message in the log.

::

    head           total size, magic, body CRC, queue id, flag, queue offset, physical offset,
                   sys flag, born time                                   (layout.RECORD_HEAD)
    born host      ip (4 or 16 bytes) + int32 port; 16 if the sys flag has BORN_HOST_V6
    store time     int64 ms
    store host     as the born host, with STORE_HOST_V6
    middle         reconsume times, prepared offset, body length       (layout.RECORD_MIDDLE)
    body
    topic length   1 byte (magic v1) or 2 bytes (magic v2)
    topic          UTF-8
    properties     int16 length, then ``name \\x01 value \\x02`` …

Only ``kernels.encode`` writes records. This module reads them one at a time, and its errors name
the wrong field. Page: ``docs/format/record.md``.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from firetrail.errors import FormatError
from firetrail.format import layout
from firetrail.format.kernels.encode import RecordFields, RecordWriter
from firetrail.format.kernels.single import unpack_record
from firetrail.format.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY, decode_properties
from firetrail.format.values.hosts import Host, encode_host, unpack_ip
from firetrail.format.values.ids import encode_message_id
from firetrail.format.values.javahash import java_text

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_HEAD = layout.RECORD_HEAD.struct.unpack_from
_MIDDLE = layout.RECORD_MIDDLE.struct.unpack_from
_INT64 = Struct(">q").unpack_from
_SHORT = Struct(">h").unpack_from
_BLANK = layout.BLANK.struct.unpack_from
_MARK_END = len(layout.PROPERTY_CRC_MARK) - layout.PROPERTY_CRC_SIZE


class Record(NamedTuple):
    """A message as it is stored in the log.

    Attributes:
        size: The length of the record in bytes.
        magic: The magic code of the record format (version 1 or 2).
        body_crc: The CRC-32 of the body.
        queue_id: The queue.
        flag: The number that the application gave to the message.
        queue_offset: The number of the message within its queue.
        physical_offset: The position of the record in the commit log.
        sys_flag: RocketMQ's flags: compression, transaction state, address families.
        born_time: The time at which the message was created, in ms since 1970.
        born_host: The host that created it.
        store_time: The time at which the broker stored it, in ms since 1970.
        store_host: The broker that stored it.
        reconsume_times: The number of times that the message was retried.
        prepared_offset: For the end of a transaction, the physical offset of its half message.
        body: The content as stored, which may be compressed.
        topic: The topic.
        raw_properties: The encoded properties; :attr:`properties` decodes them.
    """

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_time: int
    born_host: Host
    store_time: int
    store_host: Host
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    raw_properties: bytes

    @property
    def properties(self) -> dict[str, str]:
        """Decode the properties and return them by name; each access decodes them again."""
        return decode_properties(self.raw_properties)

    @property
    def tags(self) -> str | None:
        """Return the tag; None if there is none."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys by which the message can be queried."""
        return tuple(key for key in self.properties.get(KEYS, "").split(KEY_SEPARATOR) if key)

    @property
    def unique_key(self) -> str | None:
        """Return the id that the producer gave to the message; None if there is none."""
        return self.properties.get(UNIQ_KEY)

    @property
    def retries(self) -> int:
        """Return ``reconsume_times``, or 0 if it is negative: brokers store any number they get."""
        return max(self.reconsume_times, 0)

    @property
    def message_id(self) -> str:
        """Return the offset message id, which encodes store host and physical offset."""
        return encode_message_id(self.store_host, self.physical_offset)

    @property
    def crc_ok(self) -> bool:
        """Return whether the body has the CRC of the record."""
        return zlib.crc32(self.body) & 0x7FFFFFFF == self.body_crc


@dataclass(frozen=True, slots=True)
class Blank:
    """The record that fills a file: its last ``size`` bytes contain no message."""

    size: int


def decode_record(buffer: ReadableBuffer, at: int = 0, *, check_crc: bool = True) -> Record | Blank:
    """Decode the record at ``at``; its lengths are checked against each other and the buffer."""
    fields = unpack_record(buffer, at, _host, check_crc)
    if fields is not None:
        return Record._make(fields)
    return _decode_carefully(memoryview(buffer), at, check_crc)


def _decode_carefully(view: memoryview, at: int, check_crc: bool) -> Record | Blank:
    """Decode a record that the fast path rejected, and raise an error that says what is wrong."""
    if at < 0 or len(view) - at < layout.BLANK.size:
        raise FormatError("record", at, f"{len(view) - at} bytes left, a record needs more")
    size, magic = _BLANK(view, at)
    if magic == layout.MAGIC_BLANK:
        if size < layout.BLANK.size:
            raise FormatError("blank size", at, f"{size} is less than 8")
        return Blank(size)
    if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
        raise FormatError("magic", at + 4, f"0x{magic:08X} is not that of a record")
    if not layout.RECORD_SIZE_MIN <= size <= len(view) - at:
        raise FormatError(
            "total size",
            at,
            f"{size} is not in {layout.RECORD_SIZE_MIN}..{len(view) - at} (the bytes there)",
        )
    record = _decode(view[at : at + size], at)
    if check_crc and not record.crc_ok:
        raise FormatError(
            "body CRC",
            at + layout.RECORD_HEAD.offsets["body_crc"],
            f"0x{record.body_crc:08X} is stored, the body's is "
            f"0x{zlib.crc32(record.body) & 0x7FFFFFFF:08X}",
        )
    return record


@lru_cache(maxsize=1024)
def _host(raw: bytes) -> Host:
    """Decode a host; cached, because few hosts occur in many records. Any port is accepted."""
    return Host(unpack_ip(raw[:-4]), int.from_bytes(raw[-4:], "big", signed=True))


def _decode(view: memoryview, where: int) -> Record:
    """Decode the record in ``view``; ``where`` is its position, for errors."""
    size, magic, crc, queue_id, flag, queue_offset, offset, sys_flag, born_time = _HEAD(view, 0)
    at = layout.RECORD_HEAD.size
    born_v6, store_v6 = sys_flag & layout.BORN_HOST_V6, sys_flag & layout.STORE_HOST_V6
    born_host_at = at
    at += layout.HOST_V6_SIZE if born_v6 else layout.HOST_V4_SIZE
    store_time_at = at
    store_host_at = at + 8
    at = store_host_at + (layout.HOST_V6_SIZE if store_v6 else layout.HOST_V4_SIZE)
    middle_at = at
    if at + layout.RECORD_MIDDLE.size > size:
        raise FormatError("total size", where, f"{size} bytes end inside the fixed fields")
    reconsume_times, prepared_offset, body_size = _MIDDLE(view, at)
    at += layout.RECORD_MIDDLE.size
    if not 0 <= body_size <= size - at - 3:
        raise FormatError("body length", where + at - 4, f"{body_size} in {size} bytes")
    body_at, at = at, at + body_size
    topic_at = at + (1 if magic == layout.MAGIC_V1 else 2)
    topic_size = view[at] if magic == layout.MAGIC_V1 else _SHORT(view, at)[0]
    longest = layout.MAX_TOPIC_V1 if magic == layout.MAGIC_V1 else layout.MAX_TOPIC_V2
    if not 0 <= topic_size <= min(longest, size - topic_at - 2):
        raise FormatError("topic length", where + at, f"{topic_size} in {size} bytes")
    at = topic_at + topic_size
    properties_size = _SHORT(view, at)[0]
    if at + 2 + properties_size != size:
        raise FormatError(
            "properties length",
            where + at,
            f"{properties_size} does not end at the total size of {size} bytes",
        )
    return Record(
        size=size,
        magic=magic,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=offset,
        sys_flag=sys_flag,
        born_time=born_time,
        born_host=_host(bytes(view[born_host_at:store_time_at])),
        store_time=_INT64(view, store_time_at)[0],
        store_host=_host(bytes(view[store_host_at:middle_at])),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body=bytes(view[body_at : body_at + body_size]),
        topic=java_text(bytes(view[topic_at : topic_at + topic_size])),
        raw_properties=bytes(view[at + 2 : size]),
    )


def decode_message(buffer: ReadableBuffer) -> Record:
    """Decode the message in a buffer with one whole record, and check its body.

    If the record has the property ``__CRC32#``, the whole record is checked.
    """
    record = decode_received(buffer)
    if record.raw_properties[-layout.PROPERTY_CRC_SIZE : _MARK_END] == layout.PROPERTY_CRC_MARK:
        _check_seal(memoryview(buffer)[: record.size], record.raw_properties[_MARK_END:-1])
    return record


def decode_received(buffer: ReadableBuffer) -> Record:
    """Decode the message in a record that a broker sent, and check its body.

    Brokers may change other fields when they send a record, and leave the property ``__CRC32#``
    unchanged.
    """
    record = decode_record(buffer)
    if isinstance(record, Blank):
        raise FormatError("magic", 4, "this is the blank at the end of a file, not a message")
    return record


def _check_seal(content: memoryview, digits: bytes) -> None:
    """Compare a whole record with its property CRC: decimal digits, the least significant first."""
    actual = zlib.crc32(content[: -layout.PROPERTY_CRC_SIZE]) & 0x7FFFFFFF
    if digits[::-1] != b"%010d" % actual:
        raise FormatError(
            "property CRC",
            len(content) - layout.PROPERTY_CRC_SIZE,
            "the record does not match its property __CRC32#",
        )


def move_record(content: ReadableBuffer, physical_offset: int, queue_offset: int) -> bytearray:
    """Return a copy of a record with another physical offset and queue offset.

    If it has the property ``__CRC32#``, that is computed again.
    """
    moved = bytearray(content)
    offsets = layout.RECORD_HEAD.offsets
    struct.pack_into(">qq", moved, offsets["queue_offset"], queue_offset, physical_offset)
    if moved[-layout.PROPERTY_CRC_SIZE : _MARK_END] == layout.PROPERTY_CRC_MARK:
        RecordWriter(moved).seal(0, len(moved))
    return moved


def encode_record(record: Record) -> bytes:
    """Return the bytes from which :func:`decode_record` makes this record."""
    fields = RecordFields(
        record.topic.encode(),
        encode_host(record.born_host),
        encode_host(record.store_host),
        body=record.body,
        properties=record.raw_properties,
        queue_id=record.queue_id,
        flag=record.flag,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_time=record.born_time,
        store_time=record.store_time,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.prepared_offset,
    )
    out = bytearray(fields.size)
    RecordWriter(out).write(0, fields)
    return bytes(out)
