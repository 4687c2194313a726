"""Columns replace properties with the same meaning, row by row."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import IllegalMessageError
from firetrail.format.batch import decode_batch
from firetrail.format.properties import decode_properties
from firetrail.pipeline.sink import sink_columns
from firetrail.pipeline.sink.overrides import prefer_columns
from firetrail.pipeline.sink.staged_rows import RowStager

TYPES = {
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "delay_level": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
}
WORD = st.text("ab", min_size=1, max_size=2)
ROW = st.fixed_dictionaries(
    {
        "tags": st.none() | st.just("") | WORD,
        "keys": st.none() | st.lists(WORD, max_size=2),
        "delay_level": st.none() | st.integers(0, 2),
        "properties": st.none()
        | st.dictionaries(st.sampled_from(["TAGS", "KEYS", "DELAY", "own", "TAG"]), WORD),
    }
)


def batch_of(rows: list[dict[str, Any]], **types: pa.DataType) -> pa.RecordBatch:
    known = TYPES | types
    values = {
        name: [
            list(row[name].items()) if isinstance(row[name], dict) else row[name] for row in rows
        ]
        for name in rows[0]
    }
    arrays = [pa.array(values[name], known[name]) for name in values]
    return pa.RecordBatch.from_arrays(arrays, names=list(values))


@given(st.lists(ROW, min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 8))
def test_a_column_with_a_value_wins(rows: list[dict[str, Any]], first: int, count: int) -> None:
    part = batch_of(rows).slice(first, count)
    found = prefer_columns(part).column("properties").to_pylist()
    for row, left in zip(rows[first : first + count], found, strict=True):
        replaced = {
            name
            for column, name in (("tags", "TAGS"), ("keys", "KEYS"), ("delay_level", "DELAY"))
            if row[column]
        }
        expected = {k: v for k, v in (row["properties"] or {}).items() if k not in replaced}
        assert dict(left or ()) == expected


def test_key_columns_of_text_override_properties() -> None:
    rows = [{"keys": "a b", "properties": {"KEYS": "c", "x": "y"}}]
    found = prefer_columns(batch_of(rows, keys=pa.string())).column("properties").to_pylist()
    assert found == [[("x", "y")]]
    alone = batch_of([{"properties": {"TAGS": "a"}}])
    assert prefer_columns(alone) is alone


PLACED = {"topic": pa.string(), "body": pa.binary(), "queue_id": pa.int64()}


def stage(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    options = sink_columns.parse_options({"path": str(folder / "none")}, stream=False)
    path = RowStager(options, folder).stage([batch_of(rows, **PLACED)])
    assert path is not None
    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as stream:
        return list(stream.read_all().to_pylist())


def test_rows_that_were_read_are_written_with_new_tags_and_keys(tmp_path: Path) -> None:
    row = {
        "topic": "T",
        "body": b"b",
        "tags": "new",
        "keys": ["k2"],
        "properties": {"TAGS": "old", "KEYS": "k1", "x": "y"},
    }
    (chunk,) = stage(tmp_path, [row])
    (item,) = decode_batch(chunk["items"])
    assert item.properties.count(b"TAGS") == item.properties.count(b"KEYS") == 1
    assert decode_properties(item.properties) == {"TAGS": "new", "KEYS": "k2", "x": "y"}


@pytest.mark.parametrize("number", [2**31, 2**32 + 1, 2**40])
def test_a_queue_id_that_is_too_large_is_refused(tmp_path: Path, number: int) -> None:
    """It must not overflow into the number of another topic."""
    rows = [
        {"topic": topic, "body": b"b", "queue_id": queue_id}
        for topic, queue_id in (("orders", 1), ("payments", 2), ("orders", number))
    ]
    with pytest.raises(IllegalMessageError, match=f"queue_id: {number} is not in 0..2147483647"):
        stage(tmp_path, rows)
