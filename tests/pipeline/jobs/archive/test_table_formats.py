"""Archives that are Delta or Iceberg tables, read by their own libraries."""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
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
from firetrail.pipeline.lakes.lake_manifest import LakeLayout, Manifest
from firetrail.system import Files

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
LOGS = {"delta": "_delta_log", "iceberg": "metadata"}
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


@KINDS
def test_a_table_is_on_disk_before_the_manifest_says_that_it_is_archived(
    spark: SparkSession,
    root: Path,
    lake: Path,
    put: Put,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A power failure after the manifest then leaves the commit, too."""
    synced: set[Path] = set()
    sync, sync_folder, publish = Files.sync, Files.sync_folder, Lake.publish
    checked: list[int] = []

    def note(self: Files, descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(self, descriptor)

    def note_folder(self: Files, path: Path) -> None:
        synced.add(path)
        sync_folder(self, path)

    def check(self: Lake, manifest: Manifest) -> None:
        folder = lake / LOGS[kind]
        written = {folder, *folder.glob("*")} if manifest.sequence else set()
        assert not written - synced
        checked.append(len(written))
        publish(self, manifest)

    monkeypatch.setattr(Files, "sync", note)
    monkeypatch.setattr(Files, "sync_folder", note_folder)
    monkeypatch.setattr(Lake, "publish", check)
    monkeypatch.setattr(compaction, "FEW", 2)
    for _ in range(3):
        put(4)
        archive(spark, root, lake, format=kind)
    assert READ[kind](lake) == expected(root)
    assert checked[0] == 0 and len(checked) == 5 and checked[-1] > 5


def test_a_delta_commit_is_synced_by_the_run_after_a_kill(
    spark: SparkSession, root: Path, lake: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(6)

    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "sync_delta_commits", dies)
        with pytest.raises(Killed):
            archive(spark, root, lake, format="delta")
    synced: list[int] = []
    monkeypatch.setattr(module, "sync_delta_commits", lambda _, since, to: synced.append(since))
    done = archive(spark, root, lake, format="delta")
    assert (done.messages, done.total_messages) == (0, 6)
    assert synced == [-1]


@pytest.mark.parametrize("left", [None, 0, "line"])
def test_a_delta_commit_that_a_power_failure_took_is_made_again(
    spark: SparkSession, root: Path, lake: Path, put: Put, left: int | str | None
) -> None:
    """The manifest was published; the next run has nothing new, or something."""
    for _ in range(2):
        put(6)
        archive(spark, root, lake, format="delta")
    newest = max((lake / "_delta_log").glob("*.json"))
    if left is None:
        newest.unlink()
    else:
        newest.write_bytes(newest.read_bytes().partition(b"\n")[0] if left else b"")
    archive(spark, root, lake, format="delta")
    assert delta_rows(lake) == expected(root)
    put(6)
    archive(spark, root, lake, format="delta")
    assert delta_rows(lake) == expected(root)


@pytest.mark.parametrize("kept", [1, 2])
def test_a_part_of_a_pending_delta_commit_is_completed_or_taken_back(
    spark: SparkSession,
    root: Path,
    lake: Path,
    put: Put,
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A power failure has left some lines of the commit, with its number or without it."""
    put(6)
    archive(spark, root, lake, format="delta")
    put(6)

    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "sync_delta_commits", dies)
        with pytest.raises(Killed):
            archive(spark, root, lake, format="delta")
    newest = max((lake / "_delta_log").glob("*.json"))
    lines = newest.read_bytes().splitlines(keepends=True)
    by_kind = {next(iter(json.loads(line))): line for line in lines}
    info, transaction, added = by_kind["commitInfo"], by_kind["txn"], by_kind["add"]
    newest.write_bytes(info + (transaction if kept == 1 else added))
    archive(spark, root, lake, format="delta")
    assert delta_rows(lake) == expected(root)


def test_a_delta_commit_that_is_cut_is_reported_with_the_remedy(
    spark: SparkSession, root: Path, lake: Path, put: Put
) -> None:
    for _ in range(2):
        put(6)
        archive(spark, root, lake, format="delta")
    newest = max((lake / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-20])
    with pytest.raises(LakeError) as raised:
        archive(spark, root, lake, format="delta")
    assert str(raised.value).startswith(f"{lake}: the Delta table cannot be read or changed (Kern")
    assert "has cut the newest file of _delta_log, remove that file" in str(raised.value)
    assert "\n" not in str(raised.value)
    newest.unlink()
    archive(spark, root, lake, format="delta")
    assert delta_rows(lake) == expected(root)


def test_an_iceberg_commit_that_a_power_failure_took_is_made_again(
    spark: SparkSession, root: Path, lake: Path, put: Put
) -> None:
    """SQLite takes back a commit whose journal is still there."""
    catalog = lake / "_firetrail" / "catalog.db"
    put(6)
    archive(spark, root, lake, format="iceberg")
    before = catalog.read_bytes()
    put(6)
    archive(spark, root, lake, format="iceberg")
    catalog.write_bytes(before)
    assert len(iceberg_rows(lake)) == 6
    archive(spark, root, lake, format="iceberg")
    assert iceberg_rows(lake) == expected(root)


def test_an_iceberg_table_that_cannot_be_read_is_reported_with_the_remedy(
    spark: SparkSession, root: Path, lake: Path, put: Put
) -> None:
    for _ in range(2):
        put(6)
        archive(spark, root, lake, format="iceberg")
    newest = max((lake / "metadata").glob("*.metadata.json"))
    newest.write_bytes(b"")
    with pytest.raises(LakeError, match=r"Remove _firetrail/catalog.db and the folder metadata"):
        archive(spark, root, lake, format="iceberg")
    (lake / "_firetrail" / "catalog.db").unlink()
    shutil.rmtree(lake / "metadata")
    archive(spark, root, lake, format="iceberg")
    assert iceberg_rows(lake) == expected(root)


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


@pytest.mark.parametrize("layout", ["day", "topic"])
def test_queries_of_columns_without_statistics(
    spark: SparkSession, root: Path, lake: Path, put: Put, layout: str
) -> None:
    """A reader may take a column without statistics for one that has no value."""
    put(3)
    archive(spark, root, lake, format="delta", layout=layout)
    dataset = DeltaTable(str(lake)).to_pyarrow_dataset()
    rows = dataset.to_table().to_pylist()
    for name in ("queue_id", "physical_offset", "topic", "tags", "record"):
        values = Counter(row[name] for row in rows)
        for value, number in values.items():
            column = ds.field(name)
            wanted = column.is_null() if value is None else column == value
            assert dataset.to_table(filter=wanted).num_rows == number, name
