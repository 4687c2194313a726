"""Write records into a buffer: a segment's mapping or a write buffer.

The one place where a record's bytes are made. Sizes are known before anything is written
(:func:`record_size`, :func:`measure_batch`), so the caller decides where a record goes.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.errors import FormatError
from firetrail.format import layout

if cython.compiled:
    from cython.cimports.firetrail.format.kernels._bigendian import (
        copy_bytes,
        load_i32,
        store_i16,
        store_i32,
        store_i64,
    )
    from cython.cimports.firetrail.format.kernels.checksum import crc31
else:
    from firetrail.format.kernels._bigendian import (
        copy_bytes,
        load_i32,
        store_i16,
        store_i32,
        store_i64,
    )
    from firetrail.format.kernels.checksum import crc31

COMPILED = cython.compiled

_MAGIC_V1 = cython.declare(cython.longlong, layout.MAGIC_V1)
_MAGIC_V2 = cython.declare(cython.longlong, layout.MAGIC_V2)
_MAGIC_BLANK = cython.declare(cython.longlong, layout.MAGIC_BLANK)
_AT_CRC = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["body_crc"])
_AT_QUEUE_ID = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["queue_id"])
_AT_FLAG = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["flag"])
_AT_QUEUE_OFFSET = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["queue_offset"])
_AT_OFFSET = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["physical_offset"])
_AT_SYS_FLAG = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["sys_flag"])
_AT_BORN_TIME = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.offsets["born_time"])
_HEAD = cython.declare(cython.Py_ssize_t, layout.RECORD_HEAD.size)
_AT_PREPARED = cython.declare(cython.Py_ssize_t, layout.RECORD_MIDDLE.offsets["prepared_offset"])
_AT_BODY_LENGTH = cython.declare(cython.Py_ssize_t, layout.RECORD_MIDDLE.offsets["body_length"])
_MIDDLE = cython.declare(cython.Py_ssize_t, layout.RECORD_MIDDLE.size)
_FIXED = cython.declare(
    cython.Py_ssize_t, layout.RECORD_HEAD.size + 8 + layout.RECORD_MIDDLE.size + 2
)
_ITEM_FLAG = cython.declare(cython.Py_ssize_t, layout.BATCH_ITEM.offsets["flag"])
_ITEM_BODY_LENGTH = cython.declare(cython.Py_ssize_t, layout.BATCH_ITEM.offsets["body_length"])
_ITEM_HEAD = cython.declare(cython.Py_ssize_t, layout.BATCH_ITEM.size)
_TOPIC_V1_MAX = cython.declare(cython.Py_ssize_t, layout.MAX_TOPIC_V1)
_PROPERTIES_MAX = cython.declare(cython.Py_ssize_t, layout.MAX_PROPERTIES)
_CRC_SIZE = cython.declare(cython.Py_ssize_t, layout.PROPERTY_CRC_SIZE)
_CRC_DIGITS = cython.declare(cython.Py_ssize_t, layout.PROPERTY_CRC_DIGITS)
_CRC_MARK = layout.PROPERTY_CRC_NAME + b"\x01"


def record_size(
    born_host_size: cython.Py_ssize_t,
    store_host_size: cython.Py_ssize_t,
    body_size: cython.Py_ssize_t,
    topic_size: cython.Py_ssize_t,
    properties_size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Bytes of a whole record; a topic of more than 127 bytes makes it a v2 record."""
    return (
        _FIXED
        + born_host_size
        + store_host_size
        + body_size
        + (1 if topic_size <= _TOPIC_V1_MAX else 2)
        + topic_size
        + properties_size
    )


def with_crc_room(properties: bytes) -> bytes:
    """``properties`` with zeros where :meth:`RecordWriter.seal` will put the property CRC."""
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + bytes(layout.PROPERTY_CRC_SIZE)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _item_properties_size(
    batch: cython.pointer(cython.const[cython.uchar]),
    own_at: cython.Py_ssize_t,
    own: cython.Py_ssize_t,
    shared_size: cython.Py_ssize_t,
    property_crc: cython.bint,
) -> cython.Py_ssize_t:
    """Bytes of an item's own properties with those of the batch and the CRC behind them."""
    size: cython.Py_ssize_t = own + shared_size
    if own and (shared_size or property_crc) and batch[own_at + own - 1] != 2:
        size += 1
    return size + _CRC_SIZE if property_crc else size


