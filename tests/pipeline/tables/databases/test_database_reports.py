"""Status, dry runs, verification and retries of databases."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.pipeline.tables.databases.topics_of_tables import (
    canal,
    database,
    ids,
    no_spark,
    order,
    rejects,
    send,
    statement,
    tables_in,
    tagged,
)
from tests.pipeline.tables.test_kills import Killed, killed_before
from tests.pipeline.tables.topics import rows

from firetrail import Message
from firetrail.errors import ConfigError, DataLostError, LakeError
from firetrail.pipeline.tables.databases import database_explanation
from firetrail.pipeline.tables.databases.database_explanation import (
    DatabaseExplanation,
    explain_database,
)
from firetrail.pipeline.tables.databases.database_retry import retry_database
from firetrail.pipeline.tables.databases.database_status import database_status
from firetrail.pipeline.tables.databases.database_verification import verify_database
from firetrail.pipeline.tables.files.table_manifest import LOCK
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.table_reader import table_files
from firetrail.pipeline.tables.runs.table_status import table_status
from firetrail.pipeline.tables.runs.verification import verify_table

EVENTS = [
    canal("shop.a", order(1), order(2)),
    canal("shop.a", order(2), kind="DELETE"),
    canal("shop.b", order(3), pkNames=["id"]),
    statement("shop.b", "DROP TABLE b"),
    statement("shop.new", "CREATE TABLE new (id int)"),
    canal("shop.keyless", order(4), pkNames=None),
    b"{broken",
    canal("crm.x", order(5)),
]
CANAL: dict[str, Any] = {"by": "envelope", "decoder": "canal", "exclude": "crm.*"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def explain(root: Path, to: Path, **options: Any) -> DatabaseExplanation:
    return explain_database(no_spark, root, "cdc", to, **options)


def retry(to: Path, **options: Any) -> Any:
    return retry_database(no_spark, to, **options)


def test_the_status_has_a_row_for_each_table_and_totals(root: Path, to: Path) -> None:
    send(root, *EVENTS, queues=1)
    database(root, to, **CANAL, upsert="pk")
    found = database_status(to)
    assert [(each.messages, each.rows, each.rejected) for each in found.tables] == [
        (2, 1, 0),
        (2, 1, 1),
    ]
    assert (found.messages, found.rows, found.rejected) == (8, 2, 3)
    assert (found.unassigned, found.skipped, found.files) == (2, 2, 2)
    assert found.brokers[0].offsets == {0: 8}
    assert json.loads(json.dumps(found.as_json()))["tables"][0]["table"] == str(to / "shop/a")
    assert table_status(to / "shop/a").rows == 1
    with pytest.raises(LakeError, match="has no database"):
        database_status(root)


@pytest.mark.parametrize("upsert", ["pk", None])
def test_a_database_that_equals_its_topic(root: Path, to: Path, upsert: str | None) -> None:
    send(root, *EVENTS, queues=1)
    database(root, to, **CANAL, upsert=upsert)
    send(root, canal("shop.a", order(8)), canal("shop.keyless", order(9)), queues=2)
    database(root, to)
    found = verify_database(root, to)
    assert found.ok, found.examples
    assert (found.messages, found.unreadable) == (10, 0)
    assert found.rows == database_status(to).rows
    assert found.as_json()["ok"]
    with pytest.raises(LakeError, match="is a table of a database"):
        verify_table(root, to / "shop/a")


def test_a_database_by_tag_that_equals_its_topic(root: Path, to: Path) -> None:
    bad = Message("cdc", b"{", tags="a", queue_id=0)
    send(root, *tagged("a", {"id": 1}), *tagged("b", {"id": 2}), bad, b"{}")
    database(root, to, by="tag")
    found = verify_database(root, to)
    assert (found.ok, found.rows, found.rejected, found.unassigned) == (True, 2, 2, 1)


def test_tables_that_differ_from_the_topic(root: Path, to: Path) -> None:
    send(root, *tagged("a", {"id": 1}, {"id": 2}), *tagged("b", {"id": 3}), b"{}", queues=1)
    database(root, to, by="tag")
    row = DeltaTable(str(to / "a")).to_pyarrow_table().slice(0, 1)
    deltalake.write_deltalake(str(to / "b"), row, mode="append")
    DeltaTable(str(to / "a")).delete("id = 1")
    DeltaTable(str(to.with_name("lake__rejected"))).delete()
    found = verify_database(root, to)
    assert not found.ok
    assert (found.missing, found.unexpected) == (2, 1)
    assert set(found.examples) == {
        "a: missing: queue 0 of data, offset 0",
        "b: unexpected: queue 0 of data, offset 0",
        "no table: missing: queue 0 of data, offset 3",
    }


def test_a_verification_that_is_not_possible(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(root, *tagged("a", {"id": 1}))
    plain = to.with_name("plain")
    database(root, plain, by="tag", message_columns=False)
    with killed_before_its_commits(monkeypatch), pytest.raises(Killed):
        database(root, to, by="tag")
    for act in (lambda: verify_database(root, to), lambda: explain(root, to)):
        with pytest.raises(LakeError, match="a run was killed before all of it was published"):
            act()
    with pytest.raises(ConfigError, match="rows cannot be compared"):
        verify_database(root, plain)
    with pytest.raises(LakeError, match="has no database"):
        verify_database(root, root)


@contextmanager
def killed_before_its_commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a run end when it has decided what to publish."""

    def kill(*args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Publication, "publish", kill)
        yield


