"""Avro: types, headers, registries, and bodies that are no datum."""

import json
import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline.decoding.formats.registries import Registry, running

from firetrail.errors import ConfigError, NotReachedError, PipelineError
from firetrail.pipeline.decoding import Decoded, DecoderSpec, Operation, TableSchema
from firetrail.pipeline.decoding.formats import schema_registry

fastavro: Any = pytest.importorskip("fastavro")

ORDER = {
    **{"type": "record", "name": "Order", "namespace": "shop"},
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}


def datum(schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


def record(kind: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "c", "type": kind}]}


def spec_of(schema: Any, folder: Path, **options: str) -> DecoderSpec:
    path = folder / "schema.avsc"
    path.write_text(json.dumps(schema))
    given = DecoderSpec.from_options({"format": "avro", "schemaFile": str(path), **options})
    spec: DecoderSpec = pickle.loads(pickle.dumps(given))
    return spec


def decode(spec: DecoderSpec, *bodies: bytes, known: str = "") -> Decoded:
    return spec.decoder(TableSchema.from_ddl(known)).decode(bodies)


def logical(kind: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


INSTANT = datetime(2024, 2, 29, 12, 0, 0, 1000, tzinfo=UTC)
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
NESTED = {"type": "array", "items": {"type": "map", "values": ["null", record("int", "Inner")]}}
TYPES = [
    ("boolean", True, "boolean", True),
    ("int", -5, "int", -5),
    ("long", 2**63 - 1, "bigint", 2**63 - 1),
    ("float", 0.5, "float", 0.5),
    ("double", 0.1, "double", 0.1),
    ("string", "ü", "string", "ü"),
    ("bytes", b"\0\xff", "binary", b"\0\xff"),
    (["null", "int"], None, "int", None),
    (["int", "null", "long"], 2**40, "bigint", 2**40),
    (ENUM, "B", "string", "B"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", "binary", b"ab"),
    (NESTED, [{"k": {"c": 1}, "n": None}], "array<map<string, struct<c: int>>>", None),
    (logical("int", "date"), date(2024, 2, 29), "date", date(2024, 2, 29)),
    (logical("long", "timestamp-millis"), INSTANT, "timestamp", INSTANT),
    (logical("long", "timestamp-micros"), INSTANT, "timestamp", INSTANT),
    (
        logical("long", "local-timestamp-micros"),
        *(datetime(1, 1, 1), "timestamp_ntz", datetime(1, 1, 1)),
    ),
    (logical("int", "time-millis"), time(1, 2, 3, 4000), "string", "01:02:03.004000"),
    (logical("long", "time-micros"), time(1, 2, 3), "string", "01:02:03"),
    (logical("string", "uuid"), UUID(int=5), "string", str(UUID(int=5))),
    (
        logical("bytes", "decimal", precision=10, scale=2),
        *(Decimal("-5.18"), "decimal(10,2)", Decimal("-5.18")),
    ),
    (
        logical("fixed", "decimal", precision=12, scale=3, name="D", size=8),
        *(Decimal("1.500"), "decimal(12,3)", Decimal("1.5")),
    ),
    (logical("bytes", "decimal", precision=60), Decimal(7), "string", "7"),
    (logical("long", "unknown-type"), 7, "bigint", 7),
]


@pytest.mark.parametrize(("kind", "value", "ddl", "expected"), TYPES)
def test_types(kind: Any, value: Any, ddl: str, expected: Any, tmp_path: Path) -> None:
    schema = record(kind)
    spec = spec_of(schema, tmp_path)
    own = spec.own_schema()
    assert own is not None and own.ddl == f"c {ddl}"
    decoded = decode(spec, datum(schema, {"c": value}))
    assert not decoded.rejects and decoded.parts[0].schema == own
    found = decoded.parts[0].rows["c"].to_pylist()[0]
    assert found == ([[("k", {"c": 1}), ("n", None)]] if kind is NESTED else expected)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("int", "the schema is not that of a record"),
        ({"type": "rec"}, "not a schema of Avro"),
        (record(["int", "string"]), "a union of types that no column has: int32, string"),
        (record(["null", "R"]), "the type R contains itself"),
    ],
)
def test_schemas_that_no_table_has(schema: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        spec_of(schema, tmp_path)
    assert reason in str(refused.value)


def test_bodies_that_are_no_datum(tmp_path: Path) -> None:
    good = datum(ORDER, {"id": 1, "note": "x"})
    decoded = decode(spec_of(ORDER, tmp_path), b"", good[:2], good, good + b"!!", b"\x02\x09")
    reasons = {reject.message: reject.reason for reject in decoded.rejects}
    assert reasons[0] == "the body is empty" and reasons[3] == "2 bytes follow the datum"
    assert "not a datum of the schema" in reasons[1] and "not a datum" in reasons[4]
    assert decoded.parts[0].messages.to_pylist() == [2]


def test_an_empty_body_deletes_if_the_options_say_so(tmp_path: Path) -> None:
    part = decode(spec_of(ORDER, tmp_path, tombstones="true"), b"").parts[0]
    assert part.operations.to_pylist() == [Operation.DELETE]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text()), max_size=5))
