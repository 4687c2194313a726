"""The encoder of records: it writes into the mapping of a segment, or into a write buffer.

No other module encodes records. Their sizes are known before anything is written
(:func:`record_size`, :func:`measure_batch`), so the caller decides where a record goes.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.errors import FormatError
from firetrail.format import layout
from firetrail.format.properties import closed_properties

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import (
        copy_bytes,
        copy_from,
        load_i32,
        store_i16,
        store_i32,
        store_i64,
    )
    from cython.cimports.firetrail.format.kernels.checksum import crc31
    from cython.cimports.firetrail.format.kernels.items import item_properties_size, measure
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import (
        copy_bytes,
        copy_from,
        load_i32,
        store_i16,
        store_i32,
        store_i64,
    )
    from firetrail.format.kernels.checksum import crc31
    from firetrail.format.kernels.items import item_properties_size, measure

COMPILED = cython.compiled

_CRC_MARK = layout.PROPERTY_CRC_NAME + b"\x01"
_INT_MAX = cython.declare(cython.longlong, 2**31 - 1)


def record_size(
    born_host_size: cython.Py_ssize_t,
    store_host_size: cython.Py_ssize_t,
    body_size: cython.Py_ssize_t,
    topic_size: cython.Py_ssize_t,
    properties_size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the size of a record; a topic of more than 127 bytes makes it a v2 record."""
    return (
        (k.HEAD + k.STORE_TIME + k.MIDDLE + 2)
        + born_host_size
        + store_host_size
        + body_size
        + (1 if topic_size <= k.TOPIC_V1_MAX else 2)
        + topic_size
        + properties_size
    )


def measure_batch(
    batch: cython.const[cython.uchar][::1],
    hosts_size: cython.Py_ssize_t,
    topic_size: cython.Py_ssize_t,
    shared_size: cython.Py_ssize_t,
    property_crc: cython.bint,
) -> tuple[int, int, int]:
    """Return (items, bytes of all records, bytes of the largest) for a client batch.

    ``shared_size`` is the size of the properties that every item gets from the batch, including
    the last separator. Raises FormatError if the batch is not a sequence of whole items.
    """
    source: cython.pointer(cython.const[cython.uchar])
    if len(batch) == 0:
        raise FormatError("batch", 0, "the batch is empty")
    if cython.compiled:
        source = cython.address(batch[0])
    else:
        source = batch
    return measure(
        source, len(batch), record_size(hosts_size, 0, 0, topic_size, 0), shared_size, property_crc
    )


def with_crc_room(properties: bytes) -> bytes:
    """Return ``properties`` with zeros where :meth:`RecordWriter.seal` writes the property CRC."""
    return closed_properties(properties) + bytes(layout.PROPERTY_CRC_SIZE)


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=False)
def _check_number(name: str, value: cython.longlong) -> cython.int:
    if value < -_INT_MAX - 1 or value > _INT_MAX:
        raise ValueError(f"{name} {value} does not fit in 32 bits")
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=False)
def _check_size(name: str, size: cython.Py_ssize_t, most: cython.Py_ssize_t) -> cython.int:
    if size > most:
        raise ValueError(f"{name} of {size} bytes, at most {most}")
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=False)
def _check_host(name: str, host: bytes, is_v6: cython.bint) -> cython.int:
    """Raise ValueError for a host whose address family differs from the sys flag."""
    if len(host) != (k.HOST_V6 if is_v6 else k.HOST_V4):
        raise ValueError(f"{name} of {len(host)} bytes contradicts the sys flag")
    return 0


