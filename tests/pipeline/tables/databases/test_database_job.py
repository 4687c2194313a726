"""The job of a database: the tables of messages, their keys, names, rejects and repeated runs."""

from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.pipeline.tables.databases.topics_of_tables import (
    canal,
    database,
    ids,
    order,
    positions,
    rejects,
    send,
    statement,
    tables_in,
    tagged,
)
from tests.pipeline.tables.topics import put, rows, table

from firetrail import Message
from firetrail.errors import ConfigError, LakeError, PipelineError
from firetrail.pipeline.tables.databases import database_job, route_task
from firetrail.pipeline.tables.databases.database_verification import verify_database
from firetrail.pipeline.tables.runs import publication
from firetrail.pipeline.tables.runs.explanation import explain_table
from firetrail.pipeline.tables.runs.retry_job import retry_table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def test_events_of_several_tables_of_canal(root: Path, to: Path) -> None:
    send(
        root,
        canal("shop.orders", order(1), order(2)),
        canal("shop.lines", {"id": "1", "line": "1"}, pkNames=["id", "line"]),
        canal("crm.orders", order(7)),
        queues=1,
    )
    done = database(root, to, by="envelope", decoder="canal", upsert="pk", buckets=2)
    assert (done.messages, done.rows, done.rejected, done.total_tables) == (3, 4, 0, 3)
    assert tables_in(to) == ["crm/orders", "shop/lines", "shop/orders"]
    assert [each.key for each in done.tables] == [("id",), ("id", "line"), ("id",)]
    send(
        root,
        canal("shop.orders", order(1), kind="DELETE"),
        canal("shop.orders", order(3, "9.00"), kind="UPDATE", old=[{"id": "2"}]),
        canal("shop.lines", {"id": "1", "line": "2"}, pkNames=["id", "line"]),
        canal("new.table", order(5)),
        queues=1,
    )
    done = database(root, to)
    assert (done.messages, done.rows, done.deleted, done.total_rows) == (4, 3, 2, 5)
    assert rows(to / "shop/orders", "id, total") == [{"id": 3, "total": Decimal("9.00")}]
    assert ids(to / "shop/lines") == [1, 1]
    assert ids(to / "crm/orders") == [7]
    assert ids(to / "new/table") == [5]
    assert database(root, to).messages == 0


def test_what_belongs_to_no_table(root: Path, to: Path) -> None:
    send(
        root,
        b"{broken",
        {"no": "event"},
        statement("shop.", "CREATE DATABASE shop"),
        canal("shop.orders", order(1)),
        statement("shop.orders", "DROP TABLE orders", "ERASE"),
        queues=1,
    )
    done = database(root, to, by="envelope", decoder="canal")
    assert (done.rows, done.rejected, done.unassigned) == (1, 4, 3)
    reasons = rejects(to)
    assert len(reasons) == 3
    assert reasons[0].startswith("not JSON")
    assert reasons[1:] == [
        "not an event of a table: its member table is None",
        "not an event of a table: its member table is ''",
    ]
    assert rejects(to / "shop/orders") == ["a statement that adds no columns: 'DROP TABLE orders'"]
    assert positions([to / "shop/orders"]) == [(0, 3)]


@pytest.mark.parametrize("upsert", ["pk", "id", None])
def test_statements_before_the_first_row(root: Path, to: Path, upsert: str | None) -> None:
    create = "CREATE TABLE `orders` (id bigint NOT NULL, total decimal(12,2), PRIMARY KEY (id))"
    send(root, statement("shop.orders", create, "CREATE"), queues=1)
    assert database(root, to, by="envelope", decoder="canal", upsert=upsert).rejected == 0
    send(root, canal("shop.orders", order(1)), queues=1)
    assert database(root, to).total_rows == 1
    assert ids(to / "shop/orders") == [1]


def test_rows_without_a_primary_key_become_no_table(root: Path, to: Path) -> None:
    send(root, canal("shop.logs", order(1), pkNames=None), canal("shop.orders", order(2)))
    done = database(root, to, by="envelope", decoder="canal", upsert="pk")
    assert (done.rows, done.unassigned) == (1, 1)
    assert rejects(to) == ["shop.logs: the events name no primary key of the table"]
    assert tables_in(to) == ["shop/orders"]


