"""The batch readers for Spark: they plan on the driver and read in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from firetrail.pipeline.source.batches import read_split
from firetrail.pipeline.source.damage import plan_damage, read_damage
from firetrail.pipeline.source.options import ReadOptions
from firetrail.pipeline.source.plan import plan_batch
from firetrail.pipeline.source.schema import CHEAPEST, STORE, arrow_schema
from firetrail.pipeline.source.splits import WireSplit


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition; Spark's own placeholder, with None as split, has none."""
    split = partition.value
    if split is None:
        return iter(())
    read: Callable[..., Iterator[pa.RecordBatch]] = read_split
    place = "" if isinstance(split, WireSplit) else split.store
    if isinstance(split, WireSplit):
        from firetrail.pipeline.wire.reader import read_wire as read

        place = f"namesrv={split.namesrv}"
    batches = read(
        split,
        [name for name in columns if name != STORE.name] or (CHEAPEST,),
        permissive=options.permissive,
        decompress=options.decompress,
        allow_loss=not options.fail_on_data_loss,
    )
    return batches if STORE.name not in columns else _with_store(batches, columns, place)


def _with_store(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str], place: str
) -> Iterator[pa.RecordBatch]:
    """Yield the batches with a column that names their store."""
    schema = arrow_schema(columns)
    for batch in batches:
        stores = pa.repeat(pa.scalar(place, pa.string()), batch.num_rows)
        arrays = [stores if name == STORE.name else batch.column(name) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class BatchReader(DataSourceReader):
    """Reads messages. It is pickled for the tasks, so it holds only the options and columns.

    It has no ``pushFilters`` on purpose: Spark applies the filters of one scan to all later scans
    of the same frame (docs/design/spark-filter-pushdown.md).
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per split."""
        plan = plan_batch(self._options, columns=self._columns)
        return [InputPartition(split) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a split."""
        return read_partition(partition, self._options, self._columns)


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
