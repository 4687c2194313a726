"""Units and entries derived from a scan, against the rules written out in Python."""

from __future__ import annotations

from array import array
from dataclasses import replace
from struct import pack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.format.kernels.drafts import (
    Draft,
    drafts,
    entry_room,
    fenced,
    few_queues,
    java_level,
    pack_log,
)

from firetrail.format import columns as col
from firetrail.format.columns import COLUMN_NAMES, Check, Columns, Stop
from firetrail.format.kernels.derive import ENTRIES_PER_RECORD_MAX, derive_entries, derive_units
from firetrail.format.kernels.scan import scan
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.properties import DELAY, KEYS, TAGS, UNIQ_KEY, decode_properties
from firetrail.format.values.delay import DelayLevels
from firetrail.format.values.javahash import index_key_hash, java_hash, java_text

LEVELS = DelayLevels.parse("1s 5s 10s 30s")
WAITS = array("q", LEVELS.waits_ms)
PREPARED, ROLLED_BACK = 4, 12

Run = tuple[int, list[bytes]]
"""The run's first row, and its units."""


def scanned(messages: list[Draft]) -> tuple[bytes, Columns]:
    log = pack_log(messages)
    columns = Columns(len(messages) + 2)
    rows, _, stop = scan(log, 0, len(log), 0, columns.table, Check.NONE)
    assert (rows, stop) == (len(messages), Stop.LIMIT)
    return log, columns


def tags_code(draft: Draft) -> int:
    properties = decode_properties(draft.properties)
    level = java_level(properties.get(DELAY, ""))
    if java_text(draft.topic) == SCHEDULE_TOPIC and level > 0:
        return draft.store_time + LEVELS.wait_ms(level)
    return java_hash(properties.get(TAGS, ""))


def runs_by_hand(messages: list[Draft]) -> list[Run]:
    runs: list[Run] = []
    newest: dict[tuple[bytes, int], tuple[Run, int]] = {}
    offset = 0
    for row, draft in enumerate(messages):
        queue = draft.topic, draft.queue_id
        unit = pack(">qiq", offset, draft.size, tags_code(draft))
        offset += draft.size
        if draft.sys_flag & 12 in (PREPARED, ROLLED_BACK):
            continue
        run, next_offset = newest.get(queue, (None, None))
        if run is None or draft.queue_offset != next_offset:
            run = (row, [])
            runs.append(run)
        run[1].append(unit)
        newest[queue] = run, draft.queue_offset + 1
    return runs


def entries_by_hand(messages: list[Draft], tags: bool = False) -> list[tuple[int, int, int]]:
    entries = []
    offset = 0
    for draft in messages:
        properties = decode_properties(draft.properties)
        keys = [properties.get(UNIQ_KEY, ""), *properties.get(KEYS, "").split(" ")]
        if tags and TAGS in properties:
            keys.append("T#" + properties[TAGS])
        if draft.sys_flag & 12 != ROLLED_BACK:
            for key in filter(None, keys):
                key_hash = index_key_hash(java_text(draft.topic), key)
                entries.append((key_hash, offset, draft.store_time))
        offset += draft.size
    return entries


def triples(entries: array[int], count: int) -> list[tuple[int, ...]]:
    return [tuple(entries[3 * i : 3 * i + 3]) for i in range(count)]


def key_that_hashes_to(topic: str, wanted: int) -> str:
    """Seven characters are digits enough: 31 to the 7th is more than 2 to the 32nd."""
    rest = (wanted - java_hash(topic + "#" + "@" * 7)) % 2**32
    key = ""
    for _ in range(7):
        rest, digit = divmod(rest, 31)
        key = chr(ord("@") + digit) + key
    assert java_hash(f"{topic}#{key}") == wanted
    return key


