"""Access to one record at a time: its fields as Python values, and whether it has a key.

Both begin with the check of :mod:`~firetrail.format.kernels.scan`, so a record is accepted here
exactly if a scan accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.format.values.javahash import java_text

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels._bigendian import load_i64, load_u32, same_bytes
    from cython.cimports.firetrail.format.kernels.checksum import crc31
    from cython.cimports.firetrail.format.kernels.scan import note_record
    from cython.cimports.firetrail.format.kernels.text import hash_utf8
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels._bigendian import load_i64, load_u32, same_bytes
    from firetrail.format.kernels.checksum import crc31
    from firetrail.format.kernels.scan import note_record
    from firetrail.format.kernels.text import hash_utf8

COMPILED = cython.compiled

_GOOD = cython.declare(cython.int, -1)
_INT_MIN = cython.declare(cython.longlong, -(2**31))
_SPACE = cython.declare(cython.uchar, 32)


def unpack_record(
    data: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    host: Callable[[bytes], Any],
    check_crc: cython.bint,
) -> tuple[Any, ...] | None:
    """Return the fields of the record at ``at`` in the order of ``Record``; None if it is damaged.

    ``host`` converts the bytes of a host. The record's physical offset is not checked.
    """
    row: cython.longlong[26]
    cells: cython.p_longlong
    source: cython.pointer(cython.const[cython.uchar])
    if at < 0 or len(data) - at < k.RECORD_MIN:
        return None
    if cython.compiled:
        source = cython.address(data[0])
        cells = cython.address(row[0])  # noqa: F821 (C's array)
    else:
        source = data
        cells = [0] * k.COLUMNS
    base: cython.longlong = load_i64(source, at + k.AT_PHYSICAL_OFFSET) - at
    if note_record(source, at, len(data), base, cells, 1, 0) != _GOOD:
        return None
    body_at: cython.Py_ssize_t = cells[k.COL_BODY_AT]
    body_end: cython.Py_ssize_t = body_at + cells[k.COL_BODY_SIZE]
    if check_crc and crc31(source, body_at, body_end - body_at) != cells[k.COL_BODY_CRC]:
        return None
    born_at: cython.Py_ssize_t = at + k.HEAD
    born_end: cython.Py_ssize_t = born_at + (
        k.HOST_V6 if cells[k.COL_SYS_FLAG] & k.BORN_V6 else k.HOST_V4
    )
    topic_at: cython.Py_ssize_t = cells[k.COL_TOPIC_AT]
    topic_end: cython.Py_ssize_t = topic_at + cells[k.COL_TOPIC_SIZE]
    properties_at: cython.Py_ssize_t = cells[k.COL_PROPERTIES_AT]
    properties_end: cython.Py_ssize_t = properties_at + cells[k.COL_PROPERTIES_SIZE]
    return (
        cells[k.COL_SIZE],
        load_u32(source, at + k.AT_MAGIC),
        cells[k.COL_BODY_CRC],
        cells[k.COL_QUEUE_ID],
        cells[k.COL_FLAG],
        cells[k.COL_QUEUE_OFFSET],
        cells[k.COL_PHYSICAL_OFFSET],
        cells[k.COL_SYS_FLAG],
        cells[k.COL_BORN_TIME],
        host(_bytes(source, born_at, born_end)),
        cells[k.COL_STORE_TIME],
        host(_bytes(source, born_end + k.STORE_TIME, body_at - k.MIDDLE)),
        cells[k.COL_RECONSUME_TIMES],
        cells[k.COL_PREPARED_OFFSET],
        _bytes(source, body_at, body_end),
        java_text(_bytes(source, topic_at, topic_end)),
        _bytes(source, properties_at, properties_end),
    )


@cython.cfunc
@cython.inline
def _bytes(
    data: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> bytes:
    if cython.compiled:
        return cython.cast(cython.pointer(cython.const[cython.char]), data)[at:end]
    else:
        return bytes(data[at:end])


@cython.cclass
class KeyQuestion:
    """A query for messages of a topic with a key or unique key, stored in ``begin..end`` (ms).

    ``key_hash`` is the hash of topic and key in the index (``javahash.index_key_hash``).
    """

    key_hash: int = cython.declare(object, visibility="readonly")
    begin: int = cython.declare(cython.longlong, visibility="readonly")
    end: int = cython.declare(cython.longlong, visibility="readonly")
    _topic: bytes
    _key: bytes

    def __init__(self, topic: str, key: str, begin: cython.longlong, end: cython.longlong) -> None:
        # Lone surrogates are encoded as they are: no stored text contains them.
        self._topic = topic.encode("utf-8", "surrogatepass")
        self._key = key.encode("utf-8", "surrogatepass")
        indexed: bytes = self._topic + b"#" + self._key
        value: cython.longlong = hash_utf8(indexed, 0, len(indexed), 0)
        self.key_hash = 0 if value == _INT_MIN else abs(value)
        self.begin = begin
        self.end = end

    def fits(
        self,
        data: cython.const[cython.uchar][::1],
        at: cython.Py_ssize_t,
        limit: cython.Py_ssize_t,
        base: cython.longlong,
    ) -> int:
        """Return the size of the record at ``data[at]`` if it matches, else 0.

        ``data`` begins at physical offset ``base`` and may be read up to ``limit``.
        """
        row: cython.longlong[26]
        cells: cython.p_longlong
        source: cython.pointer(cython.const[cython.uchar])
        if at < 0 or limit > len(data) or limit - at < k.RECORD_MIN:
            return 0
        if cython.compiled:
            source = cython.address(data[0])
            cells = cython.address(row[0])  # noqa: F821 (C's array)
        else:
            source = data
            cells = [0] * k.COLUMNS
        if note_record(source, at, limit, base, cells, 1, 0) != _GOOD:
            return 0
        if cells[k.COL_STORE_TIME] < self.begin or cells[k.COL_STORE_TIME] > self.end:
            return 0
        size: cython.Py_ssize_t = len(self._topic)
        if cells[k.COL_TOPIC_SIZE] != size or not same_bytes(
            source, cells[k.COL_TOPIC_AT], self._topic, 0, size
        ):
            return 0
        size = len(self._key)
        if (
            size > 0
            and cells[k.COL_UNIQUE_KEY_SIZE] == size
            and same_bytes(source, cells[k.COL_UNIQUE_KEY_AT], self._key, 0, size)
        ):
            return cells[k.COL_SIZE]
        if self._is_one_of(source, cells[k.COL_KEYS_AT], cells[k.COL_KEYS_SIZE]):
            return cells[k.COL_SIZE]
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _is_one_of(
        self,
        data: cython.pointer(cython.const[cython.uchar]),
        at: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
    ) -> cython.bint:
        """Return whether the key is one of the keys at ``at``, which are separated by spaces."""
        size: cython.Py_ssize_t = len(self._key)
        end: cython.Py_ssize_t = at + count
        start: cython.Py_ssize_t = at
        if size == 0 or count == 0:
            return False
        while at <= end:
            if at == end or data[at] == _SPACE:
                if at - start == size and same_bytes(data, start, self._key, 0, size):
                    return True
                start = at + 1
            at += 1
        return False
