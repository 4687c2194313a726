"""The content of a bucket and its new versions, and the files that a merge of them writes.

Deletes are not rows. They are kept, with their positions, in a file beside the manifest, so that a
message that is read late is merged as if it had been read in its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.lake_manifest import FOLDER
from firetrail.pipeline.tables.files.rewrite_task import cast_rows
from firetrail.pipeline.tables.files.stored_file import TableFile
from firetrail.pipeline.tables.files.table_columns import BROKER, BUCKET, TableColumns
from firetrail.pipeline.tables.files.table_files import SUFFIX, TableWriter
from firetrail.pipeline.tables.files.table_manifest import LOCK
from firetrail.pipeline.tables.keyed.bucket_rows import DELETE, BucketRows
from firetrail.pipeline.tables.keyed.keys import KeyPosition, key_texts

DELETES = f"{FOLDER}/deletes"
_DELETES_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("broker", pa.string()),
        pa.field("physical_offset", pa.int64()),
        pa.field("store_us", pa.int64()),
    ]
)


class MergeTask(NamedTuple):
    """The work of one task."""

    lake: LakeFolder
    bucket: int
    staged: Sequence[BucketRows]
    files: Sequence[str]
    """The files of the bucket."""
    deletes: str
    """The file of deletes; empty if there is none."""
    columns: TableColumns
    written: pa.Schema
    """The columns of the files."""
    key: Sequence[str]
    """The columns of the key in the table."""
    always: bool
    """Whether to write the bucket although no row changes, because a type has changed."""
    sequence: int
    token: str


class MergeResult(NamedTuple):
    """The result of a task."""

    bucket: int
    files: list[TableFile]
    written: bool
    """Whether the files replace those of the bucket."""
    deletes: str
    """The file of deletes; empty if there is none."""
    deletes_size: int
    """Its size if the task has written it; 0 if it is the old one."""
    inserted: int
    updated: int
    """Rows that a newer version replaced; with history, rows whose validity changed."""
    deleted: int
    worker: str


class KeyDelete(NamedTuple):
    """A delete of a key."""

    key: str
    position: KeyPosition


class BucketContent:
    """One bucket: its rows, its deletes, and the new versions.

    Args:
        task: The task that merges them.
    """

    def __init__(self, task: MergeTask) -> None:
        task.lake.check_shared(LOCK, task.token)
        self._task = task
        staged = task.columns.row_schema.append(pa.field(DELETE, pa.bool_()))
        self.new: pa.Table = pa.concat_tables(
            [staged.empty_table()]
            # a task that was done before another one showed a new column does not have it
            + [cast_rows(table, staged) for some in task.staged for table in some.read(task.lake)]
        )
        """The new versions, with the column ``DELETE``."""
        self.old: pa.Table = pa.concat_tables(
            [task.columns.schema.empty_table()] + [self._read(path) for path in task.files]
        )
        """The rows of the bucket."""
        self.deletes = self._read_deletes()

    def keys(self, rows: pa.Table) -> list[str]:
        """Return the keys of rows, which all have one, as texts."""
        texts = key_texts([rows.column(name) for name in self._task.key])
        assert None not in texts
        return [str(text) for text in texts]

    def positions(self, rows: pa.Table) -> list[KeyPosition]:
        """Return the positions of rows."""
        names = self._task.columns.message_names
        columns: list[list[Any]] = [
            rows.column(names[BROKER]).to_pylist(),
            rows.column(names["physical_offset"]).to_pylist(),
            rows.column(names["store_time"]).cast(pa.int64()).to_pylist(),
        ]
        return [KeyPosition(*each) for each in zip(*columns, strict=True)]

    def candidates(self, picks: Iterable[int]) -> pa.Array:
        """Return the numbers of the old rows that may have the key of one of some new rows."""
        first = self._task.key[0]
        values = self.new.column(first).take(pa.array(picks, pa.int64())).combine_chunks()
        return pc.indices_nonzero(pc.is_in(self.old.column(first), value_set=values))

    def write(self, parts: Iterable[pa.Table]) -> list[TableFile]:
        """Write the rows that the bucket has from now on."""
        task = self._task
        stem = f"{task.sequence:010d}-b{task.bucket:05d}"
        writer = TableWriter(task.lake, stem, task.token, task.written)
        try:
            for rows in parts:
                writer.write(self._with_bucket(rows))
            return [file._replace(bucket=task.bucket) for file in writer.close()]
        except BaseException:
            writer.abandon()
            raise

    def _with_bucket(self, rows: pa.Table) -> pa.Table:
        """Return rows with the column of the bucket, if files have it."""
        if BUCKET not in self._task.written.names:
            return rows
        bucket = pa.scalar(self._task.bucket, pa.int32())
        return rows.append_column(BUCKET, pa.repeat(bucket, rows.num_rows))

    def write_deletes(self, deletes: Collection[KeyDelete]) -> tuple[str, int]:
        """Write the deletes that the bucket has from now on; return the file's name and size."""
        if not deletes:
            return "", 0
        lake, task = self._task.lake, self._task
        stem = f"{task.sequence:010d}-{task.bucket:05d}"
        name = lake.new_name(DELETES, stem, task.token, SUFFIX)
        columns = zip(*((key, *position) for key, position in deletes), strict=True)
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(columns, _DELETES_SCHEMA, strict=True)
        ]
        file = lake.create(name)
        pq.write_table(pa.Table.from_arrays(arrays, schema=_DELETES_SCHEMA), file)
        file.close()
        return name, file.size

    def _read(self, path: str) -> pa.Table:
        with self._task.lake.parquet(path) as file:
            return cast_rows(file.read(), self._task.columns.schema)

    def _read_deletes(self) -> list[KeyDelete]:
        if not self._task.deletes:
            return []
        with self._task.lake.parquet(self._task.deletes) as file:
            rows = file.read().to_pydict()
        columns = (rows[name] for name in _DELETES_SCHEMA.names)
        return [
            KeyDelete(key, KeyPosition(*position)) for key, *position in zip(*columns, strict=True)
        ]
