"""The catalog of an Iceberg table: that of its folder, or one that PyIceberg is configured for.

The properties of a catalog, with its credentials, are those of PyIceberg's own configuration
(``.pyiceberg.yaml``, ``PYICEBERG_CATALOG__NAME__…``). Only the driver reads them.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NotInstalledError

from firetrail.errors import ConfigError
from firetrail.pipeline.lakes.iceberg_files import FILE_ACCESS
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.tables.files.folder_catalog import FolderCatalog


def open_catalog(folder: LakeFolder, name: str, suffix: str) -> tuple[Catalog, tuple[str, ...]]:
    """Return the catalog of a table, and the name of the table in it.

    Args:
        folder: The folder of the table.
        name: The names of catalog, namespace and table, with dots; empty without a catalog.
        suffix: What is added to the name of the table.

    Raises:
        ConfigError: PyIceberg is not configured for the catalog.
    """
    if not name:
        return FolderCatalog(folder), ("folder", "table")
    catalog, *namespace, table = name.split(".")
    try:
        return load_catalog(catalog, **FILE_ACCESS), (*namespace, table + suffix)
    except (ValueError, NotInstalledError) as error:
        missing = f" ({error})" if isinstance(error, NotInstalledError) else ""
        # the text of a ValueError can have the URI, with its password
        reason = f"PyIceberg does not open the catalog {catalog!r}{missing}; set its type and uri"
        where = f"~/.pyiceberg.yaml or PYICEBERG_CATALOG__{catalog.upper()}__URI"
        raise ConfigError("catalog", name, f"{reason}, for example in {where}") from None