def test_messages_that_the_sources_no_longer_have(root: Path, to: Path, tmp_path: Path) -> None:
    send(root, canal("shop.a", order(1)), queues=1)
    database(root, to, **CANAL, upsert="pk")
    other = tmp_path / "other"
    send(other, Message("cdc", b"{}", queue_id=3))
    with pytest.raises(DataLostError, match="no longer have 1 messages"):
        verify_database([f"data={other}"], to)


@pytest.mark.parametrize("upsert", ["pk", None])
def test_a_dry_run_says_what_the_run_does(root: Path, to: Path, upsert: str | None) -> None:
    send(root, *EVENTS, queues=1)
    planned = explain(root, to, **CANAL, upsert=upsert)
    assert not to.exists()
    _agree(planned, database(root, to, **CANAL, upsert=upsert))
    send(root, canal("shop.a", order(8, note="x")), canal("shop.c", order(1)), b"{", queues=1)
    planned = explain(root, to)
    assert [each.is_new for each in planned.tables] == [False, True]
    assert planned.tables[0].changes == ("new column note string",)
    assert planned.brokers[0].messages == 3
    assert [each.messages for each in planned.rejects] == [1]
    assert json.loads(json.dumps(planned.as_json()))["tables"][1]["is_new"]
    _agree(planned, database(root, to))


def _agree(planned: DatabaseExplanation, done: Any) -> None:
    names = ("messages", "rejected", "unassigned", "skipped")
    assert [getattr(planned, name) for name in names] == [getattr(done, name) for name in names]
    tables = [(each.table, each.messages, each.schema) for each in planned.tables]
    assert tables == [(each.table, each.messages, each.schema) for each in done.tables]


@pytest.mark.slow
def test_a_large_dry_run_leaves_nothing(
    spark: SparkSession, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_explanation, "INLINE_BYTES", 0)
    send(root, *({"t": f"t{number % 3}", "id": number} for number in range(60)))
    planned = explain_database(spark, root, "cdc", to, by="column:t", split_bytes=2000)
    assert [each.rows for each in planned.tables] == [20, 20, 20]
    assert sorted(path.name for path in to.parent.iterdir()) == ["data"]


