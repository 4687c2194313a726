"""The partitions of a read, whichever place their splits are read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from firetrail.pipeline.source.options import ReadOptions
from firetrail.pipeline.source.schema import CHEAPEST, STORE, arrow_schema


def read_partition(
    read: Callable[..., Iterator[pa.RecordBatch]],
    partition: InputPartition,
    options: ReadOptions,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition, whose split ``read`` takes.

    Spark's own placeholder, with None as split, has no messages.
    """
    split = partition.value
    if split is None:
        return iter(())
    batches = read(
        split,
        [name for name in columns if name != STORE.name] or (CHEAPEST,),
        permissive=options.permissive,
        decompress=options.decompress,
        allow_loss=not options.fail_on_data_loss,
    )
    return batches if STORE.name not in columns else _with_store(batches, columns, split.store)


def _with_store(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str], place: str
) -> Iterator[pa.RecordBatch]:
    """Yield the batches with a column that names their store."""
    schema = arrow_schema(columns)
    for batch in batches:
        stores = pa.repeat(pa.scalar(place, pa.string()), batch.num_rows)
        arrays = [stores if name == STORE.name else batch.column(name) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