def measure_batch(
    batch: cython.const[cython.uchar][::1],
    hosts_size: cython.Py_ssize_t,
    topic_size: cython.Py_ssize_t,
    shared_size: cython.Py_ssize_t,
    property_crc: cython.bint,
) -> tuple[int, int, int]:
    """(items, bytes of all records, bytes of the largest) that a client batch becomes.

    ``shared_size`` is the size of the properties that every item gets from the batch, their
    last separator included.
    Raises FormatError where the batch is not a sequence of whole items.
    """
    end: cython.Py_ssize_t = len(batch)
    at: cython.Py_ssize_t = 0
    items: cython.Py_ssize_t = 0
    total: cython.Py_ssize_t = 0
    largest: cython.Py_ssize_t = 0
    size: cython.longlong
    body: cython.longlong
    properties: cython.Py_ssize_t
    source: cython.pointer(cython.const[cython.uchar])
    if end == 0:
        raise FormatError("batch", 0, "it is empty")
    if cython.compiled:
        source = cython.address(batch[0])
    else:
        source = batch
    while at < end:
        size = load_i32(source, at) if end - at >= _ITEM_HEAD + 2 else -1
        if size < _ITEM_HEAD + 2 or size > end - at:
            raise FormatError(
                f"total size of batch item {items}", at, f"{size} of {end - at} bytes left"
            )
        body = load_i32(source, at + _ITEM_BODY_LENGTH)
        if body < 0 or body > size - _ITEM_HEAD - 2:
            raise FormatError(
                f"body length of batch item {items}",
                at + _ITEM_BODY_LENGTH,
                f"{body} in an item of {size} bytes",
            )
        properties = at + _ITEM_HEAD + body
        if ((source[properties] << 8) | source[properties + 1]) != at + size - properties - 2:
            raise FormatError(
                f"properties length of batch item {items}",
                properties,
                f"does not end at the item's size of {size} bytes",
            )
        properties = _item_properties_size(
            source, properties + 2, at + size - properties - 2, shared_size, property_crc
        )
        if properties > _PROPERTIES_MAX:
            raise FormatError(
                f"properties of batch item {items}", at, f"{properties} bytes, at most 32767"
            )
        size = record_size(hosts_size, 0, body, topic_size, properties)
        total += size
        largest = max(largest, size)
        items += 1
        at += load_i32(source, at)
    return items, total, largest


