"""Maintenance of tables by their writers: small files, replaced files, and files of killed runs."""

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tables.files.test_iceberg_writer import opened
from tests.pipeline.tables.formats import in_all_formats, in_keyed_formats
from tests.pipeline.tables.test_kills import killed_before
from tests.pipeline.tables.topics import files_of, iceberg, ids, is_iceberg, put, rows, table

from firetrail.pipeline.tables.runs import publication as module
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.table_reader import table_files
from firetrail.pipeline.tables.runs.verification import verify_table

HOUR_S = 3600


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def maintain(to: Path, keep_hours: int) -> None:
    publication = Publication(str(to))
    manifest = publication.require_manifest()
    for name in publication.lakes:
        publication._writer(manifest, name).maintain(manifest.sequence, keep_hours)


def data_files(to: Path) -> list[str]:
    return sorted(str(path) for path in to.rglob("*.parquet") if "_firetrail" not in path.parts)


def made_older(to: Path, hours: int) -> None:
    for path in to.rglob("*"):
        time_s = path.stat().st_mtime - hours * HOUR_S
        os.utime(path, (time_s, time_s))


@in_all_formats
def test_small_files_are_merged_after_some_commits(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAINTAINED_EVERY", 4)
    for number in range(4):
        put(root, {"id": number, **({"new": 1} if number > 1 else {})}, b"{")
        table(root, to, keep_hours=0)
    assert len(table_files(to)) == 1
    assert ids(to) == [0, 1, 2, 3]
    assert [row["new"] for row in rows(to)] == [None, None, 1, 1]
    assert len(rows(to.with_name("orders__rejected"))) == 4
    assert data_files(to) == sorted(table_files(to))
    put(root, {"id": 4})
    assert table(root, to).total_rows == 5
    assert verify_table(root, to).ok


@in_keyed_formats
def test_buckets_stay_apart(root: Path, to: Path) -> None:
    put(root, *({"id": number, "v": 0} for number in range(8)))
    table(root, to, upsert="id", buckets=2)
    put(root, {"id": 1, "v": 1})
    table(root, to)
    maintain(to, 0)
    assert len(table_files(to)) == 2
    put(root, {"id": 2, "v": 2})
    assert table(root, to).files == 1
    assert {row["id"]: row["v"] for row in rows(to)} == dict.fromkeys(range(8), 0) | {1: 1, 2: 2}


@in_all_formats
def test_replaced_files_are_kept_for_some_hours(root: Path, to: Path) -> None:
    for number in range(2):
        put(root, {"id": number})
        table(root, to)
    old = data_files(to)
    maintain(to, 1)
    assert set(old) < set(data_files(to))
    maintain(to, 0)
    assert set(old).isdisjoint(data_files(to))
    assert ids(to) == [0, 1]


@pytest.mark.parametrize("table_format", ["iceberg", "parquet"], indirect=True)
def test_files_of_a_killed_merge_are_removed_after_some_hours(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    table(root, to)
    (own,) = files_of(to / "data")
    stray = f"0{own[1:-8]}x.parquet"
    shutil.copy(to / "data" / own, to / "data" / stray)
    maintain(to, 1)
    assert files_of(to / "data") == sorted([own, stray])
    made_older(to, 2)
    maintain(to, 1)
    assert files_of(to / "data") == [own]
    assert ids(to) == [0]


@pytest.mark.parametrize("table_format", ["iceberg"], indirect=True)
def test_files_that_others_may_yet_commit_are_kept_for_days(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    table(root, to)
    (own,) = files_of(to / "data")
    shutil.copy(to / "data" / own, to / "data" / "00000-0-merge.parquet")
    made_older(to, 71)
    maintain(to, 0)
    assert files_of(to / "data") == ["00000-0-merge.parquet", own]
    made_older(to, 2)
    maintain(to, 0)
    assert files_of(to / "data") == [own]


@pytest.mark.parametrize("table_format", ["iceberg"], indirect=True)
def test_old_snapshots_are_expired(root: Path, to: Path) -> None:
    for number in range(3):
        put(root, {"id": number})
        table(root, to)
    maintain(to, 1)
    assert len(iceberg(to).snapshots()) == 4
    maintain(to, 0)
    assert len(iceberg(to).snapshots()) == 1
    lists = [name for name in files_of(to / "metadata") if name.startswith("snap-")]
    assert len(lists) == 1
    assert ids(to) == [0, 1, 2]
    put(root, {"id": 3})
    assert table(root, to).rows == 1


@pytest.mark.parametrize("table_format", ["iceberg"], indirect=True)
def test_snapshots_are_expired_if_there_are_many(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        put(root, {"id": number})
        table(root, to)
    with opened(to).manage_snapshots() as references:
        references.create_tag(opened(to).snapshots()[0].snapshot_id, "kept")
    monkeypatch.setattr("firetrail.pipeline.tables.files.iceberg_writer.SNAPSHOTS_MAX", 2)
    maintain(to, 100)
    assert [snapshot.sequence_number for snapshot in iceberg(to).snapshots()] == [1, 4, 5]
    assert len(data_files(to)) == 5
    put(root, {"id": 4})
    assert table(root, to).total_rows == 5


@pytest.mark.slow
@pytest.mark.parametrize("table_format", ["iceberg", "parquet"], indirect=True)
def test_a_merge_that_is_killed_before_any_change(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        put(root, {"id": number}, {"id": number + 10})
    for change in itertools.count():
        to = tmp_path / f"table{change}"
        seen = _two_commits(root, to)
        with killed_before(change, monkeypatch) as done:
            maintain(to, 0)
        assert ids(to) == seen
        if len(done) < change:
            break
        put(root, {"id": 100 + change})
        assert table(root, to).rows == 1
        maintain(to, 0)
        assert len(table_files(to)) == 1
        assert verify_table(root, to).ok
        if is_iceberg(to):
            assert len(iceberg(to).snapshots()) == 1


def _two_commits(root: Path, to: Path) -> list[Any]:
    """Make a table of two files, the second of which has one more row of the same topic."""
    table(root, to)
    put(root, {"id": -1})
    table(root, to)
    assert len(table_files(to)) == 2
    return ids(to)
