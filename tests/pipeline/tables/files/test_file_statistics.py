"""Statistics of data files: readers skip files because of them, so they must cover all rows."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
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
    assert found["minValues"].keys() == found["maxValues"].keys() <= found["nullCount"].keys()
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


def test_texts_are_cut_to_bounds(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    last = "\U0010ffff"
    group = {"a": ["x" * 33, "y" * 32], "b": ["z" * 40, "z" * 32 + last + last]}
    assert statistics(tmp_path, group, schema=schema) == {
        "a": ("x" * 32, "y" * 32),
        "b": ("z" * 32, "z" * 32 + last + last),
    }
    group = {"a": ["x" * 33, "x" * 34], "b": ["a", "z" * 32 + last + "a"]}
    assert statistics(tmp_path, group, schema=schema) == {
        "a": ("x" * 32, "x" * 32 + last),
        "b": ("a", "z" * 32 + last + last),
    }


def test_decimals_are_exact(tmp_path: Path) -> None:
    value = Decimal("123456789012345678901234567890.12")
    schema = pa.schema([("v", pa.decimal128(38, 2))])
    writer = TableWriter(open_folder(str(tmp_path)), "0", "t", schema)
    writer.write(pa.table({"v": [value]}, schema=schema))
    (file,) = writer.close()
    assert f'"maxValues":{{"v":{value}}}' in file.stats


def test_nulls_of_several_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", 1)  # a row group per write
    schema = pa.schema([("nulls", pa.int64()), ("some", pa.int64()), ("float", pa.float64())])
    groups: list[dict[str, Any]] = [
        {"nulls": [None], "some": [5], "float": [1.0]},
        {"nulls": [None], "some": [None], "float": [float("nan")]},
        {"nulls": [None], "some": [3], "float": [2.0]},
    ]
    assert statistics(tmp_path, *groups, schema=schema) == {"some": (3, 5)}


@pytest.mark.parametrize(("columns", "text"), [(65, "x"), (2, "x" * 5000)])
def test_files_have_the_statistics_of_all_columns_or_none(
    tmp_path: Path, columns: int, text: str
) -> None:
    names = [f"n{number}" for number in range(columns)]
    schema = pa.schema([(name, pa.string()) for name in names])
    writer = TableWriter(open_folder(str(tmp_path)), "0", "t", schema)
    writer.write(pa.table({name: [text] for name in names}, schema=schema))
    (file,) = writer.close()
    assert json.loads(file.stats) == {"numRecords": 1}


BODIES = [
    {"id": 1, "v": 1.5, "flag": True, "größe": 1, "user": {"id": 3}, "note": "x" * 3000},
    {"id": None, "v": None, "late": 7},
    {"id": 3, "v": 2.5, "flag": False, "größe": 2, "user": {"id": 4}, "late": None},
]
FOUND = [
    *[("v", 1.5, 1), ("v", None, 1), ("id", None, 1), ("id", 3, 1), ("flag", True, 1)],
    *[("größe", 2, 1), ("late", 7, 1), ("late", None, 2), ("user", None, 1), ("note", None, 2)],
]


@pytest.mark.parametrize("number", [1, 3])
def test_queries_of_columns_without_statistics(tmp_path: Path, number: int) -> None:
    """Columns of other types, columns that are added later, and nulls in any of them."""
    root, to = tmp_path / "data", tmp_path / "orders"
    for at in range(0, len(BODIES), number):
        put(root, *BODIES[at : at + number])
        table(root, to)
    _check(to, FOUND)


def test_queries_of_columns_that_no_longer_have_statistics(tmp_path: Path) -> None:
    root, to = tmp_path / "data", tmp_path / "orders"
    put(root, {"id": 1, "n": 1, "day": "2026-01-01"})
    table(root, to, schema="id int, n int, day date", message_columns=False)
    put(root, {"id": 2, "n": 2.5}, {"day": "2026-01-02"})
    table(root, to, schema="n double, id decimal(12,2), day timestamp")
    _check(to, [("n", 2.5, 1), ("n", 1.0, 1), ("n", None, 1), ("id", None, 1), ("id", TWO, 1)])
    put(root, {"id": 2, "n": 2.5}, {"day": "2026-01-02"})
    table(root, to)
    _check(to, [("n", 2.5, 2), ("n", None, 2), ("id", None, 2), ("id", TWO, 2), ("day", None, 2)])


TWO = Decimal("2.00")


def _check(to: Path, found: list[tuple[str, Any, int]]) -> None:
    dataset = DeltaTable(str(to)).to_pyarrow_dataset()
    for name, value, number in found:
        column = ds.field(name)
        wanted = column.is_null() if value is None else column == value
        assert dataset.to_table(filter=wanted).num_rows == number, (name, value)
