"""JSON into typed rows: the rules per type, and every way not to fit."""

import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding import Decoded, DecoderSpec, Operation, TableSchema


def decode(schema: str, *bodies: bytes | str | None, **options: str) -> Decoded:
    given = DecoderSpec.from_options({"format": "json", **options})
    spec: DecoderSpec = pickle.loads(pickle.dumps(given))
    encoded = [body.encode() if isinstance(body, str) else body for body in bodies]
    return spec.decoder(TableSchema.from_ddl(schema)).decode(pa.array(encoded, pa.binary()))


def value_of(kind: str, text: str, **options: str) -> Any:
    """Return the value of a column, or the reason why it is rejected."""
    decoded = decode(f"c {kind}", f'{{"c": {text}}}', newColumns="reject", **options)
    if decoded.rejects:
        return decoded.rejects[0].reason
    rows = decoded.parts[0].rows
    kinds = rows.schema.field(0).type
    value = rows.column(0).to_pylist()[0]
    return str(value) if pa.types.is_temporal(kinds) else value


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", "true", True),
        ("int", "-2147483648", -(2**31)),
        ("int", "1.0", 1),
        ("int", "1e3", 1000),
        ("bigint", "9223372036854775807", 2**63 - 1),
        ("bigint", "9007199254740993.0", 9007199254740993),
        ("decimal(20,0)", "18446744073709551615", Decimal(2**64 - 1)),
        ("decimal(10,2)", "0.1", Decimal("0.10")),
        ("decimal(10,2)", '"12345678.90"', Decimal("12345678.90")),
        ("decimal(10,2)", "1.500", Decimal("1.50")),
        ("decimal(10,2)", "12e1", Decimal(120)),
        ("decimal(38,38)", "1e-38", Decimal("1e-38")),
        ("double", "0.1", 0.1),
        ("double", "3", 3.0),
        ("double", str(2**60), 2.0**60),
        ("double", "9007199254740993.0", 2.0**53),
        ("float", "-16777218", -16777218.0),
        ("float", "0.5", 0.5),
        ("string", '"\\ud83d\\ude00"', "😀"),
        ("binary", '"AP8="', b"\0\xff"),
        ("date", '"2024-02-29"', "2024-02-29"),
        ("timestamp", '"2024-02-29T12:00:00.1234567+08:00"', "2024-02-29 04:00:00.123456+00:00"),
        ("timestamp", '"2024-02-29 12:00"', "2024-02-29 12:00:00+00:00"),
        ("timestamp_ntz", '"1000-01-01 12:00:01"', "1000-01-01 12:00:01"),
        ("array<int>", "[1, null, 2]", [1, None, 2]),
        ("map<string, int>", '{"a": 1, "A": null}', [("a", 1), ("A", None)]),
        ("struct<a: int, b: string>", '{"A": 1}', {"a": 1, "b": None}),
        ("array<struct<d: date>>", '[{"d": null}, null]', [{"d": None}, None]),
        ("int", "null", None),
    ],
)
def test_values_that_fit(kind: str, text: str, value: Any) -> None:
    assert value_of(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("boolean", "1", "column c: 1 is not a boolean"),
        ("int", "2147483648", "column c: 2147483648 is not an int: it is out of range"),
        ("int", "1.5", "column c: 1.5 is not an int"),
        ("int", "true", "column c: true is not an int"),
        ("int", '"1"', "column c: '1' is not an int"),
        ("bigint", "9223372036854775808", "out of range"),
        ("bigint", "1e99999", "is not a bigint"),
        ("decimal(10,2)", "1.555", "1.555 is not a decimal(10,2): it has more than 2 digits after"),
        ("decimal(10,2)", "123456789", "it has more than 8 whole digits"),
        ("decimal(10,2)", "1e99999", "it has more than 8 whole digits"),
        ("decimal(10,2)", '"1_0"', "'1_0' is not a decimal(10,2)"),
        ("decimal(10,2)", '"NaN"', "'NaN' is not a decimal(10,2)"),
        ("double", "1e400", "is not a double: it is out of range"),
        ("double", str(2**53 + 1), "9007199254740993 is not a double: it would be rounded"),
        ("float", str(-(2**24) - 1), "-16777217 is not a float: it would be rounded"),
        ("double", "NaN", "not JSON: NaN is not a JSON number"),
        ("double", "-Infinity", "not JSON: -Infinity is not a JSON number"),
        ("float", "1e39", "is not a float: it is out of range"),
        ("string", "5", "5 is not a string"),
        ("string", '{"a": 1}', "an object is not a string"),
        ("string", '"\\ud800"', "half of a surrogate pair"),
        ("binary", '"*"', "expected base64"),
        ("date", '"2023-02-29"', "expected YYYY-MM-DD"),
        ("date", '"2024-02-29T00:00:00"', "expected YYYY-MM-DD"),
        ("timestamp", '"yesterday"', "expected YYYY-MM-DD HH:MM:SS and an offset or none"),
        ("timestamp", "1700000000", "only if the option numberUnit names its unit"),
        ("timestamp_ntz", '"2024-01-01T00:00:00Z"', "expected YYYY-MM-DD HH:MM:SS"),
        ("array<int>", "5", "5 is not an array<int>"),
        ("array<struct<a: int>>", '[{"a": "x"}]', "column c.element.a: 'x' is not an int"),
        ("map<string, int>", '{"x": []}', "column c.x: an array is not an int"),
        ("struct<a: int>", "[]", "column c: an array is not an object"),
        ("struct<a: int>", '{"b": 1}', "column c: the key 'b' has no column"),
    ],
)
def test_values_that_contradict_their_column(kind: str, text: str, reason: str) -> None:
    assert reason in value_of(kind, text)


