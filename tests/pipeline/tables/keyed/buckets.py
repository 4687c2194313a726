"""Buckets of tables with a key, to which merges are applied one after another."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from firetrail.pipeline.decoding import TableSchema
from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.tables.files.table_columns import TableColumns
from firetrail.pipeline.tables.files.table_manifest import LOCK
from firetrail.pipeline.tables.keyed.bucket_content import MergeTask
from firetrail.pipeline.tables.keyed.bucket_rows import DELETE, BucketRows
from firetrail.pipeline.tables.keyed.history_task import merge_history
from firetrail.pipeline.tables.keyed.merge_task import merge_bucket

SCHEMA = TableSchema.from_ddl("id bigint, part string, v bigint")


class Version(NamedTuple):
    broker: str
    offset: int
    key: tuple[int, str]
    delete: bool
    store_us: int


class Bucket:
    """A bucket of a table with the newest versions, or with history."""

    def __init__(self, folder: Path, *, history: bool = False) -> None:
        self.lake = open_folder(str(folder))
        self.columns = TableColumns(SCHEMA, "_", history)
        self.files: list[str] = []
        self.deletes = ""
        self.inserted = self.updated = self.deleted = 0

    def merge(self, versions: Sequence[Version]) -> None:
        task = MergeTask(
            self.lake,
            0,
            [BucketRows((self._staged(versions),))],
            self.files,
            self.deletes,
            self.columns,
            self.columns.schema,
            ["id", "part"],
            False,
            1,
            "token",
        )
        with self.lake.locked(LOCK, "token"):
            done = (merge_history if self.columns.history else merge_bucket)(task)
        self.lake.reveal([*(file.path for file in done.files), *filter(None, [done.deletes])])
        if done.written:
            self.files = [file.path for file in done.files]
        self.deletes = done.deletes
        self.inserted += done.inserted
        self.updated += done.updated
        self.deleted += done.deleted

    def _staged(self, versions: Sequence[Version]) -> pa.Table:
        found = [
            {
                **{"id": each.key[0], "part": each.key[1], "v": each.offset},
                **{"_broker": each.broker, "_physical_offset": each.offset},
                **{"_store_time": each.store_us, DELETE: each.delete},
            }
            for each in versions
        ]
        schema = self.columns.row_schema.append(pa.field(DELETE, pa.bool_()))
        return pa.Table.from_pylist(found, schema)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, with times in µs."""
        found = []
        for path in self.files:
            table = pq.read_table(self.lake.path(path), partitioning=None)
            for at, field in enumerate(table.schema):
                if pa.types.is_timestamp(field.type):
                    column = table.column(at).cast(pa.int64())
                    table = table.set_column(at, field.name, column)
            found += table.to_pylist()
        for row in found:
            assert row["v"] == row["_physical_offset"]
        return found