class TestUnits:
    def assert_units(self, messages: list[Draft]) -> None:
        log, columns = scanned(messages)
        units, runs = derive_units(fenced(log), columns.table, len(messages), WAITS)
        found = []
        position = 0
        for first, count, at in runs:
            assert at == position
            position += 20 * count
            found.append((first, [bytes(units[i : i + 20]) for i in range(at, position, 20)]))
        assert found == runs_by_hand(messages)
        assert len(units) >= position
        assert not any(units[position:])

    @given(st.lists(few_queues, max_size=12))
    def test_units_equal_those_derived_by_hand(self, messages: list[Draft]) -> None:
        self.assert_units(messages)

    @given(st.lists(drafts, max_size=4))
    def test_units_of_any_records_equal_those_derived_by_hand(self, messages: list[Draft]) -> None:
        self.assert_units(
            [
                replace(
                    message,
                    queue_offset=min(message.queue_offset, 2**63 - 100),
                    store_time=message.store_time % 2**50,
                    property_crc=False,
                )
                for message in messages
            ]
        )

    @given(st.permutations(range(12)))
    def test_queue_offsets_may_come_in_any_order(self, order: list[int]) -> None:
        self.assert_units([Draft(queue_offset=offset) for offset in order])

    def test_consecutive_offsets_of_several_queues_are_one_run_each(self) -> None:
        messages = [
            Draft(topic=b"T%d" % (i % 3), queue_id=i % 2, queue_offset=i // 6) for i in range(60)
        ]
        log, columns = scanned(messages)
        _, runs = derive_units(log, columns.table, 60, WAITS)
        assert runs == [(first, 10, 200 * first) for first in range(6)]

    def test_topics_with_equal_hashes_are_kept_apart(self) -> None:
        assert java_hash("Aa") == java_hash("BB")
        self.assert_units([Draft(topic=topic) for topic in (b"Aa", b"BB", b"Aa", b"BB")])

    def test_a_topic_with_the_hash_of_the_schedule_topic_is_an_ordinary_one(self) -> None:
        topic = SCHEDULE_TOPIC.removesuffix("XX") + "Y9"
        assert java_hash(topic) == java_hash(SCHEDULE_TOPIC)
        self.assert_units([Draft(topic=topic.encode(), properties=b"DELAY\x013\x02TAGS\x01t")])

    @pytest.mark.parametrize("level", ["0", "-1", "1", "4", "5", "2147483647", "99999999999", "x"])
    def test_delay_levels(self, level: str) -> None:
        raw = f"DELAY\x01{level}\x02TAGS\x01t".encode()
        self.assert_units([Draft(topic=SCHEDULE_TOPIC.encode(), properties=raw)])

    def test_without_levels_nothing_waits(self) -> None:
        draft = Draft(topic=SCHEDULE_TOPIC.encode(), properties=b"DELAY\x013\x02TAGS\x01t")
        log, columns = scanned([draft])
        units, _ = derive_units(log, columns.table, 1, array("q"))
        assert units == pack(">qiq", 0, draft.size, java_hash("t"))

    def test_only_the_rows_asked_for(self) -> None:
        messages = [Draft(queue_offset=i) for i in range(5)]
        log, columns = scanned(messages)
        _, runs = derive_units(log, columns.table, 3, WAITS)
        assert runs == [(0, 3, 0)]
        assert derive_units(log, columns.table, 0, WAITS) == (bytearray(), [])

    @pytest.mark.parametrize("rows", [-1, 8, 2**62, -(2**62)])
    def test_rows_outside_the_table_are_refused(self, rows: int) -> None:
        log, columns = scanned([Draft()] * 5)
        with pytest.raises(ValueError, match=f"{rows} rows exceed a table of 7"):
            derive_units(log, columns.table, rows, WAITS)

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            (col.TOPIC_AT, -1),
            (col.TOPIC_AT, 2**62),
            (col.TOPIC_AT, -(2**63)),
            (col.TOPIC_SIZE, -1),
            (col.TOPIC_SIZE, 2**40),
            (col.TOPIC_SIZE, 2**63 - 1),
        ],
    )
    def test_a_table_of_another_buffer_is_refused(self, column: int, value: int) -> None:
        messages = [Draft(queue_offset=i) for i in range(3)]
        log, columns = scanned(messages)
        for row in range(3):
            columns.column(column)[row] = value
        with pytest.raises(ValueError, match=r"row 0 .* bytes"):
            derive_units(fenced(log), columns.table, 3, WAITS)

    def test_a_buffer_that_is_too_short(self) -> None:
        log, columns = scanned([Draft()] * 3)
        with pytest.raises(ValueError, match="row 0 "):
            derive_units(fenced(b""), columns.table, 3, WAITS)
        with pytest.raises(ValueError, match="row 2 "):
            derive_units(fenced(log[: 2 * Draft().size + 95]), columns.table, 3, WAITS)


