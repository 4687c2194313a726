"""Programs that read a lake while it is written: no error, no row twice, no archived row lost."""

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.helpers import PATIENCE_S
from tests.stores import records

from firetrail import Message, Store
from firetrail.errors import DiskFullError, LakeError
from firetrail.pipeline import lake_dataset, lake_files, read_lake
from firetrail.pipeline.jobs.archive import archive_job, compaction, table_formats
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.lakes.hashed_file import HashedFile
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_reader import archived_files

Put = Callable[..., None]
Offsets = Callable[[SparkSession, Path], list[int]]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def by_manifest(spark: SparkSession, lake: Path) -> list[int]:
    return [row[0] for row in read_lake(spark, lake).select("physical_offset").collect()]


def by_folder_with_spark(spark: SparkSession, lake: Path) -> list[int]:
    return [row[0] for row in spark.read.parquet(str(lake)).select("physical_offset").collect()]


def by_folder_with_arrow(spark: SparkSession, lake: Path) -> list[int]:
    found: list[int] = ds.dataset(lake).to_table(["physical_offset"])[0].to_pylist()
    return found


def by_glob(spark: SparkSession, lake: Path) -> list[int]:
    return [
        offset
        for path in lake.glob("*/*.parquet")
        for offset in pq.read_table(path, columns=["physical_offset"])[0].to_pylist()
    ]


class Reader:
    """Reads a lake in a loop, in a thread, and checks what it finds."""

    def __init__(self, spark: SparkSession, lake: Path, read: Offsets) -> None:
        self._spark, self._lake, self._read = spark, lake, read
        self._ended = threading.Event()
        self.problems: list[str] = []
        self.rounds = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._ended.is_set() and not self.problems:
            try:
                self._look()
            except Exception as error:
                self.problems.append(f"{type(error).__name__}: {str(error)[:500]}")
            self.rounds += 1

    def _look(self) -> None:
        committed = Lake(str(self._lake)).require_manifest().messages
        found = Counter(self._read(self._spark, self._lake))
        if any(count > 1 for count in found.values()):
            self.problems.append(f"{found.total() - len(found)} rows twice")
        if len(found) < committed:
            self.problems.append(f"{len(found)} rows of {committed}")


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("parquet", by_manifest),
        ("parquet", by_folder_with_spark),
        ("parquet", by_folder_with_arrow),
        ("parquet", by_glob),
        ("delta", by_manifest),
        ("iceberg", by_manifest),
    ],
)
def test_a_reader_beside_a_running_archive(
    kind: str,
    read: Offsets,
    spark: SparkSession,
    root: Path,
    lake: Path,
    put: Put,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "FEW", 2)
    put(9)
    archive(spark, root, lake, format=kind)
    reader = Reader(spark, lake, read)
    rounds = merged = 0
    with reader.running():
        while rounds < 6 or (reader.rounds < 3 and not reader.problems):
            put(9)
            merged += archive(spark, root, lake, format=kind, split_bytes=1024).compacted
            rounds += 1
    assert reader.problems == []
    assert (merged > 0) == (kind != "parquet")
    assert sorted(read(spark, lake)) == [record.physical_offset for record in records(root)]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("layout", ["day", "topic"])
def test_one_call_reads_every_kind_of_lake(
    kind: str, layout: str, spark: SparkSession, root: Path, lake: Path
) -> None:
    with Store.open(root) as store:
        for topic in ("orders", "4711", "%RETRY%group"):
            store.put(Message(topic, topic.encode(), tags="t"))
    archive(spark, root, lake, format=kind, layout=layout)
    frame = read_lake(spark, lake)
    assert frame.columns[-3:] == ["properties_open", "record", "day"]
    rows = frame.orderBy("physical_offset").collect()
    assert [row.topic for row in rows] == ["orders", "4711", "%RETRY%group"]
    assert [(row.topic, row.tags) for row in rows] == [(row.body.decode(), "t") for row in rows]
    assert sum(pq.read_metadata(path).num_rows for path in lake_files(lake)) == 3
    dataset = lake_dataset(lake)
    assert dataset.schema.names == frame.columns
    columns = ["topic", "body", "day"]
    found = [tuple(row.values()) for row in dataset.to_table(columns).to_pylist()]
    assert sorted(found) == sorted((row.topic, bytes(row.body), row.day) for row in rows)


