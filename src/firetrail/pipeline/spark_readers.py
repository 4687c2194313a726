"""The readers for Spark: they plan on the driver and read in the tasks."""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from firetrail.errors import FiretrailError
from firetrail.pipeline.backend import backend_of
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.daemon import in_one_line
from firetrail.pipeline.source.damage import SCHEMA, plan_damage, read_damage
from firetrail.pipeline.source.partition import read_partition, renamed
from firetrail.pipeline.source.schema import own_name
from firetrail.pipeline.source.source_options import ReadOptions


class BatchReader(DataSourceReader):
    """Reads messages. It is pickled for the tasks, so it opens nothing before they run.

    It has no ``pushFilters`` on purpose: Spark applies the filters of one scan to all later scans
    of the same frame (docs/design/spark-filter-pushdown.md).
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._backend = backend_of(options)
        self._options = options
        self._columns = tuple(columns)

    @in_one_line
    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per split."""
        plan = plan_batch(self._options, columns=[*map(own_name, self._columns)])
        return [InputPartition(split) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a split."""
        return read_partition(self._backend.read, partition, self._options, self._columns)


class DamageReader(DataSourceReader):
    """Reads the table of damage."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    @in_one_line
    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per part of the log, and one for problems found by planning."""
        return [InputPartition(split) for split in plan_damage(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the damage in a split."""
        if partition.value is None:
            return iter(())
        own = [own_name(name, SCHEMA.names) for name in self._columns]
        return renamed((batch.select(own) for batch in read_damage(partition.value)), self._columns)


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream that cannot be read: every call that plans raises the reason."""

    def __init__(self, error: FiretrailError) -> None:
        self._error = error

    @in_one_line
    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error, at the start of a new query."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Raise the error, at the start of a query that reads what there is."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise the error, at the start of a query that continues."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error, at a micro-batch that is repeated."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        self._refuse()
