"""``firetrail pipeline table --explain``: what it shows is what the run then does."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.tables.topics import numbered, put, table

from firetrail.cli.main import main
from firetrail.errors import LakeError
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.explanation import TableExplanation, explain_table
from firetrail.pipeline.tables.runs.publication import Publication


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "orders"


def explain(source: Any, to: Path, **options: Any) -> TableExplanation:
    """Explain without Spark, and check that nothing was written."""
    before = _content(to.parent)
    found = explain_table(_no_spark, source, "orders", to, **options)
    assert _content(to.parent) == before
    return found


def _no_spark() -> SparkSession:
    raise AssertionError


def _content(folder: Path) -> dict[str, bytes | None]:
    """Return all files and folders."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in [folder, *folder.rglob("*")]
        if path.exists()
    }


def test_a_new_table(root: Path, to: Path) -> None:
    put(root, {"id": 1}, {"id": 2, "name": "x"}, b"{broken", b"[1]")
    found = explain(root, to)
    assert not to.parent.exists()
    done = table(root, to)
    assert found.is_new
    assert (found.messages, found.rows, found.rejected) == (4, 2, 2)
    assert (found.schema, found.changes) == (done.schema, done.changes)
    assert [each[:3] for each in found.brokers] == [("data", 4, 0)]
    assert found.brokers[0].size > 0
    assert found.versions == (((), 2),)
    assert {each.messages for each in found.rejects} == {1}
    assert found.rewritten_files == 0


def test_schema_versions_are_counted_per_message(root: Path, to: Path) -> None:
    put(root, *numbered(range(3)))
    table(root, to)
    new = {"id": 9, "total": 1}
    put(root, *numbered(range(4)), new, new, {"id": 7, "total": 1, "shop": "a"}, {"id": 1.5})
    found = explain(root, to)
    assert {each.changes: each.messages for each in found.versions} == {
        (): 4,
        ("new column total bigint",): 2,
        ("new column total bigint", "new column shop string"): 1,
    }
    done = table(root, to)
    assert (found.messages, found.rows, found.rejected) == (8, done.rows, done.rejected)
    assert sorted(found.changes) == sorted(done.changes)


def test_rejects_are_counted_by_reason(root: Path, to: Path) -> None:
    put(root, {"id": 1})
    table(root, to)
    put(root, {"id": "five"}, {"id": "six"}, {"id": 2.5}, b"", b"{", b"{a}")
    reasons = dict(explain(root, to, strict=True).rejects)
    assert reasons["column id: … is not a bigint"] == 3
    assert reasons["the body is empty"] == 1
    assert sum(reasons.values()) == 6


def test_files_of_touched_buckets_are_written_again(root: Path, to: Path) -> None:
    put(root, *({"id": number, "v": 1} for number in range(40)))
    table(root, to, upsert="id", buckets=4)
    put(root, {"id": 3, "v": 2})
    found = explain(root, to)
    assert (found.key, found.buckets, found.rewritten_files) == (("id",), 1, 1)
    assert found.rewritten_size > 0
    put(root, {"id": 4, "v": {"deep": 1}}, {"id": 4, "o": {"deep": 1}})
    table(root, to)
    put(root, {"id": 4, "o": {"deep": 1, "new": 2}})
    found = explain(root, to)
    assert found.changes
    assert (found.buckets, found.rewritten_files) == (4, 4)


def test_all_files_are_written_again_if_a_type_changes(root: Path, to: Path) -> None:
    put(root, {"o": {"a": 1}})
    table(root, to)
    put(root, {"o": {"b": 1}})
    assert explain(root, to).rewritten_files == 1


def test_places_of_one_broker_continue_each_other(
    spark: SparkSession, root: Path, to: Path
) -> None:
    put(root, *numbered(range(4)))
    lake = to.parent.parent / "archive"
    archive(spark, root, lake)
    put(root, {"id": 4, "new": 1})
    sources = [f"data={lake}", f"data={root}"]
    found = explain(sources, to)
    assert (found.messages, found.rows, found.brokers[0].messages) == (5, 5, 5)
    assert dict(found.versions) == {(): 4, ("new column new bigint",): 1}
    assert table(sources, to).rows == 5


def test_a_killed_run_is_counted_as_done(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, {"o": {"a": 1}})
    table(root, to)
    put(root, {"o": {"b": 1}})
    with monkeypatch.context() as patch:
        patch.setattr(Publication, "_complete", _killed)
        with pytest.raises(KeyboardInterrupt):
            table(root, to)
    found = explain(root, to)
    assert (found.messages, found.changes) == (0, ())
    put(root, {"o": {"c": 1}})
    found = explain(root, to)
    assert (found.messages, found.rewritten_files) == (1, 2)
    Publication(str(to)).settle()
    assert explain(root, to) == found


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_errors_are_those_of_the_run(root: Path, to: Path) -> None:
    put(root, {"id": 1})
    to.mkdir(parents=True)
    (to / "other").write_text("x")
    with pytest.raises(LakeError, match="no manifest of a table"):
        explain(root, to)


def test_tasks_of_spark_count_the_same(
    spark: SparkSession, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, *numbered(range(200)), {"id": 1, "new": 2}, b"{broken")
    expected = explain(root, to, upsert="id", buckets=4)
    monkeypatch.setattr(table_job, "INLINE_BYTES", 0)
    found = explain_table(spark, root, "orders", to, upsert="id", buckets=4, split_bytes=4096)
    assert found == expected
    assert not to.parent.exists()


def test_the_command(root: Path, to: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, {"id": 1})
    table(root, to)
    put(root, {"id": 2, "new": "x"}, {"id": "three"})
    command = ["pipeline", "table", str(root), "orders", "--to", str(to), "--explain"]
    assert main(command) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == [
        f"{to}: an existing table",
        "schema: id bigint, new string",
        "  new column new string",
    ]
    assert shown[4].split()[:3] == ["data", "2", "0"]
    assert shown[6].split(maxsplit=1) == ["1", "new column new string"]
    assert shown[8].split(maxsplit=1) == ["1", "column id: … is not a bigint"]
    assert shown[9] == "1 row to add, 1 to reject, 0 to skip; 0 files of 0 B to write again"
    assert main([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["versions"] == [{"changes": ["new column new string"], "messages": 1}]
