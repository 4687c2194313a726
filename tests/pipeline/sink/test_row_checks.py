"""Rows that the sink refuses before it encodes any of them."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, MapType, NullType, StringType, StructType

from firetrail.errors import ConfigError, IllegalMessageError
from firetrail.pipeline.sink.row_checks import check_rows
from firetrail.pipeline.sink.sink_columns import check_columns
from firetrail.pipeline.source.schema import NAMES, arrow_schema


def check(**columns: Any) -> None:
    check_rows(pa.RecordBatch.from_pydict(columns), 40, 18, "ask for more")


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.list_(pa.large_string())])
def test_a_null_among_the_keys_is_refused_with_its_row(kind: pa.DataType) -> None:
    rows = pa.array([None, ["a"], [], ["b", None], [None]], kind)
    for keys, row in ((rows, 43), (rows[1:], 42), (rows[4:], 40)):
        with pytest.raises(IllegalMessageError) as caught:
            check(keys=keys)
        assert f"None] in row {row} of the partition: a key cannot be null" in str(caught.value)
        assert "array_compact(keys)" in str(caught.value)


def test_a_row_without_keys_is_allowed() -> None:
    check(keys=pa.array([None, ["a"], []], pa.list_(pa.string())))
    check(keys=[None, "a b", ""])


@pytest.mark.parametrize("level", [19, 99_999_999_999, -1])
def test_a_delay_level_out_of_range_is_refused(level: int) -> None:
    with pytest.raises(IllegalMessageError) as caught:
        check(delay_level=[18, None, 0, level])
    assert str(caught.value) == (
        f"delay_level: {level} in row 43 of the partition: the levels are 1 to 18, and 0 or null "
        "for no delay; ask for more"
    )
    check(delay_level=[18, None, 0])


@pytest.mark.parametrize(
    ("column", "kind", "cast"),
    [
        ("tags", NullType(), "cast(tags as string)"),
        ("queue_id", NullType(), "cast(queue_id as int)"),
        ("keys", ArrayType(NullType()), "cast(keys as array<string>)"),
        ("properties", MapType(NullType(), NullType()), "cast(properties as map<string,string>)"),
    ],
)
def test_a_column_of_a_wrong_type_is_refused(column: str, kind: Any, cast: str) -> None:
    schema = StructType().add("topic", StringType()).add("body", StringType()).add(column, kind)
    with pytest.raises(ConfigError) as caught:
        check_columns(schema)
    assert f"column {column} = '{kind.simpleString()}': must be" in str(caught.value)
    assert str(caught.value).endswith(f"; void has no type of its own, so {cast}")


def test_rows_of_the_source_are_accepted_unless_their_body_is_compressed() -> None:
    """The sink writes no flags, so no one would decompress the body."""
    check_columns(from_arrow_schema(arrow_schema((*NAMES, "store"))))
    check(sys_flag=pa.array([0, 0x8, None], pa.int32()), size=[1, 2, 3])
    with pytest.raises(IllegalMessageError) as caught:
        check(sys_flag=pa.array([0, 0x301], pa.int32()))
    assert "body: of row 41 of the partition is compressed" in str(caught.value)
    assert "decompress=true" in str(caught.value)
