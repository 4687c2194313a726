"""The scan: the columns of a good record, and where and why it stops at a bad one.

It is compared with ``decode_record``, which reads the same bytes one record at a time: the two
accept and refuse the same records, for the same reason.
"""

from dataclasses import replace
from struct import pack, pack_into, unpack_from

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.format.kernels.drafts import (
    ANY_RECORD,
    V4,
    V6,
    Draft,
    assert_row,
    drafts,
    fenced,
    pack_log,
    properties,
    scan_all,
)

from firetrail.errors import FormatError
from firetrail.format import layout
from firetrail.format.columns import COLUMN_NAMES, Check, Columns, Stop
from firetrail.format.kernels.scan import ANYWHERE, scan
from firetrail.format.record import Blank, decode_record

AT_OFFSET = layout.RECORD_HEAD.offsets["physical_offset"]
REASONS = {
    "magic": {Stop.MAGIC},
    "total size": {Stop.SIZE, Stop.CUT},
    "blank size": {Stop.SIZE},
    "body length": {Stop.BODY_LENGTH},
    "topic length": {Stop.TOPIC_LENGTH},
    "properties length": {Stop.PROPERTIES_LENGTH},
    "body CRC": {Stop.BODY_CRC},
}
"""The stops of the scan for each field that ``decode_record`` names."""


def scan_by_decoding(data: bytes, base: int, check: Check) -> tuple[int, int, set[Stop]]:
    """Return the expected result of the scan: (rows, position, one of these stops)."""
    rows = at = 0
    while len(data) - at >= 8:
        if data[at : at + 8] == bytes(8):
            return rows, at, {Stop.EMPTY}
        try:
            record = decode_record(data, at, check_crc=check != Check.NONE)
        except FormatError as error:
            stops = REASONS[error.field]
            # Looked at right after the total size.
            if len(data) - at >= 36 and unpack_from(">q", data, at + AT_OFFSET)[0] != base + at:
                stops = stops | {Stop.PHYSICAL_OFFSET}
            return rows, at, stops
        if isinstance(record, Blank):
            return rows, at, {Stop.BLANK}
        if record.physical_offset != base + at:
            return rows, at, {Stop.PHYSICAL_OFFSET}
        rows += 1
        at += record.size
    return rows, at, {Stop.LIMIT}


def assert_agree(data: bytes, base: int, check: Check) -> None:
    columns, rows, at, stop = scan_all(fenced(data), base, check)
    expected_rows, expected_at, stops = scan_by_decoding(data, base, check)
    assert (rows, at) == (expected_rows, expected_at), stop
    assert stop in stops
    position = 0
    for row in range(rows):
        position = assert_row(data, position, columns.row(row))
    assert position == at


