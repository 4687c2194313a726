"""The archive job: every record once, in the right file, even after kills and failures."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.helpers import START_MS, Machine, small_config
from tests.pipeline.oddlog import DAY_MS, ODD_RECORDS, PLAIN_RECORDS, write_log
from tests.stores import copy_of, field_position, flip, records

from firetrail import Message, Store
from firetrail.errors import ConfigError, LakeError, NotAStoreError, StoreDamagedError
from firetrail.pipeline.jobs.archive import compaction
from firetrail.pipeline.jobs.archive.archive_job import ArchiveResult, archive, follow
from firetrail.pipeline.jobs.restore import restore
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_manifest import MANIFEST, LakeLayout, RetiredFile, gaps
from firetrail.pipeline.lakes.lake_reader import archived_files
from firetrail.pipeline.source.plan.fingerprint import whole_fingerprint
from firetrail.pipeline.tasks import run_tasks
from firetrail.store.inspect.view import StoreView
from firetrail.system import Files

Put = Callable[..., None]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def archived_offsets(lake: Path) -> list[int]:
    """Return the physical offsets of all archived records, in order, read from the files."""
    found: list[int] = []
    for file in archived_files(lake):
        table = pq.read_table(lake / file.path, partitioning=None)
        assert table.num_rows == file.messages
        assert (lake / file.path).stat().st_size == file.size
        found += table.column("physical_offset").to_pylist()
    return sorted(found)


def offsets(root: Path) -> list[int]:
    return [record.physical_offset for record in records(root)]


class TestWhatIsArchived:
    @pytest.mark.parametrize("layout", ["day", "topic"])
    def test_files_are_in_the_folders_of_their_layout(
        self, spark: SparkSession, root: Path, lake: Path, layout: str
    ) -> None:
        machine = Machine()
        with Store.open(root, small_config(), system=machine.system) as store:
            for day in range(3):
                for topic in ("a", "b%c"):
                    store.put(Message(topic, b"%d" % day, keys=["k"], tags="t"))
                machine.clock.advance(DAY_MS)
        done = archive(spark, root, lake, layout=layout)
        files = {"day": 3, "topic": 6}[layout]
        assert (done.messages, done.files, done.total_messages) == (6, files, 6)
        folders = sorted(str(path.parent.relative_to(lake)) for path in lake.rglob("*.parquet"))
        days = [f"day=2023-11-{day}" for day in (14, 15, 16)]
        by_topic = [f"topic={topic}/{day}" for topic in ("a", "b%25c") for day in days]
        assert folders == {"day": days, "topic": by_topic}[layout]
        frame = spark.read.parquet(str(lake)).orderBy("physical_offset")
        first = frame.first()
        assert first is not None
        assert (first["topic"], first["body"], first["tags"], first["keys"]) == (
            "a",
            b"0",
            "t",
            ["k"],
        )
        assert first["properties"] == {"KEYS": "k", "TAGS": "t"}
        assert int(first["store_time"].timestamp() * 1000) == START_MS
        assert [row["topic"] for row in frame.collect()] == ["a", "b%c"] * 3

    def test_odd_records_keep_their_bytes(
        self, spark: SparkSession, root: Path, lake: Path
    ) -> None:
        write_log(root, PLAIN_RECORDS + ODD_RECORDS)
        archive(spark, root, lake)
        kept = {}
        for file in archived_files(lake):
            table = pq.read_table(lake / file.path, partitioning=None)
            for row in table.select(["physical_offset", "record"]).to_pylist():
                kept[row["physical_offset"]] = row["record"]
        (log,) = (root / "commitlog").iterdir()
        content = log.read_bytes()
        at = sorted(kept)
        assert [kept[offset] for offset in at[: len(PLAIN_RECORDS)]] == [None] * len(PLAIN_RECORDS)
        for offset in at[len(PLAIN_RECORDS) :]:
            size = int.from_bytes(content[offset : offset + 4], "big")
            assert kept[offset] == content[offset : offset + size]

    def test_topics_with_the_same_hash_get_separate_files(
        self, spark: SparkSession, root: Path, lake: Path
    ) -> None:
        """Java's string hash has many collisions."""
        with Store.open(root, small_config()) as store:
            for topic in ("Aa", "BB", "Aa"):
                store.put(Message(topic, b"x"))
        archive(spark, root, lake, layout="topic")
        assert [(f.topic, f.messages) for f in archived_files(lake)] == [("Aa", 2), ("BB", 1)]

    def test_more_topics_than_open_files_keep_all_records(
        self, root: Path, lake: Path, monkeypatch: pytest.MonkeyPatch, put: Put
    ) -> None:
        """There are more topics than open files, and more rows than fit in memory."""
        from firetrail.pipeline.jobs.archive import parquet_files as module

        monkeypatch.setattr(module, "FILES_OPEN_MAX", 1)
        monkeypatch.setattr(module, "ROW_GROUP_BYTES", 500)
        monkeypatch.setattr(module, "WAITING_BYTES", 1000)
        monkeypatch.setattr(module, "BATCH_BYTES", 1000)
        put(60, log=1 << 20)
        with StoreView.open(root) as view:
            parts = (
                whole_fingerprint(view),
                0,
                view.end,
                Lake(str(lake)),
                "x",
                LakeLayout.TOPIC,
                False,
            )
        with Lake(str(lake)).locked("x"):
            written = module.archive_part(module.ArchivePart(str(root), *parts))
            Lake(str(lake)).reveal(written.files)
        assert written.messages == 60 == sum(file.messages for file in written.files)
        assert len(written.files) > 3
        found = sorted(
            offset
            for file in written.files
            for offset in pq.read_table(lake / file.path, partitioning=None)
            .column("physical_offset")
            .to_pylist()
        )
        assert found == offsets(root)