def test_numbers_are_times_if_the_options_say_so() -> None:
    for unit, number in (("s", 1), ("ms", 1000), ("us", 10**6)):
        assert value_of("timestamp", str(number), numberUnit=unit) == "1970-01-01 00:00:01+00:00"
    assert "not in the years 1 to 9999" in value_of("timestamp", str(2**62), numberUnit="s")


def test_times_without_a_zone_are_in_the_zone_of_the_options() -> None:
    text = '"2024-07-01 12:00:00"'
    assert value_of("timestamp", text, timeZone="Asia/Shanghai") == "2024-07-01 04:00:00+00:00"
    assert value_of("timestamp_ntz", text, timeZone="Asia/Shanghai") == "2024-07-01 12:00:00"
    with pytest.raises(ConfigError, match="must be a time zone"):
        DecoderSpec.from_options({"format": "json", "timeZone": "Mars/Olympus"})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is empty"),
        (None, "the body is empty"),
        (b"{", "not JSON: Expecting property name"),
        (b'{"c": 1} {"c": 2}', "not JSON: Extra data"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"null", "a JSON null, not an object"),
        (b"[1]", "a JSON array, not an object"),
        (b'{"c": 1, "c": 2}', "not JSON: the key 'c' is repeated"),
        (b'{"x": {"c": 1, "c": 1}}', "not JSON: the key 'c' is repeated"),
        (b'{"c": 1, "C": null}', "the keys 'c' and 'C' mean the same column"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"x": ' + b"[" * 200 + b"1" + b"]" * 200 + b"}", "the key 'x' has no column"),
        (b'{"c": ' + b"9" * 5000 + b"}", "not JSON: Exceeds the limit"),
    ],
)
def test_bodies_that_are_no_row(body: bytes | None, reason: str) -> None:
    decoded = decode("c int", b'{"c": 1}', body, b'{"c": 3}')
    assert [reject.message for reject in decoded.rejects] == [1]
    assert reason in decoded.rejects[0].reason
    assert decoded.parts[0].messages.to_pylist() == [0, 2]
    assert decoded.parts[0].rows.to_pylist() == [{"c": 1}, {"c": 3}]


