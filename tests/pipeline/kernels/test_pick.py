"""Selected records, compared with a plain search among decoded records."""

from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.format.kernels.drafts import Draft, fenced, few_queues, pack_log, scan_all

from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.files.unit import ConsumeQueueUnit, encode_unit
from firetrail.format.kernels.scan import scan_units
from firetrail.format.record import Record, decode_record
from firetrail.pipeline.kernels.pick import ANY_QUEUE, NO_UNITS, TIME_MAX, TIME_MIN, Picker

PREPARED, ROLLED_BACK = 4, 12


def decoded(log: bytes) -> list[Record]:
    found: list[Record] = []
    at = 0
    while at < len(log):
        record = decode_record(log, at)
        assert isinstance(record, Record)
        found.append(record)
        at += record.size
    return found


def picked(picker: Picker, log: bytes) -> list[int]:
    columns, rows, _, stop = scan_all(fenced(log))
    assert stop == Stop.LIMIT
    picks = array("q", bytes(8 * (rows + 1)))
    count = picker.pick(log, columns.table, 0, rows, picks)
    return picks[:count].tolist()


def assert_picks(picker: Picker, log: bytes, holds: Callable[[Record], bool]) -> None:
    expected = [row for row, record in enumerate(decoded(log)) if holds(record)]
    assert picked(picker, log) == expected


def is_dispatched(record: Record) -> bool:
    return record.sys_flag & 12 not in (PREPARED, ROLLED_BACK)