def test_another_primary_key_than_that_of_the_table(root: Path, to: Path) -> None:
    send(root, canal("a.b", {"id": "1", "x": "1"}), queues=1)
    database(root, to, by="envelope", decoder="canal", upsert="pk")
    send(
        root,
        canal("a.b", {"id": "1", "x": "2"}, pkNames=["id", "x"]),
        canal("a.b", {"id": "2", "x": "2"}, pkNames=["ID"]),
        queues=1,
    )
    assert database(root, to).rejected == 1
    assert rejects(to / "a/b") == ["the event names another primary key than that of the table"]
    assert {row["id"]: row["x"] for row in rows(to / "a/b", "id, x")} == {1: "1", 2: "2"}


def test_a_key_that_a_table_does_not_have(root: Path, to: Path) -> None:
    send(root, canal("a.b", {"id": "1"}), canal("a.c", {"number": "1"}))
    done = database(root, to, by="envelope", decoder="canal", upsert="id")
    assert (done.rows, done.unassigned, done.total_tables) == (1, 1, 1)
    assert "a.c: no table can be made: upsert" in rejects(to)[0]
    assert "they have number" in rejects(to)[0]


def test_tables_by_tag(root: Path, to: Path) -> None:
    none = Message("cdc", b"{}", queue_id=0)
    send(root, *tagged("paid", {"id": 1}), *tagged("sent", {"id": 2, "to": "x"}), none)
    done = database(root, to, by="tag")
    assert (done.rows, done.rejected) == (2, 1)
    assert rejects(to) == ["the tag that names the table is missing or empty"]
    assert rows(to / "sent", 'id, "to"') == [{"id": 2, "to": "x"}]


def test_tables_by_column(root: Path, to: Path) -> None:
    send(
        root,
        *({"Kind": kind, "id": 1} for kind in ("a", 7, True, None, "", [1])),
        {"id": 2},
        b"",
        b"7",
        {"kind": "a", "KIND": "b"},
        queues=1,
    )
    done = database(root, to, by="column:kind")
    assert tables_in(to) == ["7", "a", "true"]
    assert (done.rows, done.unassigned) == (3, 7)
    missing = "the column kind that names the table is missing or empty"
    assert rejects(to) == [
        *(missing, missing, "column kind: an array is not a name", missing, "the body is empty"),
        *("a JSON number, not an object", "several columns are named kind"),
    ]


def test_tables_by_a_column_of_csv(root: Path, to: Path) -> None:
    send(root, b"a,1\na,2", b"b,1", b"a,1\nb,2", b"x", queues=1)
    options = {"columns": "kind, id bigint"}
    done = database(root, to, by="column:KIND", decoder="csv", decoder_options=options)
    assert (ids(to / "a"), ids(to / "b")) == ([1, 2], [1])
    assert rejects(to) == [
        "its rows have several values of KIND",
        "has 1 fields, but there are 2 columns",
    ]
    with pytest.raises(ConfigError, match=r"no such column; they have kind, id"):
        database(root, to.with_name("x"), by="column:none", decoder="csv", decoder_options=options)
    assert done.key == ()


def test_names_of_tables_that_folders_cannot_have(root: Path, to: Path) -> None:
    names = ["a.b", "a/b", "../up", 'it\'s "so"', "_hidden", "x__rejected", "Orders", "orders"]
    names += ["ÖRDERS", "订单", "a b", "%20", "~", "data", "n" * 300, "\u0000"]
    send(root, *({"name": name, "id": number} for number, name in enumerate(names)), queues=1)
    done = database(root, to, by="column:name")
    assert (done.rows, done.rejected, done.total_tables) == (len(names), 0, len(names))
    found = tables_in(to)
    assert len({each.casefold() for each in found}) == len(names)
    assert {"Orders", "orders~2", "x~5f_rejected", "~5fhidden", "a~2eb", "a~2fb", "订单"} <= {
        *found
    }
    send(root, *({"name": name, "id": number + 50} for number, name in enumerate(names)), queues=1)
    assert database(root, to).total_rows == 2 * len(names)
    assert tables_in(to) == found
    assert ids(to / "orders~2") == [7, 57]


