"""The check of a table against its sources: it finds what is missing, repeated or too much."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession
from tests.pipeline.tables.topics import numbered, put, table

from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.tables.runs.verification import verify_table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


MODES = pytest.mark.parametrize("options", [{}, {"upsert": "id", "buckets": 2}])


@MODES
def test_a_correct_table(root: Path, to: Path, options: Any) -> None:
    put(root, *numbered(range(10)), b"{broken")
    table(root, to, **options)
    put(root, *numbered(range(8, 12)))
    table(root, to, **options)
    put(root, {"id": 99})  # not read yet
    found = verify_table(root, to)
    assert found.ok
    assert (found.messages, found.rows, found.rejected) == (15, 12 if options else 14, 1)
    assert found.unreadable == 0


@MODES
def test_rows_that_were_deleted_or_added_by_others(root: Path, to: Path, options: Any) -> None:
    put(root, *numbered(range(6)))
    table(root, to, **options)
    delta = DeltaTable(str(to))
    delta.delete("id = 3")
    found = verify_table(root, to)
    assert (found.ok, found.missing, found.repeated, found.unexpected) == (False, 1, 0, 0)
    assert found.examples == ("missing: queue 1 of data, offset 1",)
    write_deltalake(str(to), _first_row(to), mode="append")
    found = verify_table(root, to)
    assert (found.missing, found.repeated, found.unexpected) == (1, 1, 0)


def _first_row(to: Path) -> pa.Table:
    query = QueryBuilder().register("t", DeltaTable(str(to)))
    return pa.table(query.execute("select * from t order by id limit 1").read_all())


def test_an_older_version_of_a_row(root: Path, to: Path) -> None:
    put(root, {"id": 1, "v": 1}, {"id": 1, "v": 2}, queues=1)
    table(root, to, upsert="id")
    DeltaTable(str(to)).update({"_offset": "0"})
    found = verify_table(root, to)
    assert (found.missing, found.unexpected) == (1, 1)


def test_an_archive_as_the_source(
    spark: SparkSession, root: Path, to: Path, tmp_path: Path
) -> None:
    put(root, *numbered(range(6)))
    archive(spark, root, tmp_path / "archive")
    table(root, to)
    assert verify_table(tmp_path / "archive", to)[1:6] == (6, 6, 0, 0, 0)
    put(root, *numbered(range(6, 8)))
    table(root, to)
    found = verify_table(tmp_path / "archive", to)
    assert (found.ok, found.messages, found.unreadable) == (True, 6, 2)
    assert verify_table([f"data={tmp_path / 'archive'}", f"data={root}"], to).messages == 8


def test_what_cannot_be_verified(root: Path, to: Path) -> None:
    put(root, {"id": 1})
    with pytest.raises(LakeError, match="has no table"):
        verify_table(root, to)
    table(root, to, message_columns=False)
    with pytest.raises(ConfigError, match="rows cannot be compared"):
        verify_table(root, to)
