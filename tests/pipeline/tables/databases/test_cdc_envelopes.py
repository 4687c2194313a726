"""Databases from the events of Canal, Maxwell and Debezium, in the forms of their documentation."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tables.databases.topics_of_tables import (
    database,
    ids,
    rejects,
    send,
    tables_in,
)
from tests.pipeline.tables.topics import Row, rows

from firetrail import Message
from firetrail.pipeline.tables.databases.database_verification import verify_database


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def maxwell(kind: str, table: str, **more: Any) -> Row:
    return {"database": "shop", "table": table, "type": kind, "ts": 1477053217, "xid": 23396} | more


def test_events_of_maxwell(root: Path, to: Path) -> None:
    key = {"primary_key_columns": ["id"]}
    create = {"sql": "create table `new` (id int)", "def": {}}
    send(
        root,
        maxwell("table-create", "new", **create),
        maxwell("insert", "a", data={"id": 1, "v": "x"}, commit=True, **key),
        maxwell("insert", "b", data={"id": 2, "n": 5}, commit=True, **key),
        maxwell("update", "a", data={"id": 1, "v": "y"}, old={"v": "x"}, **key),
        maxwell("bootstrap-start", "b", data={}),
        maxwell("bootstrap-insert", "b", data={"id": 3, "n": 6}, **key),
        maxwell("bootstrap-complete", "b", data={}),
        maxwell("delete", "b", data={"id": 2, "n": 5}, **key),
        maxwell("database-create", "", sql="create database shop"),
        queues=1,
    )
    done = database(root, to, by="envelope", decoder="maxwell", upsert="pk")
    assert tables_in(to) == ["shop/a", "shop/b"]
    assert rows(to / "shop/a", "id, v") == [{"id": 1, "v": "y"}]
    assert rows(to / "shop/b", "id, n") == [{"id": 3, "n": 6}]
    assert (done.messages, done.skipped, done.unassigned) == (9, 3, 1)
    assert verify_database(root, to).ok


def debezium(op: str, schema: str, table: str, before: Any, after: Any) -> Row:
    fields = [
        {"field": "id", "type": "int64", "optional": False},
        {
            **{"field": "price", "type": "bytes", "optional": True, "version": 1},
            **{"name": "org.apache.kafka.connect.data.Decimal"},
            **{"parameters": {"scale": "2", "connect.decimal.precision": "10"}},
        },
    ]
    declared = [{"field": name, "type": "struct", "fields": fields} for name in ("before", "after")]
    source = {"connector": "postgresql", "db": "sales", "schema": schema, "table": table}
    payload = {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1}
    return {"schema": {"type": "struct", "fields": declared}, "payload": payload}


def test_events_of_debezium_with_keys_in_the_messages(root: Path, to: Path) -> None:
    """Debezium Server writes the key of a record, which names the primary key, as KEYS."""

    def keyed(event: Row, key: Row, *, wrapped: bool = True) -> Message:
        text = {"schema": {"type": "struct"}, "payload": key} if wrapped else key
        keys = json.dumps(text, separators=(",", ":"))
        return Message("cdc", json.dumps(event).encode(), keys=[keys], queue_id=0)

    send(
        root,
        keyed(debezium("c", "public", "orders", None, {"id": 1, "price": "AgM="}), {"id": 1}),
        keyed(debezium("c", "public", "lines", None, {"id": 2}), {"id": 2}, wrapped=False),
        keyed(debezium("u", "public", "orders", {"id": 1}, {"id": 1, "price": "AgY="}), {"id": 1}),
        keyed(debezium("d", "public", "lines", {"id": 2}, None), {"id": 2}),
        Message("cdc", b"", keys=['{"id":2}'], queue_id=0),
        debezium("c", "crm", "keyless", None, {"id": 3}),
        {"ts_ms": 5},
        queues=1,
    )
    done = database(root, to, by="envelope", decoder="debezium", upsert="pk")
    assert rows(to / "public/orders", "id, price") == [{"id": 1, "price": Decimal("5.18")}]
    assert (done.skipped, done.unassigned, done.total_rows) == (2, 1, 1)
    assert rejects(to) == ["crm.keyless: the events name no primary key of the table"]
    assert verify_database(root, to).ok


def test_events_of_debezium_without_keys(root: Path, to: Path) -> None:
    send(
        root,
        debezium("c", "public", "a", None, {"id": 1}),
        debezium("c", "crm", "b", None, {"id": 2}),
        debezium("c", "crm", "b", None, {"id": 2}),
        debezium("t", "crm", "b", None, None),
        queues=1,
    )
    database(root, to, by="envelope", decoder="debezium", upsert="id", table_prefix="dbz_")
    assert tables_in(to) == ["crm/dbz_b", "crm/dbz_b__rejected", "public/dbz_a"]
    assert ids(to / "crm/dbz_b") == [2]
    assert rejects(to / "crm/dbz_b") == ["the table was emptied (op is t)"]
    assert verify_database(root, to).ok


def test_an_event_of_canal_as_its_documentation_shows_it(root: Path, to: Path) -> None:
    body = """{"data":[{"id":"111","name":"scooter","description":"Big 2-wheel scooter",
        "weight":"5.18"}],"database":"inventory","es":1589373560000,"id":9,"isDdl":false,
        "mysqlType":{"id":"INTEGER","name":"VARCHAR(255)","description":"VARCHAR(512)",
        "weight":"FLOAT"},"old":[{"weight":"5.15"}],"pkNames":["id"],"sql":"",
        "sqlType":{"id":4,"name":12,"description":12,"weight":7},"table":"products",
        "ts":1589373560798,"type":"UPDATE"}"""
    send(root, body.encode(), queues=1)
    database(root, to, by="envelope", decoder="canal", upsert="pk")
    found = rows(to / "inventory/products", "id, name, weight")
    assert [(row["id"], row["name"], round(row["weight"], 2)) for row in found] == [
        (111, "scooter", 5.18)
    ]
