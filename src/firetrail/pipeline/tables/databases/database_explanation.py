"""A dry run of a database: what a run would read, and what it would do to each table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.decoding.schema.table_schema import EMPTY, TableSchema
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.tables.databases.database_job import DatabaseJob
from firetrail.pipeline.tables.databases.database_members import NoTableError
from firetrail.pipeline.tables.databases.database_options import DatabaseOptions
from firetrail.pipeline.tables.databases.database_verification import check_completed
from firetrail.pipeline.tables.databases.routed_stage import RoutedStage
from firetrail.pipeline.tables.databases.table_folders import TableFolders
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.stored_file import StoredFile
from firetrail.pipeline.tables.files.table_manifest import DATABASE, TableManifest
from firetrail.pipeline.tables.messages.table_sources import SourcePlan, source_list
from firetrail.pipeline.tables.row_task import TaskResult
from firetrail.pipeline.tables.runs.explanation import (
    BrokerPlan,
    RejectReason,
    TableExplanation,
    broker_plans,
    explained,
)
from firetrail.pipeline.tables.runs.table_job import INLINE_BYTES, DecodedStage, TableJob
from firetrail.pipeline.tables.runs.task_runner import SparkProvider
from firetrail.pipeline.tables.table_options import TableOptions

_SUMS = ("rows", "rewritten_files", "rewritten_size")


class DatabaseExplanation(NamedTuple):
    """What a run would do."""

    database: str
    is_new: bool
    key: tuple[str, ...]
    tables: tuple[TableExplanation, ...]  # those that get messages
    messages: int
    rows: int
    rejected: int  # by tables, and those of no table
    unassigned: int  # of these, messages of no table
    skipped: int
    brokers: tuple[BrokerPlan, ...]
    rejects: tuple[RejectReason, ...]  # of messages of no table
    rewritten_files: int
    rewritten_size: int  # bytes

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as a value of JSON."""
        nested = {name: [each._asdict() for each in getattr(self, name)] for name in _LISTS}
        return self._asdict() | nested | {"tables": [_json(each) for each in self.tables]}


_LISTS = ("brokers", "rejects")


def _json(table: TableExplanation) -> dict[str, Any]:
    lists = (*_LISTS, "versions")
    return table._asdict() | {n: [each._asdict() for each in getattr(table, n)] for n in lists}


@names_table
def explain_database(
    spark: SparkProvider,
    source: str | Path | Sequence[str | Path],
    topic: str,
    to: str | Path,
    **options: Any,
) -> DatabaseExplanation:
    """Return what :func:`~firetrail.pipeline.database` would do with the same arguments.

    Nothing is written to the database, and no lock is taken. If there is more to read than a driver
    reads by itself, the messages are sorted in a temporary folder beside it.

    Args:
        spark: The session to run on, or a function that returns one.
        source: The sources.
        topic: The topic.
        to: Folder of the database.
        **options: The other arguments of :func:`~firetrail.pipeline.database`.

    Raises:
        FiretrailError: As the run would, except for messages that do not fit.
        LakeError: A run was killed and has to be completed first.
    """
    names = ("by", "include", "exclude", "table_prefix")
    own = {name: options.pop(name) for name in names if name in options}
    given = DatabaseOptions(**own, table=TableOptions(**options))
    job = DatabaseJob(spark, source_list(source), to, given)
    job.home.check_folder(given.table, database=True)
    check_completed(job.home)
    found = job.home.manifest()
    run = _DryRun(spark, job, given.of_tables, job.first_manifest(found, topic))
    with job.own.sources:
        run.run()
    return run.explanation(found is None)


@dataclass
class _DryTable:
    """A table, as the stages of a run would find it."""

    is_new: bool
    before: TableManifest
    files: Sequence[StoredFile]
    schema: TableSchema
    base: TableSchema | None
    messages: int = 0
    stages: list[DecodedStage] = field(default_factory=list)