def test_a_retry_of_all_tables(root: Path, to: Path) -> None:
    send(root, *tagged("a", {"id": 1}), *tagged("b", {"id": 2}))
    database(root, to, by="tag")
    send(root, *tagged("a", {"id": 1.5}), *tagged("b", {"id": "x"}), b"{}")
    assert database(root, to).rejected == 3
    assert retry(to).rejected == 3
    done = retry(to / "a", schema="id decimal(20,1)")
    assert (done.retried, done.rows, done.rejected) == (1, 1, 0)
    done = retry(to)
    assert (done.retried, done.rows, done.rejected, done.unassigned) == (2, 0, 2, 1)
    assert [each.table for each in done.tables] == [str(to / "b")]
    assert json.loads(json.dumps(done.as_json()))["unassigned"] == 1
    assert verify_database(root, to).ok
    with pytest.raises(ConfigError, match="is for one table"):
        retry(to, schema="id string")
    with pytest.raises(LakeError, match="has no database"):
        retry(root)


def test_messages_that_find_their_table_later(root: Path, to: Path) -> None:
    send(root, canal("shop.a", order(1), pkNames=None), b"{", queues=1)
    assert database(root, to, **CANAL, upsert="pk").unassigned == 2
    send(root, canal("shop.a", order(2)), queues=1)
    database(root, to)
    assert ids(to / "shop/a") == [2]
    done = retry(to)
    assert (done.retried, done.rows, done.rejected, done.unassigned) == (2, 1, 1, 1)
    assert ids(to / "shop/a") == [1, 2]
    assert len(rejects(to)) == 1
    assert database_status(to).tables[0].messages == 2
    assert verify_database(root, to).ok
    assert database(root, to).messages == 0


@pytest.mark.slow
def test_a_retry_that_is_killed_before_any_change(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(root, canal("shop.a", order(1), pkNames=None), b"{", queues=1)
    lakes = [tmp_path / f"lake{number}" for number in range(40)]
    for to in lakes:
        database(root, to, **CANAL, upsert="pk")
    send(root, canal("shop.a", order(2)), queues=1)
    for to in lakes:
        database(root, to)
    for change, to in enumerate(lakes):
        with killed_before(change, monkeypatch) as done:
            retry(to)
        if len(done) < change:
            assert change > 10
            return
        for _ in range(2):
            retry(to)
        assert ids(to / "shop/a") == [1, 2]
        assert len(rejects(to)) == 1
        assert verify_database(root, to).ok
    raise AssertionError("more changes than lakes")


def test_files_are_those_of_one_table(root: Path, to: Path) -> None:
    send(root, *tagged("a", {"id": 1}))
    database(root, to, by="tag")
    assert len(table_files(to / "a")) == 1
    with pytest.raises(LakeError, match="is a database of tables; name the folder of one"):
        table_files(to)


def test_a_killed_retry_of_a_table_is_completed_by_a_run_for_others(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(root, *tagged("a", {"id": 1, "n": "5"}), *tagged("b", {"id": 9}), queues=1)
    database(root, to, by="tag")
    send(root, *tagged("a", {"id": 2, "n": [1]}, {"id": "x"}), queues=1)
    database(root, to)
    killed = False
    for change in range(40):
        with killed_before(change, monkeypatch):
            retry_database(no_spark, to / "a", schema="id decimal(20,0)")
        if killed := (to / "a/_firetrail/pending.json").exists():
            break
    assert killed
    with pytest.raises(LakeError, match="a run was killed before all of it was published"):
        verify_database(root, to)
    send(root, *tagged("b", {"id": 10}), queues=1)
    database(root, to)
    assert not (to / "a/_firetrail/pending.json").exists()
    assert verify_database(root, to).ok


def test_jobs_that_write_at_the_same_time(root: Path, to: Path) -> None:
    send(root, *tagged("a", {"id": 1}))
    database(root, to, by="tag")
    acts: list[Callable[[], object]] = [lambda: database(root, to), lambda: retry(to / "a")]
    with Publication(str(to)).lake.locked(LOCK, "other"):
        for act in acts:
            with pytest.raises(LakeError, match="another job is writing to it"):
                act()
    assert tables_in(to) == ["a"]
    assert rows(to / "a", "id") == [{"id": 1}]