class RecordWriter:
    """Writes records into one buffer, at positions that the caller has made sure of."""

    def __init__(self, out: cython.uchar[::1]) -> None:
        self._view = out
        self._size = len(out)
        if cython.compiled:
            self._out = cython.address(out[0])
        else:
            self._out = out

    def write(
        self,
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        queue_id: cython.longlong,
        flag: cython.longlong,
        queue_offset: cython.longlong,
        physical_offset: cython.longlong,
        sys_flag: cython.longlong,
        born_time: cython.longlong,
        born_host: bytes,
        store_time: cython.longlong,
        store_host: bytes,
        reconsume_times: cython.longlong,
        prepared_offset: cython.longlong,
        body: bytes,
        topic: bytes,
        properties: bytes,
    ) -> None:
        """One record of ``size`` bytes (:func:`record_size`) at ``at``."""
        p: cython.Py_ssize_t
        n: cython.Py_ssize_t = len(body)
        out: cython.p_uchar = self._out
        if at < 0 or at + size > self._size:
            raise ValueError(f"a record of {size} bytes at {at} leaves the buffer of {self._size}")
        p = self._head(
            at,
            size,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_time,
            born_host,
            store_time,
            store_host,
            reconsume_times,
            prepared_offset,
            n,
            topic,
        )
        _copy(out, p, body, n)
        store_i32(out, at + _AT_CRC, crc31(out, p, n))
        p = self._topic(p + n, topic)
        n = len(properties)
        store_i16(out, p, n)
        _copy(out, p + 2, properties, n)

    def seal(self, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> None:
        """Put the property CRC of the finished record into the room at its end."""
        i: cython.Py_ssize_t
        out: cython.p_uchar = self._out
        p: cython.Py_ssize_t = at + size - _CRC_SIZE
        crc: cython.longlong = crc31(out, at, size - _CRC_SIZE)
        _copy(out, p, _CRC_MARK, len(_CRC_MARK))
        p += len(_CRC_MARK)
        for i in range(_CRC_DIGITS):
            out[p + i] = 48 + crc % 10
            crc //= 10
        out[p + _CRC_DIGITS] = 2

    def blank(self, at: cython.Py_ssize_t, size: cython.longlong) -> None:
        """The record that says: the file's last ``size`` bytes, from here on, hold nothing."""
        store_i32(self._out, at, size)
        store_i32(self._out, at + 4, _MAGIC_BLANK)

    def write_batch(
        self,
        at: cython.Py_ssize_t,
        batch: cython.const[cython.uchar][::1],
        queue_id: cython.longlong,
        queue_offset: cython.longlong,
        physical_offset: cython.longlong,
        sys_flag: cython.longlong,
        born_time: cython.longlong,
        born_host: bytes,
        store_time: cython.longlong,
        store_host: bytes,
        reconsume_times: cython.longlong,
        topic: bytes,
        shared: bytes,
        property_crc: cython.bint,
    ) -> int:
        """The items of a client batch, which :func:`measure_batch` accepted, as records.

        ``shared`` are the properties that every item gets from the batch. Returns the position
        behind the last record.
        """
        out: cython.p_uchar = self._out
        items: cython.pointer(cython.const[cython.uchar])
        item: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(batch)
        shared_size: cython.Py_ssize_t = len(shared)
        body: cython.Py_ssize_t
        own: cython.Py_ssize_t
        own_at: cython.Py_ssize_t
        properties: cython.Py_ssize_t
        size: cython.Py_ssize_t
        p: cython.Py_ssize_t
        if cython.compiled:
            items = cython.address(batch[0])
        else:
            items = batch
        while item < end:
            body = load_i32(items, item + _ITEM_BODY_LENGTH)
            own_at = item + _ITEM_HEAD + body + 2
            own = item + load_i32(items, item) - own_at
            properties = _item_properties_size(items, own_at, own, shared_size, property_crc)
            size = record_size(len(born_host), len(store_host), body, len(topic), properties)
            if at + size > self._size:
                raise ValueError(f"a batch record of {size} bytes at {at} leaves the buffer")
            p = self._head(
                at,
                size,
                queue_id,
                load_i32(items, item + _ITEM_FLAG),
                queue_offset,
                physical_offset,
                sys_flag,
                born_time,
                born_host,
                store_time,
                store_host,
                reconsume_times,
                0,
                body,
                topic,
            )
            copy_bytes(out, p, items, item + _ITEM_HEAD, body)
            store_i32(out, at + _AT_CRC, crc31(out, p, body))
            p = self._topic(p + body, topic)
            store_i16(out, p, properties)
            p += 2
            copy_bytes(out, p, items, own_at, own)
            p += own
            if own and out[p - 1] != 2 and (shared_size or property_crc):
                out[p] = 2
                p += 1
            _copy(out, p, shared, shared_size)
            if property_crc:
                self.seal(at, size)
            at += size
            physical_offset += size
            queue_offset += 1
            item = own_at + own
        return at

    def _head(
        self,
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        queue_id: cython.longlong,
        flag: cython.longlong,
        queue_offset: cython.longlong,
        physical_offset: cython.longlong,
        sys_flag: cython.longlong,
        born_time: cython.longlong,
        born_host: bytes,
        store_time: cython.longlong,
        store_host: bytes,
        reconsume_times: cython.longlong,
        prepared_offset: cython.longlong,
        body_size: cython.Py_ssize_t,
        topic: bytes,
    ) -> cython.Py_ssize_t:
        """All before the body, except for its checksum; the position of the body."""
        out: cython.p_uchar = self._out
        store_i32(out, at, size)
        store_i32(out, at + 4, _MAGIC_V1 if len(topic) <= _TOPIC_V1_MAX else _MAGIC_V2)
        store_i32(out, at + _AT_QUEUE_ID, queue_id)
        store_i32(out, at + _AT_FLAG, flag)
        store_i64(out, at + _AT_QUEUE_OFFSET, queue_offset)
        store_i64(out, at + _AT_OFFSET, physical_offset)
        store_i32(out, at + _AT_SYS_FLAG, sys_flag)
        store_i64(out, at + _AT_BORN_TIME, born_time)
        at += _HEAD
        _copy(out, at, born_host, len(born_host))
        at += len(born_host)
        store_i64(out, at, store_time)
        at += 8
        _copy(out, at, store_host, len(store_host))
        at += len(store_host)
        store_i32(out, at, reconsume_times)
        store_i64(out, at + _AT_PREPARED, prepared_offset)
        store_i32(out, at + _AT_BODY_LENGTH, body_size)
        return at + _MIDDLE

    def _topic(self, at: cython.Py_ssize_t, topic: bytes) -> cython.Py_ssize_t:
        """The topic and its length; the position behind."""
        n: cython.Py_ssize_t = len(topic)
        if n <= _TOPIC_V1_MAX:
            self._out[at] = n
            at += 1
        else:
            store_i16(self._out, at, n)
            at += 2
        _copy(self._out, at, topic, n)
        return at + n


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _copy(
    out: cython.p_uchar, at: cython.Py_ssize_t, data: bytes, count: cython.Py_ssize_t
) -> cython.void:
    """Copy bytes without taking a view of them, which would cost more than a short copy."""
    i: cython.Py_ssize_t
    if not cython.compiled:
        out[at : at + count] = data
        return
    for i in range(count):
        out[at + i] = data[i]
