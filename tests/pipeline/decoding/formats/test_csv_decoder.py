"""CSV: fields by position, and lines that do not fit."""

import csv
import io
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding import Decoded, DecoderSpec, Operation, TableSchema


def decode(columns: str, *bodies: bytes, known: str = "", **options: str) -> Decoded:
    given = DecoderSpec.from_options({"format": "csv", "columns": columns, **options})
    spec: DecoderSpec = pickle.loads(pickle.dumps(given))
    return spec.decoder(TableSchema.from_ddl(known)).decode(bodies)


def test_fields_become_columns() -> None:
    columns = "id bigint, name string, price decimal(10,2), at timestamp, ok boolean"
    bodies = b'1,"a,""b""\n",5.1,2024-01-01 00:00:00,true\n', b"2,,,,"
    part = decode(columns, *bodies).parts[0]
    first, second = part.rows.to_pylist()
    assert first["name"] == 'a,"b"\n' and str(first["price"]) == "5.10" and first["ok"] is True
    assert list(second.values()) == [2, "", None, None, None]


def test_columns_without_types_are_text() -> None:
    mixed = {"format": "csv", "columns": "id bigint, name, p decimal(10,2), `a b`"}
    own = DecoderSpec.from_options(mixed).own_schema()
    assert own is not None
    assert own.ddl == "id bigint, name string, p decimal(10,2), `a b` string"
    spec = DecoderSpec.from_options({"format": "csv", "columns": "a, b"})
    schema = spec.own_schema()
    assert schema is not None and schema.ddl == "a string, b string"
    assert decode("a,b", b"x;\\N", delimiter=";", nullText="\\N").parts[0].rows.to_pylist() == [
        {"a": "x", "b": None}
    ]


def test_each_line_is_a_row_and_a_message_counts_as_a_whole() -> None:
    assert decode("a, b", "x\u2028\x85,y".encode()).parts[0].rows.to_pylist() == [
        {"a": "x\u2028\x85", "b": "y"}
    ]
    decoded = decode("a int", b"1\r\n2\r\n", b"3\nx\n", b"4")
    assert decoded.parts[0].rows["a"].to_pylist() == [1, 2, 4]
    assert decoded.parts[0].messages.to_pylist() == [0, 0, 2]
    assert [(each.message, each.reason) for each in decoded.rejects] == [
        (1, "column a: 'x' is not an int")
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is empty"),
        (b"\n", "the body is empty"),
        (b"1", "has 1 fields, but there are 2 columns"),
        (b"1,2,3", "has 3 fields, but there are 2 columns"),
        (b'1,"2', "not CSV: "),
        (b'1,"2"x', "not CSV: "),
        (b"1,\xff", "not UTF-8 at byte 2"),
    ],
)
def test_lines_that_do_not_fit(body: bytes, reason: str) -> None:
    assert reason in decode("a int, b int", body).rejects[0].reason


def test_the_columns_of_the_table_may_be_more_and_wider() -> None:
    part = decode("a int", b"1", known="z string, A bigint").parts[0]
    assert part.schema.ddl == "z string, A bigint"
    assert part.rows.to_pylist() == [{"z": None, "A": 1}]


def test_an_empty_body_deletes_if_the_options_say_so() -> None:
    part = decode("a int", b"", tombstones="true").parts[0]
    assert part.operations.to_pylist() == [Operation.DELETE]


def test_wrong_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="is required for CSV"):
        DecoderSpec.from_options({"format": "csv"})
    with pytest.raises(ConfigError, match="CSV has no fields of type array<int>"):
        decode("a array<int>")


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=2, max_size=4))
def test_what_a_writer_quotes_is_read(fields: list[str]) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerow(fields)
    names = ",".join(f"c{at}" for at in range(len(fields)))
    decoded = decode(names, text.getvalue().encode())
    assert [list(row.values()) for row in decoded.parts[0].rows.to_pylist()] == [fields]
