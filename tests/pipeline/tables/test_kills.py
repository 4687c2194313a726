"""Runs that are killed before each change of a file: every message is in the table once."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import deltalake
import pytest
from tests.clone import ROOT
from tests.pipeline.tables.formats import in_all_formats, in_keyed_formats
from tests.pipeline.tables.topics import files_of, numbered, put, rows, table

from firetrail.pipeline.lakes.hashed_file import HashedFile
from firetrail.pipeline.lakes.iceberg_files import DurableFileIO
from firetrail.pipeline.lakes.local_folder import LocalFolder
from firetrail.pipeline.tables.files.folder_catalog import FolderCatalog
from firetrail.system import Files

CHANGES: list[tuple[Any, str]] = [
    (LocalFolder, "replace"),
    (LocalFolder, "remove"),
    (LocalFolder, "create"),
    (LocalFolder, "sync_folders"),
    (HashedFile, "close"),
    (Path, "rename"),
    (deltalake.DeltaTable, "create"),
    (deltalake.DeltaTable, "create_write_transaction"),
    (deltalake.table.TableAlterer, "add_columns"),
    (deltalake.table.TableAlterer, "set_table_properties"),
    (DurableFileIO, "new_output"),
    (FolderCatalog, "_create"),
    (Files, "link"),
]
"""Everything by which a run changes files."""


class Killed(BaseException):
    """Stands for the end of the process: no handler of errors may do anything useful."""


@contextmanager
def killed_before(change: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let the process end before its change number ``change``; yield the changes made."""
    made: list[str] = []

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if len(made) >= change:
                raise Killed
            made.append(name)
            return function(*args, **more)

        return call

    with monkeypatch.context() as patch:
        for owner, name in CHANGES:
            patch.setattr(owner, name, watched(name, getattr(owner, name)))
        with suppress(Killed):
            yield made


COMMITS: dict[str, set[str]] = {
    "delta": {"create", "create_write_transaction"},
    "iceberg": {"new_output", "_create", "link"},
    "parquet": set(),
}


@pytest.mark.slow
@in_all_formats
def test_a_run_that_is_killed_before_any_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    """In each step of the walk, a first run is killed, then one with new columns and rejects."""
    root = tmp_path / "data"
    put(root, *numbered(range(6)), b"{broken")
    for change in itertools.count():
        to = tmp_path / f"first{change}"
        with killed_before(change, monkeypatch) as done:
            table(root, to)
        if len(done) < change:
            assert {"replace", "create", "rename"} | COMMITS[table_format] <= set(done)
            break
        table(root, to)
        check(to, 6, 1)
    _later_runs(tmp_path, root, monkeypatch, table_format)


def _later_runs(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    tables = [tmp_path / f"later{number}" for number in range(60)]
    for to in tables:
        table(root, to)
    put(root, {"id": 6, "new": 1}, b"{broken too")
    for change, to in enumerate(tables):
        with killed_before(change, monkeypatch) as done:
            table(root, to)
        if len(done) < change:
            assert ("add_columns" in done) is (table_format == "delta")
            return
        for _ in range(2):
            table(root, to)
        check(to, 7, 2)
        assert rows(to, "new")[-1] == {"new": 1}
    raise AssertionError("more changes than tables")


def check(to: Path, count: int, rejected: int) -> None:
    assert [row["id"] for row in rows(to, "id")] == list(range(count))
    assert len(rows(to.with_name(f"{to.name}__rejected"))) == rejected
    assert not [name for name in files_of(to / "data") if name.startswith("_")]
    assert not (to / "_firetrail" / "pending.json").exists()


@pytest.mark.slow
@in_keyed_formats
def test_processes_that_are_killed_at_any_time(tmp_path: Path, table_format: str) -> None:
    """The time before the kill grows until the process ends by itself."""
    root, to = tmp_path / "data", tmp_path / "orders"
    total, kills = 0, 0
    begun = time.monotonic()
    subprocess.run(_command(root, to, table_format), env=_environment(), capture_output=True)
    usual = time.monotonic() - begun
    for part in (0.6, 0.8, 0.9, 1.0):
        put(root, *numbered(range(total, total + 50)))
        total += 50
        process = subprocess.Popen(
            _command(root, to, table_format),
            env=_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        begun = time.monotonic()
        try:
            process.wait(usual * part)
            usual = time.monotonic() - begun  # the first run was slow beside the load of others
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    table(root, to)
    assert [row["id"] for row in rows(to, "id")] == list(range(total))
    assert kills


def _command(root: Path, to: Path, table_format: str) -> list[str]:
    program = "import sys; from firetrail.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return [
        sys.executable,
        "-c",
        program,
        "pipeline",
        "table",
        str(root),
        "orders",
        "--to",
        str(to),
        "--format",
        table_format,
    ]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src")}
