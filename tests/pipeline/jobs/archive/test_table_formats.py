"""Archives that are Delta or Iceberg tables, read by their own libraries."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests.stores import records

from firetrail.errors import LakeError, MissingExtraError
from firetrail.pipeline.jobs.archive import compaction
from firetrail.pipeline.jobs.archive import table_formats as module
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.jobs.restore import restore
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_manifest import LakeLayout

Put = Callable[..., None]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def delta_rows(lake: Path) -> list[tuple[str, int]]:
    query = "select topic, physical_offset from t order by physical_offset"
    found = QueryBuilder().register("t", DeltaTable(str(lake))).execute(query).read_all()
    return [(row["topic"], row["physical_offset"]) for row in _rows(found)]


def iceberg_table(lake: Path) -> Any:
    with SqlCatalog("firetrail", uri=f"sqlite:///{lake}/_firetrail/catalog.db") as catalog:
        return catalog.load_table("firetrail.messages")


def iceberg_rows(lake: Path) -> list[tuple[str, int]]:
    found = iceberg_table(lake).scan(selected_fields=("topic", "physical_offset")).to_arrow()
    return sorted(
        ((row["topic"], row["physical_offset"]) for row in found.to_pylist()),
        key=lambda row: row[1],
    )


def _rows(found: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


READ = {"delta": delta_rows, "iceberg": iceberg_rows}
KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


def expected(root: Path) -> list[tuple[str, int]]:
    return [(record.topic, record.physical_offset) for record in records(root)]


@KINDS
@pytest.mark.parametrize(("layout", "files"), [("day", 1), ("topic", 3)])
def test_the_table_has_the_rows_of_the_store(
    spark: SparkSession,
    root: Path,
    lake: Path,
    put: Put,
    kind: str,
    layout: str,
    files: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "FEW", 2)
    merged = 0
    for _ in range(3):
        put(12)
        merged += archive(spark, root, lake, format=kind, layout=layout).compacted
        assert READ[kind](lake) == expected(root)
    assert merged == 3 * files
    # Merged files are kept for readers of older versions.
    assert len(list(lake.rglob("day=*/*.parquet"))) == 4 * files
    assert archive(spark, root, lake, format=kind).removed == 0
    restore(spark, lake, tmp_path / "back")
    assert records(tmp_path / "back") == records(root)


def test_an_older_version_of_a_delta_table_stays_readable(
    spark: SparkSession, root: Path, lake: Path, put: Put
) -> None:
    put(3)
    archive(spark, root, lake, format="delta")
    put(3)
    archive(spark, root, lake, format="delta")
    table = DeltaTable(str(lake))
    assert table.version() == 2
    table.load_as_version(1)
    assert (
        len(_rows(QueryBuilder().register("t", table).execute("select * from t").read_all())) == 3
    )


class Killed(BaseException):
    """Simulates the end of a killed process."""


@KINDS
@pytest.mark.parametrize("committed", [False, True])
def test_table_and_manifest_agree_after_a_kill(
    spark: SparkSession,
    root: Path,
    lake: Path,
    put: Put,
    kind: str,
    committed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(6)
    archive(spark, root, lake, format=kind)
    put(6)
    table: Any = module.KINDS[kind]
    real = table._commit

    def dies(self: Any, *args: Any) -> None:
        if committed:
            real(self, *args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(table, "_commit", dies)
        with pytest.raises(Killed):
            archive(spark, root, lake, format=kind)
    assert (lake / "_firetrail" / "pending.json").exists()
    assert len(READ[kind](lake)) == (12 if committed else 6)
    done = archive(spark, root, lake, format=kind)
    assert (done.messages, done.removed) == ((0, 0) if committed else (6, 1))
    assert READ[kind](lake) == expected(root)
    assert Lake(str(lake)).require_manifest().messages == 12
    assert not (lake / "_firetrail" / "pending.json").exists()


@pytest.mark.parametrize(("kind", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_missing_library_names_the_extra(
    root: Path, lake: Path, kind: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"needs {library}: pip install 'firetrail\[spark"):
        module.table_of(kind, Lake(str(lake)))


def test_iceberg_needs_a_local_folder() -> None:
    with pytest.raises(LakeError, match="needs a local folder"):
        module.table_of("iceberg", Lake("memory://lake"))


def test_iceberg_leaves_no_connection_to_its_catalog_open(lake: Path) -> None:
    table: Any = module.table_of("iceberg", Lake(str(lake)))
    catalog = lake / "_firetrail" / "catalog.db"
    assert catalog.exists()
    assert str(catalog) not in open_files()
    table._table(LakeLayout.DAY)
    assert str(catalog) in open_files()
    table.settle()
    assert str(catalog) not in open_files()


def open_files() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing itself
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found
