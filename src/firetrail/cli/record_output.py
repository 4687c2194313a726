"""Records as lines of a table for people, or as one JSON object per line for scripts.

The JSON object, whose field names are fixed::

    physical_offset size magic topic queue_id queue_offset sys_flag flag born_time born_host
    store_time store_host reconsume_times prepared_offset body_crc crc_ok properties body

Times are in ms since 1970, hosts ``ip:port``, ``properties`` is an object and ``body`` base64.
``crc_ok`` says whether the checksum is right: that of the whole record if it has the property
``__CRC32#``, otherwise that of the body.
"""

import json
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from firetrail.cli.output import colour, human_time, shortened
from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.format.columns import COLUMN_NAMES, Check, Columns, Stop
from firetrail.format.kernels.scan import scan
from firetrail.format.properties import KEYS, TAGS, decode_properties
from firetrail.format.values.hosts import Host, format_host, unpack_ip
from firetrail.format.values.javahash import java_text
from firetrail.format.values.truths import truth_text
from firetrail.store.log.walk import CHECKSUM_STOPS

_CACHED_MAX = 1 << 16
_PREVIEW = 40
_BORN_HOST_AT = layout.RECORD_HEAD.size
_MAGIC_AT = layout.RECORD_HEAD.offsets["magic"]
_JSON = (
    '{"physical_offset": %d, "size": %d, "magic": %d, "topic": %s, "queue_id": %d, '
    '"queue_offset": %d, "sys_flag": %d, "flag": %d, "born_time": %d, "born_host": "%s", '
    '"store_time": %d, "store_host": "%s", "reconsume_times": %d, "prepared_offset": %d, '
    '"body_crc": %d, "crc_ok": %s, "properties": %s, "body": "%s"}'
)
HEADING = (
    f"{'OFFSET':>12}  {'SIZE':>7}  {'STORED':24}  {'TOPIC/QUEUE':24}  {'NUMBER':>9}  "
    f"{'TAGS':10}  {'KEYS':20}  BODY"
)


class Row(NamedTuple):
    """A record: its fields as in the log, and slices of it."""

    physical_offset: int
    size: int
    magic: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    flag: int
    born_time: int
    born_host: bytes
    store_time: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_crc: int
    crc_ok: bool
    topic: bytes
    body: memoryview
    properties: memoryview


Show = Callable[[Row], str]


def rows_of(
    view: memoryview, base: int, columns: Columns, rows: int, *, last_ok: bool = True
) -> Iterator[Row]:
    """Yield the rows of a scan of ``view``, which starts at physical offset ``base``."""
    numbers = range(len(COLUMN_NAMES))
    cells = zip(*(columns.column(column)[:rows].tolist() for column in numbers), strict=True)
    for number, cell in enumerate(cells, 1):
        yield _row(view, base, cell, last_ok or number < rows)


def row_of(record: memoryview, physical_offset: int, columns: Columns) -> Row | None:
    """Return the record in a slice of the log; None if there is none. ``columns`` has one row."""
    rows, _, stop = scan(record, 0, len(record), physical_offset, columns.table, Check.RECORD)
    if not rows and Stop(stop) not in CHECKSUM_STOPS:
        return None
    return _row(record, physical_offset, columns.table.tolist(), bool(rows))


