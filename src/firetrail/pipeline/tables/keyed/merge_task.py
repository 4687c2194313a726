"""The task that merges new versions into a bucket of a table that has the newest ones.

The bucket keeps the newest version of each key, with its position in the message columns, and the
positions of deleted keys. Therefore messages that are read again change nothing, and the result
does not depend on the order in which messages are read, except after a step back of a clock
(``keys``).
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.pipeline.tables.files.stored_file import TableFile
from firetrail.pipeline.tables.keyed.bucket_content import (
    BucketContent,
    KeyDelete,
    MergeResult,
    MergeTask,
)
from firetrail.pipeline.tables.keyed.bucket_rows import DELETE
from firetrail.pipeline.tables.keyed.keys import KeyPosition
from firetrail.pipeline.workers import worker_name


class _KeyVersion(NamedTuple):
    position: KeyPosition
    row: int
    delete: bool


def merge_bucket(task: MergeTask) -> MergeResult:
    """Merge new versions into a bucket."""
    return _BucketMerger(task).merge()


class _BucketMerger:
    """The merge of one bucket."""

    def __init__(self, task: MergeTask) -> None:
        self._task = task
        self._content = BucketContent(task)
        self._deletes = dict(self._content.deletes)

    def merge(self) -> MergeResult:
        """Return the files of the bucket after the merge."""
        newest = self._newest()
        removed = self._drop_older(newest)
        updated = sum(not version.delete for version in removed)
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
            deletes = [KeyDelete(*each) for each in self._deletes.items()]
            path, size = self._content.write_deletes(deletes)
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
        new = self._content.new
        keys, positions = self._content.keys(new), self._content.positions(new)
        deletes = new.column(DELETE).to_pylist()
        for row, (key, position) in enumerate(zip(keys, positions, strict=True)):
            known = newest.get(key)
            if known is None or position.is_newer(known.position):
                newest[key] = _KeyVersion(position, row, deletes[row])
        for key, position in self._deletes.items():
            known = newest.get(key)
            if known is not None and position.is_newer(known.position):
                del newest[key]
        return newest

    def _drop_older(self, newest: dict[str, _KeyVersion]) -> list[_KeyVersion]:
        """Remove the old rows that a version in ``newest`` replaces, and the others from it.

        Return the versions that replace a row.
        """
        candidates = self._content.candidates(version.row for version in newest.values())
        some = self._content.old.take(candidates)
        keys, positions = self._content.keys(some), self._content.positions(some)
        replaced: list[int] = []
        found: list[_KeyVersion] = []
        for row, key, position in zip(candidates.to_pylist(), keys, positions, strict=True):
            version = newest.get(key)
            if version is None:
                continue
            if version.position == position or not version.position.is_newer(position):
                del newest[key]
            else:
                replaced.append(row)
                found.append(version)
        self._replaced = replaced
        return found

    def _write(self, rows: list[int]) -> list[TableFile]:
        """Write the rows that stay, and the new ones, in this order."""
        old, new = self._content.old, self._content.new.drop_columns([DELETE])
        kept = pa.array(range(old.num_rows), pa.int64())
        if self._replaced:
            replaced = pc.is_in(kept, value_set=pa.array(self._replaced, pa.int64()))
            kept = kept.filter(pc.invert(replaced))
        return self._content.write([old.take(kept), new.take(pa.array(sorted(rows), pa.int64()))])
