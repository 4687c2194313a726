"""The data source of lakes whose file system Spark itself cannot open; Arrow reads their files."""

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.lake_schema import DAY, FULL_SCHEMA
from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.spark_session import choose_python

LAKE_SCHEMA: pa.Schema = FULL_SCHEMA.append(DAY)
ROWS_PER_BATCH = 8192


def dataset_of(folder: LakeFolder, names: list[str]) -> ds.Dataset:
    """Return the rows of data files, with the columns that are part of their paths."""
    place = {"filesystem": folder.filesystem, "partition_base_dir": folder.path("")}
    paths = [folder.path(name) for name in names]
    return ds.dataset(paths, LAKE_SCHEMA, format="parquet", partitioning="hive", **place)


def frame_of(spark: SparkSession, folder: LakeFolder, names: list[str]) -> DataFrame:
    """Return the same as a frame, with a task per file."""
    choose_python(spark)
    spark.dataSource.register(LakeSource)
    reader = spark.read.format(LakeSource.name())
    return reader.option("place", folder.place).option("files", json.dumps(names)).load()


class LakeSource(DataSource):
    """Reads the files of a lake that its options list."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "firetrail_lake"

    def schema(self) -> StructType:
        """Return the columns of every lake."""
        return from_arrow_schema(LAKE_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the files."""
        return _LakeFiles(self.options["place"], json.loads(self.options["files"]))


class _LakeFiles(DataSourceReader):
    """Reads one file per task. Each process opens the lake with credentials of its own."""

    def __init__(self, place: str, names: list[str]) -> None:
        self._place = place
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per file."""
        return [InputPartition(name) for name in self._names]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file."""
        folder = open_folder(self._place)
        with folder.reading(partition.value):
            ahead = {"batch_readahead": 1, "fragment_readahead": 1}
            yield from dataset_of(folder, [partition.value]).to_batches(
                batch_size=ROWS_PER_BATCH, **ahead
            )
