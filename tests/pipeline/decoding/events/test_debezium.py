"""Events of Debezium, with and without their schema: types, operations, and other messages."""

import base64
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.pipeline.decoding import Decoded, DecoderSpec, Operation, TableSchema

UPSERT, DELETE = Operation.UPSERT, Operation.DELETE
SOURCE = {"connector": "mysql", "db": "shop", "schema": None, "table": "orders", "ts_ms": 1000}
CONNECT, DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium."


def payload(op: str, before: Any, after: Any, **source: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {**SOURCE, **source}, "ts_ms": 5}


def with_schema(fields: list[dict[str, Any]], content: Any) -> bytes:
    row = {"type": "struct", "optional": True, "fields": fields}
    envelope = [{**row, "field": "before"}, {**row, "field": "after"}]
    schema = {"type": "struct", "fields": envelope, "name": "shop.orders.Envelope"}
    return json.dumps({"schema": schema, "payload": content}).encode()


def decode(*bodies: Any, known: str = "", **options: str) -> Decoded:
    spec = DecoderSpec.from_options({"format": "debezium", **options})
    encoded = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in bodies]
    return spec.decoder(TableSchema.from_ddl(known)).decode(encoded)


def unscaled(number: int) -> str:
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def decimal(scale: int, **more: str) -> dict[str, Any]:
    parameters = {"scale": str(scale), **more}
    return {"type": "bytes", "name": CONNECT + "Decimal", "parameters": parameters}


PRECISION = {"connect.decimal.precision": "10"}
DAY = 19_782  # 2024-02-29
POINT = [{"field": "x", "type": "double"}, {"field": "wkb", "type": "bytes"}]
BITS = {"type": "bytes", "name": DEBEZIUM + "data.Bits", "parameters": {"length": "12"}}
VARIABLE = {"type": "struct", "name": DEBEZIUM + "data.VariableScaleDecimal", "fields": []}
TYPES = [
    ({"type": "int16"}, -5, "smallint", -5),
    ({"type": "int64"}, 2**63 - 1, "bigint", 2**63 - 1),
    ({"type": "float"}, 0.5, "float", 0.5),
    ({"type": "double"}, 1, "double", 1.0),
    ({"type": "boolean"}, True, "boolean", True),
    ({"type": "string", "name": DEBEZIUM + "data.Enum"}, "b", "string", "b"),
    ({"type": "string", "name": DEBEZIUM + "data.Json"}, '{"a": 1}', "string", '{"a": 1}'),
    ({"type": "bytes"}, "AP8=", "binary", b"\0\xff"),
    (BITS, "AQI=", "bigint", 513),
    (decimal(2, **PRECISION), unscaled(-518), "decimal(10,2)", Decimal("-5.18")),
    (decimal(2), unscaled(0), "decimal(38,2)", Decimal("0.00")),
    (decimal(2, **PRECISION), 5.18, "decimal(10,2)", Decimal("5.18")),
    (decimal(50), unscaled(15), "string", "0." + "0" * 48 + "15"),
    (VARIABLE, {"scale": 3, "value": unscaled(1500)}, "string", "1.500"),
    ({"type": "int32", "name": DEBEZIUM + "time.Date"}, DAY, "date", "2024-02-29"),
    ({"type": "int32", "name": CONNECT + "Date"}, -1, "date", "1969-12-31"),
    (
        {"type": "int64", "name": DEBEZIUM + "time.Timestamp"},
        *(1529476623001, "timestamp_ntz", "2018-06-20 06:37:03.001000"),
    ),
    (
        {"type": "int64", "name": DEBEZIUM + "time.MicroTimestamp"},
        *(-1, "timestamp_ntz", "1969-12-31 23:59:59.999999"),
    ),
    (
        {"type": "int64", "name": DEBEZIUM + "time.NanoTimestamp"},
        *(1_000_000_001_999, "timestamp_ntz", "1970-01-01 00:16:40.000001"),
    ),
    (
        {"type": "string", "name": DEBEZIUM + "time.ZonedTimestamp"},
        *("2018-06-20T13:37:03.123456789+02:00", "timestamp", "2018-06-20 11:37:03.123456+00:00"),
    ),
    (
        {"type": "int64", "name": DEBEZIUM + "time.MicroTime"},
        3_600_000_001,
        "string",
        "01:00:00.000001",
    ),
    ({"type": "int32", "name": CONNECT + "Time"}, -3020399000, "string", "-838:59:59"),
    ({"type": "int32", "name": DEBEZIUM + "time.Year"}, 2155, "int", 2155),
    (
        {"type": "array", "items": decimal(0)},
        [unscaled(7), None],
        "array<decimal(38,0)>",
        [7, None],
    ),
    ({"type": "map", "values": {"type": "int32"}}, {"a": 1}, "map<string, int>", [("a", 1)]),
    (
        {"type": "struct", "name": DEBEZIUM + "data.geometry.Point", "fields": POINT},
        *({"x": 1.5, "wkb": "AQ=="}, "struct<x: double, wkb: binary>", {"x": 1.5, "wkb": b"\1"}),
    ),
]


