"""Parquet tables: the list of their files, and what a list of others is."""

from pathlib import Path

import pyarrow.dataset as ds
import pytest
from tests.pipeline.tables.topics import exists, ids, put, table

from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.tables.runs.table_reader import table_dataset, table_files

pytestmark = pytest.mark.parametrize("table_format", ["parquet"], indirect=True)
LIST = "_firetrail/files.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def test_the_list_has_only_files_of_the_newest_types(root: Path, to: Path) -> None:
    for kind, row in (("int", {"id": 0}), ("double", {"id": 1.5}), (None, {"id": 2, "new": "x"})):
        put(root, row)
        table(root, to, schema=kind and f"id {kind}")
    assert len(list((to / "data").glob("*.parquet"))) == 4
    assert len(table_files(to)) == 3
    found = table_dataset(to).to_table(columns=["id", "new"]).sort_by("id").to_pylist()
    assert [(row["id"], row["new"]) for row in found] == [(0, None), (1.5, None), (2, "x")]
    assert ds.dataset(table_files(to)).count_rows() == 3


def test_an_upsert(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    with pytest.raises(ConfigError, match=r"a Parquet table only gains rows; choose the format"):
        table(root, to, upsert="id")
    assert not exists(to)


def test_a_list_that_is_missing_or_of_another_table(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    table(root, to)
    table(root, to.with_name("other"))
    content = (to / LIST).read_bytes()
    (to / LIST).unlink()
    with pytest.raises(LakeError, match=r"the list of files _firetrail/files\.json is missing"):
        table(root, to)
    (to / LIST).write_bytes((to.with_name("other") / LIST).read_bytes())
    with pytest.raises(LakeError, match=r"the table was replaced, _firetrail/files\.json is not"):
        table(root, to)
    (to / LIST).write_text("[]")
    with pytest.raises(LakeError, match=r"files\.json: is not the list of files of a table"):
        table(root, to)
    (to / LIST).write_bytes(content)
    assert table(root, to).rows == 0
    assert ids(to) == [0]


def test_a_file_that_is_missing(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    table(root, to)
    (path,) = table_files(to)
    Path(path).unlink()
    with pytest.raises(LakeError, match=rf"{path}: is missing, but belongs to the table"):
        table(root, to)


def test_files_of_a_folder_without_a_table(to: Path) -> None:
    for read in (table_files, table_dataset):
        with pytest.raises(LakeError, match="has no table; check the path"):
            read(to)