def test_rows_are_what_was_written(rows: list[tuple[int, str | None]]) -> None:
    values = [{"id": number, "note": note} for number, note in rows]
    spec = DecoderSpec.from_options({"format": "json"})  # replaced: no file for each example
    spec = DecoderSpec(type(spec.format).AVRO, schema=json.dumps(ORDER).encode())
    decoded = decode(spec, *(datum(ORDER, value) for value in values))
    assert decoded.parts[0].rows.to_pylist() == values and not decoded.rejects


WIDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "at", "type": logical("int", "date")}]}
HEADERS = {
    "confluent": (b"\0\0\0\0\x07", "/schemas/ids/7", {"schema": json.dumps(ORDER)}),
    "apicurio": (b"\0" + bytes(7) + b"\7", "/ids/globalIds/7", json.dumps(ORDER).encode()),
    "rocketmq": (
        b" " + (7 << 20 | 1).to_bytes(8, "big") + bytes(8),
        f"/subject/T%251/recordId/{7 << 20 | 1}/schema",
        {"idl": json.dumps(ORDER), "type": "AVRO", "version": 1},
    ),
}


def with_registry(registry: Registry, header: str = "confluent") -> DecoderSpec:
    options = {"format": "avro", "header": header, "registry": registry.url, "subject": "T%1"}
    return DecoderSpec.from_options(options)


@pytest.mark.parametrize("header", HEADERS)
def test_schemas_come_from_registries_once(header: str, tmp_path: Path) -> None:
    begin, path, answer = HEADERS[header]
    body = datum(ORDER, {"id": 1, "note": None})
    with running({path: answer}) as registry:
        spec = with_registry(registry, header)
        assert spec.own_schema() is None
        assert spec.infer([begin + body])[None].ddl == "id bigint, note string"
        assert registry.requests == [path]
        decoded = decode(spec, begin + body, begin + body, b"", b"\x01" + body, begin[:4])
        assert registry.requests == [path, path]  # another decoder
    assert decoded.parts[0].rows.num_rows == 2
    assert [reject.message for reject in decoded.rejects] == [2, 3, 4]
    assert f"does not begin with the header of {header}: 01 02" in decoded.rejects[1].reason
    offline = spec_of(ORDER, tmp_path, header=header)
    assert decode(offline, begin + body).parts[0].rows.num_rows == 1


def test_bodies_of_several_schemas_share_a_table() -> None:
    answers = {
        "/schemas/ids/1": {"schema": json.dumps(ORDER)},
        "/schemas/ids/2": {"schema": json.dumps(WIDER)},
    }
    bodies = [
        b"\0\0\0\0\2" + datum(WIDER, {"id": 2, "note": "x", "at": date(2024, 1, 1)}),
        b"\0\0\0\0\1" + datum(ORDER, {"id": 1, "note": None}),
    ]
    with running(answers) as registry:
        part = decode(with_registry(registry), *bodies, known="note string, at timestamp").parts[0]
    assert part.schema.ddl == "note string, at timestamp, id bigint"
    first, second = part.rows.to_pylist()
    assert first["at"] == datetime(2024, 1, 1, tzinfo=UTC) and second == {
        **{"note": None, "at": None, "id": 1}
    }


def test_nested_types_of_several_schemas_are_merged(tmp_path: Path) -> None:
    day, price = logical("int", "date"), logical("bytes", "decimal", precision=9, scale=2)
    fields = [("d", day, date(2024, 2, 29)), ("x", "double", 0.5), ("p", price, Decimal("1.50"))]
    inner = {
        **{"type": "record", "name": "Inner"},
        "fields": [{"name": name, "type": kind} for name, kind, _ in fields],
    }
    schema = record({"type": "array", "items": {"type": "map", "values": ["null", inner]}})
    value = {"c": [{"k": {name: each for name, _, each in fields}, "n": None}]}
    known = "C array<map<string, struct<n: int, D: timestamp, x: double, p: decimal(20,4)>>>"
    decoded = decode(spec_of(schema, tmp_path), datum(schema, value), known=known)
    assert not decoded.rejects and decoded.parts[0].schema.ddl == known
    member = {"n": None, "D": datetime(2024, 2, 29, tzinfo=UTC), "x": 0.5, "p": Decimal("1.50")}
    assert decoded.parts[0].rows["C"].to_pylist() == [[[("k", member), ("n", None)]]]