class RecordFields:
    """The fields of a record, or those that the records of a batch have in common.

    ``size`` is the size of the record.
    """

    def __init__(
        self,
        topic: bytes,
        born_host: bytes,
        store_host: bytes,
        *,
        body: bytes = b"",
        properties: bytes = b"",
        queue_id: cython.longlong = 0,
        flag: cython.longlong = 0,
        queue_offset: cython.longlong = 0,
        physical_offset: cython.longlong = 0,
        sys_flag: cython.longlong = 0,
        born_time: cython.longlong = 0,
        store_time: cython.longlong = 0,
        reconsume_times: cython.longlong = 0,
        prepared_offset: cython.longlong = 0,
    ) -> None:
        self.topic = topic
        self.born_host = born_host
        self.store_host = store_host
        self.body = body
        self.properties = properties
        self.queue_id = queue_id
        self.flag = flag
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.sys_flag = sys_flag
        self.born_time = born_time
        self.store_time = store_time
        self.reconsume_times = reconsume_times
        self.prepared_offset = prepared_offset
        self.size = record_size(
            len(born_host), len(store_host), len(body), len(topic), len(properties)
        )


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=False)
def _check_fields(fields: RecordFields) -> cython.int:
    """Raise ValueError for the first field that does not fit into a record."""
    _check_number("queue id", fields.queue_id)
    _check_number("flag", fields.flag)
    _check_number("sys flag", fields.sys_flag)
    _check_number("reconsume times", fields.reconsume_times)
    _check_host("born host", fields.born_host, fields.sys_flag & k.BORN_V6)
    _check_host("store host", fields.store_host, fields.sys_flag & k.STORE_V6)
    _check_size("topic", len(fields.topic), k.TOPIC_V2_MAX)
    _check_size("properties", len(fields.properties), k.PROPERTIES_MAX)
    _check_size("record", fields.size, _INT_MAX)
    return 0


