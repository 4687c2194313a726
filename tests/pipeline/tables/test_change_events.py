"""Tables of databases from the events of CDC tools."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tables.topics import Row, put, rows, table

from firetrail.errors import ConfigError, PipelineError

TYPES = {"id": "bigint unsigned", "total": "decimal(12,2)", "paid": "datetime"}


def canal(kind: str, *data: Row, old: list[Row] | None = None, name: str = "orders") -> Row:
    """Return a message of Canal in its flat form, where all values are text."""
    return {
        **{"data": list(data), "old": old, "database": "shop", "table": name, "type": kind},
        **{"mysqlType": TYPES, "pkNames": ["id"], "isDdl": False, "es": 1, "ts": 2, "id": 7},
        **{"sql": "", "sqlType": {}},
    }


def order(number: int, total: str = "1.50", paid: str | None = None) -> Row:
    return {"id": str(number), "total": total, "paid": paid}


@pytest.mark.parametrize("key", ["id", "ID"])
def test_the_table_is_that_of_the_database(tmp_path: Path, key: str) -> None:
    root, to = tmp_path / "data", tmp_path / "orders"
    options: dict[str, Any] = {"decoder": "canal", "upsert": key, "buckets": 2}
    put(root, canal("INSERT", order(1), order(2), order(2**64 - 1, "9999999999.99")), queues=1)
    put(root, canal("UPDATE", order(2, "2.00"), old=[{"total": "1.50"}]), queues=1)
    done = table(root, to, **options)
    assert (done.messages, done.rows) == (2, 3)
    put(root, canal("DELETE", order(1)), queues=1)
    put(root, canal("UPDATE", order(3, "2.00"), old=[{"id": "2"}]), queues=1)
    done = table(root, to, **options)
    assert (done.rows, done.updated, done.deleted) == (1, 0, 2)
    put(root, canal("INSERT", order(1, paid="2026-11-19 12:00:00.25")), queues=1)
    table(root, to, **options)
    found = {row["id"]: (row["total"], row["paid"]) for row in rows(to, "id, total, paid")}
    assert found == {
        Decimal(3): (Decimal("2.00"), None),
        Decimal(1): (Decimal("1.50"), datetime.datetime(2026, 11, 19, 12, 0, 0, 250_000)),
        Decimal(2**64 - 1): (Decimal("9999999999.99"), None),
    }


def test_events_of_several_tables_need_a_choice(tmp_path: Path) -> None:
    root, to = tmp_path / "data", tmp_path / "orders"
    put(root, canal("INSERT", order(1)), canal("INSERT", order(2), name="others"))
    with pytest.raises(PipelineError, match=r"several tables \(shop.orders, shop.others\)"):
        table(root, to, decoder="canal")
    done = table(root, to, decoder="canal", decoder_options={"tables": "shop.orders"})
    assert (done.rows, done.skipped) == (1, 1)
    put(root, canal("DELETE", order(1)))
    assert table(root, to).rejected == 1


def test_the_choice_of_a_table_that_a_later_one_makes_necessary(tmp_path: Path) -> None:
    root, to = tmp_path / "data", tmp_path / "orders"
    options = {"timeZone": "UTC"}
    put(root, canal("INSERT", order(1)))
    assert table(root, to, decoder="canal", decoder_options=options).rows == 1
    put(root, canal("INSERT", order(2)), canal("INSERT", order(3), name="a"))
    with pytest.raises(PipelineError, match=r"tables=shop.orders, and make a table for each"):
        table(root, to)
    for name in ("shop.a", "shop.o"):
        with pytest.raises(ConfigError, match=r"tables.*has rows of shop.orders"):
            table(root, to, decoder_options={"tables": name})
    with pytest.raises(ConfigError, match=r"timeZone.*made with 'UTC', which cannot be changed"):
        table(root, to, decoder_options={"timeZone": "Asia/Shanghai"})
    with pytest.raises(ConfigError, match=r"key.*made without it, which cannot be changed"):
        table(root, to, decoder_options={"key": "id"})
    done = table(root, to, decoder_options={"Tables": "shop.orders"})
    assert (done.rows, done.skipped) == (1, 1)
    put(root, canal("INSERT", order(4)), canal("INSERT", order(5), name="a"))
    assert table(root, to, decoder_options=options).skipped == 1
    assert [row["id"] for row in rows(to, "id")] == [1, 2, 4]


def test_a_choice_that_has_left_out_events_cannot_be_changed(tmp_path: Path) -> None:
    root, to = tmp_path / "data", tmp_path / "orders"
    put(root, canal("INSERT", order(1)))
    assert table(root, to, decoder="canal", decoder_options={"tables": "shop.x"}).skipped == 1
    with pytest.raises(ConfigError, match=r"tables.*has left out messages; begin a new table"):
        table(root, to, decoder_options={"tables": "shop.orders"})


def test_a_choice_is_kept_without_new_messages(tmp_path: Path) -> None:
    root, to = tmp_path / "data", tmp_path / "orders"
    put(root, canal("INSERT", order(1)))
    table(root, to, decoder="canal")
    assert table(root, to, decoder_options={"tables": "shop.orders"}).messages == 0
    put(root, canal("INSERT", order(2), name="a"))
    assert table(root, to).skipped == 1
