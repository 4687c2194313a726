"""The Delta table that a job writes: its commits, and a check that nobody else changed it.

Each commit has the id of the table and the sequence of the manifest in its ``txn`` action and in
its commit info. Commits that only rearrange or remove old files (OPTIMIZE, VACUUM) may be anyone's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.delta_log import sync_delta_commits
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.lake_libraries import first_line, library
from firetrail.pipeline.tables.files.file_statistics import INDEXED_COLUMNS, indexed_columns
from firetrail.pipeline.tables.files.stored_file import NO_BUCKET, StoredFile, TableFile
from firetrail.pipeline.tables.files.table_columns import BUCKET
from firetrail.system import SYSTEM

_TABLE, _SEQUENCE = "firetrail.table", "firetrail.sequence"
_ATTEMPTS = 5
"""Attempts at a commit while somebody else merges the files that it replaces."""
_MAINTENANCE = {"OPTIMIZE", "VACUUM START", "VACUUM END"}


class DeltaWriter:
    """Commits to the Delta table in the folder of a lake.

    Args:
        lake: The folder.
        table_id: The id of the manifest that the table belongs to.
    """

    def __init__(self, lake: LakeFolder, table_id: str) -> None:
        self._lake = lake
        self._id = table_id
        self._library: Any = library("deltalake", "delta", "a table")

    def exists(self) -> bool:
        """Whether there is a table."""
        return bool(self._library.DeltaTable.is_deltatable(self._lake.place))

    def has_committed(self, sequence: int) -> bool:
        """Whether the table has the commit with the sequence of a manifest."""
        return self.exists() and self._has_transaction(
            self._library.DeltaTable(self._lake.place), sequence
        )

    def _has_transaction(self, table: Any, sequence: int) -> bool:
        done = table.transaction_version(self._id)
        return done is not None and done >= sequence

    def check(self, version: int | None) -> None:
        """Check that the table is the one that this job wrote."""
        if not self.exists():
            if version is not None:
                raise LakeError(
                    f"{self._lake.place}: the Delta table is missing, but its manifest exists; "
                    "restore it, or remove the folder to begin a new table"
                )
            return
        table = self._library.DeltaTable(self._lake.place)
        if table.metadata().configuration.get(_TABLE) != self._id:
            raise LakeError(
                f"{self._lake.place}: is a Delta table that this job did not create; choose "
                "another folder"
            )
        self._check_commits(table, version)

    def _check_commits(self, table: Any, known: int | None) -> None:
        """Raise LakeError for a commit after version ``known`` that is not ours."""
        newest, since = table.version(), -1 if known is None else known
        if newest < since:
            raise LakeError(
                f"{self._lake.place}: has version {newest}, but this job has written version "
                f"{since}: the table was replaced; restore it, or begin a new table"
            )
        for commit in table.history(newest - since) if newest > since else ():
            ours = commit.get(_TABLE) == self._id
            if commit["version"] > since and not ours and commit["operation"] not in _MAINTENANCE:
                raise LakeError(
                    f"{self._lake.place}: version {commit['version']} ({commit['operation']}) is "
                    "not a commit of this job, which must be the only writer of the table; begin "
                    "a new table"
                )

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a data file, which does not have that of its bucket."""
        return pa.schema([field for field in schema if field.name != BUCKET])

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
        conflict = self._library.exceptions.CommitFailedError
        for attempt in range(1, _ATTEMPTS + 1):
            table = self._open(schema, sequence)
            self._check_commits(table, known)
            if self._has_transaction(table, sequence):
                break  # also after a commit of this loop, which the next attempt sees
            try:
                with self._explained():
                    self._write(table, schema, files, sequence, None if rewritten else buckets)
            except LakeError as error:
                if attempt == _ATTEMPTS or not isinstance(error.__cause__, conflict):
                    raise
        table.update_incremental()
        self._check_commits(table, known)
        sync_delta_commits(self._lake, -1 if known is None else known, table.version())
        return int(table.version())

    def _write(
        self,
        table: Any,
        schema: pa.Schema,
        files: list[TableFile],
        sequence: int,
        buckets: Collection[int] | None,
    ) -> None:
        """Commit files; those of some buckets that the table has at this time, or all, go.

        It is not an error to remove a file that the table does not have, so the commit must be the
        very next version: then these are all files. When delta-rs tries again with a later version,
        it does not look for OPTIMIZE in between.
        """
        rewritten = buckets is None
        if rewritten:
            self._keep_indexed(table, schema, sequence)
        else:
            self._add_columns(table, schema, sequence)
        removed = [file for file in _files_of(table) if file.bucket in buckets] if buckets else []
        transaction = self._library.Transaction(self._id, sequence)
        table.create_write_transaction(
            [*map(self._addition, files), *map(self._removal, removed)],
            "overwrite" if rewritten else "append",
            schema if rewritten else table.schema(),
            partition_by=_partitions(schema),
            commit_properties=self._properties(
                sequence, app_transactions=[transaction], max_commit_retries=0
            ),
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise LakeError, which names the table, for errors of the library."""
        try:
            yield
        except self._library.exceptions.DeltaError as error:
            raise LakeError(
                f"{self._lake.place}: the commit failed ({first_line(error)}); run the job again"
            ) from error

    def maintain(self, sequence: int, keep_hours: int) -> None:
        """Merge small files, and remove replaced ones, in commits of their own."""
        if self.exists():
            table = self._library.DeltaTable(self._lake.place)
            table.optimize.compact()
            table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False)

    def files(self) -> list[StoredFile]:
        """Return the files of the table."""
        return _files_of(self._library.DeltaTable(self._lake.place)) if self.exists() else []

    def _open(self, schema: pa.Schema, sequence: int) -> Any:
        if self.exists():
            return self._library.DeltaTable(self._lake.place)
        return self._library.DeltaTable.create(
            self._lake.place,
            schema=schema,
            partition_by=_partitions(schema),
            configuration={
                _TABLE: self._id,
                INDEXED_COLUMNS: ",".join(indexed_columns(schema)),
            },
            raise_if_key_not_exists=False,
            commit_properties=self._properties(sequence),
        )

    def _add_columns(self, table: Any, schema: pa.Schema, sequence: int) -> None:
        present = {field.name for field in table.schema().fields}
        new = [field for field in schema if field.name not in present]
        if new:
            fields = self._library.Schema.from_arrow(pa.schema(new)).fields
            table.alter.add_columns(fields, commit_properties=self._properties(sequence))
            table.update_incremental()

    def _keep_indexed(self, table: Any, schema: pa.Schema, sequence: int) -> None:
        """Leave only those columns with statistics whose types still have them."""
        known = table.metadata().configuration.get(INDEXED_COLUMNS, "")
        names = set(indexed_columns(schema))
        kept = ",".join(name for name in known.split(",") if name in names)
        if kept != known:
            table.alter.set_table_properties(
                {INDEXED_COLUMNS: kept}, commit_properties=self._properties(sequence)
            )
            table.update_incremental()

    def _properties(self, sequence: int, **more: Any) -> Any:
        metadata = {_TABLE: self._id, _SEQUENCE: sequence}
        return self._library.CommitProperties(custom_metadata=metadata, **more)

    def _addition(self, file: TableFile) -> Any:
        transaction = import_module("deltalake.transaction")
        return transaction.AddAction(
            file.path, file.size, _partition_of(file.bucket), 0, True, file.stats
        )

    def _removal(self, file: StoredFile) -> Any:
        transaction = import_module("deltalake.transaction")
        return transaction.RemoveAction(
            file.path, True, SYSTEM.clock.now_ms(), file.size, _partition_of(file.bucket)
        )


def _files_of(table: Any) -> list[StoredFile]:
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    bucket = f"partition.{BUCKET}"
    return [
        StoredFile(each["path"], each["size_bytes"], int(each.get(bucket, NO_BUCKET)))
        for each in actions
    ]


def _partitions(schema: pa.Schema) -> list[str]:
    return [BUCKET] if BUCKET in schema.names else []


def _partition_of(bucket: int) -> dict[str, str]:
    return {} if bucket == NO_BUCKET else {BUCKET: str(bucket)}
