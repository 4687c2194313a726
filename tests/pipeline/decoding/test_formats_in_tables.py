"""Formats in tables: what a Delta table has after the job has decoded a topic."""

import json
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.pipeline.tables.topics import put, rows, table

EVENT: dict[str, Any] = {
    **{"database": "shop", "table": "orders", "pkNames": ["id"], "isDdl": False, "es": 1},
    "mysqlType": {"id": "bigint(20) unsigned", "price": "decimal(10,2)", "at": "datetime(3)"},
}


def change(kind: str, row: dict[str, str], **old: str) -> dict[str, Any]:
    return {**EVENT, "type": kind, "data": [row], "old": [old] if old else None}


def row(number: int, price: str) -> dict[str, str]:
    return {"id": str(number), "price": price, "at": "2024-02-29 12:00:00.001"}


def test_a_topic_of_canal_becomes_the_table_of_the_database(tmp_path: Path) -> None:
    random = Random(7)
    known: dict[int, str] = {}
    for _ in range(2):
        events = []
        for step in range(60):
            number, price = random.randrange(12), f"{step}.50"
            if number not in known:
                events.append(change("INSERT", row(number, price)))
            elif random.random() < 0.3:
                events.append(change("DELETE", row(number, known.pop(number))))
                continue
            elif random.random() < 0.4 and (other := random.randrange(12)) not in known:
                del known[number]
                events.append(change("UPDATE", row(other, price), id=str(number)))
                number = other
            else:
                events.append(change("UPDATE", row(number, price), price=known[number]))
            known[number] = price
        put(tmp_path / "data", *events)
        done = table(tmp_path / "data", tmp_path / "orders", upsert="id", decoder="canal")
        assert done.rejected == 0
        found = {each["id"]: each for each in rows(tmp_path / "orders")}
        assert {number: each["price"] for number, each in found.items()} == {
            Decimal(number): Decimal(price) for number, price in known.items()
        }
        assert all(
            each["at"].isoformat() == "2024-02-29T12:00:00.001000" for each in found.values()
        )
    added = {**change("INSERT", {**row(99, "1.00"), "note": "x"})}
    added["mysqlType"] = {**EVENT["mysqlType"], "note": "varchar(9)"}
    put(tmp_path / "data", added, {**EVENT, "isDdl": True, "type": "ERASE", "sql": "DROP TABLE x"})
    done = table(tmp_path / "data", tmp_path / "orders", upsert="id")
    assert done.changes == ("new column note string",) and done.rejected == 1
    assert "adds no columns" in done.first_reject


def test_a_topic_of_avro(tmp_path: Path) -> None:
    fastavro: Any = pytest.importorskip("fastavro")
    from tests.pipeline.decoding.formats.test_avro import ORDER, datum

    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(ORDER))
    assert fastavro.__name__
    put(tmp_path / "data", datum(ORDER, {"id": 1, "note": None}), b"broken")
    options = {"schemaFile": str(schema)}
    done = table(tmp_path / "data", tmp_path / "to", decoder="avro", decoder_options=options)
    assert (done.rows, done.rejected) == (1, 1)
    assert rows(tmp_path / "to", "id, note") == [{"id": 1, "note": None}]