def test_tables_that_are_included_and_excluded(root: Path, to: Path) -> None:
    events = [canal(name, order(1)) for name in ("shop.a", "shop.b", "shop.tmp_c", "crm.a")]
    ddl = [statement("crm.", "DROP DATABASE crm"), statement("shop.tmp_c", "DROP TABLE tmp_c")]
    send(root, *events, *ddl)
    options = {"include": "shop.*", "exclude": ["*.tmp_*"], "table_prefix": "ods_"}
    done = database(root, to, by="envelope", decoder="canal", **options)
    assert tables_in(to) == ["shop/ods_a", "shop/ods_b"]
    assert (done.rows, done.skipped, done.rejected) == (2, 4, 0)
    assert database(root, to, include=["shop.*"]).messages == 0
    with pytest.raises(ConfigError, match=r"include.*made with \['shop.\*'\], which cannot be"):
        database(root, to, include="crm.*")
    with pytest.raises(ConfigError, match=r"database.*made with 'envelope', which cannot be"):
        database(root, to, by="tag")


def test_columns_and_types_are_those_of_each_table(root: Path, to: Path) -> None:
    send(root, *tagged("a", {"id": 1}), *tagged("b", {"id": "text"}))
    database(root, to, by="tag")
    send(root, *tagged("a", {"id": 2, "new": 1.5}), *tagged("b", {"id": "t"}))
    done = database(root, to)
    assert [(each.schema, each.changes) for each in done.tables] == [
        ("id bigint, new double", ("new column new double",)),
        ("id string", ()),
    ]
    send(root, *tagged("a", {"id": "text"}), *tagged("b", {"id": "t"}))
    done = database(root, to)
    assert (done.rows, done.rejected, done.unassigned) == (1, 1, 0)
    assert done.first_reject.startswith("queue 0 of data, offset 4: column id")
    assert len(rejects(to / "a")) == 1


def test_a_strict_run_adds_nothing_to_any_table(root: Path, to: Path) -> None:
    send(root, *tagged("a", {"id": 1}))
    database(root, to, by="tag")
    send(root, *tagged("a", {"id": 2}), Message("cdc", b"{}", queue_id=0))
    with pytest.raises(
        PipelineError, match="nothing was added: queue 0 of data, offset 2: the tag"
    ):
        database(root, to, strict=True)
    send(root, *tagged("b", {"id": 3}))
    assert ids(to / "a") == [1]
    done = database(root, to)
    assert (done.rows, done.rejected) == (2, 1)
    assert (ids(to / "a"), ids(to / "b")) == ([1, 2], [3])


def test_other_jobs_and_databases_of_others(root: Path, to: Path) -> None:
    send(root, *tagged("a", {"id": 1}))
    database(root, to, by="tag")
    with pytest.raises(LakeError, match=r"is a database of tables; add --database"):
        table(root, to, "cdc")
    for act in (
        lambda: table(root, to / "a", "cdc"),
        lambda: explain_table(lambda: None, root, "cdc", to / "a"),  # type: ignore[arg-type, return-value]
        lambda: retry_table(lambda: None, to / "a"),  # type: ignore[arg-type, return-value]
    ):
        with pytest.raises(LakeError, match=r"is a table of a database"):
            act()
    with pytest.raises(ConfigError, match="which is a table or an archive"):
        table(root, to / "other", "cdc")
    put(root, {"id": 1}, topic="orders")
    table(root, to.with_name("alone"))
    with pytest.raises(LakeError, match=r"is a table, not a database"):
        database(root, to.with_name("alone"), by="tag")
    DeltaTable(str(to / "a")).delete()
    send(root, *tagged("b", {"id": 2}))
    database(root, to)  # the changed table gets nothing
    send(root, *tagged("a", {"id": 2}), *tagged("b", {"id": 3}))
    with pytest.raises(LakeError, match=r"a: version 2 \(DELETE\) is not a commit of this job"):
        database(root, to)
    assert ids(to / "b") == [2]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "database.*is required: envelope"),
        ({"by": "nonsense"}, "must be envelope"),
        ({"by": "column:"}, "must be envelope"),
        ({"by": "envelope"}, "needs canal, maxwell or debezium: the decoder is json"),
        ({"by": "tag", "decoder": "canal"}, "must be envelope: the decoder is canal"),
        ({"by": "tag", "include": ","}, "must be names of tables"),
        (
            {"by": "envelope", "decoder": "canal", "decoder_options": {"tables": "a"}},
            "choose tables with --include",
        ),
        ({"by": "tag", "upsert": "id", "message_columns": False}, "an upsert needs them"),
    ],
)
def test_options_that_are_wrong(root: Path, to: Path, options: dict[str, str], reason: str) -> None:
    send(root, *tagged("a", {"id": 1}))
    with pytest.raises(ConfigError, match=reason):
        database(root, to, **options)
    assert not (to / "_firetrail" / "manifest.json").exists()


