"""The choice of the writer for the format of a table."""

from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.lake_libraries import library
from firetrail.pipeline.lakes.location import check_delta_opens
from firetrail.pipeline.tables.files.delta_writer import DeltaWriter
from firetrail.pipeline.tables.files.format_rules import FormatWriter, TableFormat
from firetrail.pipeline.tables.files.parquet_writer import ParquetTableWriter
from firetrail.pipeline.tables.files.table_manifest import TableManifest
from firetrail.pipeline.tables.files.table_place import suffix_of


def check_format_opens(folder: LakeFolder, kind: TableFormat) -> None:
    """Raise ConfigError if the library of a format cannot open a table in a folder.

    Raises:
        MissingExtraError: The library is not installed.
    """
    if kind is TableFormat.DELTA:
        check_delta_opens(folder)
    elif kind is TableFormat.ICEBERG:
        library("pyiceberg.table", "iceberg", "a table")
        from firetrail.pipeline.lakes.iceberg_files import check_iceberg_opens

        check_iceberg_opens(folder)


def writer_of(folder: LakeFolder, manifest: TableManifest, table: str) -> FormatWriter:
    """Return the writer of one of the tables of a manifest.

    Args:
        folder: The folder of the table.
        manifest: The manifest.
        table: MAIN or REJECTED.

    Raises:
        MissingExtraError: The library of the format is not installed.
        ConfigError: PyIceberg is not configured for the catalog.
    """
    if manifest.format is TableFormat.PARQUET:
        return ParquetTableWriter(folder, manifest.table_id)
    if manifest.format is TableFormat.DELTA:
        return DeltaWriter(folder, manifest.table_id)
    library("pyiceberg.table", "iceberg", "a table")
    from firetrail.pipeline.tables.files.iceberg_writer import IcebergWriter
    from firetrail.pipeline.tables.files.table_catalog import open_catalog

    catalog, name = open_catalog(folder, manifest.catalog, suffix_of(table))
    return IcebergWriter(folder, manifest.table_id, manifest.fixed_columns(table), catalog, name)
