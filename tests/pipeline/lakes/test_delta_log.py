"""Commits to Delta tables are synced: which files, and which folders."""

import os
from pathlib import Path

import pytest

from firetrail.pipeline.lakes.delta_log import sync_delta_commits
from firetrail.pipeline.lakes.location import open_folder
from firetrail.system import Files


def test_the_commits_of_a_range_and_their_checkpoints_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    names = [f"{version:020d}.json" for version in range(3, 8)]
    checkpoint = f"{6:020d}.checkpoint.parquet"
    for name in (*names, checkpoint, "_last_checkpoint", "other"):
        (log / name).touch()
    synced: list[str] = []
    monkeypatch.setattr(
        Files, "sync", lambda _, number: synced.append(os.readlink(f"/proc/self/fd/{number}"))
    )
    monkeypatch.setattr(Files, "sync_folder", lambda _, path: synced.append(str(path)))
    sync_delta_commits(open_folder(str(tmp_path / "table")), 4, 6)
    found = {os.path.relpath(path, tmp_path) for path in synced}
    assert found == {
        ".",
        "table",
        "table/_delta_log",
        f"table/_delta_log/{names[2]}",
        f"table/_delta_log/{names[3]}",
        f"table/_delta_log/{checkpoint}",
        "table/_delta_log/_last_checkpoint",
    }


def test_nothing_is_synced_in_an_object_store() -> None:
    sync_delta_commits(open_folder("memory://lake"), -1, 3)
