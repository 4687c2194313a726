"""The data source ``rocketmq`` as Spark sees it.

Spark makes it from the options alone, in a process of its own, and pickles it: nothing is opened
before it is asked for a reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from firetrail.errors import ConfigError
from firetrail.pipeline.daemon import hush_planner
from firetrail.pipeline.session import activate, choose_python
from firetrail.pipeline.sink import batch_writer, stream_writer
from firetrail.pipeline.source import damage
from firetrail.pipeline.source.options import (
    View,
    parse_options,
    parse_shape,
    table_options,
)
from firetrail.pipeline.source.reader import BatchReader, DamageReader
from firetrail.pipeline.source.schema import BY_NAME, arrow_schema, ddl, fields
from firetrail.pipeline.source.stream import LogStreamReader, QueueStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOTED = "rocketmq"
"""In the metadata of a table's columns."""

hush_planner()


class RocketMqDataSource(DataSource):
    """Messages of a RocketMQ store. Options: ``firetrail.pipeline.source.options``."""

    @classmethod
    def name(cls) -> str:
        """What ``spark.read.format`` is given."""
        return "rocketmq"

    def schema(self) -> str | StructType:
        """The columns, or those of the option ``columns``."""
        table = table_options(self.options)
        view, columns = parse_shape(self.options if table is None else table)
        if table is None:
            return damage.DDL if view is View.DAMAGE else ddl(columns)
        return _with_options(damage.SCHEMA if view is View.DAMAGE else arrow_schema(columns), table)

    def _all_options(self, schema: StructType) -> dict[str, str]:
        """The options, and those of the table in whose schema they were noted."""
        return (_noted_options(schema) or {}) | dict(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of batches, with the columns that the schema names."""
        options = parse_options(self._all_options(schema))
        if options.view is View.DAMAGE:
            return DamageReader(options)
        return BatchReader(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of micro-batches."""
        options = parse_options(self._all_options(schema), stream=True)
        if options.namesrv:
            from firetrail.pipeline.wire.stream import WireStreamReader

            return WireStreamReader(options, columns_of(schema))
        kind = LogStreamReader if options.view is View.LOG else QueueStreamReader
        return kind(options, columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of batches. Options: ``firetrail.pipeline.sink.columns``."""
        if not {"path", "namesrv"} & dict(self.options).keys():
            remedy = (
                "a table of the catalog is for reading, Spark does not tell the sink its path: "
                "write with df.write.format('rocketmq').mode('append').save(PATH)"
            )
            raise ConfigError("path", "", remedy)
        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer of micro-batches."""
        return stream_writer(schema, self.options, overwrite)


def _with_options(columns: pa.Schema, options: Mapping[str, str]) -> StructType:
    """A table's schema with its options noted in it: of the two, scans get the schema only.

    They are noted in every column, because ALTER TABLE can drop any of them.
    """
    schema = from_arrow_schema(columns)
    for field in schema.fields:
        field.metadata[_NOTED] = json.dumps(options)
    return schema


def _noted_options(schema: StructType) -> dict[str, str] | None:
    """The options that were noted in a table's schema; None if it is not that of a table."""
    for field in schema.fields:
        if noted := field.metadata.get(_NOTED):
            options: dict[str, str] = json.loads(noted)
            return options
    return None


def columns_of(schema: StructType) -> Sequence[str]:
    """The columns that a schema asks for. Raises ConfigError unless they are the source's own."""
    names = schema.fieldNames()
    if _noted_options(schema) is not None:
        _check_altered(names)
    for field, asked in zip(fields(names), schema.fields, strict=True):
        if asked.dataType.simpleString() != field.sql:
            raise ConfigError(
                f"column {field.name}",
                asked.dataType.simpleString(),
                f"the source has it as {field.sql}; cast it in the query",
            )
        if to_arrow_type(asked.dataType, timezone="UTC") != field.arrow or not asked.nullable:
            raise ConfigError(
                f"column {field.name}", "not null", "Spark takes the source's columns as nullable"
            )
    return names


def _check_altered(names: Sequence[str]) -> None:
    """Raise ConfigError if ALTER TABLE has added or renamed a column: Spark does not ask before."""
    for name in names:
        if name not in BY_NAME:
            remedy = (
                "the source has no such column, and its tables cannot have others: undo the "
                f"ALTER TABLE (DROP COLUMN {name}, or RENAME COLUMN {name} TO its old name), and "
                "select derived columns from a view"
            )
            raise ConfigError("column", name, remedy)


def register(spark: SparkSession) -> None:
    """Make the source known to a session, where Spark does not find it by itself.

    ``firetrail.pipeline.session`` and the jobs need no call. In a session of one's own, Spark looks
    for sources with the ``python3`` on the path, or the Python that ``PYSPARK_DRIVER_PYTHON`` or
    ``PYSPARK_PYTHON`` name. If Firetrail is not installed there (the usual case is a virtual
    environment that is not activated), Spark says DATA_SOURCE_NOT_FOUND: call this once. Batch
    writes from a thread need a call in that thread, whatever Python it is.
    """
    choose_python(spark)
    spark.dataSource.register(RocketMqDataSource)
    activate(spark)