class TestEntries:
    @given(st.lists(few_queues, max_size=8))
    @example([Draft(properties=b"KEYS\x01a b  c \x02UNIQ_KEY\x01u"), Draft(sys_flag=12)])
    @example([Draft(topic=b"\xe4\xb8\xad", properties=b"KEYS\x01\xff \xf0\x9f\x98\x80")])
    def test_entries_equal_those_derived_by_hand(self, messages: list[Draft]) -> None:
        log, columns = scanned(messages)
        entries = entry_room()
        for tags in (False, True):
            count, row = derive_entries(fenced(log), columns.table, 0, len(messages), entries, tags)
            assert row == len(messages)
            assert triples(entries, count) == entries_by_hand(messages, tags)

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [(-(2**31), 0), (-(2**31) + 1, 2**31 - 1), (-5, 5), (2**31 - 1, 2**31 - 1), (0, 0)],
    )
    def test_hashes_are_absolute_values(self, wanted: int, expected: int) -> None:
        draft = Draft(properties=b"KEYS\x01" + key_that_hashes_to("topic", wanted).encode())
        log, columns = scanned([draft])
        entries = entry_room()
        assert derive_entries(log, columns.table, 0, 1, entries) == (1, 1)
        assert entries[0] == expected

    def test_goes_on_where_there_was_no_room(self) -> None:
        keys = b"KEYS\x01" + b"k " * 5000
        messages = [Draft(properties=keys)] * 8
        log, columns = scanned(messages)
        entries = entry_room()
        found: list[tuple[int, ...]] = []
        row = rounds = 0
        while row < len(messages):
            count, row = derive_entries(log, columns.table, row, len(messages), entries)
            found += triples(entries, count)
            rounds += 1
        assert found == entries_by_hand(messages)
        assert rounds == 3  # three records of 5000 keys fit, each with the room of one key more

    def test_most_keys_of_a_record_fit(self) -> None:
        others = b"UNIQ_KEY\x01u\x02TAGS\x01t\x02"
        messages = [Draft(properties=(others + b"KEYS\x01" + b"k " * 20000)[:32767])]
        log, columns = scanned(messages)
        entries = entry_room()
        count, row = derive_entries(log, columns.table, 0, 1, entries, True)
        assert (count, row) == ((32767 - len(others) - 5 + 1) // 2 + 2, 1)
        assert count <= ENTRIES_PER_RECORD_MAX

    def test_only_the_rows_asked_for(self) -> None:
        messages = [Draft(properties=b"KEYS\x01k")] * 5
        log, columns = scanned(messages)
        entries = entry_room()
        assert derive_entries(log, columns.table, 1, 3, entries) == (2, 3)
        assert triples(entries, 2) == entries_by_hand(messages)[1:3]
        assert derive_entries(log, columns.table, 3, 3, entries) == (0, 3)
        assert derive_entries(log, columns.table, 4, 3, entries) == (0, 4)

    @pytest.mark.parametrize(
        ("first", "rows", "room"),
        [(-1, 3, 20000), (0, 8, 20000), (0, 2**62, 20000), (0, 3, ENTRIES_PER_RECORD_MAX - 1)],
    )
    def test_rows_and_room_outside_the_table_are_refused(
        self, first: int, rows: int, room: int
    ) -> None:
        log, columns = scanned([Draft()] * 5)
        with pytest.raises(ValueError, match=f"rows {first}:{rows} of 7, room for {room} entries"):
            derive_entries(log, columns.table, first, rows, entry_room(room))

    @pytest.mark.parametrize("part", ["KEYS", "UNIQUE_KEY", "TAGS"])
    @pytest.mark.parametrize(
        ("suffix", "value"),
        [("AT", -1), ("AT", 2**62), ("AT", -(2**63)), ("SIZE", 10**4), ("SIZE", 2**63 - 1)],
    )
    def test_a_table_of_another_buffer_is_refused(self, part: str, suffix: str, value: int) -> None:
        messages = [Draft(properties=b"KEYS\x01k\x02UNIQ_KEY\x01u\x02TAGS\x01t")] * 3
        log, columns = scanned(messages)
        columns.column(getattr(col, f"{part}_{suffix}"))[1] = value
        with pytest.raises(ValueError, match=r"row 1 .* bytes"):
            derive_entries(fenced(log), columns.table, 0, 3, entry_room(), True)

    def test_negative_sizes_are_no_keys(self) -> None:
        log, columns = scanned([Draft(properties=b"KEYS\x01k\x02UNIQ_KEY\x01u")])
        columns.column(col.KEYS_SIZE)[0] = columns.column(col.UNIQUE_KEY_SIZE)[0] = -5
        assert derive_entries(fenced(log), columns.table, 0, 1, entry_room()) == (0, 1)

    def test_an_empty_buffer_gives_no_entries(self) -> None:
        _, columns = scanned([Draft(properties=b"")])
        assert derive_entries(b"", columns.table, 0, 1, entry_room()) == (0, 1)
        table = memoryview(array("q", bytes(8 * len(COLUMN_NAMES))))
        assert derive_entries(b"", table, 0, 1, entry_room()) == (0, 1)
