"""Events of Maxwell: rows as JSON, deletes, changed keys, bootstraps and statements."""

import json
from decimal import Decimal
from typing import Any

import pytest

from firetrail.pipeline.decoding import Decoded, DecoderSpec, Operation, TableSchema

UPSERT, DELETE = Operation.UPSERT, Operation.DELETE
EVENT: dict[str, Any] = {
    **{"database": "test", "table": "maxwell", "type": "insert", "ts": 1449786310, "xid": 940752},
    **{"commit": True, "primary_key_columns": ["id"], "data": {"id": 1, "daemon": "Lem"}},
}


def event(**members: Any) -> bytes:
    return json.dumps({**EVENT, **members}).encode()


def decode(*bodies: bytes, known: str = "", **options: str) -> Decoded:
    spec = DecoderSpec.from_options({"format": "maxwell", **options})
    return spec.decoder(TableSchema.from_ddl(known)).decode(bodies)


def test_the_documented_events() -> None:
    update = event(type="update", data={"id": 2, "daemon": "firebus!"}, old={"id": 1})
    part = decode(event(), update, event(type="delete")).parts[0]
    assert part.table == ("test", "maxwell") and part.key == ("id",)
    assert part.schema.ddl == "id bigint, daemon string"
    assert part.operations.to_pylist() == [UPSERT, DELETE, UPSERT, DELETE]
    assert part.rows["id"].to_pylist() == [1, 1, 2, 1]
    assert part.rows["daemon"].to_pylist() == ["Lem", "firebus!", "firebus!", "Lem"]
    assert part.messages.to_pylist() == [0, 1, 1, 2]
    assert str(part.times[0]) == "2015-12-10 22:25:10+00:00"


def test_a_bootstrap_has_rows_between_its_ends() -> None:
    kinds = ("bootstrap-start", "bootstrap-insert", "bootstrap-complete", "heartbeat")
    decoded = decode(*(event(type=kind) for kind in kinds))
    assert decoded.skipped == 3 and decoded.parts[0].messages.to_pylist() == [1]


def test_a_given_schema_makes_values_exact() -> None:
    known = (
        "p decimal(10,2), big decimal(20,0), at timestamp, dt timestamp_ntz, d date, zero date,"
        " flag boolean, bin binary, j string, y int, t string, s string"
    )
    row = {
        **{"p": 5.10, "big": 2**64 - 1, "at": "2024-07-01 12:00:00.5", "dt": "2024-07-01 12:00:00"},
        **{"d": "2024-02-29", "zero": "0000-00-00", "flag": 1, "bin": "AP8=", "y": 2024},
        **{"j": {"a": [1, 2.50, None, "ü"]}, "t": "12:00:00", "s": ["a", "b"]},
    }
    body = event(data=row).replace(b"2.5", b"2.50")
    decoded = decode(body, known=known)
    assert not decoded.rejects
    found = decoded.parts[0].rows.to_pylist()[0]
    assert found["p"] == Decimal("5.10") and found["big"] == 2**64 - 1
    assert found["at"].isoformat() == "2024-07-01T12:00:00.500000+00:00"
    assert found["zero"] is None and found["flag"] is True and found["bin"] == b"\x00\xff"
    assert found["j"] == '{"a":[1,2.50,null,"ü"]}' and found["s"] == '["a","b"]'


def test_statements() -> None:
    add = event(type="table-alter", sql="ALTER TABLE maxwell ADD COLUMN at datetime")
    drop = event(type="table-drop", sql="DROP TABLE maxwell")
    decoded = decode(event(), add, drop)
    assert decoded.parts[0].schema.ddl == "at timestamp_ntz, id bigint, daemon string"
    assert [reject.message for reject in decoded.rejects] == [2]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (event(type=None), "not an event of Maxwell: type is None"),
        (event(type="merge"), "type is 'merge', not insert, update or delete"),
        (event(data=None), "data is not a row"),
        (event(table=""), "its member table is ''"),
        (event(data={"id": "x"}), "column id: 'x' is not a bigint"),
        (event(data={"id": 1, "ID": 1}), "differ only in case"),
    ],
)
def test_events_that_cannot_be_applied(body: bytes, reason: str) -> None:
    decoded = decode(body, event(), known="id bigint")
    assert [reject.message for reject in decoded.rejects] == [0]
    assert reason in decoded.rejects[0].reason


def test_events_of_other_tables_are_skipped_whatever_they_are() -> None:
    others: list[dict[str, Any]] = [
        {"table": "others", "type": "table-drop", "sql": "DROP TABLE others"},
        {"table": "others", "type": "odd"},
        {"table": "others", "data": None},
        {"database": "x", "table": None, "type": "database-drop", "sql": "DROP DATABASE x"},
    ]
    own: list[dict[str, Any]] = [
        {"type": "table-drop", "sql": "DROP TABLE maxwell"},
        {"table": None, "type": "database-drop", "sql": "DROP DATABASE test"},
        {"type": "odd"},
    ]
    decoded = decode(*(event(**each) for each in others + own), tables="test.maxwell")
    assert (decoded.skipped, [each.message for each in decoded.rejects]) == (4, [4, 5, 6])
    assert len(decode(*(event(**each) for each in others)).rejects) == 4
    assert decode(*(event(**each) for each in others), tables="*").skipped == 0
