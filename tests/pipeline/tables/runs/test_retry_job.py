"""``firetrail pipeline table-retry``: rejected messages move to the table, each once."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.tables.test_kills import killed_before
from tests.pipeline.tables.topics import files_of, ids, put, rows, table

from firetrail import Message, Store
from firetrail.cli.main import main
from firetrail.errors import ConfigError, LakeError, PipelineError
from firetrail.format.layout import COMPRESSED
from firetrail.pipeline.tables.runs import decoding_rounds, publication, table_job
from firetrail.pipeline.tables.runs.retry_job import TableRetry, retry_table
from firetrail.pipeline.tables.runs.verification import verify_table

NARROW, WIDE = "id bigint, v decimal(4,2)", "v decimal(9,2)"
LARGE = 1000.5
"""A value of ``v`` that only fits after the correction."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def retry(to: Path, **options: Any) -> TableRetry:
    return retry_table(_no_spark, to, **options)


def _no_spark() -> SparkSession:
    raise AssertionError


def rejected(to: Path) -> list[bytes]:
    return [row["body"] for row in rows(to.with_name(f"{to.name}__rejected"), "body")]


def test_what_fits_moves_to_the_table(root: Path, to: Path) -> None:
    put(root, {"id": 1}, {"id": 2, "v": LARGE}, b"{broken", {"id": 3, "v": LARGE})
    table(root, to, schema=NARROW)
    expected = _messages(root, to.with_name("other"))
    assert retry(to)[1:6] == (3, 0, 0, 0, 3)
    assert files_of(to / "data") == [n for n in files_of(to / "data") if not n.startswith("_")]
    done = retry(to, schema=WIDE)
    assert (done.retried, done.rows, done.rejected, done.total_rows) == (3, 2, 1, 3)
    assert done.changes == ("column v is decimal(4,2), becomes decimal(9,2)",)
    assert "not JSON" in done.first_reject
    assert sorted(ids(to)) == [1, 2, 3]
    assert rejected(to) == [b"{broken"]
    assert sorted(map(str, rows(to))) == expected
    assert verify_table(root, to).ok
    assert retry(to)[1:6] == (1, 0, 0, 0, 1)
    put(root, {"id": 5}, b"{")
    done_run = table(root, to)
    assert (done_run.rows, done_run.total_rows, done_run.total_rejected) == (1, 4, 2)


def _messages(root: Path, to: Path) -> list[str]:
    """Return the rows of a table that was right from the beginning."""
    table(root, to, schema="id bigint, v decimal(9,2)")
    return sorted(map(str, rows(to)))


def test_an_old_version_replaces_no_newer_one(root: Path, to: Path) -> None:
    put(root, {"id": 1, "v": LARGE}, {"id": 2, "v": LARGE}, {"id": 1, "v": 7}, {"v": 1}, queues=1)
    table(root, to, upsert="id", schema=NARROW, buckets=2)
    assert rejected(to) == [
        *(json.dumps({"id": number, "v": LARGE}).encode() for number in (1, 2)),
        b'{"v": 1}',
    ]
    done = retry(to, schema=WIDE)
    assert (done.rows, done.updated, done.rejected) == (1, 0, 1)
    assert {row["id"]: row["v"] for row in rows(to)} == {1: 7, 2: LARGE}
    assert verify_table(root, to).ok


def test_an_error_names_the_topic(root: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, {"id": 1, "v": LARGE})
    table(root, to, schema=NARROW)
    monkeypatch.setattr(decoding_rounds, "ROUNDS_MAX", 0)
    with pytest.raises(PipelineError, match=r"^orders: the messages show new columns"):
        retry(to, schema=WIDE)


def test_messages_that_can_never_fit_stay_as_they_are(root: Path, to: Path) -> None:
    def event(kind: str, number: int, **more: Any) -> bytes:
        found = {"type": kind, "database": "shop", "table": "orders", "ts": 1, "xid": 1}
        more |= {"primary_key_columns": ["id"], "data": {"id": number, "v": LARGE}}
        return json.dumps(found | more).encode()

    put(root, event("insert", 1), event("delete", 1), event("update", 3, old={"id": 2}))
    with Store.open(root) as store:
        store.put(Message("orders", b"not compressed", sys_flag=COMPRESSED))
    table(root, to, decoder="maxwell")
    before = rejected(to)
    assert len(before) == 3
    assert retry(to)[1:6] == (3, 0, 0, 0, 3)
    done = retry(to, schema="note string")
    assert (done.rows, done.rejected, done.changes) == (0, 3, ("new column note string",))
    assert (rejected(to), ids(to)) == (before, [1, 3])


