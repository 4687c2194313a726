"""The change of a table with a key: the buckets to merge, and the files that result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.schema.arrow_types import ddl_type
from firetrail.pipeline.decoding.schema.table_schema import TableSchema
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.tables.files.format_rules import TableFormat
from firetrail.pipeline.tables.files.stored_file import StoredFile, TableFile
from firetrail.pipeline.tables.files.table_manifest import TableManifest
from firetrail.pipeline.tables.keyed.bucket_content import MergeResult, MergeTask
from firetrail.pipeline.tables.keyed.bucket_rows import BucketRows
from firetrail.pipeline.tables.keyed.history_task import merge_history
from firetrail.pipeline.tables.keyed.keys import keeps_keys, key_columns
from firetrail.pipeline.tables.keyed.merge_task import merge_bucket


@dataclass(frozen=True)
class Change:
    """The files that the main table gains, and the rows."""

    files: list[TableFile] = field(default_factory=list)
    buckets: Sequence[int] = ()
    """The buckets whose files are replaced."""
    deletes: Mapping[int, str] = field(default_factory=dict)
    inserted: int = 0
    updated: int = 0
    """Rows that a newer version replaced; with history, rows whose validity changed."""
    deleted: int = 0


def checked_key(manifest: TableManifest, schema: TableSchema) -> list[str]:
    """Return the columns of a table's key as a schema names them; none without a key.

    Raises:
        ConfigError: A column does not exist, or its type can be no key, or changes the keys.
    """
    found = key_columns(manifest.key, schema)
    for name in found:
        known, kind = manifest.schema.type_of(name), schema.arrow.field(name).type
        if known is not None and not keeps_keys(known, kind):
            reason = f"the type of this key would change to {ddl_type(kind)}"
            raise ConfigError("upsert", name, f"{reason}; begin a new table")
    return found


def changes_types(before: TableSchema, after: TableSchema) -> bool:
    """Whether a column that existed has another type."""
    return any(after.type_of(field.name) != field.type for field in before.arrow)


def rewrites_files(before: TableSchema, after: TableSchema, kind: TableFormat) -> bool:
    """Whether a format needs all files to be written again, because of a type that has changed."""
    return not all(
        kind.reads_as(field.type, after.arrow.field(field.name).type) for field in before.arrow
    )


class BucketMerges:
    """The buckets that new rows touch.

    Args:
        lake: The folder of the table.
        manifest: The published manifest.
        new: The next manifest.
        written: The columns of the files.
        token: The token of the job.
    """

    def __init__(
        self,
        lake: LakeFolder,
        manifest: TableManifest,
        new: TableManifest,
        written: pa.Schema,
        token: str,
    ) -> None:
        self._lake = lake
        self._manifest = manifest
        self._new = new
        self._written = written
        self._token = token
        self.size = 0
        """Bytes of the files of the touched buckets."""
        self.merge = merge_history if new.history else merge_bucket
        """The function that does the work of a task."""

    def tasks(
        self,
        staged: Iterable[Mapping[int, BucketRows]],
        old: Sequence[StoredFile],
        *,
        always: bool,
    ) -> list[MergeTask]:
        """Return a task for each touched bucket, or with ``always`` for each bucket."""
        rows: dict[int, list[BucketRows]] = {}
        for each in staged:
            for bucket, some in each.items():
                rows.setdefault(bucket, []).append(some)
        touched = sorted({*rows, *(file.bucket for file in old if always)})
        self.size = sum(file.size for file in old if file.bucket in touched)
        columns = self._new.columns_of(self._new.schema)
        own = checked_key(self._manifest, self._new.schema) if touched else []
        key = [columns.names[name] for name in own]
        return [
            MergeTask(
                self._lake,
                bucket,
                rows.get(bucket, ()),
                [file.path for file in old if file.bucket == bucket],
                self._manifest.deletes.get(bucket, ""),
                columns,
                self._written,
                key,
                always,
                self._new.sequence,
                self._token,
            )
            for bucket in touched
        ]

    def change(self, results: Sequence[MergeResult]) -> Change:
        """Return the change of the table after these merges."""
        deletes = {**self._manifest.deletes, **{each.bucket: each.deletes for each in results}}
        return Change(
            [file for each in results for file in each.files],
            [each.bucket for each in results if each.written],
            {bucket: path for bucket, path in deletes.items() if path},
            sum(each.inserted for each in results),
            sum(each.updated for each in results),
            sum(each.deleted for each in results),
        )