@pytest.mark.parametrize(("declared", "value", "kind", "expected"), TYPES)
def test_types_of_the_schema(
    declared: dict[str, Any], value: Any, kind: str, expected: Any
) -> None:
    field = {**declared, "field": "c", "optional": True}
    bodies = [with_schema([field], payload("c", None, {"c": each})) for each in (value, None)]
    decoded = decode(*bodies)
    assert not decoded.rejects
    part = decoded.parts[0]
    assert part.schema.ddl == f"c {kind}"
    found, null = part.rows["c"].to_pylist()
    assert null is None
    temporal = kind in ("date", "timestamp", "timestamp_ntz")
    assert (str(found) if temporal else found) == expected


@given(st.decimals(-(10**20), 10**20, places=4))
def test_decimals_are_exact(number: Decimal) -> None:
    text = unscaled(int(number.scaleb(4)))
    body = with_schema([{**decimal(4), "field": "c"}], payload("c", None, {"c": text}))
    assert decode(body).parts[0].rows["c"].to_pylist() == [number]


def test_operations() -> None:
    old, new = {"id": 1, "v": "a"}, {"id": 2, "v": "b"}
    bodies = (
        *(payload("r", None, old), payload("c", None, old), payload("u", old, new)),
        *(payload("d", new, None), b"", payload("u", None, old)),
    )
    decoded = decode(*bodies, key="id")
    part = decoded.parts[0]
    effects = [UPSERT, UPSERT, DELETE, UPSERT, DELETE, UPSERT]
    assert part.operations.to_pylist() == effects
    assert part.rows["id"].to_pylist() == [1, 1, 1, 2, 2, 1]
    assert part.table == ("shop", "orders") and part.schema.ddl == "id bigint, v string"
    assert decoded.skipped == 1 and str(part.times[0]) == "1970-01-01 00:00:01+00:00"


def test_tables_of_postgresql_are_in_their_schema() -> None:
    part = decode(payload("c", None, {"id": 1}, schema="public")).parts[0]
    assert part.table == ("public", "orders")


def test_a_given_schema_types_events_without_one() -> None:
    row = {"at": 1529476623000, "p": "5.18", "d": "2024-02-29"}
    decoded = decode(
        payload("c", None, row), known="at timestamp, p decimal(10,2), d date", numberUnit="ms"
    )
    found = decoded.parts[0].rows.to_pylist()[0]
    assert found["at"].isoformat() == "2018-06-20T06:37:03+00:00" and found["p"] == Decimal("5.18")


def test_other_messages() -> None:
    bodies = (
        *({"status": "BEGIN", "id": "1"}, {"ts_ms": 5}, payload("m", None, None)),
        with_schema([], None),
    )
    assert decode(*bodies).skipped == 4
    statement = {"source": SOURCE, "ddl": "ALTER TABLE orders ADD COLUMN c int", "tableChanges": []}
    assert decode(statement).parts[0].schema.ddl == "c int"
    statement["ddl"] = "DROP TABLE orders"
    assert "adds no columns" in decode(statement).rejects[0].reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"a": 1}, "not an event of Debezium: op is None"),
        (payload("t", None, None), "the table was emptied (op is t)"),
        (payload("x", None, None), "not an event of Debezium: op is 'x'"),
        (payload("d", None, None), "op is d, but the row is None"),
        ({"schema": None, "payload": 5}, "the payload is not an object"),
        ({"schema": 5, "payload": {}}, "the schema is not one of Kafka Connect"),
        (
            with_schema([{"field": "a", "type": "int9"}], {}),
            "the schema is not one of Kafka Connect",
        ),
        (payload("c", None, {"v": "__debezium_unavailable_value"}), "set REPLICA IDENTITY FULL"),
        (
            with_schema([{"field": "v", "type": "int8"}], payload("c", None, {"v": 128})),
            "out of range",
        ),
        (with_schema([{**decimal(2), "field": "v"}], payload("c", None, {"v": "*"})), "not base64"),
        ({"op": "c", "source": 5}, "the source is not an object"),
        ({"op": "c", "source": {}, "after": {}}, "its member table is None"),
    ],
)
def test_events_that_cannot_be_applied(body: Any, reason: str) -> None:
    decoded = decode(body, payload("c", None, {"id": 1}))
    assert [reject.message for reject in decoded.rejects] == [0]
    assert reason in decoded.rejects[0].reason


def test_events_of_other_tables_are_skipped_whatever_they_are() -> None:
    drop = {"source": {**SOURCE, "table": "others"}, "ddl": "DROP TABLE others"}
    emptied = payload("t", None, None, db="x")
    bodies = drop, {"schema": [1], "payload": emptied}, payload("d", None, None)
    decoded = decode(*bodies, tables="shop.orders")
    assert (decoded.skipped, [each.message for each in decoded.rejects]) == (2, [2])
    assert len(decode(*bodies).rejects) == 3
    assert len(decode(5, {"source": 5}, {"schema": 1, "payload": 2}, tables="a").rejects) == 3
