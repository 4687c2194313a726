"""Rows on their way from the tasks that decode them to those that merge them, by bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.lake_manifest import FOLDER
from firetrail.pipeline.tables.keyed.keys import bucket_of

DELETE = "__firetrail_delete"
"""The column of staged rows that are deletes."""
STAGED = f"{FOLDER}/staged"
_ROWS = 1 << 14
"""Rows per bucket that a task gathers before it writes them."""


class BucketRows(NamedTuple):
    """Rows of one bucket: in memory if the driver itself merges them, else in files."""

    tables: tuple[pa.Table, ...] = ()
    paths: tuple[str, ...] = ()

    def read(self, lake: LakeFolder) -> Iterator[pa.Table]:
        """Yield the rows."""
        yield from self.tables
        for path in self.paths:
            with lake.parquet(path) as file:
                yield file.read()


class BucketStager:
    """Distributes the rows of a task over buckets.

    Args:
        lake: The folder of the table.
        stem: The name that distinguishes the files of the task.
        buckets: The number of buckets.
        in_memory: Whether the rows stay in memory.
    """

    def __init__(self, lake: LakeFolder, stem: str, buckets: int, in_memory: bool) -> None:
        self._lake = lake
        self._stem = stem
        self._buckets = buckets
        self._in_memory = in_memory
        self._waiting: dict[int, list[pa.Table]] = {}
        self._counts: dict[int, int] = {}
        self._paths: dict[int, list[str]] = {}

    def add(self, rows: pa.Table, keys: Sequence[str]) -> None:
        """Add rows, whose keys are given as texts."""
        numbers = pa.array([bucket_of(key, self._buckets) for key in keys], pa.int32())
        for bucket in numbers.unique().to_pylist():
            some = rows.filter(pc.equal(numbers, bucket))
            self._waiting.setdefault(bucket, []).append(some)
            self._counts[bucket] = self._counts.get(bucket, 0) + some.num_rows
            if not self._in_memory and self._counts[bucket] >= _ROWS:
                self._write(bucket)

    def _write(self, bucket: int) -> None:
        """Write the rows of a bucket to a file, which is removed at the end of the run.

        It needs no sync: a run that is killed begins again.
        """
        paths = self._paths.setdefault(bucket, [])
        path = f"{STAGED}/{self._stem}-{bucket}-{len(paths)}.parquet"
        full = self._lake.path(path)
        self._lake.filesystem.create_dir(full.rpartition("/")[0], recursive=True)
        table = pa.concat_tables(self._waiting.pop(bucket))
        del self._counts[bucket]
        pq.write_table(table, full, filesystem=self._lake.filesystem, compression="zstd")
        paths.append(path)

    def finish(self) -> dict[int, BucketRows]:
        """Return the rows by bucket."""
        if self._in_memory:
            return {number: BucketRows(tuple(some)) for number, some in self._waiting.items()}
        for bucket in list(self._waiting):
            self._write(bucket)
        return {number: BucketRows((), tuple(paths)) for number, paths in self._paths.items()}
