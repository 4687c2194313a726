"""A dry run of the table job: what a run would read, decode and write again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from firetrail.pipeline.decoding.schema.table_schema import EMPTY
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.stored_file import StoredFile
from firetrail.pipeline.tables.files.table_manifest import MAIN, REJECTED, TableManifest
from firetrail.pipeline.tables.keyed.bucket_change import rewrites_files
from firetrail.pipeline.tables.messages.broker_progress import lost_count
from firetrail.pipeline.tables.messages.table_sources import SourcePlan, source_list
from firetrail.pipeline.tables.runs.table_job import DecodedStage, TableJob
from firetrail.pipeline.tables.runs.task_runner import SparkProvider
from firetrail.pipeline.tables.table_options import TableOptions


class BrokerPlan(NamedTuple):
    """What a run would read of one broker."""

    broker: str
    messages: int
    lost: int  # deleted before they were read
    size: int  # bytes of log, or of files of an archive


class SchemaVersion(NamedTuple):
    """Messages that add the same to the columns of the table."""

    changes: tuple[str, ...]  # empty for messages that add nothing
    messages: int


class RejectReason(NamedTuple):
    """Messages that would be rejected for one reason."""

    reason: str
    messages: int


class TableExplanation(NamedTuple):
    """What a run would do."""

    table: str
    is_new: bool
    key: tuple[str, ...]
    history: bool
    schema: str  # of the decoded columns after the run, as DDL
    changes: tuple[str, ...]  # of the schema of the table
    messages: int
    rows: int  # decoded; with a key, only the newest of each stays
    rejected: int
    skipped: int
    brokers: tuple[BrokerPlan, ...]
    versions: tuple[SchemaVersion, ...]
    rejects: tuple[RejectReason, ...]
    buckets: int  # that new rows touch, or all
    rewritten_files: int
    rewritten_size: int  # bytes


@names_table
def explain_table(
    spark: SparkProvider,
    source: str | Path | Sequence[str | Path],
    topic: str,
    to: str | Path,
    **options: Any,
) -> TableExplanation:
    """Return what :func:`~firetrail.pipeline.table` would do with the same arguments.

    All new messages are decoded, but nothing is written, and no lock is taken.

    Args:
        spark: The session to run on, or a function that returns one.
        source: The sources.
        topic: The topic.
        to: Folder of the table.
        **options: The other arguments of :func:`~firetrail.pipeline.table`.

    Returns:
        What a run would read, decode and write again.

    Raises:
        FiretrailError: As the run would, except for messages that do not fit.
    """
    chosen = TableOptions(**options)
    job = TableJob(spark, source_list(source), to, chosen, dry=True)
    job.publication.check_folder(chosen)
    found, files = job.publication.peek()
    before = manifest = job.first_manifest(found, topic)
    base = None if before.schema == EMPTY else before.schema
    stages = []
    with job.sources:
        for sources in job.stages(manifest):
            stage = job.decode(manifest, sources, base)
            stages.append(stage)
            base = base or stage.base
            manifest = replace(
                manifest,
                schema=stage.schema,
                brokers={**manifest.brokers, **stage.brokers},
                source_table=stage.source_table,
            )
    return explained(job.publication.lake.place, found is None, before, manifest, stages, files)


def explained(
    place: str,
    is_new: bool,
    before: TableManifest,
    after: TableManifest,
    stages: Sequence[DecodedStage],
    files: Sequence[StoredFile],
) -> TableExplanation:
    """Return the explanation of decoded stages.

    Args:
        place: Folder of the table.
        is_new: Whether the table does not exist yet.
        before: Its manifest before the run.
        after: Its manifest after it.
        stages: The stages.
        files: The files of the table.
    """
    results = [result for stage in stages for result in stage.results]
    versions: Counter[tuple[str, ...]] = Counter()
    reasons: Counter[str] = Counter()
    for result in results:
        versions.update(result.versions)
        reasons.update(result.reasons)
    touched = {bucket for result in results for bucket in result.staged}
    if rewrites_files(before.schema, after.schema, after.format):
        rewritten = list(files)
        touched |= {file.bucket for file in files} if before.key else set()
    else:
        rewritten = [file for file in files if file.bucket in touched]
    return TableExplanation(
        place,
        is_new,
        tuple(before.key),
        before.history,
        after.schema.ddl,
        before.schema.widened(after.schema).changes,
        after.messages - before.messages,
        sum(result.rows(MAIN) for result in results),
        sum(result.rows(REJECTED) for result in results),
        sum(result.skipped for result in results),
        broker_plans(before, after, [plan for stage in stages for plan in stage.plans]),
        tuple(SchemaVersion(*each) for each in versions.most_common() if each[1]),
        tuple(RejectReason(*each) for each in reasons.most_common()),
        len(touched),
        len(rewritten),
        sum(file.size for file in rewritten),
    )


def broker_plans(
    before: TableManifest, after: TableManifest, plans: Sequence[SourcePlan]
) -> tuple[BrokerPlan, ...]:
    """Return what a run would read, between two manifests."""
    sizes: Counter[str] = Counter()
    for plan in plans:
        sizes[plan.source.broker] += plan.size
    found = []
    for name in sizes:
        known, progress = before.progress(name), after.progress(name)
        lost = lost_count(known, progress)
        found.append(BrokerPlan(name, progress.messages - known.messages, lost, sizes[name]))
    return tuple(found)
