"""The rows of a history that the check expects: those of the model of the merge."""

from collections.abc import Sequence

from hypothesis import given
from tests.pipeline.tables.keyed.buckets import Version
from tests.pipeline.tables.keyed.test_history_task import LOGS, model

from firetrail.pipeline.tables.runs.expected_history import (
    ExpectedHistory,
    HistoryVersion,
    RowMark,
)


@given(LOGS)
def test_rows_and_their_validity(log: Sequence[Version]) -> None:
    expected = ExpectedHistory()
    for each in log:
        place = each.broker, 0, each.offset
        version = HistoryVersion(place, each.store_us // 1000, each.delete)
        expected.add(each.key, each.offset, version)
    marks = [RowMark(row[1], 0, row[2], row[3], row[4], row[5]) for row in model(log)]
    assert sorted(expected.rows()) == sorted(marks)


def test_the_text_of_a_mark() -> None:
    assert str(RowMark("a", 1, 2)) == "queue 1 of a, offset 2"
    shown = str(RowMark("a", 1, 2, 1_000_000, 1_500_000, False))
    assert shown == (
        "queue 1 of a, offset 2, valid from 1970-01-01 00:00:01+00:00 to "
        "1970-01-01 00:00:01.500000+00:00, not current"
    )
    assert str(RowMark("a", 1, 2, 0, None, True)).endswith(" to -, current")
