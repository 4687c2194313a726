"""Schemas that users give to a read: some of the source's columns, in any order and any case."""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType

from firetrail.errors import ConfigError
from firetrail.pipeline.source.schema import check_names, own_name


def given_columns(schema: StructType, own: pa.Schema) -> Sequence[str]:
    """Return the names in a schema, as they are spelled there.

    Args:
        schema: The schema of a user, or one that Spark passes on.
        own: The columns that the source has.

    Raises:
        ConfigError: A column does not exist, is named twice or has another type in the source.
    """
    names = [own_name(name, own.names) for name in schema.fieldNames()]
    check_names(names, own.names)
    for name, asked in zip(names, schema.fields, strict=True):
        _check_type(asked, own.field(name).type)
    return schema.fieldNames()


def _check_type(asked: StructField, own: pa.DataType) -> None:
    given, right = asked.dataType.simpleString(), from_arrow_type(own).simpleString()
    if given != right:
        raise ConfigError(
            f"column {asked.name}",
            given,
            f"its type in the source is {right}; read it as {right}, and cast it in the query",
        )
    if to_arrow_type(asked.dataType, timezone="UTC") != own or not asked.nullable:
        raise ConfigError(
            f"column {asked.name}",
            "not null",
            "the columns of the source are nullable; leave out NOT NULL",
        )
