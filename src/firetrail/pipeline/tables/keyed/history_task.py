"""The task that merges new versions into a bucket of a table that keeps all of them.

The versions of a key, which are rows and deletes, have one order (``keys``). Each row is valid from
its own begin until that of the next version. A merge puts new versions in their places, and
computes the validity of all rows of their keys again. So the bucket depends on the messages alone:
those that are read again change nothing, and those that are read late correct their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.pipeline.tables.files.stored_file import TableFile
from firetrail.pipeline.tables.files.table_columns import VALIDITY
from firetrail.pipeline.tables.keyed.bucket_content import (
    BucketContent,
    KeyDelete,
    MergeResult,
    MergeTask,
)
from firetrail.pipeline.tables.keyed.bucket_rows import DELETE
from firetrail.pipeline.tables.keyed.keys import KeyPosition, in_order
from firetrail.pipeline.workers import worker_name

Versions: TypeAlias = dict[KeyPosition, int | None]
"""The versions of a key: per position the number of the row; None for a delete."""


class RowValidity(NamedTuple):
    """The time in which a row is the version of its key, in µs."""

    begin: int
    end: int | None
    """The begin of the next version; None for the current one."""


def merge_history(task: MergeTask) -> MergeResult:
    """Merge new versions into a bucket."""
    return _HistoryMerger(task).merge()


class _HistoryMerger:
    """The merge of one bucket."""

    def __init__(self, task: MergeTask) -> None:
        self._task = task
        self._content = BucketContent(task)
        self._validities: dict[int, RowValidity] = {}
        """Of the old rows with touched keys."""

    def merge(self) -> MergeResult:
        """Return the files of the bucket after the merge."""
        fresh = self._fresh()
        known = self._known(fresh)
        corrected: dict[int, RowValidity] = {}
        added: dict[int, RowValidity] = {}
        deletes: list[KeyDelete] = []
        for key, versions in fresh.items():
            before = known[key]
            new = {position: row for position, row in versions.items() if position not in before}
            if not new:
                continue
            deletes += [KeyDelete(key, position) for position, row in new.items() if row is None]
            for position, validity in _validities([*before, *new]).items():
                old_row, new_row = before.get(position), new.get(position)
                if new_row is not None:
                    added[new_row] = validity
                elif old_row is not None and self._validities[old_row] != validity:
                    corrected[old_row] = validity
        files: list[TableFile] = []
        written = bool(added or corrected or self._task.always)
        if written:
            files = self._write(corrected, added)
        path, size = self._task.deletes, 0
        if deletes:
            path, size = self._content.write_deletes([*self._content.deletes, *deletes])
        return MergeResult(
            bucket=self._task.bucket,
            files=files,
            written=written,
            deletes=path,
            deletes_size=size,
            inserted=len(added),
            updated=len(corrected),
            deleted=0,
            worker=worker_name(),
        )

    def _fresh(self) -> dict[str, Versions]:
        """Return the new versions of each key; of several in one message, the last counts."""
        new = self._content.new
        deletes = new.column(DELETE).to_pylist()
        found: dict[str, Versions] = {}
        for row, (key, position) in enumerate(
            zip(self._content.keys(new), self._content.positions(new), strict=True)
        ):
            found.setdefault(key, {})[position] = None if deletes[row] else row
        return found

    def _known(self, fresh: Mapping[str, Versions]) -> dict[str, Versions]:
        """Return the versions that the bucket has of some keys."""
        found: dict[str, Versions] = {key: {} for key in fresh}
        for key, position in self._content.deletes:
            if key in found:
                found[key][position] = None
        candidates = self._content.candidates(range(self._content.new.num_rows))
        some = self._content.old.take(candidates)
        names = self._task.columns.validity_names
        columns = [
            candidates.to_pylist(),
            self._content.keys(some),
            self._content.positions(some),
            *(
                some.column(names[n]).cast(pa.int64()).to_pylist()
                for n in ("valid_from", "valid_to")
            ),
        ]
        for row, key, position, begin, end in zip(*columns, strict=True):
            if key in found:
                found[key][position] = row
                self._validities[row] = RowValidity(begin, end)
        return found

    def _write(
        self, corrected: Mapping[int, RowValidity], added: Mapping[int, RowValidity]
    ) -> list[TableFile]:
        """Write the old rows, and the new ones, in this order."""
        numbers = sorted(added)
        new = self._content.new.drop_columns([DELETE]).take(pa.array(numbers, pa.int64()))
        columns = _validity_columns([added[number] for number in numbers])
        for name, column in zip(self._task.columns.validity_names.values(), columns, strict=True):
            new = new.append_column(name, column)
        return self._content.write([self._with_corrections(corrected), new])

    def _with_corrections(self, corrected: Mapping[int, RowValidity]) -> pa.Table:
        """Return the old rows, some of them with another validity."""
        rows = self._content.old
        if not corrected:
            return rows
        numbers = sorted(corrected)
        all_numbers = pa.array(range(rows.num_rows), pa.int64())
        mask = pc.is_in(all_numbers, value_set=pa.array(numbers, pa.int64()))
        columns = _validity_columns([corrected[number] for number in numbers])
        for name, column in zip(self._task.columns.validity_names.values(), columns, strict=True):
            before = rows.column(name).combine_chunks()
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(
                at, rows.schema.field(at), pc.replace_with_mask(before, mask, column)
            )
        return rows


def _validities(positions: list[KeyPosition]) -> dict[KeyPosition, RowValidity]:
    """Return the validity of each version of a key, of which these are all."""
    ordered = in_order(positions)
    validities = {
        version.position: RowValidity(version.begin_us, after.begin_us)
        for version, after in pairwise(ordered)
    }
    newest = ordered[-1]
    return validities | {newest.position: RowValidity(newest.begin_us, None)}


def _validity_columns(validities: list[RowValidity]) -> list[pa.Array]:
    """Return the columns of the validity of rows."""
    values = (
        [each.begin for each in validities],
        [each.end for each in validities],
        [each.end is None for each in validities],
    )
    return [pa.array(some, kind) for some, kind in zip(values, VALIDITY.values(), strict=True)]
