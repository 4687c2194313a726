"""The readers that Spark drives: they plan on the driver and read in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from firetrail.pipeline.source.batches import read_split
from firetrail.pipeline.source.damage import plan_damage, read_damage
from firetrail.pipeline.source.filters import bounds_of, is_exact
from firetrail.pipeline.source.options import ReadOptions, View
from firetrail.pipeline.source.places import is_remote
from firetrail.pipeline.source.plan import plan_batch
from firetrail.pipeline.source.ranges import NO_BOUNDS
from firetrail.pipeline.source.splits import WireSplit


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The messages of a partition's split; None stands for Spark's own, where there are none."""
    if partition.value is None:
        return iter(())
    read: Callable[..., Iterator[pa.RecordBatch]] = read_split
    if isinstance(partition.value, WireSplit):
        from firetrail.pipeline.wire.reading import read_wire as read
    return read(
        partition.value,
        columns,
        permissive=options.permissive,
        decompress=options.decompress,
        allow_loss=not options.fail_on_data_loss,
    )


class BatchReader(DataSourceReader):
    """Reads messages. It travels to the tasks, and knows no more than what was asked for."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._bounds = NO_BOUNDS

    def partitions(self) -> Sequence[InputPartition]:
        """One for each split; one of nothing if there is nothing to read."""
        splits = plan_batch(self._options, self._bounds).splits
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a split."""
        return read_partition(partition, self._options, self._columns)


class PruningReader(BatchReader):
    """Reads messages, and first hears what Spark will filter."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take note of the filters; those that are not met exactly stay with Spark."""
        self._bounds = bounds_of(filters)
        if self._options.view is not View.QUEUE or is_remote(self._options.path):
            return filters
        return [each for each in filters if not is_exact(each)]


class DamageReader(DataSourceReader):
    """Reads the corrupt-record table."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One for each part of the log, and one for what planning has found."""
        return [InputPartition(split) for split in plan_damage(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The damage in a split."""
        return iter(()) if partition.value is None else read_damage(partition.value)
