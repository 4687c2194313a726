"""Schemas of tables: DDL text, JSON, and what may widen to what."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding import TableSchema, merged

SCALARS = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary"]
SCALARS += ["date", "timestamp", "timestamp_ntz", "decimal(10,2)", "decimal(38,0)"]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def structs(types: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return columns(types).map(lambda text: f"struct<{text}>")


def columns(types: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quoted = NAMES.map(lambda name: "`" + name.replace("`", "``") + "`")
    pairs = st.lists(st.tuples(quoted, types), max_size=4, unique_by=lambda pair: pair[0].lower())
    return pairs.map(lambda each: ", ".join(f"{name}: {kind}" for name, kind in each))


TYPES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.map(lambda kind: f"array<{kind}>"),
        inner.map(lambda kind: f"map<string, {kind}>"),
        structs(inner),
    ),
    max_leaves=6,
)


@given(columns(TYPES))
def test_a_schema_survives_every_form(text: str) -> None:
    schema = TableSchema.from_ddl(text)
    assert TableSchema.from_ddl(schema.ddl) == schema
    assert TableSchema.from_json(schema.to_json()) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert schema.widened(schema).schema is schema


def test_ddl_is_read_as_spark_writes_it() -> None:
    text = (
        "id LONG, `a ``b`` ü.c` varchar(20), p numeric(9,3), t array<struct<x: int, `y z`: real>>"
    )
    schema = TableSchema.from_ddl(text)
    assert schema.ddl == (
        "id bigint, `a ``b`` ü.c` string, p decimal(9,3), t array<struct<x: int, `y z`: float>>"
    )
    assert TableSchema.from_ddl("m map<string,int>").arrow.field("m").type == pa.map_(
        pa.string(), pa.int32()
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id bigit", "did you mean bigint"),
        ("id", "no such type; expected one of boolean"),
        ("id int NOT NULL", "columns are name and type, nothing else at 7"),
        ("id decimal(39,0)", "1 <= P <= 38"),
        ("id decimal(2,3)", "1 <= P <= 38"),
        ("id int,, x int", "expected the name of a column at 7"),
        ("m map<int,int>", "keys of a map must be strings"),
        ("id int, ID bigint", "'id' and 'ID' are the same name; case does not count"),
        ("s struct<a: int, A: int>", "'a' and 'A' are the same name"),
        ("a " + "array<" * 120 + "int" + ">" * 120, "100 levels"),
        ("`` int", "has a name that is empty"),
        ("id int; drop", "expected a name or a type at 6"),
    ],
)
def test_wrong_ddl_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TableSchema.from_ddl(text)
    assert reason in str(refused.value)


@pytest.mark.parametrize("text", ["", "{}", '[{"name": "a"}]', '[{"name": "a", "type": 5}]'])
def test_wrong_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        TableSchema.from_json(text)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("int", "bigint", "bigint"),
        ("tinyint", "decimal(5,2)", "decimal(5,2)"),
        ("bigint", "decimal(5,2)", "decimal(21,2)"),
        ("decimal(10,2)", "decimal(8,4)", "decimal(12,4)"),
        ("decimal(38,0)", "decimal(38,10)", None),
        ("float", "double", "double"),
        ("int", "double", "double"),
        ("bigint", "double", None),
        ("date", "timestamp", "timestamp"),
        ("date", "timestamp_ntz", "timestamp_ntz"),
        ("timestamp", "timestamp_ntz", None),
        ("string", "int", None),
        ("array<int>", "array<bigint>", "array<bigint>"),
        ("map<string, float>", "map<string, double>", "map<string, double>"),
        ("struct<a: int>", "struct<A: bigint, b: int>", "struct<a: bigint, b: int>"),
        ("struct<a: int>", "struct<a: string>", None),
    ],
)
def test_types_widen_where_no_value_changes(one: str, other: str, both: str | None) -> None:
    first, second = TableSchema.from_ddl(f"c {one}"), TableSchema.from_ddl(f"C {other}")
    result = first.widened(second)
    assert result.schema.ddl == f"c {both or one}"
    assert bool(result.conflicts) is (both is None)
    assert bool(result.changes) is (both not in (None, one))
    if "struct" not in one:
        assert second.widened(first).schema.ddl == f"C {both or other}"


def test_new_columns_follow_and_changes_are_named() -> None:
    result = merged(
        [
            TableSchema.from_ddl(text)
            for text in ("a int", "b string, A bigint", "b int, `c d` date")
        ]
    )
    assert result.schema.ddl == "a bigint, b string, `c d` date"
    assert result.changes == (
        "new column b string",
        "column a is int, becomes bigint",
        "new column `c d` date",
    )
    assert result.conflicts == ("column b is string, and elsewhere int",)


def test_columns_are_found_in_any_case() -> None:
    schema = TableSchema.from_ddl("Id bigint, `Größe` int")
    assert schema.own_name("ID") == "Id" and schema.own_name("größe") == "Größe"
    assert schema.own_name("x") is None and schema.type_of("id") == pa.int64()