def test_schemas_that_refer_to_others() -> None:
    inner = {"type": "record", "name": "shop.Item", "fields": [{"name": "n", "type": "int"}]}
    outer = record("shop.Item")
    reference = {"name": "shop.Item", "subject": "item/value", "version": 3}
    answers = {
        "/schemas/ids/1": {"schema": json.dumps(outer), "references": [reference]},
        "/subjects/item%2Fvalue/versions/3": {"schema": json.dumps(inner)},
    }
    body = b"\0\0\0\0\1" + datum(record(inner), {"c": {"n": 5}})
    with running(answers) as registry:
        part = decode(with_registry(registry), body).parts[0]
    assert part.schema.ddl == "c struct<n: int>" and part.rows["c"].to_pylist() == [{"n": 5}]


@pytest.mark.parametrize(
    ("header", "answer", "missing"),
    [
        ("confluent", [], "a schema"),
        ("confluent", {"schema": 5}, "a schema"),
        ("confluent", {"schema": "{}", "references": [{}]}, "name, subject and version"),
        ("confluent", {"schema": "{}", "references": {"name": "x"}}, "name, subject and version"),
        ("confluent", {"schema": "{}", "references": ["x"]}, "name, subject and version"),
        ("confluent", b"[" * 100_000, "JSON"),
        ("apicurio", b"\xff", "a schema in UTF-8"),
        ("rocketmq", {"idl": None}, "idl"),
        ("rocketmq", [], "idl"),
    ],
)
def test_a_registry_that_answers_something_else(header: str, answer: Any, missing: str) -> None:
    begin, path, _ = HEADERS[header]
    with running({path: answer}) as registry:
        decoder = with_registry(registry, header).decoder()
        with pytest.raises(PipelineError, match=f"{registry.url} answers without {missing}"):
            decoder.decode([begin])


def test_an_unknown_schema_is_a_reject_and_a_lost_registry_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = b"\0\0\0\0\x09" + datum(ORDER, {"id": 1, "note": None})
    monkeypatch.setenv("FIRETRAIL_REGISTRY_AUTH", "me:secret")
    with running({"/schemas/ids/1": 401, "/schemas/ids/2": b"<html>"}) as registry:
        decoder = with_registry(registry).decoder()
        decoded = decoder.decode([body, body])
        assert len(decoded.rejects) == 2 and len(registry.requests) == 1
        assert decoded.rejects[0].reason == f"the registry {registry.url} has no schema 9"
        assert registry.credentials == ["Basic bWU6c2VjcmV0"]
        with pytest.raises(PipelineError, match="answers 401 Unauthorized for schema 1; set"):
            decoder.decode([b"\0\0\0\0\1"])
        with pytest.raises(
            PipelineError, match=r"answers without JSON: .*; check that the options"
        ):
            decoder.decode([b"\0\0\0\0\2"])
    with pytest.raises(NotReachedError, match="does not answer"):
        decoder.decode([b"\0\0\0\0\3"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "give the schema as schemaFile, or the address of a registry"),
        ({"registry": "http://a"}, "must be confluent, apicurio or rocketmq with a registry"),
        ({"registry": "http://a", "header": "rocketmq"}, "is required by RocketMQ's registry"),
        ({"registry": "a:80"}, "must be http://HOST:PORT"),
        ({"registry": "http://me:secret@a"}, "must not contain credentials"),
        ({"schemaFile": "missing.avsc"}, "cannot be read: No such file"),
    ],
)
def test_options_that_are_missing_or_wrong(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        DecoderSpec.from_options({"format": "avro", **options})
    assert reason in str(refused.value) and "secret" not in str(refused.value)


def test_an_answer_of_a_registry_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "ANSWER_MAX", 1 << 20)
    schema = json.dumps({**ORDER, "doc": "x" * (1 << 20)})
    with running({"/schemas/ids/1": {"schema": schema}}) as registry:
        spec = with_registry(registry)
        with pytest.raises(PipelineError, match=r"answers more than 1 MiB for schema 1; check"):
            decode(spec, b"\0\0\0\0\1" + datum(ORDER, {"id": 1, "note": None}))
