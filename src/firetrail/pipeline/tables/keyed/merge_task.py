"""The task that merges new versions into a bucket of a table with a key.

The bucket keeps the newest version of each key, with its position in the message columns. Deleted
keys are kept, with their positions, in a file beside the manifest, so that a message that is read
late cannot bring a row back. Therefore messages that are read again change nothing, and the result
does not depend on the order in which messages are read, except after a step back of a clock
(``keys``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.lake_manifest import FOLDER
from firetrail.pipeline.tables.files.rewrite_task import cast_rows
from firetrail.pipeline.tables.files.table_columns import BROKER, TableColumns
from firetrail.pipeline.tables.files.table_files import SUFFIX, TableWriter
from firetrail.pipeline.tables.files.table_manifest import LOCK, TableFile
from firetrail.pipeline.tables.keyed.bucket_rows import DELETE, BucketRows
from firetrail.pipeline.tables.keyed.keys import KeyPosition, key_texts
from firetrail.pipeline.workers import worker_name

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
    """The file of deleted keys; empty if there is none."""
    columns: TableColumns
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
    """The file of deleted keys; empty if there is none."""
    deletes_size: int
    """Its size if the task has written it; 0 if it is the old one."""
    inserted: int
    updated: int
    deleted: int
    worker: str


class _KeyVersion(NamedTuple):
    position: KeyPosition
    row: int
    delete: bool


def merge_bucket(task: MergeTask) -> MergeResult:
    """Merge new versions into a bucket."""
    task.lake.check_shared(LOCK, task.token)
    merger = _BucketMerger(task)
    return merger.merge()


class _BucketMerger:
    """One bucket: its rows, its deleted keys, and the new versions."""

    def __init__(self, task: MergeTask) -> None:
        self._task = task
        schema = task.columns.schema
        staged = schema.append(pa.field(DELETE, pa.bool_()))
        self._new = pa.concat_tables(
            [staged.empty_table()]
            # a task that was done before another one showed a new column does not have it
            + [cast_rows(table, staged) for some in task.staged for table in some.read(task.lake)]
        )
        self._old = pa.concat_tables(
            [schema.empty_table()] + [self._read(path) for path in task.files]
        )
        self._deletes = self._read_deletes()

    def merge(self) -> MergeResult:
        """Return the files of the bucket after the merge."""
        newest = self._newest()
        removed = self._drop_older(newest)
        updated = sum(not version.delete for version, was in removed if was)
        deleted = len(removed) - updated
        deletes_before = dict(self._deletes)
        rows: list[int] = []
        for key, version in newest.items():
            if version.delete:
                self._deletes[key] = version.position
            else:
                self._deletes.pop(key, None)
                rows.append(version.row)
        files: list[TableFile] = []
        written = bool(rows or removed or self._task.always)
        if written:
            files = self._write(rows)
        path, size = self._task.deletes, 0
        if self._deletes != deletes_before:
            path, size = self._write_deletes()
        return MergeResult(
            bucket=self._task.bucket,
            files=files,
            written=written,
            deletes=path,
            deletes_size=size,
            inserted=len(rows) - updated,
            updated=updated,
            deleted=deleted,
            worker=worker_name(),
        )

    def _newest(self) -> dict[str, _KeyVersion]:
        """Return the newest of the new versions of each key."""
        newest: dict[str, _KeyVersion] = {}
        keys = key_texts([self._new.column(name) for name in self._task.key])
        deletes = self._new.column(DELETE).to_pylist()
        for row, (key, position) in enumerate(zip(keys, self._positions(self._new), strict=True)):
            assert key is not None
            known = newest.get(key)
            if known is None or position.is_newer(known.position):
                newest[key] = _KeyVersion(position, row, deletes[row])
        for key, position in self._deletes.items():
            known = newest.get(key)
            if known is not None and position.is_newer(known.position):
                del newest[key]
        return newest

    def _drop_older(self, newest: dict[str, _KeyVersion]) -> list[tuple[_KeyVersion, bool]]:
        """Remove the old rows that a version in ``newest`` replaces, and the others from it.

        Return the versions that replace a row.
        """
        candidates = self._candidates(newest)
        some = self._old.take(candidates)
        keys = key_texts([some.column(name) for name in self._task.key])
        replaced: list[int] = []
        found: list[tuple[_KeyVersion, bool]] = []
        positions = self._positions(some)
        for row, key, position in zip(candidates.to_pylist(), keys, positions, strict=True):
            assert key is not None
            version = newest.get(key)
            if version is None:
                continue
            if version.position == position or not version.position.is_newer(position):
                del newest[key]
            else:
                replaced.append(row)
                found.append((version, True))
        self._replaced = replaced
        return found

    def _candidates(self, newest: dict[str, _KeyVersion]) -> pa.Array:
        """Return the numbers of old rows that may have one of the keys."""
        first = self._task.key[0]
        picks = pa.array([version.row for version in newest.values()], pa.int64())
        values = self._new.column(first).take(picks).combine_chunks()
        mask = pc.is_in(self._old.column(first), value_set=values)
        return pc.indices_nonzero(mask)

    def _positions(self, rows: pa.Table) -> list[KeyPosition]:
        names = self._task.columns.message_names
        columns: list[list[Any]] = [
            rows.column(names[BROKER]).to_pylist(),
            rows.column(names["physical_offset"]).to_pylist(),
            rows.column(names["store_time"]).cast(pa.int64()).to_pylist(),
        ]
        return [KeyPosition(*each) for each in zip(*columns, strict=True)]

    # -- files --------------------------------------------------------------------------------

    def _read(self, path: str) -> pa.Table:
        with self._task.lake.parquet(path) as file:
            return cast_rows(file.read(), self._task.columns.schema)

    def _write(self, rows: list[int]) -> list[TableFile]:
        """Write the rows that stay, and the new ones, in this order."""
        stem = f"{self._task.sequence:010d}-b{self._task.bucket:05d}"
        schema = self._task.columns.schema
        kept = pa.array(range(self._old.num_rows), pa.int64())
        if self._replaced:
            replaced = pc.is_in(kept, value_set=pa.array(self._replaced, pa.int64()))
            kept = kept.filter(pc.invert(replaced))
        writer = TableWriter(self._task.lake, stem, self._task.token, schema)
        try:
            writer.write(self._old.take(kept))
            new = self._new.drop_columns([DELETE])
            writer.write(new.take(pa.array(sorted(rows), pa.int64())))
            return [file._replace(bucket=self._task.bucket) for file in writer.close()]
        except BaseException:
            writer.abandon()
            raise

    def _read_deletes(self) -> dict[str, KeyPosition]:
        if not self._task.deletes:
            return {}
        with self._task.lake.parquet(self._task.deletes) as file:
            rows = file.read().to_pydict()
        positions = zip(rows["broker"], rows["physical_offset"], rows["store_us"], strict=True)
        return {key: KeyPosition(*each) for key, each in zip(rows["key"], positions, strict=True)}

    def _write_deletes(self) -> tuple[str, int]:
        """Write the deleted keys; return the name and the size of the file."""
        if not self._deletes:
            return "", 0
        lake, task = self._task.lake, self._task
        stem = f"{task.sequence:010d}-{task.bucket:05d}"
        name = lake.new_name(DELETES, stem, task.token, SUFFIX)
        columns = [list(self._deletes), *zip(*self._deletes.values(), strict=True)]
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(columns, _DELETES_SCHEMA, strict=True)
        ]
        file = lake.create(name)
        pq.write_table(pa.Table.from_arrays(arrays, schema=_DELETES_SCHEMA), file)
        file.close()
        return name, file.size