def _row(view: memoryview, base: int, cell: Sequence[int], crc_ok: bool) -> Row:
    """Build a row from the cells of all columns."""
    at = cell[col.PHYSICAL_OFFSET] - base
    born_at = at + _BORN_HOST_AT
    born_end = born_at + _host_size(cell[col.SYS_FLAG] & layout.BORN_HOST_V6)
    store_at = born_end + layout.STORE_TIME.size
    store_end = store_at + _host_size(cell[col.SYS_FLAG] & layout.STORE_HOST_V6)
    topic_at, body_at = cell[col.TOPIC_AT], cell[col.BODY_AT]
    properties_at = cell[col.PROPERTIES_AT]
    return Row(
        physical_offset=cell[col.PHYSICAL_OFFSET],
        size=cell[col.SIZE],
        magic=int.from_bytes(view[at + _MAGIC_AT : at + _MAGIC_AT + 4], "big"),
        queue_id=cell[col.QUEUE_ID],
        queue_offset=cell[col.QUEUE_OFFSET],
        sys_flag=cell[col.SYS_FLAG],
        flag=cell[col.FLAG],
        born_time=cell[col.BORN_TIME],
        born_host=bytes(view[born_at:born_end]),
        store_time=cell[col.STORE_TIME],
        store_host=bytes(view[store_at:store_end]),
        reconsume_times=cell[col.RECONSUME_TIMES],
        prepared_offset=cell[col.PREPARED_OFFSET],
        body_crc=cell[col.BODY_CRC],
        crc_ok=crc_ok,
        topic=bytes(view[topic_at : topic_at + cell[col.TOPIC_SIZE]]),
        body=view[body_at : body_at + cell[col.BODY_SIZE]],
        properties=view[properties_at : properties_at + cell[col.PROPERTIES_SIZE]],
    )


def _host_size(is_v6: int) -> int:
    return layout.HOST_V6_SIZE if is_v6 else layout.HOST_V4_SIZE


class RecordFormatter:
    """Formats records as lines; caches the texts of hosts and topics, which repeat."""

    def __init__(self) -> None:
        self._hosts: dict[bytes, str] = {}
        self._topics: dict[bytes, str] = {}

    def json(self, row: Row) -> str:
        """Return the record as a JSON object."""
        return _JSON % (
            row.physical_offset,
            row.size,
            row.magic,
            self._cached(self._topics, row.topic, _json_text),
            row.queue_id,
            row.queue_offset,
            row.sys_flag,
            row.flag,
            row.born_time,
            self._cached(self._hosts, row.born_host, _host_text),
            row.store_time,
            self._cached(self._hosts, row.store_host, _host_text),
            row.reconsume_times,
            row.prepared_offset,
            row.body_crc,
            truth_text(row.crc_ok),
            json.dumps(decode_properties(row.properties)),
            b2a_base64(row.body, newline=False).decode(),
        )

    def line(self, row: Row) -> str:
        """Return the record as a line below :data:`HEADING`."""
        properties = decode_properties(row.properties)
        queue = f"{shortened(java_text(row.topic))}/{row.queue_id}"
        text = (
            f"{row.physical_offset:>12}  {row.size:>7}  {human_time(row.store_time):24}  "
            f"{queue:24}  {row.queue_offset:>9}  {properties.get(TAGS, '-'):10}  "
            f"{properties.get(KEYS, '-'):20}  {preview(row.body)}"
        )
        return text if row.crc_ok else f"{text}  {colour('WRONG CHECKSUM', 'red')}"

    @staticmethod
    def _cached(known: dict[bytes, str], raw: bytes, make: Callable[[bytes], str]) -> str:
        text = known.get(raw)
        if text is None:
            if len(known) >= _CACHED_MAX:
                known.clear()
            text = known[raw] = make(raw)
        return text


def _json_text(raw: bytes) -> str:
    return json.dumps(java_text(raw))


def _host_text(raw: bytes) -> str:
    """Return ``ip:port``; a damaged port is shown as the number in the record."""
    return format_host(Host(unpack_ip(raw[:-4]), int.from_bytes(raw[-4:], "big", signed=True)))


def preview(body: memoryview) -> str:
    """Return the beginning of a body: as text if it is printable, else in hex."""
    start = bytes(body[: 2 * _PREVIEW])
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        text = start[: error.start].decode() if error.start > len(start) - 4 else ""
    if not text or not text.isprintable():
        text = start[: _PREVIEW // 2].hex()
        return text if len(body) <= _PREVIEW // 2 else f"{text}…"
    return text if len(text) <= _PREVIEW and len(body) <= len(start) else f"{text[:_PREVIEW]}…"
