"""The Iceberg table that a job writes: its commits, and a check that nobody else changed it.

Each commit is one transaction: columns, added and removed files, and the sequence of the manifest,
which is a property of the table and of the snapshot. Snapshots that only arrange files in another
way (the operation ``replace``) may be anyone's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ValidationException,
)
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.iceberg_files import (
    DurableFileIO,
    address_of,
    commit_files,
    path_of,
)
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.lake_libraries import first_line
from firetrail.pipeline.tables.files.file_merges import merge_files, small_files
from firetrail.pipeline.tables.files.folder_catalog import HINT, METADATA, FolderCatalog
from firetrail.pipeline.tables.files.iceberg_schema import (
    arrow_columns,
    change_columns,
    file_schema,
    first_schema,
    partition_of,
)
from firetrail.pipeline.tables.files.stored_file import NO_BUCKET, StoredFile, TableFile
from firetrail.pipeline.tables.files.table_columns import BUCKET
from firetrail.pipeline.tables.files.table_files import DATA
from firetrail.system import SYSTEM

_TABLE, _SEQUENCE = "firetrail.table", "firetrail.sequence"
_ATTEMPTS = 5
"""Attempts at a commit while somebody else merges the files that it replaces."""
SNAPSHOTS_MAX = 500
"""Snapshots that maintenance leaves. Each commit writes the list of them again."""
FOREIGN_KEPT_HOURS = 72
"""The time for which data files of others are kept that no snapshot has. A program that merges
files writes them, perhaps for hours, before its commit."""
_OWN_DATA = re.compile(rf"{DATA}/\d{{10}}-")
_HOUR_MS = 3_600_000
_PROPERTIES = {
    "commit.retry.num-retries": "0",  # another attempt must look for the files again
    "write.metadata.metrics.default": "truncate(16)",
}


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _closing(method: _Method) -> _Method:
    """Return a method after which the catalog has no open connection; it opens others later."""

    @wraps(method)
    def call(self: Any, *args: Any, **more: Any) -> Any:
        try:
            return method(self, *args, **more)
        finally:
            self._catalog.close()

    return cast(_Method, call)


class IcebergWriter:
    """Commits to the Iceberg table in the folder of a lake.

    Args:
        lake: The folder.
        table_id: The id of the manifest that the table belongs to.
        fixed: The names of the columns that every version of the table has.
        catalog: The catalog of the table.
        name: The namespace and the name of the table in the catalog.
    """

    def __init__(
        self,
        lake: LakeFolder,
        table_id: str,
        fixed: Collection[str],
        catalog: Catalog,
        name: tuple[str, ...],
    ) -> None:
        self._lake = lake
        self._id = table_id
        self._fixed = frozenset(fixed)
        self._catalog = catalog
        self._name = name

    @_closing
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._catalog.table_exists(self._name)

    @_closing
    def has_committed(self, sequence: int) -> bool:
        """Whether the table has the commit with the sequence of a manifest."""
        return self.exists() and _committed(self._catalog.load_table(self._name)) >= sequence

    @_closing
    def check(self, version: int | None) -> None:
        """Check that the table is the one that this job wrote."""
        if not self.exists():
            if version is not None:
                raise LakeError(
                    f"{self._lake.place}: the Iceberg table is missing, but its manifest exists; "
                    "restore it, or remove the folder to begin a new table"
                )
            return
        table = self._catalog.load_table(self._name)
        self._check_own(table)
        self._check_snapshots(table, version)

    def _check_own(self, table: Table) -> None:
        if table.properties.get(_TABLE) != self._id:
            raise LakeError(
                f"{self._lake.place}: is an Iceberg table that this job did not create; choose "
                "another folder or name"
            )
        if path_of(table.location()) != path_of(address_of(self._lake)):
            raise LakeError(
                f"{self._lake.place}: the Iceberg table is in {table.location()}; move it back"
            )

    def _check_snapshots(self, table: Table, known: int | None) -> None:
        """Raise LakeError for a snapshot after version ``known`` that is not ours."""
        newest = table.current_snapshot()
        number = 0 if newest is None else newest.sequence_number or 0
        since = known or 0
        if number < since:
            raise self._older(number, since)
        self._check_metadata(table.metadata, newest)
        for snapshot in ancestors_of(newest, table.metadata):
            number = snapshot.sequence_number or 0
            if number < since:
                raise self._older(number, since)
            if number == since:
                return
            operation = None if snapshot.summary is None else snapshot.summary.operation
            if not self._is_ours(snapshot) and operation is not Operation.REPLACE:
                kind = "unknown" if operation is None else operation.value
                raise self._foreign(f"version {number} ({kind})")
            parent = snapshot.parent_snapshot_id
            if parent is not None and table.snapshot_by_id(parent) is None:
                if number > since + 1:
                    raise self._foreign(f"the expiry of versions before {number}")
                return

    def _check_metadata(self, metadata: TableMetadata, newest: Snapshot | None) -> None:
        """Raise LakeError if somebody else has changed the columns or the partitions."""
        if newest is not None and newest.schema_id != metadata.current_schema_id:
            raise self._foreign("a change of the columns")
        partitions = [field.name for field in metadata.spec().fields]
        if partitions != ([BUCKET] if BUCKET in self._fixed else []):
            raise self._foreign("a change of the partitions")

    def _older(self, number: int, since: int) -> LakeError:
        return LakeError(
            f"{self._lake.place}: has version {number}, but this job has written version {since}: "
            "the table was replaced or rolled back; restore it, or begin a new table"
        )

    def _foreign(self, what: str) -> LakeError:
        return LakeError(
            f"{self._lake.place}: {what} is not a commit of this job, which must be the only "
            "writer of the table; begin a new table"
        )

    def _is_ours(self, snapshot: Snapshot) -> bool:
        return snapshot.summary is not None and snapshot.summary.get(_TABLE) == self._id

    @_closing
    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a data file, with the ids that the table has or will have."""
        table = self._catalog.load_table(self._name) if self.exists() else self._staged(schema)
        transaction = table.transaction()
        change_columns(transaction, schema, self._fixed)
        return file_schema(schema, transaction.table_metadata.schema())

    def _staged(self, schema: pa.Schema) -> Table:
        """Return a table that does not exist, with its first columns."""
        first = first_schema(schema, self._fixed)
        place = address_of(self._lake)
        content = new_table_metadata(first, partition_of(first), UNSORTED_SORT_ORDER, place)
        return Table(self._name, content, "", DurableFileIO(), self._catalog)

    @_closing
    def commit(
        self,
        schema: pa.Schema,
        files: Iterable[TableFile],
        sequence: int,
        known: int | None,
        *,
        buckets: Collection[int] = (),
        rewritten: bool = False,
    ) -> int:
        """Add and replace files, unless the transaction was committed before."""
        files = list(files)
        for attempt in range(1, _ATTEMPTS + 1):
            table = self._open(schema)
            self._check_snapshots(table, known)
            if _committed(table) >= sequence:
                break
            old = _data_files(table) if rewritten or buckets else []
            removed = [file for file in old if rewritten or _bucket_of(file) in buckets]
            try:
                with self._explained():
                    self._write(table, schema, files, removed, sequence)
            except LakeError as error:
                conflict = isinstance(error.__cause__, CommitFailedException | ValidationException)
                if attempt == _ATTEMPTS or not conflict:
                    raise
        table = self._catalog.load_table(self._name)
        self._check_snapshots(table, known)
        if isinstance(self._catalog, FolderCatalog):
            self._catalog.publish()
        newest = table.current_snapshot()
        assert newest is not None
        return int(newest.sequence_number or 0)

    def _open(self, schema: pa.Schema) -> Table:
        if not self.exists():
            first = first_schema(schema, self._fixed)
            self._catalog.create_namespace_if_not_exists(self._name[:-1])
            self._catalog.create_table(
                self._name,
                first,
                address_of(self._lake),
                partition_of(first),
                properties={**_PROPERTIES, _TABLE: self._id},
            )
        table = self._catalog.load_table(self._name)
        self._check_own(table)
        return table

    def _write(
        self,
        table: Table,
        schema: pa.Schema,
        files: Iterable[TableFile],
        removed: Iterable[DataFile],
        sequence: int,
    ) -> None:
        """Commit columns and files in one transaction."""
        properties = {_TABLE: self._id, _SEQUENCE: str(sequence)}
        with table.transaction() as transaction:
            change_columns(transaction, schema, self._fixed)
            transaction.set_properties({_SEQUENCE: str(sequence)})
            added = [self._data_file(transaction, file) for file in files]
            commit_files(transaction, properties, added, removed)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise LakeError, which names the table, for errors of commits."""
        try:
            yield
        except (
            CommitFailedException,
            CommitStateUnknownException,
            ValidationException,
        ) as error:
            raise LakeError(
                f"{self._lake.place}: the commit failed ({first_line(error)}); run the job again"
            ) from error

    def _data_file(self, transaction: Transaction, file: TableFile) -> DataFile:
        """Return the description of a file, with the statistics of its footer."""
        metadata = transaction.table_metadata
        schema = metadata.schema()
        with self._lake.filesystem.open_input_file(self._lake.path(file.path)) as opened:
            footer = pq.read_metadata(opened)
        statistics = data_file_statistics_from_parquet_metadata(
            footer,
            compute_statistics_plan(schema, metadata.properties),
            parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=address_of(self._lake, file.path),
            file_format=FileFormat.PARQUET,
            partition=Record() if file.bucket == NO_BUCKET else Record(file.bucket),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    # -- maintenance --------------------------------------------------------------------------

    @_closing
    def maintain(self, sequence: int, keep_hours: int) -> None:
        """Merge small files, expire old snapshots, and remove files that no snapshot has."""
        if not self.exists():
            return
        table = self._catalog.load_table(self._name)
        for group in small_files(self._stored(table)):
            self._merge(table, group, sequence)
            table = self._catalog.load_table(self._name)
        before_ms = SYSTEM.clock.now_ms() - keep_hours * _HOUR_MS
        self._expire(table, before_ms)
        self._remove_unreferenced(self._catalog.load_table(self._name), before_ms)

    def _expire(self, table: Table, before_ms: int) -> None:
        """Expire the snapshots before a time, and more if there are many."""
        snapshots = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
        excess = {snapshot.snapshot_id for snapshot in snapshots[:-SNAPSHOTS_MAX]}
        named = {reference.snapshot_id for reference in table.refs().values()}
        old = [
            snapshot.snapshot_id
            for snapshot in snapshots
            if snapshot.snapshot_id not in named
            and (snapshot.timestamp_ms <= before_ms or snapshot.snapshot_id in excess)
        ]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def _merge(self, table: Table, group: list[StoredFile], sequence: int) -> None:
        columns = file_schema(arrow_columns(table.schema()), table.schema())
        merged = merge_files(self._lake, group, columns, sequence)
        self._lake.reveal([file.path for file in merged])
        paths = {file.path for file in group}
        removed = [file for file in _data_files(table) if self._path(file) in paths]
        with self._explained(), table.transaction() as transaction:
            added = [self._data_file(transaction, file) for file in merged]
            commit_files(transaction, {_TABLE: self._id, _SEQUENCE: str(sequence)}, added, removed)

    def _remove_unreferenced(self, table: Table, before_ms: int) -> None:
        """Remove files that no snapshot has and that were not changed since a time.

        Readers need the files of metadata only when they begin, so these are kept for an hour.
        """
        used = {path_of(table.metadata_location), self._lake.path(HINT)}
        used |= {path_of(entry.metadata_file) for entry in table.metadata.metadata_log}
        for snapshot in table.snapshots():
            used.add(path_of(snapshot.manifest_list))
            for manifest in snapshot.manifests(table.io):
                path = path_of(manifest.manifest_path)
                if path in used:
                    continue
                used.add(path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                used |= {path_of(entry.data_file.file_path) for entry in entries}
        now_ms = SYSTEM.clock.now_ms()
        hour_ago_ms = max(before_ms, now_ms - _HOUR_MS)
        foreign_ms = min(before_ms, now_ms - FOREIGN_KEPT_HOURS * _HOUR_MS)
        old = {name for name in self._lake.names(before_ms) if _OWN_DATA.match(name)}
        old |= {name for name in self._lake.names(foreign_ms) if name.startswith(f"{DATA}/")}
        old |= {name for name in self._lake.names(hour_ago_ms) if name.startswith(f"{METADATA}/")}
        for name in sorted(old):
            if self._lake.path(name) not in used:
                self._lake.remove(name)

    # -- files --------------------------------------------------------------------------------

    @_closing
    def files(self) -> list[StoredFile]:
        """Return the files of the table."""
        return self._stored(self._catalog.load_table(self._name)) if self.exists() else []

    def _stored(self, table: Table) -> list[StoredFile]:
        return [
            StoredFile(self._path(file), file.file_size_in_bytes, _bucket_of(file))
            for file in _data_files(table)
        ]

    def _path(self, file: DataFile) -> str:
        """Return the path of a file relative to the table."""
        path, folder = path_of(file.file_path), self._lake.path("")
        if not path.startswith(folder):
            raise LakeError(
                f"{self._lake.place}: has the file {file.file_path}, which is not in this folder; "
                "begin a new table"
            )
        return path.removeprefix(folder)


def _committed(table: Table) -> int:
    """Return the sequence of the newest manifest that the table has; -1 without any."""
    return int(table.properties.get(_SEQUENCE, -1))


def _data_files(table: Table) -> list[DataFile]:
    """Return the files of the newest version, whose names begin with the sequence."""
    files = [task.file for task in table.scan().plan_files()]
    return sorted(files, key=lambda file: str(file.file_path))


def _bucket_of(file: DataFile) -> int:
    return int(file.partition[0]) if len(file.partition) else NO_BUCKET