def test_sources_of_several_brokers(root: Path, to: Path, tmp_path: Path) -> None:
    send(root, *tagged("a", {"id": 1}))
    other = tmp_path / "other"
    send(other, *tagged("a", {"id": 2}), *tagged("b", {"id": 3}))
    sources = [f"x={root}", f"y={other}", f"x={root}"]
    done = database(sources, to, by="tag", upsert="id")
    assert (done.messages, done.rows, done.total_tables) == (3, 3, 2)
    assert [(each.messages, each.rows) for each in done.tables] == [(2, 2), (1, 1)]
    send(other, *tagged("a", {"id": 1, "v": 1}))
    done = database(sources, to)
    assert (done.messages, done.updated, len(done.tables)) == (1, 1, 1)
    assert {row["_broker"] for row in rows(to / "a")} == {"y"}
    assert verify_database(sources, to).ok


@pytest.mark.parametrize("format_", ["iceberg", "parquet"])
def test_tables_in_other_formats(root: Path, to: Path, format_: str) -> None:
    bad = Message("cdc", b"{", tags="a", queue_id=0)
    send(root, *tagged("a", {"id": 1}), *tagged("b.c", {"id": 2}), bad, b"{}")
    assert database(root, to, by="tag", format=format_).rejected == 2
    send(root, *tagged("a", {"id": 3}))
    done = database(root, to)
    assert (done.rows, done.total_rows, done.total_tables) == (1, 3, 2)
    found = verify_database(root, to)
    assert (found.ok, found.rows, found.rejected) == (True, 3, 2)
    with pytest.raises(ConfigError, match=r"catalog.*is for a table alone"):
        database(root, to, catalog="a.b.c")


def test_all_versions_of_all_tables(root: Path, to: Path) -> None:
    send(root, canal("a.b", order(1)), canal("a.c", order(1)), queues=1)
    database(root, to, by="envelope", decoder="canal", upsert="pk", history=True)
    send(root, canal("a.b", order(1, "2.00"), kind="UPDATE"), queues=1)
    assert database(root, to).rows == 1
    found = rows(to / "a/b", "total, _is_current")
    assert [(str(row["total"]), row["_is_current"]) for row in found] == [
        ("1.50", False),
        ("2.00", True),
    ]
    assert verify_database(root, to).ok


def test_maintenance_of_all_tables(root: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "MAINTAINED_EVERY", 3)
    for number in range(3):
        bad = Message("cdc", b"{}", queue_id=0)
        send(root, *tagged("a", {"id": number}), *tagged("b", {"id": number}), bad)
        database(root, to, by="tag", keep_hours=0)
    for place in (to / "a", to / "b", to.with_name("lake__rejected")):
        assert len(DeltaTable(str(place)).file_uris()) == 1


@pytest.mark.slow
def test_tasks_of_spark_sort_and_decode(
    spark: SparkSession, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_job, "INLINE_BYTES", 0)
    monkeypatch.setattr(route_task, "BUFFER_BYTES", 2000)
    bodies = [{"t": f"t{number % 5}", "id": number, f"c{number % 7}": 1} for number in range(300)]
    send(root, *bodies, b"{broken", queues=3)
    done = database_job.database(
        spark, root, "cdc", to, by="column:t", upsert="id", buckets=2, split_bytes=8000
    )
    assert (done.rows, done.unassigned, done.total_tables) == (300, 1, 5)
    for number in range(5):
        assert ids(to / f"t{number}") == list(range(number, 300, 5))
    assert not list((to / "_firetrail" / "spool").iterdir())
