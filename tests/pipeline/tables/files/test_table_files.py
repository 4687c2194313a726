"""Statistics of data files: readers skip files because of them, so they must cover all rows."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from tests.pipeline.tables.topics import put, rows, table

from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.tables.files import table_files
from firetrail.pipeline.tables.files.table_files import TableWriter


def statistics(folder: Path, *groups: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Write a file with row groups; return its lowest and highest values by column."""
    writer = TableWriter(open_folder(str(folder)), "0", "t", schema)
    for group in groups:
        writer.write(pa.table(group, schema=schema))
    (file,) = writer.close()
    found = json.loads(file.stats)
    assert found["minValues"].keys() == found["maxValues"].keys()
    return {name: (low, found["maxValues"][name]) for name, low in found["minValues"].items()}


STRUCT = pa.struct([("b", pa.int64()), ("c", pa.list_(pa.struct([("d", pa.int64())])))])
MEMBER = [{"b": 1000, "c": [{"d": 7}]}, {"b": 2000, "c": []}]


@pytest.mark.parametrize("before", [True, False])
def test_a_column_whose_name_has_a_dot_beside_a_struct(tmp_path: Path, before: bool) -> None:
    columns = {"a.b": pa.int64(), "a": STRUCT, "m.key": pa.string(), "m": TEXTS, "z": pa.int64()}
    values = {
        **{"a.b": [1, 2], "a": MEMBER, "m.key": ["x", "y"]},
        **{"m": [[("k", "v")], []], "z": [8, 9]},
    }
    names = list(columns) if before else list(reversed(columns))
    schema = pa.schema([(name, columns[name]) for name in names])
    found = statistics(tmp_path, {name: values[name] for name in names}, schema=schema)
    assert found == {"a.b": (1, 2), "m.key": ("x", "y"), "z": (8, 9)}


TEXTS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize("names", [("a", "a.b"), ("a.b", "a")])
def test_a_query_finds_rows_by_a_column_whose_name_has_a_dot(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    values = {"a.b": 1, "a": {"b": 1000}}
    put(tmp_path / "data", {name: values[name] for name in names})
    table(tmp_path / "data", tmp_path / "orders")
    assert [row["a.b"] for row in rows(tmp_path / "orders", where='"a.b" = 1')] == [1]
    dataset = DeltaTable(str(tmp_path / "orders")).to_pyarrow_dataset()
    assert dataset.to_table(filter=ds.field("a.b") == 1).num_rows == 1


def test_years_have_four_digits(tmp_path: Path) -> None:
    zoned = pa.timestamp("us", "UTC")
    schema = pa.schema([("at", zoned), ("day", pa.date32())])
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(999, 12, 31, 23, 59, 59, 1, tzinfo=UTC)
    group = {"at": [first, last], "day": [date(1, 1, 1), date(999, 12, 31)]}
    assert statistics(tmp_path, group, schema=schema) == {
        "at": ("0001-01-01T00:00:00.000000Z", "0999-12-31T23:59:59.000001Z"),
        "day": ("0001-01-01", "0999-12-31"),
    }


def test_columns_without_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", 1)  # a row group per write
    columns = {"nulls": pa.int64(), "some": pa.int64(), "long": pa.string(), "float": pa.float64()}
    columns |= {"none": pa.int64(), **{f"n{number}": pa.int64() for number in range(64)}}
    schema = pa.schema(list(columns.items()))
    rest = {f"n{number}": [number] for number in range(64)}
    found = statistics(
        tmp_path,
        {"nulls": [1], "some": [5], "long": ["x"], "float": [1.0], "none": [None], **rest},
        {"nulls": [None], "some": [3], "long": ["x" * 33], "float": [2.0], "none": [None], **rest},
        schema=schema,
    )
    assert found == {"some": (3, 5), **{f"n{number}": (number, number) for number in range(60)}}
