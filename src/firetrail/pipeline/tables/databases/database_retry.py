"""The job that decodes the rejected messages of a database again, or of one of its tables.

First, messages that belonged to no table look for one again, as in a run. Then each table retries
its own. Each of these steps is published as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.tables.databases.database_commit import (
    database_of,
    member_publication,
    settle_database,
)
from firetrail.pipeline.tables.databases.database_job import DatabaseJob
from firetrail.pipeline.tables.databases.database_options import DatabaseOptions
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.table_manifest import LOCK, REJECTED, TableManifest
from firetrail.pipeline.tables.messages.reject_reasons import COMPRESSED
from firetrail.pipeline.tables.runs.retry_job import RejectedMessages, TableRetry, retry_locked
from firetrail.pipeline.tables.runs.table_job import INLINE_BYTES, TableJob
from firetrail.pipeline.tables.runs.task_runner import SparkProvider
from firetrail.pipeline.tables.table_options import TableOptions
from firetrail.pipeline.tasks import OnPlan

_SUMS = ("retried", "rows", "updated", "deleted", "rejected")


class DatabaseRetry(NamedTuple):
    """The result of a retry."""

    database: str
    tables: tuple[TableRetry, ...]  # those with rejected messages
    retried: int  # rejected messages before
    rows: int  # added
    updated: int
    deleted: int
    rejected: int  # afterwards, by tables and those of no table
    unassigned: int  # of these, messages of no table
    first_reject: str

    def as_json(self) -> dict[str, Any]:
        """Return the result as a value of JSON."""
        return self._asdict() | {"tables": [each._asdict() for each in self.tables]}


@names_table
def retry_database(
    spark: SparkProvider,
    to: str | Path,
    *,
    schema: str | None = None,
    keep_hours: int | None = None,
    on_plan: OnPlan = lambda tasks: None,
) -> DatabaseRetry:
    """Decode rejected messages again, and move those that fit to their tables.

    Args:
        spark: The session to run on, or a function that returns one.
        to: Folder of the database, or of one of its tables.
        schema: For one table: columns to add, and wider types, as DDL. None, the default, takes
            the columns of the tables.
        keep_hours: As for :func:`~firetrail.pipeline.table`.
        on_plan: As for :func:`~firetrail.pipeline.table`.

    Returns:
        The number of rows that were moved, and of those that still do not fit.

    Raises:
        LakeError: The folder has no database, somebody else changed a table, or another job is
            writing the database.
        ConfigError: ``schema`` is for several tables, or contradicts the table.
    """
    found = database_of(str(to))
    if found is None:
        raise LakeError(f"{to}: has no database; check the path")
    place, folder = found
    if schema is not None and not folder:
        raise ConfigError("schema", schema, "is for one table: name its folder")
    options = TableOptions(keep_hours=keep_hours, on_plan=on_plan)
    job = DatabaseJob(spark, [], place, DatabaseOptions(table=options))
    with job.locked():
        manifest = settle_database(job.home)
        assert manifest is not None
        before = manifest.rejected
        moved = None
        if not folder and manifest.rejected:
            manifest, moved = _reassigned(job, manifest)
        tables = []
        for member in manifest.tables:
            if folder in ("", member.folder):
                at = member_publication(job.home, member.folder).lake.place
                done = _retried(
                    spark,
                    at,
                    TableOptions(schema=schema, keep_hours=keep_hours, on_plan=on_plan),
                    bool(folder),
                )
                tables += [] if done is None else [done]
    sums = {name: sum(getattr(each, name) for each in tables) for name in _SUMS}
    if not folder:
        sums["retried"] += before
        sums["rejected"] += manifest.rejected
    if moved is not None:
        for name in ("rows", "updated", "deleted"):
            sums[name] += getattr(moved, name)
    rejects = [each.first_reject for each in tables if each.first_reject]
    rejects += [moved.first_reject] if moved is not None and moved.first_reject else []
    return DatabaseRetry(
        place,
        tuple(tables),
        unassigned=0 if folder else manifest.rejected,
        first_reject=rejects[0] if rejects else "",
        **sums,
    )


def _reassigned(job: DatabaseJob, manifest: TableManifest) -> tuple[TableManifest, Any]:
    """Let messages of no table look for one again."""
    files = job.home.files(manifest, REJECTED)
    lake = job.home.lakes[REJECTED]
    parts = [
        RejectedMessages(broker, lake, file.path, (COMPRESSED,))
        for file in files
        for broker in manifest.brokers
    ]
    inline = sum(file.size for file in files) <= INLINE_BYTES
    stage = job.stage(job.route(manifest, parts, inline))
    if not stage.names and not stage.skipped:
        return manifest, None
    return job.publish(manifest, manifest, stage, retried=bool(files))


def _retried(
    spark: SparkProvider, place: str, options: TableOptions, is_chosen: bool
) -> TableRetry | None:
    """Retry the messages of a table; None if it has none and was not named."""
    job = TableJob(spark, [], place, options)
    with job.publication.lake.locked(LOCK, job.token):
        manifest = job.publication.settle()
        if manifest is None:
            raise LakeError(f"{place}: the table is missing, but its database has it; restore it")
        return retry_locked(job, manifest) if manifest.rejected or is_chosen else None