logs = st.lists(few_queues, max_size=12).map(pack_log)
ranges = st.lists(
    st.tuples(
        st.sampled_from(["T1", "T2", "T3", "SCHEDULE_TOPIC_XXXX"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(3, 5),
    ),
    unique_by=lambda part: part[:2],
)


@given(logs)
def test_everything_is_picked_by_default(log: bytes) -> None:
    assert_picks(Picker(), log, lambda record: True)
    assert_picks(Picker([]), log, lambda record: False)
    assert_picks(Picker(dispatched=True), log, is_dispatched)


@given(logs, st.integers(0, 2**42), st.integers(0, 2**42))
def test_records_are_picked_by_time(log: bytes, since: int, until: int) -> None:
    picker = Picker(since=since, until=until)
    assert_picks(picker, log, lambda record: since <= record.store_time < until)
    assert_picks(Picker(since=TIME_MIN, until=TIME_MAX), log, lambda record: True)


@given(logs, st.sets(st.sampled_from(["T1", "T2", "T3", ""])))
def test_records_are_picked_by_topic(log: bytes, topics: set[str]) -> None:
    picker = Picker([(topic, ANY_QUEUE, 0, 0, NO_UNITS) for topic in topics])
    assert_picks(picker, log, lambda record: record.topic in topics)


@given(logs, ranges)
def test_records_are_picked_by_queue_without_units(
    log: bytes, parts: list[tuple[str, int, int, int]]
) -> None:
    wanted = {part[:2]: range(*part[2:]) for part in parts}
    picker = Picker([(*part, NO_UNITS) for part in parts])

    def holds(record: Record) -> bool:
        there = wanted.get((record.topic, record.queue_id), ())
        return is_dispatched(record) and record.queue_offset in there

    assert_picks(picker, log, holds)
    seen = [picker.seen(number) for number in range(len(parts))]
    assert sum(seen) == sum(map(holds, decoded(log)))


@given(logs, ranges, st.data())
def test_records_are_picked_by_queue_with_units(
    log: bytes, parts: list[tuple[str, int, int, int]], data: st.DataObject
) -> None:
    """Of several records with one queue offset, only the one that the unit points to counts."""
    records = decoded(log)
    places = [record.physical_offset for record in records]
    units = bytearray(b"\xff" * 3)
    queues = []
    wanted: set[tuple[str, int, int, int]] = set()
    for topic, queue_id, begin, end in parts:
        queues.append((topic, queue_id, begin, end, len(units)))
        for offset in range(begin, end):
            place = data.draw(st.sampled_from([-1, *places]))
            size = next((r.size for r in records if r.physical_offset == place), 7)
            units += encode_unit(ConsumeQueueUnit(place, size, 0))
            wanted.add((topic, queue_id, offset, place))
    picker = Picker(queues, fenced(units))

    def holds(record: Record) -> bool:
        key = (record.topic, record.queue_id, record.queue_offset, record.physical_offset)
        return is_dispatched(record) and key in wanted

    assert_picks(picker, log, holds)


@given(logs, st.sets(st.sampled_from(["k1 k2", "3", "18", "a", "中"]), min_size=1))
def test_records_are_picked_by_tag(log: bytes, tags: set[str]) -> None:
    assert_picks(Picker(tags=sorted(tags)), log, lambda record: record.tags in tags)


@given(logs, st.sampled_from(["k1", "k2", "a", "b", "3", "18"]))
def test_records_are_picked_by_key(log: bytes, key: str) -> None:
    picker = Picker(key=key)
    assert_picks(picker, log, lambda record: key in record.keys or key == record.unique_key)


def test_names_that_are_no_utf8() -> None:
    """They are selected by the text that Java decodes."""
    log = pack_log(
        [
            Draft(topic=b"\xff", queue_offset=0, queue_id=0),
            Draft(topic=b"x", properties=b"TAGS\x01\xfe\x02KEYS\x01a \xed\xa0\x80\x02"),
            Draft(topic="\ufffd".encode(), queue_offset=1, queue_id=0),
        ]
    )
    assert picked(Picker([("\ufffd", 0, 0, 2, NO_UNITS)]), log) == [0, 2]
    assert picked(Picker([("\ufffd", ANY_QUEUE, 0, 0, NO_UNITS)]), log) == [0, 2]
    assert picked(Picker(tags=["\ufffd"]), log) == [1]
    assert picked(Picker(key="\ufffd"), log) == [1]


class TestRefusals:
    def test_units_outside_their_buffer(self) -> None:
        Picker([("T", 0, 3, 5, 1)], bytes(41))
        for at in (2, -2, 41, 2**40):
            with pytest.raises(ValueError, match="those of T are outside"):
                Picker([("T", 0, 3, 5, at)], bytes(41))

    def test_row_numbers_out_of_range(self) -> None:
        log = Draft().pack(0)
        columns, _, _, _ = scan_all(log, capacity=3)
        picks = array("q", bytes(8))
        for first, rows in ((-1, 1), (1, 0), (0, 2), (0, 99)):
            with pytest.raises(ValueError, match="rows"):
                Picker().pick(log, columns.table, first, rows, picks)
        with pytest.raises(ValueError, match="not of a scan"):
            Picker().pick(log[:50], columns.table, 0, 1, picks)

    def test_queue_numbers_out_of_range(self) -> None:
        with pytest.raises(IndexError):
            Picker([("T", 0, 0, 1, NO_UNITS)]).seen(1)
        with pytest.raises(IndexError):
            Picker().seen(0)


class TestUnits:
    """Scans of the records that units point to."""

    @staticmethod
    def units_of(log: bytes, base: int) -> list[bytes]:
        return [
            encode_unit(ConsumeQueueUnit(record.physical_offset, record.size, 0))
            for record in decoded(log)
        ]

    @given(st.lists(few_queues, min_size=1, max_size=8), st.data())
    def test_units_may_be_scanned_in_any_order(
        self, log_drafts: list[Draft], data: st.DataObject
    ) -> None:
        log = pack_log(log_drafts, 500)
        records = decoded(log)
        numbers = data.draw(st.lists(st.sampled_from(range(len(records))), max_size=12))
        all_units = self.units_of(log, 500)
        units = b"".join(all_units[number] for number in numbers)
        columns = Columns(20)
        rows, stop = scan_units(
            fenced(log), len(log), 500, fenced(units), 0, len(numbers), columns.table, Check.BODY
        )
        assert (rows, stop) == (len(numbers), Stop.LIMIT)
        places = [columns.row(row)["physical_offset"] for row in range(rows)]
        assert places == [records[number].physical_offset for number in numbers]

    def test_wrong_units_stop_the_scan(self) -> None:
        log = pack_log([Draft(body=b"%d" % n) for n in range(4)])
        good = self.units_of(log, 0)
        outside = [encode_unit(ConsumeQueueUnit(at, 9, 0)) for at in (-1, len(log), 2**62)]
        longer = encode_unit(ConsumeQueueUnit(0, 99, 0))
        inside = encode_unit(ConsumeQueueUnit(1, 9, 0))
        damaged = bytearray(log)
        damaged[88] ^= 1

        def run(units: list[bytes], data: bytes = log, capacity: int = 9) -> tuple[int, int]:
            table = Columns(capacity).table
            joined = b"".join(units)
            return scan_units(data, len(data), 0, joined, 0, len(units), table, Check.BODY)

        assert run(good) == (4, Stop.LIMIT)
        assert run(good, capacity=3) == (3, Stop.FULL)
        for unit in outside:
            assert run([good[1], unit, good[2]]) == (1, Stop.LIMIT)
        assert run([good[1], longer]) == (1, Stop.SIZE)
        assert run([good[1], inside]) == (1, Stop.MAGIC)
        assert run([good[1], good[0]], bytes(damaged)) == (1, Stop.BODY_CRC)
        assert run([]) == (0, Stop.LIMIT)

    def test_ranges_outside_the_units_are_refused(self) -> None:
        log, table = Draft().pack(0), Columns(2).table
        for first, count in ((-1, 1), (1, 0), (0, 2)):
            with pytest.raises(ValueError, match="units"):
                scan_units(log, len(log), 0, bytes(20), first, count, table, Check.NONE)
        with pytest.raises(ValueError, match="range"):
            scan_units(log, len(log) + 1, 0, bytes(20), 0, 1, table, Check.NONE)
        with pytest.raises(ValueError, match="base"):
            scan_units(log, len(log), -1, bytes(20), 0, 1, table, Check.NONE)
