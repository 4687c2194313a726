"""Readers of a table: its rows by the library of its format, and its files for other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.tables.files.format_rules import TableFormat
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.table_manifest import MEMBER, TableManifest
from firetrail.pipeline.tables.files.table_place import suffix_of
from firetrail.pipeline.tables.runs.publication import Publication


@names_table
def table_files(to: str | Path) -> list[str]:
    """Return the data files that a table has now, for programs that only need paths.

    A table in plain Parquet has no other list of its files: some in its folder are replaced
    already. Delta and Iceberg tables are better read by their own libraries.

    Args:
        to: Folder of the table.

    Returns:
        Absolute paths. Older files may lack newer columns. They may be removed hours after they
        were replaced.

    Raises:
        LakeError: The folder has no table or a whole database, or somebody else changed it.
    """
    publication, manifest = _opened(to)
    return [publication.lake.path(file.path) for file in publication.files(manifest)]


@names_table
def table_dataset(to: str | Path) -> ds.Dataset:
    """Return the rows that a table has now, for programs that use Arrow.

    Args:
        to: Folder of the table.

    Returns:
        A dataset with all columns of the table.

    Raises:
        LakeError: The folder has no table, or somebody else changed it.
    """
    publication, manifest = _opened(to)
    names = [file.path for file in publication.files(manifest)]
    return _dataset(publication.lake, names, manifest.columns_of(manifest.schema).schema)


def _opened(to: str | Path) -> tuple[Publication, TableManifest]:
    publication = Publication(str(to))
    manifest = publication.require_manifest()
    if manifest.database is not None and MEMBER not in manifest.database:
        raise LakeError(
            f"{publication.lake.place}: is a database of tables; name the folder of one of them"
        )
    return publication, manifest


def _dataset(lake: LakeFolder, names: Sequence[str], schema: pa.Schema) -> ds.Dataset:
    paths = [lake.path(name) for name in names]
    return ds.dataset(paths, schema, format="parquet", filesystem=lake.filesystem)


def stored_rows(
    publication: Publication, manifest: TableManifest, table: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of all rows of a table, as a reader of its format finds them.

    Args:
        publication: The folders of the table.
        manifest: Its manifest.
        table: MAIN or REJECTED.
        columns: The names of the columns.
    """
    lake = publication.lakes[table]
    if manifest.format is TableFormat.DELTA:
        yield from _delta_rows(lake.place, columns)
        return
    if manifest.format is TableFormat.ICEBERG:
        yield from _iceberg_rows(manifest, table, lake, columns)
        return
    names = [file.path for file in publication.files(manifest, table)]
    yield from _dataset(lake, names, manifest.schema_of(table)).to_batches(columns=list(columns))


def _delta_rows(place: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    library: Any = import_module("deltalake")
    if not library.DeltaTable.is_deltatable(place):
        return
    names = ", ".join(f'"{name}"' for name in columns)
    query = library.QueryBuilder().register("t", library.DeltaTable(place))
    yield from map(pa.record_batch, query.execute(f"select {names} from t"))


def _iceberg_rows(
    manifest: TableManifest, table: str, lake: LakeFolder, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    from pyiceberg.table import StaticTable

    from firetrail.pipeline.lakes.iceberg_files import address_of
    from firetrail.pipeline.tables.files.table_catalog import open_catalog

    if not manifest.catalog:
        if lake.read("metadata/version-hint.text") is not None:
            yield from _scanned(StaticTable.from_metadata(address_of(lake)), columns)
        return
    catalog, name = open_catalog(lake, manifest.catalog, suffix_of(table))
    with catalog:
        if catalog.table_exists(name):
            yield from _scanned(catalog.load_table(name), columns)


def _scanned(table: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of an Iceberg table in this order, which is not that of its schema."""
    for batch in table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader():
        yield batch.select(list(columns))