class TestGoodRecords:
    @given(st.lists(drafts, max_size=5), st.integers(0, 2**62), st.sampled_from(ANY_RECORD))
    def test_every_column_is_as_decoded(
        self, messages: list[Draft], base: int, check: Check
    ) -> None:
        log = pack_log(messages, base)
        columns, rows, at, stop = scan_all(fenced(log), base, check)
        assert (rows, at, stop) == (len(messages), len(log), Stop.LIMIT)
        position = 0
        for row in range(rows):
            position = assert_row(log, position, columns.row(row))

    @given(st.lists(st.tuples(drafts, st.integers(0, 2**63 - 1)), max_size=5))
    def test_records_of_any_physical_offset_are_scanned(
        self, messages: list[tuple[Draft, int]]
    ) -> None:
        data = b"".join(draft.pack(offset) for draft, offset in messages)
        columns, rows, at, stop = scan_all(fenced(data), ANYWHERE)
        assert (rows, at, stop) == (len(messages), len(data), Stop.LIMIT)
        position = 0
        for row, (_, offset) in enumerate(messages):
            assert columns.row(row)["physical_offset"] == offset
            position = assert_row(data, position, columns.row(row))

    @given(properties)
    @example(b"TAGS\x01a\x02TAGS\x01b\x02TAGS\x01\x02")
    @example(b"TAGS\x01a\x01b")
    @example(b"KEYS\x01\x02UNIQ_KEY\x01")
    @example(b"DELAY\x01\x02DELAY\x013")
    @example(b"DELAY\x01+3")
    @example(b"DELAY\x01-3")
    @example(b"DELAY\x0199999999")
    @example(b"DELAY\x012147483648")
    @example(b"DELAY\x0100000000000000000000000000004")
    @example(b"DELAY\x01+")
    def test_property_columns_are_as_decoded(self, raw: bytes) -> None:
        log = Draft(properties=raw).pack(0)
        columns, rows, _, _ = scan_all(fenced(log))
        assert rows == 1
        assert_row(log, 0, columns.row(0))

    @pytest.mark.parametrize("born_host", [V4, V6])
    @pytest.mark.parametrize("store_host", [V4, V6])
    @pytest.mark.parametrize("topic", [b"", b"T" * 127, b"T" * 128, b"T" * 32767])
    def test_the_smallest_and_largest_records_are_scanned(
        self, born_host: bytes, store_host: bytes, topic: bytes
    ) -> None:
        for raw in (b"", b"p" * 32767):
            draft = Draft(b"", topic, raw, born_host=born_host, store_host=store_host)
            log = pack_log([draft])
            columns, rows, _, stop = scan_all(fenced(log))
            assert (rows, stop) == (1, Stop.LIMIT)
            assert_row(log, 0, columns.row(0))

    def test_rows_are_reused(self) -> None:
        """Nothing of the row before may show through."""
        columns = Columns(1)
        log = Draft(properties=b"KEYS\x01k\x02TAGS\x01t\x02UNIQ_KEY\x01u\x02DELAY\x013\x02").pack(0)
        scan(log, 0, len(log), 0, columns.table, Check.BODY)
        assert columns.row(0)["delay_level"] == 3
        log = Draft(properties=b"").pack(0)
        scan(log, 0, len(log), 0, columns.table, Check.BODY)
        row = columns.row(0)
        assert not any(row[f"{name}_size"] for name in ("tags", "keys", "unique_key"))
        assert row["tags_hash"] == row["delay_level"] == 0

    @given(st.lists(drafts, min_size=1, max_size=4), st.integers(1, 5))
    def test_goes_on_where_it_stopped(self, messages: list[Draft], capacity: int) -> None:
        log = pack_log(messages, 1000)
        columns = Columns(capacity)
        at = total = 0
        while True:
            rows, at, stop = scan(log, at, len(log), 1000, columns.table, Check.BODY)
            total += rows
            if stop != Stop.FULL:
                break
            assert rows == capacity
        assert (total, at, stop) == (len(messages), len(log), Stop.LIMIT)


class TestStops:
    def test_end_of_the_range(self) -> None:
        log = pack_log([Draft()] * 3)
        size = Draft().size
        columns = Columns(8)
        assert scan(log, size, 2 * size, 0, columns.table, 1) == (1, 2 * size, Stop.LIMIT)
        assert scan(log, size, 2 * size + 7, 0, columns.table, 1) == (1, 2 * size, Stop.LIMIT)
        assert scan(log, size, 2 * size + 8, 0, columns.table, 1) == (1, 2 * size, Stop.CUT)
        assert scan(log, size, size, 0, columns.table, 1) == (0, size, Stop.LIMIT)
        for before in (3, 0, -1, -(2**63)):
            assert scan(log, size, before, 0, columns.table, 1) == (0, size, Stop.LIMIT)

    def test_a_scan_stops_at_a_blank_and_at_zeros(self) -> None:
        log = pack_log([Draft()])
        blank = pack(">iI", 100, layout.MAGIC_BLANK)
        assert scan_all(log + blank)[1:] == (1, len(log), Stop.BLANK)
        assert scan_all(log + bytes(8))[1:] == (1, len(log), Stop.EMPTY)
        assert scan_all(pack(">iI", 7, layout.MAGIC_BLANK))[1:] == (0, 0, Stop.SIZE)
        assert scan_all(pack(">iI", -1, layout.MAGIC_BLANK))[1:] == (0, 0, Stop.SIZE)

    def test_a_scan_stops_when_the_table_is_full(self) -> None:
        log = pack_log([Draft()] * 3)
        assert scan_all(log, capacity=2)[1:] == (2, 2 * Draft().size, Stop.FULL)
        assert scan_all(log, capacity=3)[1:] == (3, len(log), Stop.LIMIT)

    def test_no_room_at_all_is_full(self) -> None:
        assert scan_all(pack_log([Draft()]), capacity=0)[1:] == (0, 0, Stop.FULL)

    @pytest.mark.parametrize(
        ("at", "code", "value", "stop"),
        [
            (0, ">i", 90, Stop.SIZE),
            (0, ">i", -1, Stop.SIZE),
            (0, ">i", 2**31 - 1, Stop.CUT),
            (4, ">I", 0xDAA320A6, Stop.MAGIC),
            (4, ">I", 0, Stop.MAGIC),
            (8, ">i", 0, Stop.BODY_CRC),
            (28, ">q", 1, Stop.PHYSICAL_OFFSET),
            (84, ">i", -1, Stop.BODY_LENGTH),
            (84, ">i", 2**31 - 1, Stop.BODY_LENGTH),
            (88, ">B", 0x62 ^ 1, Stop.BODY_CRC),
            (92, ">B", 128, Stop.TOPIC_LENGTH),
            (92, ">B", 100, Stop.TOPIC_LENGTH),
            (98, ">h", 1, Stop.PROPERTIES_LENGTH),
            (98, ">h", -1, Stop.PROPERTIES_LENGTH),
        ],
    )
    def test_a_scan_stops_at_damage_and_names_it(
        self, at: int, code: str, value: int, stop: Stop
    ) -> None:
        log = bytearray(pack_log([Draft(), Draft(), Draft()]))
        size = Draft().size
        pack_into(code, log, size + at, value)
        assert scan_all(fenced(log))[1:] == (1, size, stop)
        assert stop.is_damage
        assert_agree(bytes(log), 0, Check.BODY)

    @pytest.mark.parametrize("sys_flag", [0x10, 0x20, 0x30])
    def test_hosts_larger_than_the_record_are_judged_as_by_decoding(self, sys_flag: int) -> None:
        """The sys flag says IPv6, and the fixed fields do not fit in the record any more."""
        for body in range(30):
            log = bytearray(Draft(bytes(body), b"", b"").pack(0))
            pack_into(">i", log, 36, sys_flag)
            assert_agree(bytes(log), 0, Check.NONE)
            if body == 0:
                assert scan_all(fenced(log))[1:] == (0, 0, Stop.SIZE)

    def test_checksum_stops_fill_the_row(self) -> None:
        for check, crc, stop in (
            (Check.BODY, False, Stop.BODY_CRC),
            (Check.RECORD, True, Stop.PROPERTY_CRC),
        ):
            log = bytearray(Draft(property_crc=crc).pack(0))
            log[88] ^= 1
            columns, rows, at, found = scan_all(log, check=check)
            assert (rows, at, found) == (0, 0, stop)
            assert_row(bytes(log), 0, columns.row(0))


