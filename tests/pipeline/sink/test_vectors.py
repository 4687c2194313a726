"""Encoding whole batches gives the same result as encoding row by row."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.format.batch import BatchItem, decode_batch
from firetrail.pipeline.sink import sink_columns, staged_rows
from firetrail.pipeline.sink.vectors import vectors
from firetrail.store.settings.store_config import StoreConfig

TEXT = st.text("ab ключ-_", min_size=1, max_size=6)
WORD = st.text("abключ-_", min_size=1, max_size=6)
ROW = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["A", "B"]),
        "body": st.binary(max_size=30),
        "tags": st.none() | st.just("") | WORD,
        "keys": st.none() | st.lists(WORD, max_size=3),
        "properties": st.dictionaries(WORD, TEXT, max_size=3),
        "queue_id": st.integers(0, 2),
    }
)
TYPES = {
    "topic": pa.string(),
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "properties": pa.map_(pa.string(), pa.string()),
    "queue_id": pa.int32(),
    "delay_level": pa.int32(),
}


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = list(rows[0])
    values = {
        name: [
            list(row[name].items()) if isinstance(row[name], dict) else row[name] for row in rows
        ]
        for name in names
    }
    arrays = [pa.array(values[name], TYPES[name]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def staged(
    folder: Path, batches: list[pa.RecordBatch], **options: str
) -> dict[tuple[str, int], list[BatchItem]]:
    parsed = sink_columns.parse_options({"path": str(folder / "none"), **options}, stream=False)
    path = staged_rows.RowStager(parsed, folder).stage(batches)
    assert path is not None
    found: dict[tuple[str, int], list[BatchItem]] = {}
    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as stream:
        for chunk in stream.read_all().to_pylist():
            items = decode_batch(chunk["items"])
            assert len(items) == chunk["messages"]
            found.setdefault((chunk["topic"], chunk["queue_id"]), []).extend(items)
    Path(path).unlink()
    return found


@given(st.lists(ROW, min_size=1, max_size=12), st.integers(0, 11), st.integers(10, 200))
def test_batches_are_encoded_as_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], at: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("staged")
    batch = batch_of(rows)
    parts = [part for part in (batch[:at], batch[at:]) if part.num_rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_rows, "CHUNK_BYTES", size)
        assert vectors(batch, StoreConfig(), 0, 1) is not None
        together = staged(folder, parts)
        patch.setattr(staged_rows, "vectors", lambda *args: None)
        assert together == staged(folder, parts)


@pytest.mark.parametrize(
    "change",
    [
        {"delay_level": 2},
        {"keys": ["a b"]},
        {"keys": [""]},
        {"tags": "a\x02"},
        {"properties": {"a\x01": "b"}},
        {"properties": {"a": ""}},
        {"properties": {"DELAY": "3"}},
        {"queue_id": None},
        {"queue_id": -1},
        {"topic": None},
        {"body": None},
        {"body": b"x" * (4 << 20) + b"x"},
        {"properties": {"a": "x" * 32767}},
    ],
    ids=str,
)
def test_rows_that_need_encoding_one_by_one(change: dict[str, Any]) -> None:
    usual = {name: None for name in TYPES} | {
        "topic": "T",
        "body": b"b",
        "queue_id": 0,
        "properties": {},
    }
    assert vectors(batch_of([usual]), StoreConfig(), 0, 1) is not None
    assert vectors(batch_of([usual, usual | change]), StoreConfig(), 0, 1) is None


def test_turns_go_on_from_batch_to_batch(tmp_path: Path) -> None:
    rows = [{"topic": "T", "body": b"%d" % number} for number in range(7)]
    batch = batch_of(rows)
    found = staged(tmp_path, [batch[:2], batch[2:]], queues="3")
    assert [[item.body for item in found["T", n]] for n in range(3)] == [
        [b"0", b"3", b"6"],
        [b"1", b"4"],
        [b"2", b"5"],
    ]
