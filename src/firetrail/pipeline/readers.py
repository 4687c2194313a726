"""The batch readers for Spark: they plan on the driver and read in the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from firetrail.pipeline.backend import backend_of
from firetrail.pipeline.plan import plan_batch
from firetrail.pipeline.source.damage import plan_damage, read_damage
from firetrail.pipeline.source.options import ReadOptions
from firetrail.pipeline.source.partition import read_partition


class BatchReader(DataSourceReader):
    """Reads messages. It is pickled for the tasks, so it opens nothing before they run.

    It has no ``pushFilters`` on purpose: Spark applies the filters of one scan to all later scans
    of the same frame (docs/design/spark-filter-pushdown.md).
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._backend = backend_of(options)
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per split."""
        plan = plan_batch(self._options, columns=self._columns)
        return [InputPartition(split) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a split."""
        return read_partition(self._backend.read, partition, self._options, self._columns)


class DamageReader(DataSourceReader):
    """Reads the table of damage."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per part of the log, and one for problems found by planning."""
        return [InputPartition(split) for split in plan_damage(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the damage in a split."""
        return iter(()) if partition.value is None else read_damage(partition.value)