class TestPropertyCrc:
    def test_takes_the_place_of_the_body_crc(self) -> None:
        log = bytearray(Draft(property_crc=True).pack(0))
        log[16] ^= 1  # the flag: no other checksum covers it
        assert scan_all(log, check=Check.BODY)[3] == Stop.LIMIT
        assert scan_all(log, check=Check.RECORD)[3] == Stop.PROPERTY_CRC
        assert scan_all(log, check=Check.NONE)[3] == Stop.LIMIT

    def test_body_crc_counts_where_there_is_none(self) -> None:
        log = bytearray(Draft().pack(0))
        log[8] ^= 1
        assert scan_all(log, check=Check.RECORD)[3] == Stop.BODY_CRC

    def test_a_sealed_log_has_it_in_every_record(self) -> None:
        log = Draft(property_crc=True).pack(0)
        assert scan_all(log, check=Check.SEALED)[3] == Stop.LIMIT
        log += Draft().pack(len(log))
        assert scan_all(log, check=Check.SEALED)[1:] == (1, len(log) // 2 + 10, Stop.PROPERTY_CRC)

    @pytest.mark.parametrize("at", range(-11, -1))
    def test_every_digit_counts(self, at: int) -> None:
        good = Draft(property_crc=True).pack(0)
        assert scan_all(good, check=Check.RECORD)[3] == Stop.LIMIT
        for digit in b"0123456789x":
            log = bytearray(good)
            log[at] = digit
            expected = Stop.LIMIT if digit == good[at] else Stop.PROPERTY_CRC
            assert scan_all(log, check=Check.RECORD)[3] == expected

    @pytest.mark.parametrize("size", range(25))
    def test_a_mark_before_short_properties_is_not_a_checksum(self, size: int) -> None:
        """The mark must not be looked for in front of the properties."""
        mark = b"__CRC32#\x010123456789\x02"
        log = Draft(body=mark, topic=mark, properties=mark[:size]).pack(0)
        found = scan_all(fenced(log), check=Check.RECORD)[3]
        assert found == (Stop.PROPERTY_CRC if size >= 20 else Stop.LIMIT)


class TestAgreement:
    @given(
        st.lists(drafts, min_size=1, max_size=4),
        st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=3),
        st.sampled_from([Check.NONE, Check.BODY]),
    )
    def test_replaced_bytes_are_judged_as_by_decoding(
        self, messages: list[Draft], changes: list[tuple[int, int]], check: Check
    ) -> None:
        log = bytearray(pack_log(messages, 4096))
        for at, byte in changes:
            log[at % len(log)] = byte
        assert_agree(bytes(log), 4096, check)

    @given(
        drafts,
        # every field of the head, both ports, the body's length with every kind of hosts
        st.sampled_from([*layout.RECORD_HEAD.offsets.values(), 52, 68, 84, 96, 108]),
        st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 200)),
    )
    def test_replaced_fields_are_judged_as_by_decoding(
        self, draft: Draft, at: int, value: int
    ) -> None:
        log = bytearray(draft.pack(0) + Draft().pack(draft.size))
        pack_into(">I", log, at, value)
        for check in (Check.NONE, Check.BODY):
            assert_agree(bytes(log), 0, check)

    @given(st.lists(drafts, min_size=1, max_size=3), st.integers(0, 2**16))
    def test_cut_anywhere(self, messages: list[Draft], length: int) -> None:
        log = pack_log(messages)
        assert_agree(log[: length % (len(log) + 1)], 0, Check.BODY)

    @given(drafts)
    def test_moved_lengths_are_judged_as_by_decoding(self, draft: Draft) -> None:
        """Lengths that add up, but cut the record elsewhere."""
        good = replace(draft, body=draft.body + bytes(4)).pack(0)
        at = good.index(pack(">i", len(draft.body) + 4), 84)
        for less in range(len(draft.body) + 5):
            log = bytearray(good)
            pack_into(">i", log, at, len(draft.body) + 4 - less)
            assert_agree(bytes(log), 0, Check.NONE)

    @given(st.binary(max_size=200), st.booleans())
    def test_any_bytes_are_judged_as_by_decoding(self, data: bytes, with_magic: bool) -> None:
        if with_magic and len(data) >= 36:
            data = (
                b"\0\0\0"
                + data[3:4]
                + pack(">I", layout.MAGIC_V1)
                + data[8:28]
                + bytes(8)
                + (data[36:])
            )
        for check in (Check.NONE, Check.BODY):
            assert_agree(data, 0, check)
        scan_all(fenced(data), check=Check.RECORD)


