"""The job that decodes rejected messages again, and moves those that fit to the table.

It reads all files of the table of rejected messages, and replaces them by the messages that still
do not fit. Both tables change by one publication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.rewrite_task import cast_rows
from firetrail.pipeline.tables.files.table_columns import (
    BROKER,
    REASON,
    REJECTED_SCHEMA,
    rejected_messages,
)
from firetrail.pipeline.tables.files.table_manifest import (
    LOCK,
    MAIN,
    REJECTED,
    TableManifest,
)
from firetrail.pipeline.tables.messages.reject_reasons import COMPRESSED, DELETE, OTHER_KEY
from firetrail.pipeline.tables.row_task import FINAL_REASON, first_reject
from firetrail.pipeline.tables.runs.table_job import INLINE_BYTES, TableJob
from firetrail.pipeline.tables.runs.task_runner import SparkProvider
from firetrail.pipeline.tables.table_options import TableOptions
from firetrail.pipeline.tasks import OnPlan

_ROWS = 8192


class TableRetry(NamedTuple):
    """The result of a retry."""

    table: str
    retried: int  # rows of the table of rejected messages before
    rows: int  # added
    updated: int  # rows that a newer version replaced; with history, whose validity changed
    deleted: int  # rows
    rejected: int  # rows of the table of rejected messages afterwards
    first_reject: str  # position and reason; empty if there are none
    schema: str  # the decoded columns as DDL
    changes: tuple[str, ...]  # of the schema
    total_rows: int
    history: bool


@dataclass(frozen=True, slots=True)
class RejectedMessages:
    """The rejected messages of one broker in a file, which a task reads."""

    broker: str
    lake: LakeFolder
    path: str
    final: tuple[str, ...]
    """The reasons for which messages are not decoded again."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages, each once, with the reasons of those that stay rejected."""
        with self.lake.parquet(self.path) as file:
            rows = rejected_messages(cast_rows(file.read(), REJECTED_SCHEMA))
        rows = rows.filter(pc.equal(rows.column(BROKER), self.broker))
        is_final = pc.is_in(rows.column(REASON), value_set=pa.array(self.final, pa.string()))
        reasons = pc.if_else(is_final, rows.column(REASON), pa.scalar(None, pa.string()))
        rows = rows.append_column(FINAL_REASON, reasons)
        rows = rows.append_column("sys_flag", pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
        seen: set[int] = set()
        chosen = []
        for row, (place, final) in enumerate(
            zip(rows.column("physical_offset").to_pylist(), is_final.to_pylist(), strict=True)
        ):
            if final or place not in seen:
                chosen.append(row)
            if not final:
                seen.add(place)
        yield from rows.take(pa.array(chosen, pa.int64())).combine_chunks().to_batches(_ROWS)


@names_table
def retry_table(
    spark: SparkProvider,
    to: str | Path,
    *,
    schema: str | None = None,
    keep_hours: int | None = None,
    on_plan: OnPlan = lambda tasks: None,
) -> TableRetry:
    """Decode the rejected messages of a table again, and move those that fit to the table.

    If it fails or is killed, run it again: every message is in one of the two tables, once.

    Args:
        spark: The session to run on, or a function that returns one.
        to: Folder of the table.
        schema: Columns to add, and wider types, as DDL. None, the default, takes the columns of
            the table.
        keep_hours: As for :func:`~firetrail.pipeline.table`.
        on_plan: As for :func:`~firetrail.pipeline.table`.

    Returns:
        The number of rows that were moved, and of those that still do not fit.

    Raises:
        LakeError: The folder has no table, somebody else changed it, or another job is writing it.
        ConfigError: A column of ``schema`` contradicts one of the table.
    """
    options = TableOptions(schema=schema, keep_hours=keep_hours, on_plan=on_plan)
    job = TableJob(spark, [], to, options)
    job.publication.check_alone(job.publication.require_manifest())
    with job.publication.lake.locked(LOCK, job.token):
        manifest = job.publication.settle()
        assert manifest is not None
        return retry_locked(job, manifest)


def retry_locked(job: TableJob, manifest: TableManifest) -> TableRetry:
    """Retry the rejected messages of a table that is locked and settled."""
    files = job.publication.files(manifest, REJECTED)
    # Other rows of a message that deletes are in the table already, if rows are only added.
    final = (COMPRESSED, OTHER_KEY) + (() if manifest.key else (DELETE,))
    lake = job.publication.lakes[REJECTED]
    parts = [
        RejectedMessages(broker, lake, file.path, final)
        for file in files
        for broker in manifest.brokers
    ]
    inline = sum(file.size for file in files) <= INLINE_BYTES
    schema = job.decoding.first_schema(manifest, parts)
    results, schema = job.decoding.decode(manifest, parts, schema, inline)
    job.check_arrived(results)
    rejected = sum(result.rows(REJECTED) for result in results)
    inserted = updated = deleted = 0
    published = manifest
    # A message can become a row and a reject, so the number of rejects alone does not tell.
    moved = any(result.rows(MAIN) or result.staged or result.skipped for result in results)
    if moved or rejected != manifest.rejected or schema != manifest.schema:
        new = replace(
            manifest,
            sequence=manifest.sequence + 1,
            schema=schema,
            source_table=job.source_table(manifest, results),
            skipped=manifest.skipped + sum(result.skipped for result in results),
            rejected=rejected,
        )
        published, change = job.commit(manifest, new, results, inline, retried=bool(files))
        inserted, updated, deleted = change.inserted, change.updated, change.deleted
    else:
        job.publication.remove_unfinished()
    return TableRetry(
        job.publication.lake.place,
        manifest.rejected,
        inserted,
        updated,
        deleted,
        rejected,
        first_reject(results),
        published.schema.ddl,
        manifest.schema.widened(published.schema).changes,
        published.rows,
        published.history,
    )
