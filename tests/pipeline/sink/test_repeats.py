"""Epochs that the store already has: skipped if they are repetitions, else an error."""

import json
import logging
from pathlib import Path

import pyarrow as pa
import pytest
from tests.helpers import small_config
from tests.pipeline.sink.direct import rows_of, stream_writer

from firetrail import Message, Store
from firetrail.errors import CheckpointError
from firetrail.pipeline.sink import sink_columns, store_writers
from firetrail.pipeline.sink.store_writers import StagedRows


class Stream:
    """A query that writes to a store, without Spark."""

    def __init__(self, folder: Path, query: str = "query", **options: str) -> None:
        self.root = folder / "data"
        self._query = query
        self._writer = stream_writer(self.root, folder, **options)

    def write(self, epoch: int, *tasks: pa.RecordBatch) -> None:
        staged = [self._writer.write(iter([rows])) for rows in tasks]
        for message in staged:
            assert isinstance(message, StagedRows)
            message.query = self._query
        self._writer.commit([*staged, None], epoch)

    def refused(self, epoch: int, *tasks: pa.RecordBatch) -> str:
        before = self.bodies()
        with pytest.raises(CheckpointError) as caught:
            self.write(epoch, *tasks)
        assert self.bodies() == before
        return str(caught.value)

    def bodies(self) -> list[bytes]:
        with Store.open(self.root) as store:
            return [message.body for q in store.queues("T") for message in store.read("T", q)]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    stream = Stream(tmp_path, checkpointLocation="/ck")
    stream.write(0, rows_of(b"a"))
    stream.write(1, rows_of(b"b", b"c"), rows_of(b"c"))
    return stream


def test_the_last_epoch_is_skipped_whatever_the_order_of_its_rows(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write(1, rows_of(b"b", b"c"), rows_of(b"c"))
    stream.write(1, rows_of(b"c"), rows_of(b"c"), rows_of(b"b"))
    stream.write(2, rows_of(b"d"))
    assert stream.bodies() == [b"a", b"b", b"c", b"c", b"d"]
    assert not caplog.records


def test_delayed_rows_and_properties_are_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue of a row may be another one in a repetition; REAL_QID has the one of a delayed."""
    stream = Stream(tmp_path, queues="2")
    values = {"body": [b"x", b"y"], "topic": ["T"] * 2, "delay_level": [1, 0], "tags": ["A", "B"]}
    rows = pa.RecordBatch.from_pydict(values)
    stream.write(0, rows)
    stream.write(0, rows.take(pa.array([1, 0])))
    assert not caplog.records
    stream.write(0, rows.set_column(3, "tags", pa.array(["A", "C"])))
    assert "but with other values" in caplog.text


def test_a_query_that_is_not_deterministic_gives_a_warning(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write(1, rows_of(b"x", b"y", b"z"))
    assert stream.bodies() == [b"a", b"b", b"c", b"c"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"{stream.root}: epoch 1 of query query is skipped because the store has it, but with "
        "other values; this is correct only if the query is not deterministic. The checkpoint /ck "
        "is an old copy, was emptied, or belongs to another query. To write all rows of the "
        "source, start the query with a new checkpointLocation and a writeId other than w"
    )


def test_another_number_of_rows_is_refused(stream: Stream) -> None:
    assert stream.refused(1, rows_of(b"b", b"c", b"c", b"new")) == (
        f"{stream.root}: epoch 1 of query query was not written: the store already has it with 3 "
        "rows, this write has 4 rows. The checkpoint /ck is an old copy, was emptied, or belongs "
        "to another query. To write all rows of the source, start the query with a new "
        "checkpointLocation and a writeId other than w"
    )


def test_an_older_epoch_is_refused(stream: Stream) -> None:
    reason = "epoch 0 of query query was not written: the store already has its epochs up to 1."
    assert reason in stream.refused(0, rows_of(b"a"))


def test_another_query_with_the_same_write_id_is_refused(stream: Stream, tmp_path: Path) -> None:
    other = Stream(tmp_path, "other")
    reason = "epoch 1 of query other was not written: query query has written an epoch with this"
    assert reason in other.refused(1, rows_of(b"b", b"c", b"c"))
    other.write(2, rows_of(b"d"))
    assert "query other has written" in stream.refused(2, rows_of(b"d"))


def test_only_counts_are_compared_if_the_rows_were_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(tmp_path)
    with Store.open(stream.root, small_config()) as store:
        store.put(Message("U", b"gives the log files their size"))
    rows = rows_of(*(b"%03d" % number + b"." * 200 for number in range(60)))
    stream.write(0, rows)
    with Store.open(stream.root, small_config(delete_batch_max=1)) as store:
        assert store.delete_expired(forced=True)
    caplog.clear()
    stream.write(0, rows)
    assert not caplog.records
    assert "with 60 rows, this write has 1 row." in stream.refused(0, rows_of(b"x"))


def test_a_journal_of_an_earlier_version_has_only_numbers(stream: Stream) -> None:
    journal = stream.root / "firetrail.sink"
    journal.write_text(json.dumps({"writers": {"w": 1}, "pending": None}))
    stream.write(1, rows_of(b"x"))
    assert stream.bodies() == [b"a", b"b", b"c", b"c"]
    stream.refused(0, rows_of(b"x"))
    stream.write(2, rows_of(b"d"))
    stream.refused(2, rows_of(b"d", b"e"))


def test_a_named_write_of_other_rows_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    options = sink_columns.parse_options({"path": str(root), "writeId": "monday"}, stream=False)
    writer = store_writers.BatchWriter(options, tmp_path / "staged")
    for _ in range(2):
        writer.commit([writer.write(iter([rows_of(b"a")]))])
    with pytest.raises(CheckpointError) as caught:
        writer.commit([writer.write(iter([rows_of(b"a", b"b")]))])
    assert str(caught.value) == (
        f"{root}: the write with writeId monday was not written: the store already has it with 1 "
        "row, this write has 2 rows. Use another writeId for other rows"
    )
