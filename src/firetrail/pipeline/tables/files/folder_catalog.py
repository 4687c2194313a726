"""A catalog of one Iceberg table, whose files are all in its folder.

::

    LAKE/NAME/metadata/v<number>.metadata.json   a version of the table
    LAKE/NAME/metadata/version-hint.text         the number of the newest one

This is the layout of Iceberg's own Hadoop catalog. So engines that open a table by its path find
the newest version: Spark and Flink with Iceberg's runtime, DuckDB (``iceberg_scan``), and PyIceberg
(``StaticTable``). A catalog in SQLite would be known to PyIceberg alone.

A commit creates the file of the next version, which fails if somebody else has created it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from firetrail.errors import LakeConflictError
from firetrail.pipeline.lakes.iceberg_files import FILE_ACCESS, address_of
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.system import SYSTEM

METADATA = "metadata"
HINT = f"{METADATA}/version-hint.text"
_VERSION = re.compile(r"v([0-9]+)\.metadata\.json")


class FolderCatalog(NoopCatalog, MetastoreCatalog):
    """The table in a folder.

    Args:
        lake: The folder, which must be local.
    """

    def __init__(self, lake: LakeFolder) -> None:
        super().__init__("folder", **FILE_ACCESS)
        self._lake = lake

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Whether there is a table."""
        return self._newest() is not None

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return the newest version of the table."""
        newest = self._newest()
        if newest is None:
            raise NoSuchTableError(f"{self._lake.place}: has no Iceberg table")
        location = address_of(self._lake, _name_of(newest))
        io = self._load_file_io(location=location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table(self.identifier_to_tuple(identifier), metadata, location, io, self)

    def create_namespace(
        self, namespace: str | Identifier, properties: Properties = EMPTY_DICT
    ) -> None:
        """Do nothing: a folder has no namespaces."""

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create the table, without a snapshot."""
        assert isinstance(schema, Schema)
        staged = MetastoreCatalog.create_table_transaction(
            self, identifier, schema, location, partition_spec, sort_order, properties
        )
        staged.commit_transaction()
        return self.load_table(identifier)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Create the next version; raise CommitFailedException if somebody else has created it."""
        is_new = any(isinstance(each, AssertCreate) for each in requirements)
        newest = self._newest()
        current = None if newest is None or is_new else self.load_table(table.name())
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        number = 1 if newest is None else newest + 1
        if is_new and newest is not None:
            raise CommitFailedException("another table was created at the same time")
        self._create(number, staged.metadata.model_dump_json(exclude_none=True).encode())
        self.publish()
        location = address_of(self._lake, _name_of(number))
        answer = {"metadata": staged.metadata, "metadata-location": location}
        return CommitTableResponse.model_validate(answer)

    def publish(self) -> None:
        """Tell readers which version is the newest, which a killed commit has not done."""
        newest = self._newest()
        if newest is not None and self._lake.read(HINT) != str(newest).encode():
            self._lake.publish(HINT, str(newest).encode())

    def _newest(self) -> int | None:
        folder = Path(self._lake.path(METADATA))
        if not folder.is_dir():
            return None
        found = [_VERSION.fullmatch(name) for name in SYSTEM.files.names(folder)]
        return max((int(each[1]) for each in found if each), default=None)

    def _create(self, number: int, content: bytes) -> None:
        """Create the file of a version durably, and as a whole."""
        try:
            self._lake.add(_name_of(number), content)
        except LakeConflictError as error:
            raise CommitFailedException(f"version {number} was committed by another job") from error


def _name_of(number: int) -> str:
    return f"{METADATA}/v{number}.metadata.json"