class RecordWriter:
    """Writes records into one buffer.

    Raises ValueError, and writes nothing, if a record would not read back or not fit the buffer.
    """

    def __init__(self, out: cython.uchar[::1]) -> None:
        self._view = out
        self._size = len(out)
        if cython.compiled:
            self._out = cython.address(out[0])
        else:
            self._out = memoryview(out)

    def write(self, at: cython.Py_ssize_t, fields: RecordFields) -> None:
        """Write the record with these fields at ``at``."""
        p: cython.Py_ssize_t
        n: cython.Py_ssize_t = len(fields.body)
        out: cython.p_uchar = self._out
        _check_fields(fields)
        self._require(at, fields.size)
        p = _head(
            out,
            at,
            fields.size,
            fields,
            fields.flag,
            fields.queue_offset,
            fields.physical_offset,
            n,
        )
        copy_from(out, p, fields.body, n)
        store_i32(out, at + k.AT_BODY_CRC, crc31(out, p, n))
        p = _topic(out, p + n, fields.topic)
        n = len(fields.properties)
        store_i16(out, p, n)
        copy_from(out, p + 2, fields.properties, n)

    def seal(self, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> None:
        """Write the property CRC into the space at the end of a finished record."""
        if size < k.CRC_SIZE:
            raise ValueError(f"a record of {size} bytes at {at} has no room for a property CRC")
        self._require(at, size)
        _seal(self._out, at, size)

    def blank(self, at: cython.Py_ssize_t, size: cython.longlong) -> None:
        """Write the blank record: the last ``size`` bytes of the file, from here on, are unused."""
        if size < k.BLANK or size > _INT_MAX:
            raise ValueError(f"a blank of {size} bytes is not in {k.BLANK}..{_INT_MAX}")
        self._require(at, k.BLANK)
        store_i32(self._out, at, size)
        store_i32(self._out, at + 4, k.MAGIC_BLANK)

    def write_batch(
        self,
        at: cython.Py_ssize_t,
        batch: cython.const[cython.uchar][::1],
        common: RecordFields,
        property_crc: cython.bint,
    ) -> int:
        """Write the items of a client batch (:func:`measure_batch`) as records.

        ``common`` has the offsets of the first record, and the properties that every item gets
        from the batch. Returns the position after the last record.
        """
        out: cython.p_uchar = self._out
        items: cython.pointer(cython.const[cython.uchar])
        item: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(batch)
        shared: bytes = common.properties
        shared_size: cython.Py_ssize_t = len(shared)
        fixed: cython.Py_ssize_t = common.size - len(common.body) - shared_size
        queue_offset: cython.longlong = common.queue_offset
        physical_offset: cython.longlong = common.physical_offset
        body: cython.Py_ssize_t
        own: cython.Py_ssize_t
        own_at: cython.Py_ssize_t
        properties: cython.Py_ssize_t
        size: cython.Py_ssize_t
        p: cython.Py_ssize_t
        _check_fields(common)
        if property_crc and shared and not shared.endswith(b"\x02"):
            raise ValueError("shared properties need their last separator before a property CRC")
        if cython.compiled:
            items = cython.address(batch[0])
        else:
            items = batch
        self._require(at, measure(items, end, fixed, shared_size, property_crc)[1])
        while item < end:
            body = load_i32(items, item + k.ITEM_BODY_LENGTH)
            own_at = item + k.ITEM_HEAD + body + 2
            own = item + load_i32(items, item) - own_at
            properties = item_properties_size(items, own_at, own, shared_size, property_crc)
            size = fixed + body + properties
            p = _head(
                out,
                at,
                size,
                common,
                load_i32(items, item + k.ITEM_FLAG),
                queue_offset,
                physical_offset,
                body,
            )
            copy_bytes(out, p, items, item + k.ITEM_HEAD, body)
            store_i32(out, at + k.AT_BODY_CRC, crc31(out, p, body))
            p = _topic(out, p + body, common.topic)
            store_i16(out, p, properties)
            p += 2
            copy_bytes(out, p, items, own_at, own)
            p += own
            if own and out[p - 1] != 2 and (shared_size or property_crc):
                out[p] = 2
                p += 1
            copy_from(out, p, shared, shared_size)
            if property_crc:
                _seal(out, at, size)
            at += size
            physical_offset += size
            queue_offset += 1
            item = own_at + own
        return at

    def _require(self, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
        """Raise ValueError unless ``size`` bytes at ``at`` are inside the buffer."""
        if at < 0 or size > self._size or at > self._size - size:
            raise ValueError(f"{size} bytes at {at} exceed the buffer of {self._size} bytes")
        return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _head(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    fields: RecordFields,
    flag: cython.longlong,
    queue_offset: cython.longlong,
    physical_offset: cython.longlong,
    body_size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write all fields before the body, except its checksum; return the position of the body.

    The last four arguments replace those of ``fields``.
    """
    born_size: cython.Py_ssize_t = k.HOST_V6 if fields.sys_flag & k.BORN_V6 else k.HOST_V4
    store_size: cython.Py_ssize_t = k.HOST_V6 if fields.sys_flag & k.STORE_V6 else k.HOST_V4
    is_v1: cython.bint = len(fields.topic) <= k.TOPIC_V1_MAX
    store_i32(out, at, size)
    store_i32(out, at + k.AT_MAGIC, k.MAGIC_V1 if is_v1 else k.MAGIC_V2)
    store_i32(out, at + k.AT_QUEUE_ID, fields.queue_id)
    store_i32(out, at + k.AT_FLAG, flag)
    store_i64(out, at + k.AT_QUEUE_OFFSET, queue_offset)
    store_i64(out, at + k.AT_PHYSICAL_OFFSET, physical_offset)
    store_i32(out, at + k.AT_SYS_FLAG, fields.sys_flag)
    store_i64(out, at + k.AT_BORN_TIME, fields.born_time)
    at += k.HEAD
    copy_from(out, at, fields.born_host, born_size)
    at += born_size
    store_i64(out, at, fields.store_time)
    at += k.STORE_TIME
    copy_from(out, at, fields.store_host, store_size)
    at += store_size
    store_i32(out, at, fields.reconsume_times)
    store_i64(out, at + k.AT_PREPARED_OFFSET, fields.prepared_offset)
    store_i32(out, at + k.AT_BODY_LENGTH, body_size)
    return at + k.MIDDLE


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _topic(out: cython.p_uchar, at: cython.Py_ssize_t, topic: bytes) -> cython.Py_ssize_t:
    """Write the length of the topic and the topic; return the position after them."""
    n: cython.Py_ssize_t = len(topic)
    if n <= k.TOPIC_V1_MAX:
        out[at] = n
        at += 1
    else:
        store_i16(out, at, n)
        at += 2
    copy_from(out, at, topic, n)
    return at + n


@cython.cfunc
@cython.exceptval(check=False)
def _seal(out: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
    """Write the property CRC of a record that ends with space for it."""
    i: cython.Py_ssize_t
    mark: bytes = _CRC_MARK
    p: cython.Py_ssize_t = at + size - k.CRC_SIZE
    crc: cython.longlong = crc31(out, at, size - k.CRC_SIZE)
    copy_from(out, p, mark, len(mark))
    p += len(mark)
    for i in range(k.CRC_DIGITS):
        out[p + i] = 48 + crc % 10
        crc //= 10
    out[p + k.CRC_DIGITS] = 2