class TestAgainAndAgain:
    def test_a_second_run_archives_only_new_records(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        total = 0
        for count in (30, 1, 0, 20):
            put(count)
            done = archive(spark, root, lake, split_bytes=4096)
            total += count
            assert (done.messages, done.total_messages) == (count, total)
        assert archived_offsets(lake) == offsets(root)
        assert Lake(str(lake)).require_manifest().ranges == ((0, done.end, total),)
        assert archive(spark, root, lake)._replace(start=0) == done._replace(
            messages=0, files=0, start=0
        )

    def test_an_empty_store_makes_an_empty_archive(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        put(0)
        (root / "commitlog").mkdir(exist_ok=True)
        done = archive(spark, root, lake)
        assert (done.messages, done.marked) == (0, False)
        put(3)
        assert archive(spark, root, lake).messages == 3

    def test_follow_archives_new_records_each_round(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        put(5)
        rounds: list[ArchiveResult] = []

        def on_round(done: ArchiveResult) -> None:
            rounds.append(done)
            put(len(rounds))

        follow(spark, root, lake, every_s=0, rounds=3, on_round=on_round)
        assert [done.messages for done in rounds] == [5, 1, 2]

    def test_a_store_in_use_is_archived_up_to_its_watermark(
        self, spark: SparkSession, root: Path, lake: Path
    ) -> None:
        with Store.open(root, small_config()) as store:
            for number in range(5):
                store.put(Message("T", b"%d" % number))
            store.flush()
            store._engine.housekeeper.write_watermark(clean=False)
            durable = store.flushed_offset
            store.put(Message("T", b"not yet"))
            assert store.wait_dispatched()
            done = archive(spark, root, lake)
            assert (done.messages, done.end) == (5, durable)
        assert archive(spark, root, lake).messages == 1

    @pytest.mark.parametrize(("layout", "files"), [("day", 1), ("topic", 3)])
    def test_small_files_are_merged(
        self,
        spark: SparkSession,
        root: Path,
        lake: Path,
        put: Put,
        monkeypatch: pytest.MonkeyPatch,
        layout: str,
        files: int,
    ) -> None:
        monkeypatch.setattr(compaction, "FEW", 2)
        for _ in range(2):
            put(9)
            assert archive(spark, root, lake, layout=layout, compaction=True).compacted == 0
        put(9)
        kept = archive(spark, root, lake)
        assert (kept.compacted, kept.total_files) == (0, 3 * files), "the default for plain Parquet"
        done = archive(spark, root, lake, compaction=True)
        assert (done.compacted, done.total_files) == (3 * files, files)
        assert len(list(lake.rglob("*.parquet"))) == files
        assert archived_offsets(lake) == offsets(root)

    def test_files_replaced_long_ago_are_removed(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        """They do not count as leftovers of killed jobs, and the manifest does not grow."""
        put(6)
        archive(spark, root, lake)
        (file, *_) = archived_files(lake)
        old = (lake / file.path).with_name("0-replaced.parquet")
        shutil.copy(lake / file.path, old)
        folder = Lake(str(lake))
        manifest = folder.manifest()
        assert manifest is not None
        retired = (RetiredFile(old.relative_to(lake).as_posix(), since_ms=0),)
        folder.publish(replace(manifest, sequence=manifest.sequence + 1, retired=retired))
        put(3)
        assert archive(spark, root, lake).removed == 0
        assert not old.exists()
        assert json.loads((lake / MANIFEST).read_text())["retired"] == []


class TestKilled:
    def test_files_that_no_manifest_names_are_removed(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        put(6)
        archive(spark, root, lake)
        (file, *_) = archived_files(lake)
        shutil.copy(lake / file.path, (lake / file.path).with_name("0-killed.parquet"))
        assert archive(spark, root, lake).removed == 1
        assert archived_offsets(lake) == offsets(root)
        assert len(list(lake.rglob("*.parquet"))) == 1

    def test_a_part_that_was_not_read_is_an_error(
        self, spark: SparkSession, root: Path, lake: Path, put: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(60)
        monkeypatch.setattr(
            "firetrail.pipeline.jobs.archive.archive_job.run_tasks",
            lambda *args, **more: run_tasks(*args, **more)[1:],
        )
        with pytest.raises(LakeError, match="the records at 0 were not read"):
            archive(spark, root, lake, split_bytes=4096)
        assert Lake(str(lake)).require_manifest().files == ()

    def test_only_one_job_may_write_at_a_time(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        put(1)
        writing = Lake(str(lake))
        with writing.locked("x"):
            with pytest.raises(LakeError, match="another job is writing"):
                archive(spark, root, lake)
            writing.check_shared("x")

    def test_a_concurrent_change_of_the_manifest_is_an_error(
        self, lake: Path, root: Path, put: Put
    ) -> None:
        """Without locks, the second job fails."""
        from firetrail.pipeline.jobs.archive.archive_job import _facts
        from firetrail.pipeline.lakes.lake_manifest import Manifest, Range

        put(1)
        with StoreView.open(root) as view:
            manifest = Manifest.new("parquet", _facts(view), LakeLayout.DAY)
        folder = Lake(str(lake))
        folder.publish(manifest)
        folder.publish(manifest.extended(Range(0, 10, 1), [], ()))
        with pytest.raises(LakeError, match="another job changed"):
            folder.publish(manifest.extended(Range(0, 20, 2), [], ()))


def test_a_lake_may_be_in_another_file_system(
    spark: SparkSession, root: Path, put: Put, tmp_path: Path
) -> None:
    """A file system of fsspec counts as remote: it has no syncs and no locks."""
    (tmp_path / "bucket").mkdir()
    lake = f"dir://lake::file://{tmp_path}/bucket"
    put(30)
    assert archive(spark, root, lake).messages == 30
    folder = tmp_path / "bucket" / "lake"
    shutil.copy(next(folder.rglob("*.parquet")), folder / "topic=x.parquet")
    put(5)
    done = archive(spark, root, lake)
    assert (done.messages, done.removed, done.total_messages) == (5, 1, 35)
    assert not Lake(lake).folder.is_local
    assert archived_offsets(folder) == offsets(root)
    restore(spark, lake, tmp_path / "back")
    assert records(tmp_path / "back") == records(root)
    (folder / "_firetrail" / "manifest.json").unlink()
    with pytest.raises(LakeError, match="is neither empty nor an archive"):
        archive(spark, root, lake)


class TestRefused:
    def test_a_folder_with_other_files(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        put(1)
        lake.mkdir()
        (lake / "letter.txt").write_text("dear")
        with pytest.raises(LakeError, match="is neither empty nor an archive"):
            archive(spark, root, lake)
        assert os.listdir(lake) == ["letter.txt"]

    def test_another_store(
        self, spark: SparkSession, root: Path, lake: Path, put: Put, tmp_path: Path
    ) -> None:
        put(20)
        archive(spark, root, lake)
        for count in (10, 20, 30):
            other = tmp_path / f"other{count}"
            put(count, path=other)
            with pytest.raises(LakeError, match="is the archive of another store"):
                archive(spark, other, lake)

    def test_a_copy_of_the_store_with_other_records(
        self, spark: SparkSession, root: Path, lake: Path, put: Put, tmp_path: Path
    ) -> None:
        put(5)
        archive(spark, root, lake)
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        put(5)
        archive(spark, root, lake)
        put(9, path=copy)
        with pytest.raises(LakeError, match="was truncated and has other records"):
            archive(spark, copy, lake)

    def test_a_damaged_record(self, spark: SparkSession, lake: Path, tmp_path: Path) -> None:
        store = copy_of("v4-rolled", tmp_path / "data")
        archive(spark, store, tmp_path / "good")
        third = sorted((store / "commitlog").iterdir())[2]
        flip(third, field_position(third.read_bytes(), int(third.name), 0, "body"))
        with pytest.raises(StoreDamagedError) as caught:
            archive(spark, store, lake)
        assert caught.value.file == f"commitlog/{third.name}"
        assert Lake(str(lake)).require_manifest().files == ()

    def test_no_store_and_an_unknown_format(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        with pytest.raises(NotAStoreError):
            archive(spark, root, lake)
        put(1)
        with pytest.raises(ConfigError, match="must be one of parquet, delta, iceberg"):
            archive(spark, root, lake, format="orc")
        archive(spark, root, lake)
        with pytest.raises(LakeError, match="with the format parquet, not delta"):
            archive(spark, root, lake, format="delta")

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"firetrail_archive": 3}, "another version of Firetrail"),
            ({"files": [{"path": "x"}]}, "is not the manifest of an archive"),
        ],
    )
    def test_an_invalid_manifest(
        self,
        spark: SparkSession,
        root: Path,
        lake: Path,
        put: Put,
        change: dict[str, Any],
        error: str,
    ) -> None:
        put(1)
        archive(spark, root, lake)
        path = lake / "_firetrail" / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(LakeError, match=error):
            archive(spark, root, lake)


class TestRetention:
    def delete(self, root: Path, **settings: Any) -> int:
        with Store.open(root, small_config(delete_batch_max=100, **settings)) as store:
            return store.delete_expired(forced=True)

    def test_deletes_only_archived_records(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        put(60)
        assert self.delete(root, delete_archived_only=True) == 0
        done = archive(spark, root, lake)
        assert done.marked
        put(60)
        removed = self.delete(root, delete_archived_only=True)
        assert 0 < removed == done.end // 4096
        assert archive(spark, root, lake).messages == 60
        assert self.delete(root, delete_archived_only=True) > 0
        put(1)
        again = archive(spark, root, lake)
        assert (again.messages, again.total_messages) == (1, 121)

    def test_records_deleted_before_they_were_archived(
        self, spark: SparkSession, root: Path, lake: Path, put: Put, tmp_path: Path
    ) -> None:
        put(30)
        done = archive(spark, root, lake)
        put(90)
        assert self.delete(root) > 0
        with pytest.raises(LakeError, match="deleted before they were archived; continue with"):
            archive(spark, root, lake)
        again = archive(spark, root, lake, allow_gap=True)
        manifest = Lake(str(lake)).require_manifest()
        assert gaps(manifest) == [(done.end, again.start)]
        with StoreView.open(root) as view:
            assert again.start == view.log.min_offset
        # Without its mark, no record identifies the store any more.
        put(90)
        self.delete(root)
        for mark in root.glob("firetrail.archived.*"):
            mark.unlink()
        with pytest.raises(LakeError, match="cannot verify that this is"):
            archive(spark, root, lake, allow_gap=True)


def test_the_token_of_a_job_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers read it while the file is open; a network file system shows it only after a sync."""
    synced: list[bytes] = []

    def sync(files: Files, descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").read_bytes())

    monkeypatch.setattr(Files, "sync", sync)
    with Lake(str(tmp_path)).locked("token"):
        assert synced == [b"token"]
        Lake(str(tmp_path)).check_shared("token")
