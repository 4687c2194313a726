"""The restore job: the log is restored byte for byte, and queues and index are derived."""

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.helpers import small_config, tree
from tests.pipeline.oddlog import ODD_RECORDS, PLAIN_RECORDS, write_log
from tests.stores import copy_of, overwrite, records, truncate

from firetrail import Message, Store
from firetrail.errors import DiskFullError, LakeError, StoreError
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.pipeline.jobs import restore as module
from firetrail.pipeline.jobs.archive import archive_job
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.jobs.restore import restore
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_reader import archived_files
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.view import StoreView
from firetrail.system import SYSTEM

Put = Callable[..., None]
GOLDEN = ["v4-clean", "v4-crashed", "v4-rebuilt", "v4-rolled", "v5-clean", "v5-propcrc"]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def back(tmp_path: Path) -> Path:
    return tmp_path / "back"


def log_bytes(root: Path) -> dict[str, bytes]:
    """Return every log file up to its end mark, after which nothing is read, or the log's end."""
    found = {}
    with StoreView.open(root) as view:
        for segment in view.log.segments:
            content = bytes(segment.view)
            last = [r for r in records(root) if segment.base <= r.physical_offset < segment.end]
            end = last[-1].physical_offset + last[-1].size - segment.base if last else 0
            closed = segment.end <= view.end
            if end:
                found[segment.path.name] = content[: min(end + 8 * closed, len(content))]
    return found


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_stores_are_restored_byte_for_byte(
    spark: SparkSession, name: str, lake: Path, back: Path, tmp_path: Path
) -> None:
    store = copy_of(name, tmp_path / "data")
    archive(spark, store, lake, split_bytes=4096)
    made = restore(spark, lake, back)
    assert made.messages == len(records(store)) == len(records(back))
    assert log_bytes(back) == log_bytes(store)
    assert records(back) == records(store)


def test_queues_and_index_are_restored(
    spark: SparkSession, root: Path, lake: Path, back: Path, put: Put
) -> None:
    put(120, index_tags=True)
    with Store.open(root, small_config()) as store:
        store.put(Message("delayed", b"later", delay_level=3))
    archive(spark, root, lake)
    restore(spark, lake, back)
    assert log_bytes(back) == log_bytes(root)
    assert _derived(back) == _derived(root)
    with Store.open(back) as store:
        assert store.config.store_host.port == 10911
        assert [m.body for m in store.query("orders", "k117")] == [b"message 117"]
        assert store.put(Message("orders", b"next", queue_id=0)).ok


def test_a_log_without_its_beginning_is_restored(
    spark: SparkSession, root: Path, lake: Path, back: Path, put: Put
) -> None:
    put(120)
    with Store.open(root, small_config(delete_batch_max=1)) as store:
        assert store.delete_expired(forced=True) == 1
    archive(spark, root, lake)
    assert restore(spark, lake, back).start == 4096
    assert log_bytes(back) == log_bytes(root)
    with StoreView.open(back) as new, StoreView.open(root) as old:
        assert new.tails == old.tails
        for pair in old.queues.pairs():
            ends = [view.reader.get(*pair, 0, 1) for view in (new, old)]
            assert ends[0].min_offset == ends[1].min_offset > 0


def _derived(root: Path) -> tuple[dict[str, bytes], list[bytes]]:
    """Return the consume queues by name, and the contents of the index files without names."""
    return tree(root / "consumequeue"), [
        content[40:] for _, content in sorted(tree(root / "index").items())
    ]


def test_unusual_records_are_restored_byte_for_byte(
    spark: SparkSession, root: Path, lake: Path, back: Path
) -> None:
    odd = [r for r in ODD_RECORDS if r.get("topic", b"T").isascii()]  # a folder must have its name
    write_log(root, PLAIN_RECORDS + odd)
    archive(spark, root, lake)
    restore(spark, lake, back)
    assert log_bytes(back) == log_bytes(root)


def test_a_restored_store_can_be_archived_to_the_same_lake(
    spark: SparkSession, root: Path, lake: Path, back: Path, put: Put, tmp_path: Path
) -> None:
    """The lake recognizes the store by its records."""
    put(40)
    archive(spark, root, lake)
    restore(spark, lake, back)
    put(5, path=back)
    assert archive(spark, back, lake).messages == 5
    with StoreView.open(back) as view:
        report = check_store(view, DelayLevels.parse(DEFAULT_DELAY_LEVELS))
    assert report.ok


