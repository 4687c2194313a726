"""The reader of a lake: exactly the files that its manifest lists, in any table format."""

from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_manifest import DataFile
from firetrail.pipeline.lakes.lake_source import LAKE_SCHEMA, dataset_of, frame_of


def read_lake(spark: SparkSession, lake: str | Path) -> DataFrame:
    """Return the records that an archive holds now, also while it is being written.

    The frame has the files that the manifest lists at the time of the call. Archives with Delta or
    Iceberg keep these for seven days after they are merged; plain Parquet files are only merged if
    ``compaction`` is set.

    Args:
        spark: The session to read with. It needs no library for Delta or Iceberg.
        lake: Folder or URL of the archive.

    Returns:
        The columns of the data source, ``properties_open``, ``record`` and ``day``, for every table
        format and layout. There are no rows until the first archive has ended.

    Raises:
        LakeError: The folder holds no archive.
    """
    source = Lake(str(lake))
    schema = from_arrow_schema(LAKE_SCHEMA)
    files = source.require_manifest().files
    if not files:
        return spark.createDataFrame([], schema)
    if not source.folder.hadoop_opens:
        return frame_of(spark, source.folder, [file.path for file in files])
    reader = spark.read.schema(schema).option("basePath", source.place)
    paths = [source.folder.show(file.path) for file in files]
    return reader.parquet(*paths).select(*schema.names)


def lake_dataset(lake: str | Path) -> ds.Dataset:
    """Return the records that an archive holds now, for programs that use Arrow, such as pandas.

    Args:
        lake: Folder or URL of the archive.

    Returns:
        A dataset of the same files and columns as with :func:`read_lake`.

    Raises:
        LakeError: The folder holds no archive.
    """
    source = Lake(str(lake))
    return dataset_of(source.folder, [file.path for file in source.require_manifest().files])


def lake_files(lake: str | Path) -> list[str]:
    """Return the Parquet files that an archive holds now, for programs that only need paths.

    Args:
        lake: Folder or URL of the archive.

    Returns:
        Absolute paths, or URLs if ``lake`` is one. They are in Hive-style folders: the column
        ``day``, and with the layout "topic" also ``topic``, is part of the path. The list is empty
        until the first archive has ended, and most readers refuse an empty list.

    Raises:
        LakeError: The folder holds no archive.
    """
    source = Lake(str(lake))
    return [source.folder.show(file.path) for file in source.require_manifest().files]


def archived_files(lake: str | Path) -> list[DataFile]:
    """Return the descriptions of the files of an archive."""
    return list(Lake(str(lake)).require_manifest().files)