def test_a_message_that_becomes_a_row_and_a_reject(root: Path, to: Path) -> None:
    """The number of rejects stays the same, and the row must not stay behind."""

    def update(number: int, value: float) -> bytes:
        found = {"type": "update", "database": "shop", "table": "orders", "ts": 1, "xid": 1}
        more = {"primary_key_columns": ["id"], "old": {"id": 1}}
        return json.dumps({**found, **more, "data": {"id": number, "v": value}}).encode()

    put(root, update(2, LARGE))
    table(root, to, decoder="maxwell", schema=NARROW)
    assert retry(to)[1:6] == (1, 0, 0, 0, 1)
    table(root, to, schema=WIDE)
    done = retry(to)
    assert (done.rows, done.rejected, done.total_rows) == (1, 1, 1)
    assert ids(to) == [2]
    assert retry(to)[1:6] == (1, 0, 0, 0, 1)


def test_merged_files_and_several_brokers(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "MAINTAINED_EVERY", 2)
    sources = [f"{name}={tmp_path / name}" for name in "ab"]
    for number in range(4):
        for name in "ab":
            put(tmp_path / name, {"id": number, "v": LARGE}, f"{{{name}".encode())
        table(sources, to, schema=NARROW if number == 0 else None)
    done = retry(to, schema=WIDE, keep_hours=0)
    assert (done.retried, done.rows, done.rejected) == (16, 8, 8)
    assert [row["_broker"] for row in rows(to, "_broker")] == ["a"] * 4 + ["b"] * 4
    assert verify_table(sources, to).ok


def test_tasks_of_spark_do_the_same(
    spark: SparkSession, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, *({"id": number, "v": LARGE} for number in range(6)), b"{")
    table(root, to, schema=NARROW)
    monkeypatch.setattr(table_job, "INLINE_BYTES", 0)
    monkeypatch.setattr("firetrail.pipeline.tables.runs.retry_job.INLINE_BYTES", 0)
    done = retry_table(spark, to, schema=WIDE)
    assert (done.rows, done.rejected) == (6, 1)
    assert ids(to) == list(range(6))


def test_errors(root: Path, to: Path) -> None:
    with pytest.raises(LakeError, match="has no table"):
        retry(to)
    assert not to.exists()
    put(root, {"id": 1}, b"{")
    table(root, to)
    with pytest.raises(ConfigError, match="bigint"):
        retry(to, schema="id string")


def test_the_command(root: Path, to: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, {"id": 1}, {"id": 2, "v": LARGE}, b"{")
    table(root, to, schema=NARROW)
    assert main(["pipeline", "table-retry", str(to), "--schema", WIDE]) == 1
    out, error = capsys.readouterr()
    assert out == (
        f"column v is decimal(4,2), becomes decimal(9,2)\n{to}: 2 rejected messages, 1 row added, "
        "0 replaced, 0 deleted; 1 message still rejected\n"
    )
    assert error.startswith("firetrail: the first that does not fit: queue 0 of data, offset 1: ")
    assert main(["pipeline", "table-retry", str(to), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["rejected"] == 1


@pytest.mark.slow
def test_a_retry_that_is_killed_before_any_change(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, {"id": 1}, {"id": 3, "v": LARGE}, b"{broken", {"id": 2, "v": LARGE})
    for change in itertools.count():
        for key, history in ((None, False), ("id", False), ("id", True)):
            to = tmp_path / f"table{change}{key}{history}"
            table(root, to, schema=NARROW, upsert=key, history=history, buckets=2)
            with killed_before(change, monkeypatch) as done:
                retry(to, schema=f"{WIDE}, new int")
            if len(done) < change:
                assert {"replace", "create", "rename", "create_write_transaction"} <= set(done)
                if history:
                    return
            for _ in range(2):
                assert retry(to, schema=f"{WIDE}, new int").rejected == 1
            assert sorted(ids(to)) == [1, 2, 3]
            assert rejected(to) == [b"{broken"]
            assert not [name for name in files_of(to / "data") if name.startswith("_")]
            assert verify_table(root, to).ok
