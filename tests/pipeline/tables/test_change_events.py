"""Tables of databases from the events of CDC tools."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tables.topics import Row, put, rows, table

from firetrail.errors import ConfigError, PipelineError
from firetrail.pipeline.tables.runs.explanation import explain_table

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


def test_the_type_of_a_key_changes_in_the_database(tmp_path: Path) -> None:
    """Whole numbers become wider; what would change the keys of rows is rejected, row by row."""
    root, to = tmp_path / "data", tmp_path / "orders"

    def event(kind: str, number: str, declared: str, total: str = "1.00") -> Row:
        types = {**TYPES, "id": declared}
        return canal(kind, order(1) | {"id": number, "total": total}) | {"mysqlType": types}

    put(root, *(event("INSERT", str(number), "int") for number in (1, 2, 3)), queues=1)
    table(root, to, decoder="canal", upsert="id", buckets=4)
    put(root, event("UPDATE", "1", "bigint", "2.00"), event("DELETE", "2", "bigint"), queues=1)
    assert table(root, to).changes == ("column id is int, becomes bigint",)
    put(root, event("UPDATE", "1", "bigint unsigned", "3.00"), queues=1)
    odd = [event("INSERT", f"{number}.5", "decimal(9,2)") for number in range(2)]
    put(root, *odd, event("INSERT", str(2**63), "bigint unsigned"), *odd, queues=1)
    done = table(root, to)
    assert (done.rows, done.updated, done.rejected, done.total_rows) == (1, 1, 4, 3)
    reason = "the type of the key id would change from decimal(20,0) to decimal(22,2)"
    assert done.first_reject.endswith(reason)
    found = {row["id"]: row["total"] for row in rows(to, "id, total")}
    assert found == {1: Decimal("3.00"), 3: Decimal("1.00"), 2**63: Decimal("1.00")}
    put(root, event("DELETE", "3", "decimal(9,2)"), event("DELETE", "1", "int"), queues=1)
    done = table(root, to)
    assert (done.deleted, done.rejected, done.total_rows) == (1, 1, 2)
    assert explain_table(_no_spark, root, "orders", to).messages == 0
    with pytest.raises(ConfigError, match=r"the type of this key would change to decimal\("):
        table(root, to, schema="id decimal(22,2)")


def _no_spark() -> Any:
    raise AssertionError
