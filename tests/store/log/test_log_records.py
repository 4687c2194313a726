"""One record of the log: its bytes, and whether it is good."""

from pathlib import Path

import pytest

from firetrail import Message, Store
from firetrail.format.columns import Check, Stop
from firetrail.storage.segment import Segment
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.log_records import record_at, scan_record


@pytest.fixture
def view(tmp_path: Path) -> StoreView:
    with Store.open(tmp_path) as store:
        for number in range(3):
            store.put(Message("orders", b"pizza %d" % number))
    return StoreView.open(tmp_path)


def first(view: StoreView) -> Segment:
    segment = view.log.find(0)
    assert segment is not None
    return segment


def test_a_good_record_is_returned_with_its_fields(view: StoreView) -> None:
    stop, columns = scan_record(first(view), 0, Check.BODY)
    row = columns.row(0)
    assert stop is Stop.LIMIT
    assert (row["physical_offset"], row["queue_offset"]) == (0, 0)
    stop, columns = scan_record(first(view), row["size"], Check.BODY)
    assert stop is Stop.LIMIT
    assert columns.row(0)["queue_offset"] == 1
    record = record_at(view.log, row["size"])
    assert record is not None
    assert len(record) == columns.row(0)["size"]


def test_bytes_that_are_no_record_are_explained(view: StoreView) -> None:
    assert scan_record(first(view), 1, Check.BODY)[0] is Stop.MAGIC
    assert scan_record(first(view), view.end, Check.BODY)[0] is Stop.EMPTY
    assert record_at(view.log, 1) is None
    assert record_at(view.log, view.end) is None


@pytest.mark.parametrize("left", [0, 1, 90])
def test_a_record_that_reaches_past_the_limit_is_cut(view: StoreView, left: int) -> None:
    size = scan_record(first(view), 0, Check.NONE)[1].row(0)["size"]
    assert scan_record(first(view), 0, Check.NONE, size)[0] is Stop.LIMIT
    assert scan_record(first(view), 0, Check.NONE, min(left, size - 1))[0] is Stop.CUT
