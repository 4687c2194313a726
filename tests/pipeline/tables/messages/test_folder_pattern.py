"""Patterns of folders as sources: brokers are named by folder, and may appear later."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.tables.topics import ids, numbered, put, rows, table

from firetrail.errors import ConfigError, LakeError, NotAStoreError
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.tables.runs.verification import verify_table


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "orders"


def test_folders_that_appear_later_are_read(data: Path, to: Path) -> None:
    pattern = str(data / "*")
    put(data / "a", *numbered(range(2)))
    (data / "lost+found").mkdir()
    (data / "notes.txt").touch()
    assert table(pattern, to).rows == 2
    put(data / "b", *numbered(range(2, 5)))
    put(data / "c", {"id": 0}, topic="others")
    done = table(pattern, to)
    assert (done.messages, done.total_rows) == (3, 5)
    put(data / "c", {"id": 5})
    put(data / "a", {"id": 6})
    assert table(pattern, to).rows == 2
    assert {row["_broker"] for row in rows(to)} == {"a", "b", "c"}
    assert table(pattern, to).messages == 0
    assert verify_table(pattern, to).ok


def test_brokers_are_named_by_the_folder_that_the_wildcard_matches(data: Path, to: Path) -> None:
    put(data / "a" / "store", {"id": 0})
    put(data / "b" / "store", {"id": 1})
    table(data / "[ab]" / "store", to)
    assert [(row["_broker"], row["id"]) for row in rows(to)] == [("a", 0), ("b", 1)]


def test_a_relative_pattern(data: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(data / "a", {"id": 0})
    monkeypatch.chdir(data)
    assert table("?", to).rows == 1


def test_archives_and_stores_in_patterns_continue_each_other(
    spark: SparkSession, data: Path, tmp_path: Path, to: Path
) -> None:
    for name in ("a", "b"):
        put(data / name, *numbered(range(3)))
        archive(spark, data / name, tmp_path / "archive" / name)
        put(data / name, *numbered(range(3, 5)))
    sources = [str(tmp_path / "archive" / "*"), str(data / "*")]
    done = table(sources, to)
    assert (done.messages, done.lost) == (10, 0)
    assert sorted(ids(to)) == sorted([*range(5)] * 2)
    assert verify_table(sources, to).ok


def test_one_broker_in_several_folders(data: Path, to: Path) -> None:
    put(data / "a1", *numbered(range(3)))
    shutil.copytree(data / "a1", data / "a2")
    put(data / "a2", *numbered(range(3, 5)))
    assert table(f"a={data}/a*", to).rows == 5
    assert {row["_broker"] for row in rows(to)} == {"a"}


def test_a_pattern_that_matches_nothing_of_use(data: Path, to: Path) -> None:
    with pytest.raises(NotAStoreError, match=r"data/\*: matches nothing; check the pattern"):
        table(data / "*", to)
    (data / "x").mkdir(parents=True)
    with pytest.raises(NotAStoreError, match=r"matches no store and no archive, only .*/data/x"):
        table(data / "*", to)
    put(data / "a", {"id": 0}, topic="others")
    with pytest.raises(ConfigError, match=r"topic = 'orders': none of the folders that match"):
        table(data / "*", to)


def test_folders_of_the_same_name(data: Path, to: Path) -> None:
    put(data / "x" / "a", {"id": 0})
    put(data / "y" / "a", {"id": 1})
    with pytest.raises(ConfigError, match=r"several folders named a: .*/x/a, .*/y/a; list them"):
        table(data / "*" / "a*", to)


def test_a_folder_whose_name_looks_like_a_pattern(data: Path, to: Path) -> None:
    put(data / "a[1]", {"id": 0})
    put(data / "a1", {"id": 1})
    table(data / "a[1]", to)
    assert [row["_broker"] for row in rows(to)] == ["a[1]"]


def test_a_store_that_was_replaced(data: Path, to: Path) -> None:
    put(data / "a", *numbered(range(4)))
    table(data / "*", to)
    shutil.rmtree(data / "a")
    put(data / "a", *numbered(range(6)))
    with pytest.raises(LakeError, match="is not the log that the table was made from"):
        table(data / "*", to)
