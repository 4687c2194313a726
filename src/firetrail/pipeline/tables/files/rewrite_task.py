"""The task that writes files of a table again: with wider types, or merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.tables.files.stored_file import TableFile
from firetrail.pipeline.tables.files.table_files import TableWriter
from firetrail.pipeline.tables.files.table_manifest import LOCK
from firetrail.pipeline.workers import worker_name


class RewriteTask(NamedTuple):
    """The work of one task."""

    lake: LakeFolder
    paths: Sequence[str]
    number: int
    schema: pa.Schema
    sequence: int
    token: str


class RewriteResult(NamedTuple):
    """The result of a task."""

    files: list[TableFile]
    worker: str


def rewrite_file(task: RewriteTask) -> RewriteResult:
    """Write the rows of files to a new one, with the columns and types of a schema."""
    task.lake.check_shared(LOCK, task.token)
    return RewriteResult(write_again(task), worker_name())


def write_again(task: RewriteTask) -> list[TableFile]:
    """Do the same in the driver."""
    stem = f"{task.sequence:010d}-r{task.number:05d}"
    writer = TableWriter(task.lake, stem, task.token, task.schema)
    try:
        for path in task.paths:
            with task.lake.parquet(path) as file:
                for batch in file.iter_batches():
                    writer.write(cast_rows(pa.Table.from_batches([batch]), task.schema))
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns and types of a schema; columns that they lack are null."""
    present = set(rows.schema.names)
    arrays = [
        rows.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
