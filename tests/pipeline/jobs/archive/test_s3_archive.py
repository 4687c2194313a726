"""Archives in an object store: two jobs at once, kills at every request, Delta, and Spark.

Except for the last test, tasks run in the test itself, one after the other.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.pipeline.lakes.object_store import DENIED, SECRET, ObjectStore, Refusal, Request
from tests.stores import records
from tests.torture.spark.jobs import Alone

from firetrail.errors import LakeConflictError, LakeError
from firetrail.pipeline import lake_dataset, lake_files, read_lake
from firetrail.pipeline.jobs import restore as restore_module
from firetrail.pipeline.jobs.archive import archive_job, compaction
from firetrail.pipeline.jobs.archive.archive_job import ArchiveResult, archive
from firetrail.pipeline.jobs.restore import restore
from firetrail.pipeline.lakes import lake as lake_module
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_reader import archived_files
from firetrail.pipeline.tables.runs.table_job import table

Put = Callable[..., None]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ALONE: Any = None
"""The session of tests whose tasks need none."""


STEPS = {"parquet": 2, "delta": 8}
"""Only every n-th request is tried; all of them take three minutes."""


@pytest.fixture
def lake(bucket: str) -> str:
    return f"s3://{bucket}/lake"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks one after the other, without Spark."""
    for module in (archive_job, compaction, restore_module):
        monkeypatch.setattr(module, "run_tasks", Alone.run_tasks)


def offsets(root: Path) -> list[int]:
    return [record.physical_offset for record in records(root)]


def archived(lake: str) -> list[int]:
    """Return the physical offsets of the records in the files of the manifest, in order."""
    found = lake_dataset(lake).to_table(columns=["physical_offset"])
    return sorted(found.column(0).to_pylist())


def in_delta(lake: str) -> list[int]:
    """Return those in the Delta table, read by delta-rs and Arrow."""
    folder = Lake(lake).folder
    table = DeltaTable(lake, storage_options=folder.storage_options())
    paths = [uri.removeprefix("s3://") for uri in table.file_uris()]
    found = ds.dataset(paths, filesystem=folder.filesystem, format="parquet").to_table(
        columns=["physical_offset"]
    )
    return sorted(found.column(0).to_pylist())


def data_files(lake: str) -> set[str]:
    return set(Lake(lake).data_files())


def named_files(lake: str) -> set[str]:
    return {file.path for file in archived_files(lake)}


