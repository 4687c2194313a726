"""The partitions of a read, whose splits are read from a store or from brokers."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from firetrail.pipeline.source.schema import CHEAPEST, STORE, arrow_schema, own_name
from firetrail.pipeline.source.source_options import ReadOptions


def read_partition(
    read: Callable[..., Iterator[pa.RecordBatch]],
    partition: InputPartition,
    options: ReadOptions,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition, whose split ``read`` takes.

    The columns of the batches are named as in ``columns``, which may be in any case. Spark's own
    placeholder, with None as split, has no messages.
    """
    split = partition.value
    if split is None:
        return iter(())
    given, columns = columns, [*map(own_name, columns)]
    batches = read(
        split,
        [name for name in columns if name != STORE.name] or (CHEAPEST,),
        permissive=options.permissive,
        decompress=options.decompress,
        allow_loss=not options.fail_on_data_loss,
    )
    if STORE.name in columns:
        batches = _with_store(batches, columns, split.store)
    return batches if columns == [*given] else renamed(batches, given)


def renamed(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with other names for their columns."""
    for batch in batches:
        yield batch.rename_columns([*columns])


def _with_store(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str], place: str
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(columns)
    for batch in batches:
        stores = pa.repeat(pa.scalar(place, pa.string()), batch.num_rows)
        arrays = [stores if name == STORE.name else batch.column(name) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