def check_that_it_has_no_rows(spark: SparkSession, lake: Path) -> None:
    frame, table = read_lake(spark, lake), lake_dataset(lake).to_table()
    assert lake_files(lake) == []
    assert (frame.count(), table.num_rows) == (0, 0)
    assert table.column_names == frame.columns


def test_a_lake_without_records(spark: SparkSession, root: Path, lake: Path) -> None:
    Store.open(root).close()
    archive(spark, root, lake)
    check_that_it_has_no_rows(spark, lake)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_lake_whose_first_archive_was_killed(
    kind: str,
    spark: SparkSession,
    root: Path,
    lake: Path,
    put: Put,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    put(9)
    monkeypatch.setattr(archive_job, "run_tasks", killed)
    with pytest.raises(KeyboardInterrupt):
        archive(spark, root, lake, format=kind)
    check_that_it_has_no_rows(spark, lake)


def test_a_folder_that_is_no_lake(spark: SparkSession, lake: Path) -> None:
    for read in (lake_files, lake_dataset, partial(read_lake, spark)):
        with pytest.raises(LakeError, match="is not an archive, it has no file"):
            read(lake)


class TestNames:
    """A file gets its name when it is complete, and only at the publication."""

    def hidden(self, lake: Path) -> list[str]:
        return [path.name for path in lake.rglob("_*.part")]

    def test_no_reader_sees_a_file_before_the_publication(
        self, spark: SparkSession, root: Path, lake: Path, put: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(9)
        archive(spark, root, lake)
        before = sorted(lake.rglob("*.parquet"))

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(table_formats.ParquetFiles, "publish", killed)
        put(9)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, root, lake)
        monkeypatch.undo()
        assert sorted(lake.rglob("*.parquet")) == before
        assert len(self.hidden(lake)) == 1
        assert archive(spark, root, lake).removed == 1
        assert self.hidden(lake) == []
        assert len(by_glob(spark, lake)) == 18

    def test_a_publication_that_was_killed_is_completed(
        self, spark: SparkSession, root: Path, lake: Path, put: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Files that have their names are being read: removing them would fail these readers."""
        put(40)

        def killed(self: Lake, manifest: Any) -> None:
            if manifest.sequence:
                raise KeyboardInterrupt
            publish(self, manifest)

        publish = Lake.publish
        monkeypatch.setattr(Lake, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, root, lake, split_bytes=1024)
        monkeypatch.undo()
        named = sorted(lake.rglob("*.parquet"))
        assert len(named) > 1
        assert archived_files(lake) == []
        named[0].rename(named[0].with_name(f"_{named[0].name}.part"))  # killed before the last one
        done = archive(spark, root, lake)
        assert (done.messages, done.removed) == (0, 0)
        assert sorted(lake.rglob("*.parquet")) == named
        assert len(by_manifest(spark, lake)) == 40

    def test_a_full_disk_names_the_file_and_the_remedy(self, tmp_path: Path) -> None:
        class Full:
            closed = False

            def write(self, data: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            def close(self) -> None:
                self.closed = True

        part = tmp_path / "_x.parquet.part"
        part.touch()
        file = HashedFile(Full(), "lake/_x.parquet.part", str(part))
        with pytest.raises(DiskFullError, match=r"^lake/_x\.parquet\.part: the disk is full; free"):
            pq.write_table(pa.table({"a": [1]}), file)
        file.abandon()
        assert not part.exists()