class _DryRun:
    """One dry run."""

    def __init__(
        self, spark: SparkProvider, job: DatabaseJob, options: TableOptions, manifest: TableManifest
    ) -> None:
        self._spark = spark
        self._job = job
        self._options = options
        self._before = self._manifest = manifest
        self._tables: dict[TableName, _DryTable] = {}
        self._plans: list[SourcePlan] = []
        self._unassigned: list[DecodedStage] = []
        self._skipped = 0
        chosen = manifest.options[DATABASE]["table_prefix"]
        self._folders = TableFolders(manifest.tables, chosen)
        self._known = {member.name for member in manifest.tables}

    def run(self) -> None:
        for sources in self._job.own.stages(self._manifest):
            plans = self._job.own.plans(self._manifest, sources)
            inline = sum(plan.size for plan in plans) <= INLINE_BYTES
            with self._work_folder(inline) as lake:
                parts = [part for plan in plans for part in plan.parts]
                routed = self._job.route(self._manifest, parts, inline, lake)
                brokers = self._job.own.progress(self._manifest, plans, routed)
                self._add(self._job.stage(routed, lake))
            self._manifest = replace(self._manifest, brokers={**self._manifest.brokers, **brokers})
            self._plans += plans

    @contextmanager
    def _work_folder(self, inline: bool) -> Iterator[LakeFolder]:
        lake = open_folder(f"{self._job.home.lake.place}__explain-{self._job.own.token}")
        try:
            yield lake
        finally:
            if not inline and lake.top_names():
                lake.filesystem.delete_dir(lake.path("").rstrip("/"))

    def _add(self, stage: RoutedStage) -> None:
        home = self._manifest
        left = stage.parts(None)
        self._skipped += stage.skipped
        for name in stage.names:
            is_new = name not in self._known
            try:
                folder = self._folders.folder(name, nested=self._job.is_nested(home))
                table = self._tables.get(name)
                if table is None:
                    key = self._job.key_of(home, name, stage, is_new)
                    table = self._table(home, folder, key, is_new)
                self._decode(name, folder, table, stage, is_new)
            except NoTableError as error:
                if error.is_skipped:
                    self._skipped += stage.count(name)
                else:
                    left += stage.parts(name, reason=str(error))
        inline = sum(part.size for part in left) <= INLINE_BYTES
        job = TableJob(self._spark, [], home_place(self._job), self._options, dry=True)
        results, _ = job.decoding.decode(home, left, EMPTY, inline, EMPTY)
        self._unassigned.append(_stage(results, EMPTY, EMPTY, inline))

    def _table(
        self, home: TableManifest, folder: str, key: tuple[str, ...], is_new: bool
    ) -> _DryTable:
        publication = self._job.member(folder)
        if is_new:
            before, files = self._job.new_member(home, folder, key), list[StoredFile]()
        else:
            found, files = publication.peek()
            assert found is not None
            before = found
        base = None if before.schema == EMPTY else before.schema
        return _DryTable(is_new, before, files, before.schema, base)

    def _decode(
        self, name: TableName, folder: str, table: _DryTable, stage: RoutedStage, is_new: bool
    ) -> None:
        job = TableJob(
            self._spark, [], f"{home_place(self._job)}/{folder}", self._options, dry=True
        )
        parts = self._job.parts_of(table.before, name, stage)
        known = replace(table.before, schema=table.schema)
        schema = self._job.first_schema(job, name, known, parts, is_new)
        table.base = schema if table.base is None else table.base
        inline = stage.size(name) <= INLINE_BYTES
        results, table.schema = job.decoding.decode(known, parts, schema, inline, table.base)
        table.messages += stage.count(name)
        done = _stage(results, table.schema, table.base, inline)
        table.stages.append(done)
        self._tables[name] = table

    def explanation(self, is_new: bool) -> DatabaseExplanation:
        """Return what was found."""
        place = home_place(self._job)
        nested = self._job.is_nested(self._manifest)
        tables = [
            explained(
                f"{place}/{self._folders.folder(name, nested=nested)}",
                table.is_new,
                table.before,
                replace(table.before, schema=table.schema),
                table.stages,
                table.files,
            )._replace(messages=table.messages)
            for name, table in sorted(self._tables.items())
        ]
        own = explained(place, is_new, self._before, self._before, self._unassigned, ())
        sums = {name: sum(getattr(each, name) for each in tables) for name in _SUMS}
        return DatabaseExplanation(
            place,
            is_new,
            tuple(self._manifest.options[DATABASE]["upsert"]),
            tuple(tables),
            messages=self._manifest.messages - self._before.messages,
            rejected=own.rejected + sum(each.rejected for each in tables),
            unassigned=own.rejected,
            skipped=self._skipped + sum(each.skipped for each in tables),
            brokers=broker_plans(self._before, self._manifest, self._plans),
            rejects=own.rejects,
            **sums,
        )


def _stage(
    results: Sequence[TaskResult], schema: TableSchema, base: TableSchema, inline: bool
) -> DecodedStage:
    return DecodedStage(
        plans=(),
        results=results,
        schema=schema,
        brokers={},
        source_table="",
        inline=inline,
        base=base,
    )


def home_place(job: DatabaseJob) -> str:
    """Return the folder of the database of a job."""
    return job.home.lake.place
