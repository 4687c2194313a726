"""Fields of records in Arrow's buffers, compared with records decoded one by one."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.format.kernels.drafts import V6, Draft, drafts, fenced, pack_log, scan_all
from tests.format.kernels.golden import STORES, scan_log

from firetrail.format import columns as col
from firetrail.format.columns import Check, Columns
from firetrail.format.record import Record, decode_record
from firetrail.format.values.hosts import unpack_ip
from firetrail.pipeline.kernels import arrow
from firetrail.pipeline.kernels.arrow import KEYS, PROPERTIES, Rows
from firetrail.pipeline.kernels.arrow_lists import fill_keys, measure_items
from firetrail.pipeline.kernels.arrow_maps import ITEMS_PER_RECORD_MAX, fill_properties

NUMBERS = {
    "queue_offset": col.QUEUE_OFFSET,
    "physical_offset": col.PHYSICAL_OFFSET,
    "prepared_offset": col.PREPARED_OFFSET,
}
SMALL_NUMBERS = {
    "queue_id": col.QUEUE_ID,
    "flag": col.FLAG,
    "sys_flag": col.SYS_FLAG,
    "reconsume_times": col.RECONSUME_TIMES,
    "size": col.SIZE,
}
TIMES = {"born_time": col.BORN_TIME, "store_time": col.STORE_TIME}
US_MAX = 2**63 // 1000 * 1000


def ints(count: int) -> array[int]:
    return array("i", [-7] * count)


def rows_of(data: Any, columns: Columns, picks: Sequence[int]) -> Rows:
    return Rows(data, columns.table, array("q", [*picks, 0]), len(picks))


def is_set(bits: bytearray, row: int) -> bool:
    return bool(bits[row // 8] >> row % 8 & 1)


def values(rows: Rows, kind: int) -> list[bytes | None]:
    """Return a column of bytes or text; its buffer is fenced, so that an overflow crashes."""
    offsets, valid = ints(rows.count + 1), bytearray(rows.count // 8 + 1)
    out = fenced(bytes(max(rows.room(kind), 1)))
    size, nulls = rows.fill(kind, offsets, valid, out)
    found = [
        bytes(out[offsets[row] : offsets[row + 1]]) if is_set(valid, row) else None
        for row in range(rows.count)
    ]
    assert found.count(None) == nulls
    assert offsets[rows.count] == size
    return found


def times(rows: Rows, column: int) -> list[int | None]:
    out, valid = array("q", bytes(8 * (rows.count + 1))), bytearray(rows.count // 8 + 1)
    nulls = rows.micros(column, out, valid)
    found = [out[row] if is_set(valid, row) else None for row in range(rows.count)]
    assert found.count(None) == nulls
    return found


def keys(rows: Rows) -> list[list[str]]:
    items, size = measure_items(rows, KEYS)
    lists, offsets, out = ints(rows.count + 1), ints(items + 1), fenced(bytes(size))
    count = fill_keys(rows, lists, offsets, out)
    assert count <= items
    texts = [bytes(out[offsets[i] : offsets[i + 1]]).decode() for i in range(count)]
    return [texts[lists[row] : lists[row + 1]] for row in range(rows.count)]


def maps(rows: Rows) -> list[list[tuple[str, str]]]:
    items, size = measure_items(rows, PROPERTIES)
    lists = ints(rows.count + 1)
    name_offsets, names = ints(items + 1), fenced(bytes(size))
    value_offsets, texts = ints(items + 1), fenced(bytes(size))
    count = fill_properties(rows, lists, name_offsets, names, value_offsets, texts)
    assert count <= items
    pairs = [
        (
            bytes(names[name_offsets[i] : name_offsets[i + 1]]).decode(),
            bytes(texts[value_offsets[i] : value_offsets[i + 1]]).decode(),
        )
        for i in range(count)
    ]
    return [pairs[lists[row] : lists[row + 1]] for row in range(rows.count)]


def micros(ms: int) -> int | None:
    return 1000 * ms if abs(1000 * ms) < US_MAX else None


def message_id(raw: bytes, record: Record) -> str:
    if record.unique_key is not None:
        return record.unique_key
    store_host_at = 48 + (20 if record.sys_flag & 0x10 else 8) + 8
    store_host = raw[store_host_at : store_host_at + (20 if record.sys_flag & 0x20 else 8)]
    return (store_host + record.physical_offset.to_bytes(8, "big")).hex().upper()


def assert_gathered(data: Any, columns: Columns, picks: Sequence[int]) -> None:
    """Assert that every column of the picked rows equals the decoded records."""
    rows = rows_of(data, columns, picks)
    raws, records = [], []
    for row in picks:
        cells = columns.row(row)
        end = cells["properties_at"] + cells["properties_size"]
        raw = bytes(data[end - cells["size"] : end])
        decoded = decode_record(raw, check_crc=False)
        assert isinstance(decoded, Record)
        raws.append(raw)
        records.append(decoded)
    for name, column in NUMBERS.items():
        out = array("q", bytes(8 * (rows.count + 1)))
        rows.longs(column, out)
        assert out[: rows.count].tolist() == [getattr(record, name) for record in records]
    for name, column in SMALL_NUMBERS.items():
        small = ints(rows.count + 1)
        rows.ints(column, small)
        assert small[: rows.count].tolist() == [getattr(record, name) for record in records]
    for name, column in TIMES.items():
        assert times(rows, column) == [micros(getattr(record, name)) for record in records]
    texts: list[tuple[int, Callable[[Record], str | None]]] = [
        (arrow.TOPIC, lambda record: record.topic),
        (arrow.TAGS, lambda record: record.tags),
        (arrow.BORN_HOST, lambda record: str(record.born_host)),
        (arrow.STORE_HOST, lambda record: str(record.store_host)),
    ]
    for kind, text in texts:
        found = [None if value is None else value.decode() for value in values(rows, kind)]
        assert found == [text(record) for record in records]
    assert values(rows, arrow.BODY) == [record.body for record in records]
    ids = [message_id(raw, record).encode() for raw, record in zip(raws, records, strict=True)]
    assert values(rows, arrow.MESSAGE_ID) == ids
    assert keys(rows) == [list(record.keys) for record in records]
    assert maps(rows) == [list(record.properties.items()) for record in records]


@given(st.lists(drafts, max_size=12), st.data())
@example([Draft(properties=b"a\x01b\x02a\x01c\x02b\x01d\x02a\x01e\x02")], None)
@example([Draft(properties=b"\xff\x01b\x02\xfe\x01c\x02", topic=b"\xed\xa0\x80\xff")], None)
@example([Draft(properties=b"KEYS\x01 \xf0\x9f  \xff x\x02", born_host=V6, store_host=V6)], None)
@example([Draft(born_host=V6), Draft(born_host=V6), Draft(), Draft(), Draft(store_host=V6)], None)
def test_random_records_equal_their_decoding(
    log_drafts: list[Draft], data: st.DataObject | None
) -> None:
    log = fenced(pack_log(log_drafts, 1000))
    columns, rows, _, _ = scan_all(log, 1000, Check.NONE)
    everything = list(range(rows))
    picks = everything if data is None else data.draw(st.permutations(everything))
    assert_gathered(log, columns, picks)
    assert_gathered(log, columns, picks[: rows // 2])


@pytest.mark.parametrize("size", range(20))
def test_names_and_values_of_every_length(size: int) -> None:
    name, value = b"n" * size, bytes(range(3, 3 + size))
    for raw in (
        name + b"\x01" + value + b"\x02",
        b"a\x01b\x02" + name + b"\x01" + value,
        name + b"\x01" + value + b"\x02" + name + b"\x01" + value + b"\x01\x02",
        name + b"\x01" + value + "é".encode() + b"\x02x\x01y\x02",
        name + b"\x02" + value + b"\x01\x02",
    ):
        log = fenced(Draft(properties=raw).pack(0))
        columns, rows, _, _ = scan_all(log)
        assert rows == 1
        assert_gathered(log, columns, [0])


@pytest.mark.parametrize("store", STORES)
def test_golden_stores_equal_their_decoding(store: str) -> None:
    for piece in scan_log(store):
        assert_gathered(piece.data, piece.columns, range(piece.rows))


@given(
    st.one_of(
        st.binary(min_size=16, max_size=16),
        st.lists(st.sampled_from([b"\0\0", b"\0\1", b"\xff\xff", b"\xab\x0c"]), min_size=8)
        .map(b"".join)
        .map(lambda raw: raw[:16]),
    ),
    st.integers(-(2**31), 2**31 - 1),
)
@example(bytes(16), 0)
@example(IPv6Address("::ffff:1.2.3.4").packed, 10911)
@example(IPv6Address("1::2:0:0:0").packed, -1)
@example(IPv6Address("0:1:0:0:1:0:0:1").packed, -(2**31))
def test_ipv6_hosts_are_formatted(address: bytes, port: int) -> None:
    host = address + port.to_bytes(4, "big", signed=True)
    log = Draft(store_host=host).pack(0)
    columns, rows, _, _ = scan_all(log)
    assert rows == 1
    expected = f"[{unpack_ip(address)}]:{port}".encode()
    assert values(rows_of(log, columns, [0]), arrow.STORE_HOST) == [expected]


def test_as_many_properties_as_fit() -> None:
    """The shortest different names, followed by the same names again."""
    items = [chr(0x21 + n // 90) + chr(0x21 + n % 90) for n in range(3000)]
    raw = "".join(f"{name}\x01{n % 10}\x02" for n, name in enumerate([*items, *items])).encode()
    log = Draft(properties=raw).pack(0)
    columns, rows, _, _ = scan_all(log, capacity=1)
    assert rows == 1
    assert_gathered(log, columns, [0])
    assert ITEMS_PER_RECORD_MAX >= 32767 // 4 + 1


class TestRefusals:
    @pytest.fixture
    def scanned(self) -> tuple[bytes, Columns]:
        log = pack_log([Draft(), Draft(body=b"x" * 100)])
        columns, rows, _, _ = scan_all(log, capacity=3)
        assert rows == 2
        return log, columns

    def test_row_numbers_out_of_range(self, scanned: tuple[bytes, Columns]) -> None:
        log, columns = scanned
        for row in (-1, columns.capacity, 2**62):
            with pytest.raises(ValueError, match="not of a scan"):
                rows_of(log, columns, [0, row])
        with pytest.raises(ValueError, match="3 of 2 picks"):
            Rows(log, columns.table, array("q", [0, 1]), 3)

    def test_rows_of_another_buffer(self, scanned: tuple[bytes, Columns]) -> None:
        log, columns = scanned
        with pytest.raises(ValueError, match="not of a scan of these 100 bytes"):
            rows_of(log[:100], columns, [0])

    @pytest.mark.parametrize(
        "column", ["body", "topic", "tags", "keys", "unique_key", "properties"]
    )
    @pytest.mark.parametrize("size", [-1, 2**40, -(2**63)])
    def test_cells_that_point_outside(
        self, scanned: tuple[bytes, Columns], column: str, size: int
    ) -> None:
        log, columns = scanned
        columns.column(col.COLUMN_NAMES.index(f"{column}_size"))[0] = size
        with pytest.raises(ValueError, match="not of a scan"):
            rows_of(log, columns, [0])

    def test_a_body_without_room_for_the_hosts(self, scanned: tuple[bytes, Columns]) -> None:
        log, columns = scanned
        columns.column(col.BODY_AT)[0] = 40
        with pytest.raises(ValueError, match="not of a scan"):
            rows_of(log, columns, [0])

    def test_room_that_is_too_small(self, scanned: tuple[bytes, Columns]) -> None:
        rows = rows_of(*scanned, [0, 1])
        with pytest.raises(ValueError, match="room for 1, 2 needed"):
            rows.longs(0, array("q", [0]))
        with pytest.raises(ValueError, match="room for 1, 2 needed"):
            rows.ints(0, ints(1))
        size = rows.room(arrow.BODY)
        with pytest.raises(ValueError, match="room for 2, 3 needed"):
            rows.fill(arrow.BODY, ints(2), bytearray(1), bytearray(size))
        with pytest.raises(ValueError, match=f"room for {size - 1}, {size} needed"):
            rows.fill(arrow.BODY, ints(3), bytearray(1), bytearray(size - 1))
        items, size = measure_items(rows, KEYS)
        with pytest.raises(ValueError, match="are needed"):
            fill_keys(rows, ints(3), ints(items), bytearray(size))
        items, size = measure_items(rows, PROPERTIES)
        room = ints(3), ints(items + 1), bytearray(size), ints(items + 1)
        with pytest.raises(ValueError, match="are needed"):
            fill_properties(rows, *room, bytearray(size - 1))

    def test_columns_out_of_range(self, scanned: tuple[bytes, Columns]) -> None:
        rows = rows_of(*scanned, [0, 1])
        for kind in (-1, KEYS, 99):
            with pytest.raises(ValueError, match="no column"):
                rows.room(kind)
            with pytest.raises(ValueError, match="no column"):
                rows.fill(kind, ints(3), bytearray(1), bytearray(9999))
        for column in (-1, len(col.COLUMN_NAMES)):
            with pytest.raises(ValueError, match="no column"):
                rows.longs(column, array("q", bytes(80)))
