"""Files of workers that the driver does not see: nothing is published, and no old row is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tables.topics import ids, numbered, put, table

from firetrail import Message, Store
from firetrail.errors import LakeError, NotSharedError
from firetrail.pipeline.lakes.local_folder import LocalFolder
from firetrail.pipeline.tables.files import rewrite_task
from firetrail.pipeline.tables.files.delta_writer import DeltaWriter
from firetrail.pipeline.tables.keyed import bucket_change
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.verification import verify_table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def hiding(function: Callable[[Any], Any], part: str) -> Callable[[Any], Any]:
    """Return a task of which the driver does not see the new files in a folder."""

    def run(task: Any) -> Any:
        before = set(Path(task.lake.place).rglob("*.part"))
        done = function(task)
        for path in set(Path(task.lake.place).rglob("*.part")) - before:
            if part in str(path):
                path.unlink()
        return done

    return run


@pytest.mark.parametrize("part", ["/data/", "/deletes/"])
@pytest.mark.parametrize("task", ["merge_bucket", "merge_history"])
def test_merged_buckets(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch, task: str, part: str
) -> None:
    history = task == "merge_history"
    put(root, *numbered(range(4)))
    table(root, to, upsert="id", history=history, buckets=1)
    put(root, {"id": 1, "name": "new"})
    with Store.open(root) as store:
        store.put(Message("orders", b"", keys=["2"]))
    with monkeypatch.context() as patch, pytest.raises(NotSharedError, match="nothing was commit"):
        patch.setattr(bucket_change, task, hiding(getattr(bucket_change, task), part))
        table(root, to)
    assert sorted(ids(to)) == [0, 1, 2, 3]
    table(root, to)
    assert sorted(ids(to)) == ([0, 1, 1, 2, 3] if history else [0, 1, 3])
    assert verify_table(root, to).ok


def test_files_that_are_written_again(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, *numbered(range(4)))
    table(root, to, schema="id int")
    put(root, {"id": 4})
    with monkeypatch.context() as patch, pytest.raises(NotSharedError, match="nothing was commit"):
        patch.setattr(table_job, "rewrite_file", hiding(rewrite_task.rewrite_file, "/data/"))
        table(root, to, schema="id bigint")
    assert len(ids(to)) == 4
    table(root, to, schema="id bigint")
    assert len(ids(to)) == 5


def test_a_worker_with_another_folder_writes_nothing_again(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, *numbered(range(4)))
    table(root, to, schema="id int")
    put(root, {"id": 4})

    def elsewhere(task: rewrite_task.RewriteTask) -> rewrite_task.RewriteResult:
        return rewrite_task.rewrite_file(task._replace(token="of another job"))

    monkeypatch.setattr(table_job, "rewrite_file", elsewhere)
    with pytest.raises(NotSharedError, match="the folder of the lake is missing"):
        table(root, to, schema="id bigint")


def test_a_run_that_was_committed_needs_its_files_no_longer(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may merge and remove them before the job that was killed is completed."""
    put(root, *numbered(range(4)))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DeltaWriter, "commit", _commit_and_end)
        table(root, to)
    (file,) = (to / "data").glob("*.parquet")
    content = file.read_bytes()
    file.unlink()
    assert table(root, to).messages == 0
    file.write_bytes(content)
    assert sorted(ids(to)) == [0, 1, 2, 3]


_COMMIT = DeltaWriter.commit


def _commit_and_end(*args: Any, **more: Any) -> int:
    _COMMIT(*args, **more)
    raise KeyboardInterrupt


def test_a_killed_run_whose_files_are_missing(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, *numbered(range(4)))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LocalFolder, "reveal", _end)
        table(root, to)
    (file,) = (to / "data").glob("_*.part")
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(LakeError, match="this data file was written, and is missing"):
        table(root, to)
    file.write_bytes(content)
    assert table(root, to).total_rows == 4
    assert verify_table(root, to).ok


def _end(*args: Any) -> None:
    raise KeyboardInterrupt
