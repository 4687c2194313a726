"""The reader of a lake: exactly the files that its manifest lists, in any table format."""

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from firetrail.pipeline.jobs.archive.lake import Lake
from firetrail.pipeline.jobs.archive.manifest import DataFile
from firetrail.pipeline.jobs.archive.parquet_files import FULL_SCHEMA
from firetrail.pipeline.jobs.archive.table_formats import DAY

_SCHEMA: pa.Schema = FULL_SCHEMA.append(DAY)


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
    schema = from_arrow_schema(_SCHEMA)
    paths = lake_files(lake)
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", source.place)
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
    paths = [source.folder.path(file.path) for file in source.require_manifest().files]
    place = {"filesystem": source.folder.filesystem, "partition_base_dir": source.folder.path("")}
    return ds.dataset(paths, _SCHEMA, format="parquet", partitioning="hive", **place)


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
