"""The data source ``rocketmq`` as Spark sees it.

Spark creates it from the options alone, in a separate process, and pickles it. So nothing is opened
before Spark asks for a reader.
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
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from firetrail.errors import ConfigError, FiretrailError, PipelineError
from firetrail.pipeline.backend import backend_of
from firetrail.pipeline.daemon import hush_planner, in_one_line
from firetrail.pipeline.sink import store_writers
from firetrail.pipeline.sink.sink_columns import is_wire
from firetrail.pipeline.source import damage
from firetrail.pipeline.source.given_schema import given_columns
from firetrail.pipeline.source.schema import BY_NAME, arrow_schema, ddl, own_name
from firetrail.pipeline.source.source_options import View, parse_options, parse_shape, table_options
from firetrail.pipeline.spark_readers import BatchReader, DamageReader, RefusedStream
from firetrail.pipeline.spark_session import activate, choose_python, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOTED = "rocketmq"
"""Key in the metadata of a table's columns."""

hush_planner()


class RocketMqDataSource(DataSource):
    """Messages of a RocketMQ store or of brokers.

    The options are described in ``firetrail.pipeline.source.source_options``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "rocketmq"

    @in_one_line
    def schema(self) -> str | StructType:
        """Return the columns, all or those of the option ``columns``."""
        table = table_options(self.options)
        view, columns = parse_shape(self.options if table is None else table)
        if table is None:
            return damage.DDL if view is View.DAMAGE else ddl(columns)
        return _with_options(damage.SCHEMA if view is View.DAMAGE else arrow_schema(columns), table)

    def _all_options(self, schema: StructType) -> dict[str, str]:
        """Return the options together with those that a table has in its schema."""
        return (_noted_options(schema) or {}) | dict(self.options)

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of batches with the columns of the schema."""
        options = parse_options(self._all_options(schema))
        if options.view is View.DAMAGE:
            return DamageReader(options, given_columns(schema, damage.SCHEMA))
        return BatchReader(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of micro-batches.

        If this raised an error, Spark would report only that it has no reader to stop. So a reader
        raises it at the first call.
        """
        try:
            options = parse_options(self._all_options(schema), stream=True)
            return backend_of(options).stream_reader(options, columns_of(schema))
        except FiretrailError as error:
            return RefusedStream(error)

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of batches; ``firetrail.pipeline.sink.sink_columns`` has its options."""
        if not {"path", "namesrv"} & dict(self.options).keys():
            remedy = (
                "a table of the catalog is read-only, because Spark does not pass its path to the "
                "sink: write with df.write.format('rocketmq').mode('append').save(PATH)"
            )
            raise ConfigError("path", "", remedy)
        if is_wire(self.options):
            from firetrail.pipeline.wire import broker_writers as wire_writers

            return wire_writers.batch_writer(schema, self.options, overwrite)
        return store_writers.batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer of micro-batches."""
        if is_wire(self.options):
            from firetrail.pipeline.wire import broker_writers as wire_writers

            return wire_writers.stream_writer(schema, self.options, overwrite)
        return store_writers.stream_writer(schema, self.options, overwrite)


def _with_options(columns: pa.Schema, options: Mapping[str, str]) -> StructType:
    """Return a table's schema that contains its options: Spark passes only the schema to scans.

    Every column contains them, because ALTER TABLE can drop any of the columns.
    """
    schema = from_arrow_schema(columns)
    for field in schema.fields:
        field.metadata[_NOTED] = json.dumps(options)
    return schema


def _noted_options(schema: StructType) -> dict[str, str] | None:
    """Return the options in a table's schema; None if the schema is not that of a table."""
    for field in schema.fields:
        if noted := field.metadata.get(_NOTED):
            options: dict[str, str] = json.loads(noted)
            return options
    return None


def columns_of(schema: StructType) -> Sequence[str]:
    """Return the columns of a schema; raise ConfigError unless they are the source's own."""
    if _noted_options(schema) is not None:
        _check_altered(schema.fieldNames())
    return given_columns(schema, arrow_schema(tuple(BY_NAME)))


def _check_altered(names: Sequence[str]) -> None:
    """Raise ConfigError if ALTER TABLE added or renamed a column, which Spark allows."""
    for name in names:
        if own_name(name) not in BY_NAME:
            remedy = (
                "the source has no such column, and its tables cannot have further ones: undo the "
                f"ALTER TABLE (DROP COLUMN {name}, or RENAME COLUMN {name} TO its old name), and "
                "define derived columns in a view"
            )
            raise ConfigError("column", name, remedy)


def register(spark: SparkSession) -> None:
    """Register the data source ``rocketmq`` with a session that does not find it by itself.

    Sessions of :func:`firetrail.pipeline.session`, and the jobs, need no call. In other sessions
    Spark looks for data sources with the ``python3`` on the path, or with the Python that
    ``PYSPARK_DRIVER_PYTHON`` or ``PYSPARK_PYTHON`` names. If Firetrail is not installed there,
    usually because a virtual environment is not activated, Spark raises DATA_SOURCE_NOT_FOUND. In
    that case, call this function once. A thread that writes batches needs a call of its own, with
    any Python.

    Args:
        spark: The session.
    """
    choose_python(spark)
    spark.dataSource.register(RocketMqDataSource)
    activate(spark)


def prepare(spark: SparkSession) -> None:
    """Prepare a session that was started without Firetrail for its jobs.

    Raises PipelineError for a session of Spark Connect.
    """
    if is_connect(spark):
        raise PipelineError(
            "sql() and the jobs need Spark's JVM, which this session of Spark Connect does not give"
            " access to: use a session of firetrail.pipeline.session(). With Spark Connect you can "
            "read, write and stream with the data source 'rocketmq', also with SQL: "
            "spark.read.format('rocketmq').load(PATH).createOrReplaceTempView('messages')"
        )
    if choose_python(spark):
        register(spark)