class TestAlone:
    @pytest.fixture(autouse=True)
    def _alone(self, alone: None) -> None:
        """Every test of this class runs without Spark."""

    @pytest.mark.parametrize("kind", ["parquet", "delta"])
    @pytest.mark.parametrize("layout", ["day", "topic"])
    def test_a_store_comes_back_as_it_was(
        self, root: Path, lake: str, put: Put, tmp_path: Path, kind: str, layout: str
    ) -> None:
        total = 0
        for count in (30, 0, 7):
            put(count)
            total += count
            done = archive(ALONE, root, lake, format=kind, layout=layout)
            assert (done.messages, done.total_messages, done.removed) == (count, total, 0)
        assert archived(lake) == offsets(root)
        assert data_files(lake) == named_files(lake)
        assert lake_files(lake) == [f"{lake}/{file.path}" for file in archived_files(lake)]
        if kind == "delta":
            assert in_delta(lake) == offsets(root)
        restore(ALONE, lake, tmp_path / "back")
        assert records(tmp_path / "back") == records(root)

    def test_the_lake_may_be_the_whole_bucket(
        self, root: Path, bucket: str, put: Put, tmp_path: Path
    ) -> None:
        put(5)
        archive(ALONE, root, f"s3://{bucket}")
        restore(ALONE, f"s3://{bucket}/", tmp_path / "back")
        assert records(tmp_path / "back") == records(root)

    def test_a_folder_with_other_objects_is_refused(self, root: Path, lake: str, put: Put) -> None:
        put(1)
        Lake(lake).folder.replace("letter.txt", b"dear")
        with pytest.raises(LakeError, match=rf"^{lake}: is neither empty nor an archive"):
            archive(ALONE, root, lake)

    @pytest.mark.parametrize("kind", ["parquet", "delta"])
    def test_small_files_are_merged(
        self, root: Path, lake: str, put: Put, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        monkeypatch.setattr(compaction, "FEW", 1)
        for _ in range(2):
            put(6)
            done = archive(ALONE, root, lake, format=kind, compaction=True)
        assert (done.compacted, done.total_files) == (2, 1)
        assert archived(lake) == offsets(root)
        if kind == "delta":
            assert in_delta(lake) == offsets(root)
            assert len(data_files(lake)) == 3, "replaced files are kept for readers"
        else:
            assert data_files(lake) == named_files(lake)

    @pytest.mark.parametrize("kind", ["parquet", "delta"])
    @pytest.mark.parametrize("is_new", [True, False])
    def test_of_two_jobs_at_once_one_wins(
        self,
        root: Path,
        lake: str,
        put: Put,
        monkeypatch: pytest.MonkeyPatch,
        kind: str,
        is_new: bool,
    ) -> None:
        """The second job does all of its work between the tasks of the first and its commit."""
        put(9)
        if not is_new:
            archive(ALONE, root, lake, format=kind)
            put(9)
        second: list[ArchiveResult] = []

        def run_tasks(spark: Any, *args: Any, **more: Any) -> Any:
            done = Alone.run_tasks(spark, *args, **more)
            monkeypatch.setattr(archive_job, "run_tasks", Alone.run_tasks)
            second.append(archive(ALONE, root, lake, format=kind))
            return done

        monkeypatch.setattr(archive_job, "run_tasks", run_tasks)
        with pytest.raises(LakeConflictError, match=r"another job changed .*; run this job again"):
            archive(ALONE, root, lake, format=kind)
        assert [done.messages for done in second] == [9]
        assert archived(lake) == offsets(root)
        assert data_files(lake) == named_files(lake), "the loser has removed its files"
        if kind == "delta":
            assert in_delta(lake) == offsets(root)
        assert archive(ALONE, root, lake, format=kind).messages == 0

    def test_files_of_killed_jobs_are_removed_after_a_day(
        self, root: Path, lake: str, put: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before that, they might be those of a running job, which must fail afterwards."""
        put(6)
        archive(ALONE, root, lake)
        slow = Lake(lake).require_manifest()
        stray = "day=2026-11-19/0-killed.parquet"
        Lake(lake).folder.replace(stray, b"PAR1")
        assert archive(ALONE, root, lake).removed == 0
        assert Lake(lake).require_manifest() == slow
        monkeypatch.setattr(lake_module, "GRACE_MS", -60_000)
        assert archive(ALONE, root, lake).removed == 1
        assert stray not in data_files(lake)
        with pytest.raises(LakeConflictError):
            Lake(lake).publish(slow.followed())
        assert archived(lake) == offsets(root)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["parquet", "delta"])
    @pytest.mark.parametrize("performed", [False, True])
    def test_killed_at_every_request(
        self,
        root: Path,
        bucket: str,
        put: Put,
        object_store: ObjectStore,
        monkeypatch: pytest.MonkeyPatch,
        kind: str,
        performed: bool,
    ) -> None:
        """After each step of the job, readers and the next run find every record once.

        ``performed``: whether the last request before the kill still reached the store.
        """
        monkeypatch.setattr(compaction, "FEW", 1)
        put(6)
        step = STEPS[kind]
        for number in range(random.Random(performed).randrange(step), 200, step):
            lake = f"s3://{bucket}/lake-{number}"
            archive(ALONE, root, lake, format=kind)
            before = archived(lake)
            put(3)

            def kill(arrived: int, request: Request, number: int = number) -> Refusal | None:
                if arrived < number:
                    return None
                return DENIED._replace(performed=performed and arrived == number)

            with object_store.refusing(kill):
                try:
                    archive(ALONE, root, lake, format=kind, compaction=True)
                    survived = len(object_store.requests) <= number
                except LakeError:
                    survived = False
            everything = offsets(root)
            assert archived(lake) in (before, everything)
            done = archive(ALONE, root, lake, format=kind, compaction=True)
            assert done.total_messages == len(everything)
            assert archived(lake) == everything
            if kind == "delta":
                assert in_delta(lake) == everything
            if survived:
                break
        assert survived and number > 20


def test_a_late_job_does_not_repeat_a_commit_to_delta(
    root: Path, lake: str, put: Put, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job finds that the table lacks files, and adds them before the first one does."""
    from firetrail.pipeline.jobs.archive.table_formats import DeltaFiles

    put(6)
    write = DeltaFiles._write

    def late(self: DeltaFiles, *args: Any) -> None:
        monkeypatch.setattr(DeltaFiles, "_write", write)
        archive(ALONE, root, lake, format="delta")
        write(self, *args)

    monkeypatch.setattr(DeltaFiles, "_write", late)
    archive(ALONE, root, lake, format="delta")
    assert in_delta(lake) == offsets(root)


def test_a_table_that_could_not_be_committed_is_completed_by_the_next_run(
    root: Path, lake: str, put: Put, alone: None, object_store: ObjectStore
) -> None:
    def refuse(number: int, request: Request) -> Refusal | None:
        return DENIED if request.method == "PUT" and "_delta_log" in request.path else None

    put(6)
    with (
        object_store.refusing(refuse),
        pytest.raises(LakeError, match=rf"^{lake}: the archive is complete, but .*; the next run"),
    ):
        archive(ALONE, root, lake, format="delta")
    assert archived(lake) == offsets(root)
    assert archive(ALONE, root, lake, format="delta").messages == 0
    assert in_delta(lake) == offsets(root)


def test_an_archive_is_the_source_of_a_table(
    root: Path, lake: str, put: Put, alone: None, tmp_path: Path
) -> None:
    put(9)
    archive(ALONE, root, lake)
    done = table(ALONE, lake, "orders", tmp_path / "orders", decoder="text")
    assert (done.messages, done.rows) == (3, 3)


def test_on_spark(
    spark: SparkSession,
    root: Path,
    lake: str,
    put: Put,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers find credentials for themselves, here in a profile: Spark has and shows none."""
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(
        f"[profile lake]\nregion = eu-west-1\nendpoint_url = {os.environ['AWS_ENDPOINT_URL']}\n"
        f"aws_access_key_id = other\naws_secret_access_key = {SECRET}\n"
    )
    for name in ("AWS_CONFIG_FILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.setitem(spark.sparkContext.environment, name, os.environ[name])
    monkeypatch.setitem(spark.sparkContext.environment, "AWS_PROFILE", "lake")
    put(30)
    assert archive(spark, root, lake, split_bytes=4096).messages == 30
    frame = read_lake(spark, lake)
    rows = frame.select("topic", "physical_offset", "body", "day").collect()
    assert sorted(row["physical_offset"] for row in rows) == offsets(root)
    assert {row["topic"] for row in rows} == {record.topic for record in records(root)}
    assert frame.schema == read_lake(spark, _copied(lake, tmp_path / "copy")).schema
    assert pa.table(lake_dataset(lake).to_table()).num_rows == 30
    restore(spark, lake, tmp_path / "back")
    assert records(tmp_path / "back") == records(root)
    shown = dict(spark.sparkContext.getConf().getAll())
    plan = frame._jdf.queryExecution().toString()
    assert SECRET not in f"{shown}{plan}"


def _copied(lake: str, target: Path) -> Path:
    """Copy a lake to a local folder."""
    folder = Lake(lake).folder
    for name in folder.names():
        content = folder.read(name)
        assert content is not None
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return target
