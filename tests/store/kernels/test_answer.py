"""The cursor of a queue: gets that it answers, and gets that it leaves to the caller."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.format.kernels.drafts import Draft, fenced

from firetrail.format.columns import Check
from firetrail.format.files.unit import ConsumeQueueUnit, encode_unit
from firetrail.store.kernels.answer import GetResult, GetStatus, QueueCursor
from firetrail.store.kernels.select import UNCHECKED

FIRST = 30  # queue offset of the first unit in the file
BASE = 1000
LOG = bytes(range(200))


def cursor(units: list[ConsumeQueueUnit], **limits: int) -> QueueCursor:
    """A cursor over ``units`` and a log of 200 bytes, 150 of them readable."""
    data = b"".join(map(encode_unit, units))
    queue_file = SimpleNamespace(base=20 * FIRST, wrote=len(data), view=fenced(data))
    log_file = SimpleNamespace(base=BASE, committed=150, view=fenced(LOG))
    queue = SimpleNamespace(segments=(queue_file,), last=queue_file)
    log = SimpleNamespace(segments=(log_file,), last=log_file)
    chosen: dict[str, Any] = {
        "min_offset": FIRST,
        "count_max": 32,
        "bytes_max": 10**6,
        "memory": 10**9,
    } | limits
    return QueueCursor(queue, queue_file, log, log_file, **chosen)


UNITS = [ConsumeQueueUnit(BASE + 10 * i, 10, 0) for i in range(10)]


def test_a_range_of_units_is_answered() -> None:
    answer = cursor(UNITS).get(FIRST + 2, 3)
    assert answer is not None
    assert answer.status is GetStatus.FOUND
    assert (answer.next_offset, answer.min_offset, answer.max_offset) == (35, 30, 40)
    assert (answer.count, answer.size) == (3, 30)
    assert [bytes(buffer) for buffer in answer.buffers] == [LOG[20:30], LOG[30:40], LOG[40:50]]


def test_results_respect_the_limits() -> None:
    answer = cursor(UNITS, count_max=2).get(FIRST, 5)
    assert answer is not None and answer.count == 2
    answer = cursor(UNITS, bytes_max=35).get(FIRST, 5)
    assert answer is not None and answer.count == 3
    answer = cursor(UNITS, bytes_max=1).get(FIRST, 5)
    assert answer is not None and answer.count == 1


@pytest.mark.parametrize(
    "offset", [FIRST - 1, FIRST + 10, 2**63 - 1, -(2**63), 2**62, (2**64 + 20 * FIRST) // 20 + 1]
)
def test_offsets_outside_the_file_are_not_answered(offset: int) -> None:
    """This includes offsets that would be inside if multiplied in 64 bits."""
    assert cursor(UNITS).get(offset, 5) is None


@pytest.mark.parametrize("count", [0, -1, -(2**62)])
def test_a_count_below_one_is_left_to_the_caller(count: int) -> None:
    assert cursor(UNITS).get(FIRST, count) is None


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (BASE + 141, 10),  # beyond what is readable
        (BASE - 1, 10),
        (BASE, 0),
        (BASE, -1),
        (BASE, 2**31 - 1),
        (2**63 - 1, 10),
        (2**63 - 5, 2**31 - 1),
        (-(2**63), 10),
        (0, 2**31 - 1),
    ],
)
def test_units_that_point_elsewhere_are_not_answered(offset: int, size: int) -> None:
    units = [*UNITS[:2], ConsumeQueueUnit(offset, size, 0), *UNITS[3:]]
    assert cursor(units).get(FIRST, 10) is None
    answer = cursor(units).get(FIRST, 2)
    assert answer is not None and answer.count == 2


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(0, 40))
def test_results_stay_inside_the_log(offset: int, size: int, count: int) -> None:
    answer = cursor([ConsumeQueueUnit(offset, size, 0)]).get(FIRST, count)
    if answer is not None:
        assert offset >= BASE and offset + size <= BASE + 150
        assert bytes(answer.buffers[0]) == LOG[offset - BASE : offset - BASE + size]


class TestChecks:
    """A result ends before a record that does not pass the check."""

    SIZE = 127
    RECORDS = tuple(Draft(body=b"%d" % n * 10).pack(BASE + n * 127) for n in range(4))

    def result(self, records: Sequence[bytes], check: int) -> GetResult | None:
        """Return what a cursor finds in a log with these records."""
        units = [ConsumeQueueUnit(BASE + n * self.SIZE, self.SIZE, 0) for n in range(4)]
        log, data = b"".join(records), b"".join(map(encode_unit, units))
        queue_file = SimpleNamespace(base=0, wrote=len(data), view=fenced(data))
        log_file = SimpleNamespace(base=BASE, committed=len(log), view=fenced(log))
        queue = SimpleNamespace(segments=(queue_file,), last=queue_file)
        files = SimpleNamespace(segments=(log_file,), last=log_file)
        return QueueCursor(queue, queue_file, files, log_file, 0, 32, 10**6, 10**9).get(
            0, 32, check
        )

    @pytest.mark.parametrize("check", [UNCHECKED, *Check][:-1])
    def test_good_records_pass(self, check: int) -> None:
        found = self.result(self.RECORDS, check)
        assert found is not None and found.count == 4

    @pytest.mark.parametrize("number", [0, 1, 3])
    @pytest.mark.parametrize("at", [0, 4, 28, 84, 90, -1])  # head, own offset, lengths, body
    def test_a_bad_one_ends_the_result(self, at: int, number: int) -> None:
        record = bytearray(self.RECORDS[number])
        record[at] ^= 0x20
        records = [*self.RECORDS[:number], bytes(record), *self.RECORDS[number + 1 :]]
        for check in (Check.NONE, Check.BODY, Check.RECORD):
            is_seen = check != Check.NONE if at == 90 else at != -1
            found = self.result(records, check)
            if is_seen and number == 0:
                assert found is None
            else:
                assert found is not None
                assert (found.count, found.next_offset) == ((number,) * 2 if is_seen else (4, 4))
        found = self.result(records, UNCHECKED)
        assert found is not None and found.count == 4

    @pytest.mark.parametrize("number", [0, 2])
    def test_units_with_another_size_are_seen(self, number: int) -> None:
        shorter = Draft(body=b"9 bytes..").pack(BASE + number * self.SIZE) + b"."
        records = [*self.RECORDS[:number], shorter, *self.RECORDS[number + 1 :]]
        found = self.result(records, Check.NONE)
        assert found is None if number == 0 else found is not None and found.count == number

    @pytest.mark.parametrize("size", [1, 7, 8, 90])
    def test_a_unit_too_short_for_a_record_is_seen(self, size: int) -> None:
        units = [ConsumeQueueUnit(BASE, size, 0)]
        assert cursor(units).get(FIRST, 1, Check.RECORD) is None