class TestFromAnywhere:
    def test_a_negative_offset_is_damage(self) -> None:
        data = Draft().pack(0) + Draft().pack(-5)
        assert scan_all(fenced(data), ANYWHERE)[1:] == (1, len(data) // 2, Stop.PHYSICAL_OFFSET)

    @given(st.integers(0, 80))
    def test_a_scan_stops_at_an_incomplete_record(self, left: int) -> None:
        data = Draft().pack(7)
        _, rows, at, stop = scan_all(fenced(data + data[:left]), ANYWHERE)
        assert (rows, at) == (1, len(data))
        assert stop is (Stop.CUT if left >= 8 else Stop.LIMIT)


class TestArguments:
    @pytest.mark.parametrize(("at", "limit"), [(-1, 10), (0, 101), (-(2**62), 0), (0, 2**62)])
    def test_a_range_outside_the_buffer_is_refused(self, at: int, limit: int) -> None:
        with pytest.raises(ValueError, match="outside of the buffer of 100 bytes"):
            scan(bytes(100), at, limit, 0, Columns(4).table, 0)

    @pytest.mark.parametrize("base", [-1, 2**63 - 100])
    def test_a_base_that_is_no_offset_is_refused(self, base: int) -> None:
        with pytest.raises(ValueError, match="base"):
            scan(bytes(100), 0, 100, base, Columns(4).table, 0)

    def test_a_table_smaller_than_a_row_is_full(self) -> None:
        log = pack_log([Draft()])
        table = Columns(1).table[: len(COLUMN_NAMES) - 1]
        assert scan(log, 0, len(log), 0, table, Check.BODY) == (0, 0, Stop.FULL)

    def test_table_that_is_no_multiple_of_a_row(self) -> None:
        log = pack_log([Draft()] * 3)
        table = Columns(3).table[: 3 * len(COLUMN_NAMES) - 1]
        assert scan(log, 0, len(log), 0, table, Check.BODY)[0] == 2

    @pytest.mark.parametrize("data", [b"", bytearray(), memoryview(b"")])
    def test_an_empty_range_has_no_records(self, data: bytes) -> None:
        assert scan(data, 0, 0, 0, Columns(4).table, Check.BODY) == (0, 0, Stop.LIMIT)