class TestRefused:
    def test_a_folder_that_is_not_empty(
        self, spark: SparkSession, root: Path, lake: Path, put: Put
    ) -> None:
        put(1)
        archive(spark, root, lake)
        with pytest.raises(StoreError, match="not an empty folder"):
            restore(spark, lake, root)

    def test_no_archive(self, spark: SparkSession, lake: Path, back: Path) -> None:
        with pytest.raises(LakeError, match="is not an archive"):
            restore(spark, lake, back)

    def test_an_empty_archive(
        self, spark: SparkSession, root: Path, lake: Path, back: Path, put: Put
    ) -> None:
        put(0)
        (root / "commitlog").mkdir(exist_ok=True)
        archive(spark, root, lake)
        with pytest.raises(LakeError, match="the archive is empty"):
            restore(spark, lake, back)

    @pytest.mark.parametrize("harm", ["missing", "cut", "changed"])
    def test_a_changed_file(
        self, spark: SparkSession, root: Path, lake: Path, back: Path, put: Put, harm: str
    ) -> None:
        put(9)
        archive(spark, root, lake)
        path = lake / archived_files(lake)[0].path
        if harm == "missing":
            path.unlink()
        elif harm == "cut":
            truncate(path, 100)
        else:
            overwrite(path, 60, b"\xff")
        with pytest.raises(LakeError, match="put it back"):
            restore(spark, lake, back)
        assert not back.exists() and not back.with_name("back.restoring").exists()

    def test_a_gap(self, spark: SparkSession, root: Path, lake: Path, back: Path, put: Put) -> None:
        put(30)
        archive(spark, root, lake)
        put(90)
        with Store.open(root, small_config(delete_batch_max=100)) as store:
            store.delete_expired(forced=True)
        archive(spark, root, lake, allow_gap=True)
        with pytest.raises(LakeError, match="has gaps; choose a part with --part from 0: 0 to"):
            restore(spark, lake, back)
        with pytest.raises(LakeError, match="no part 2"):
            restore(spark, lake, back, part=2)
        restore(spark, lake, back, part=1)
        assert log_bytes(back) == log_bytes(root)


def test_leftovers_of_a_killed_restore_are_replaced(
    spark: SparkSession, root: Path, lake: Path, back: Path, put: Put
) -> None:
    put(9)
    archive(spark, root, lake)
    left = back.with_name("back.restoring")
    (left / "commitlog").mkdir(parents=True)
    (left / "commitlog" / "00000000000000000000").write_bytes(b"half")
    restore(spark, lake, back)
    assert records(back) == records(root)
    assert not left.exists()


def test_a_late_attempt_at_a_task_does_no_harm(
    root: Path, lake: Path, back: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes a worker for dead; it continues after another did its task, and then dies."""
    fill = module._fill

    def run_tasks(
        spark: object, function: Callable[[Any], Any], tasks: list[Any], **_: object
    ) -> list[Any]:
        done = [function(task) for task in tasks]
        if function is fill:
            with monkeypatch.context() as patch, pytest.raises(Killed):
                patch.setattr(module, "_rows", dies)
                function(tasks[0])
        return done

    put(40)
    with monkeypatch.context() as patch:
        patch.setattr(archive_job, "run_tasks", run_tasks)
        patch.setattr(module, "run_tasks", run_tasks)
        alone: Any = None
        archive(alone, root, lake, compaction=False)
        restore(alone, lake, back)
    assert log_bytes(back) == log_bytes(root)
    assert not list(back.glob("parts*"))


class Killed(BaseException):
    """Simulates the kill of a process."""


def dies(*_: object) -> None:
    raise Killed


def test_a_full_disk_names_the_file_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    parts = tmp_path / "back.restoring" / "parts"
    parts.mkdir(parents=True)
    monkeypatch.setattr(SYSTEM.files, "allocate", full)
    task = module._Fill(Lake(str(tmp_path / "lake")), str(parts), 0, 4096, 4096, ())
    with pytest.raises(DiskFullError) as caught:
        module._fill(task)
    assert re.fullmatch(
        rf"{re.escape(str(parts))}/\w+: the disk is full; free some space, or restore to a folder "
        "on another disk; nothing was restored",
        str(caught.value),
    )