def test_keys_without_a_column_become_columns() -> None:
    bodies = ('{"ID": 1, "x.y": null}', '{"x.y": "v", "s": {"b": 5000000000}, "e": []}')
    part = decode("id int, s struct<b: int>", *bodies).parts[0]
    assert part.schema.ddl == "id int, s struct<b: bigint>, `x.y` string"
    assert part.rows.to_pylist() == [
        {"id": 1, "s": None, "x.y": None},
        {"id": None, "s": {"b": 5000000000}, "x.y": "v"},
    ]


def test_keys_without_a_column_are_ignored_or_rejected() -> None:
    body = '{"id": 1, "new": 2}'
    assert decode("id int", body, newColumns="ignore").parts[0].rows.to_pylist() == [{"id": 1}]
    assert decode("id int", body, newColumns="reject").rejects[0].reason == (
        "the key 'new' has no column"
    )


def test_a_schema_is_inferred_from_what_most_messages_have() -> None:
    spec = DecoderSpec.from_options({"format": "json"})
    sample = [
        *(b'{"a": 1, "n": 1}', b'{"a": "x", "n": 1.5, "big": 18446744073709551615}'),
        *(b'{"a": 2, "l": [{"k": null}, {"k": true}], "nothing": null, "neg": -9e0}', b"broken"),
        b'{"wide": -99999999999999999999, "s": {}}',
    ]
    assert spec.infer(sample)[None].ddl == (
        "a bigint, n double, big decimal(20,0), l array<struct<k: boolean>>, neg double,"
        " wide decimal(38,0)"
    )


def test_whole_numbers_beside_fractions_are_not_rounded() -> None:
    spec = DecoderSpec.from_options({"format": "json"})
    sample = [
        *(b'{"id": 9007199254740993, "n": 9007199254740992}', b'{"id": 1.5, "n": 1.5}'),
        b'{"long": 18446744073709551615}',
        *(b'{"long": 0.0000000000000000001}', b'{"long": 2.5}'),
    ]
    schema = spec.infer(sample)[None]
    assert schema.ddl == "id decimal(38,18), n double, long double"
    decoded = spec.decoder(schema).decode(sample)
    assert decoded.parts[0].rows.column("id").to_pylist()[:2] == [2**53 + 1, Decimal("1.5")]
    assert [(each.message, each.reason) for each in decoded.rejects] == [
        (2, "column long: 18446744073709551615 is not a double: it would be rounded")
    ]


def test_an_empty_body_deletes_if_the_options_say_so() -> None:
    part = decode("c int", b'{"c": 1}', b"", None, tombstones="true").parts[0]
    assert part.operations.to_pylist() == [Operation.UPSERT, Operation.DELETE, Operation.DELETE]
    assert part.rows.column(0).to_pylist() == [1, None, None]


def test_ten_thousand_columns_and_large_bodies() -> None:
    wide = {f"column {number}": number for number in range(10_000)}
    large = {"text": "x" * (4 << 20)}
    decoded = decode("", json.dumps(wide), json.dumps(large))
    assert not decoded.rejects
    rows = decoded.parts[0].rows
    assert rows.num_columns == 10_001 and len(rows.column(10_000)[1].as_py()) == 4 << 20
    huge = {str(number): 1 for number in range(20_001)}
    assert decode("", json.dumps(huge)).rejects[0].reason == "the key '20000' has no column"


def test_text_is_one_column() -> None:
    spec = DecoderSpec.from_options({"format": "text"})
    schema = spec.own_schema()
    assert schema is not None and schema.ddl == "value string"
    decoded = spec.decoder(schema).decode(["ü".encode(), b"", b"\xff"])
    assert decoded.parts[0].rows.to_pylist() == [{"value": "ü"}, {"value": ""}]
    assert decoded.rejects[0].reason == "not UTF-8 at byte 0"


def test_a_format_is_required() -> None:
    with pytest.raises(ConfigError, match=r"is required: json, text, csv, avro, protobuf"):
        DecoderSpec.from_options({})
