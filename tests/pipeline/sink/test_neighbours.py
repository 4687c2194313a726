"""Tasks and writers that share a staging folder: none removes what another one uses."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.helpers import PATIENCE_S
from tests.pipeline.sink.direct import rows_of

from firetrail import Store
from firetrail.errors import DiskFullError
from firetrail.pipeline.sink import sink_columns, store_writers
from firetrail.system import SYSTEM


def writer_of(root: Path, folder: str = "job") -> store_writers.BatchWriter:
    options = sink_columns.parse_options({"path": str(root)}, stream=False)
    return store_writers.BatchWriter(options, options.staging / folder)


def bodies(root: Path) -> list[bytes]:
    with Store.open(root) as store:
        return sorted(message.body for message in store.read("T", 0))


def test_a_task_without_rows_touches_no_folder(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "data")
    message = writer.write(iter([]))
    assert isinstance(message, store_writers.StagedRows)
    assert message.path is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_vanishes_while_a_file_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer removes the empty folder between the steps of this one."""
    open_file, removed = pa.OSFile, list[str]()

    def opened(path: str, mode: str) -> Any:
        if len(removed) < 3:
            Path(path).parent.rmdir()
            Path(path).parent.parent.rmdir()
            removed.append(path)
        return open_file(path, mode)

    monkeypatch.setattr(pa, "OSFile", opened)
    root = tmp_path / "data"
    writer = writer_of(root)
    writer.commit([writer.write(iter([rows_of(b"x")]))])
    assert len(removed) == 3
    assert bodies(root) == [b"x"]


def test_many_tasks_of_which_most_have_no_rows(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for _ in range(5):
        writer = writer_of(root)
        start = threading.Barrier(8)

        def run(number: int, write: Any = writer.write, start: Any = start) -> Any:
            start.wait(PATIENCE_S)
            return write(iter([rows_of(b"%d" % number)] if number % 4 == 0 else []))

        with ThreadPoolExecutor(8) as pool:
            messages = list(pool.map(run, range(48)))
        writer.commit(messages)
    assert len(bodies(root)) == 5 * 12
    assert not root.with_name("data.staging").exists()


def test_several_writers_to_one_store(tmp_path: Path) -> None:
    """They stage at the same time, wait for each other's commit, and tidy up the same folder."""
    root = tmp_path / "data"

    def run(number: int) -> None:
        for round_ in range(6):
            writer = writer_of(root, f"job-{number}-{round_}")
            writer.commit([writer.write(iter([rows_of(b"%d.%d" % (number, round_))]))])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert len(bodies(root)) == 24
    assert not root.with_name("data.staging").exists()


@pytest.mark.parametrize("call", ["folders", "modified_ms", "remove_tree", "discard"])
def test_cleaning_never_fails_a_commit(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    writer = writer_of(root)
    (root.with_name("data.staging") / "of another").mkdir(parents=True)
    staged = writer.write(iter([rows_of(b"x")]))

    original = getattr(SYSTEM.files, call)

    def gone(path: Path, **options: bool) -> Any:
        if "data.staging" in str(path):
            raise FileNotFoundError(errno.ENOENT, "another writer was faster", str(path))
        return original(path, **options)

    monkeypatch.setattr(store_writers, "ABANDONED_S", -60)
    monkeypatch.setattr(SYSTEM.files, call, gone)
    writer.commit([staged])
    monkeypatch.undo()
    assert bodies(root) == [b"x"]


def test_a_full_disk_names_the_file_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, *_: object) -> None:
            pass

        def write_batch(self, batch: object) -> None:
            raise OSError(errno.ENOSPC, "Error writing bytes to file")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "Error writing bytes to file")

    monkeypatch.setattr(pa.ipc, "new_stream", Full)
    writer = writer_of(tmp_path / "data")
    with pytest.raises(DiskFullError, match=r"data\.staging/job/\w+\.arrows: the disk is full; .*"):
        writer.write(iter([rows_of(b"x")]))
    assert list((tmp_path / "data.staging" / "job").iterdir()) == []
