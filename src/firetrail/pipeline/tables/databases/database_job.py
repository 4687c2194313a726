"""The job of a database: it adds the new messages of a topic to the table of each, exactly once.

A run reads the topic once and sorts its messages by table (``route_task``). Each table decodes its
messages as a table alone does, and all of them are published together (``database_commit``).
Messages that belong to no table are rejected messages of the database itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.decoding.schema.table_schema import EMPTY
from firetrail.pipeline.tables.databases.database_commit import (
    DatabaseCommit,
    member_publication,
    publish_all,
    remove_spool,
    settle_database,
)
from firetrail.pipeline.tables.databases.database_options import (
    DatabaseOptions,
    member_options,
    routing_rules,
    takes_primary_keys,
)
from firetrail.pipeline.tables.databases.database_result import DatabaseResult, database_result
from firetrail.pipeline.tables.databases.route_task import (
    RoutedMessages,
    RouteResult,
    RouteTask,
    route_messages,
)
from firetrail.pipeline.tables.databases.routed_stage import RoutedStage
from firetrail.pipeline.tables.databases.table_folders import TableFolders
from firetrail.pipeline.tables.files.delta_writer import names_table
from firetrail.pipeline.tables.files.table_manifest import (
    DATABASE,
    LOCK,
    REJECTED,
    MemberTable,
    PendingCommit,
    TableManifest,
)
from firetrail.pipeline.tables.keyed.bucket_change import Change
from firetrail.pipeline.tables.keyed.keys import key_columns
from firetrail.pipeline.tables.messages.broker_names import (
    check_different_logs,
    named_sources,
    stages_of,
)
from firetrail.pipeline.tables.messages.broker_progress import BrokerProgress
from firetrail.pipeline.tables.messages.table_sources import (
    SourcePart,
    SourcePlan,
    TableSource,
    check_exists,
    plan_source,
    source_list,
)
from firetrail.pipeline.tables.row_task import TaskResult
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.source_progress import progress_after
from firetrail.pipeline.tables.runs.table_job import INLINE_BYTES, TableJob
from firetrail.pipeline.tables.runs.table_result import TableResult, result_of
from firetrail.pipeline.tables.runs.task_runner import SparkProvider, TaskRunner
from firetrail.pipeline.tables.table_options import TableOptions
from firetrail.pipeline.tasks import OnPlan

NO_KEY_REASON = "the events name no primary key of the table"


@names_table
def database(
    spark: SparkProvider,
    source: str | Path | Sequence[str | Path],
    topic: str,
    to: str | Path,
    *,
    by: str | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    table_prefix: str | None = None,
    decoder: str | None = None,
    decoder_options: Mapping[str, str] | None = None,
    prefix: str | None = None,
    message_columns: bool | None = None,
    upsert: str | Sequence[str] | None = None,
    buckets: int | None = None,
    keep_hours: int | None = None,
    strict: bool = False,
    allow_gap: bool = False,
    split_bytes: int | None = None,
    on_plan: OnPlan = lambda tasks: None,
) -> DatabaseResult:
    """Add the new messages of a topic to many Delta tables: one for each table that they name.

    The topic is read once for all tables. If the run fails or is killed, run it again: every
    message is in its table once. Tables that appear are created, with all of their messages. The
    messages that belong to no table are in a table beside the folder of the database, whose name
    ends in ``__rejected``.

    Args:
        spark: As for :func:`~firetrail.pipeline.table`.
        source: As there.
        topic: The topic.
        to: Folder of the database.
        by: What names the table of a message: ``"envelope"``, the CDC event, ``"tag"``, or
            ``"column:NAME"``, a column of the body. None, the default, is as before.
        include: Names of tables, with ``*`` for any text: messages of others are skipped. Those of
            a CDC event are ``DATABASE.TABLE``. None, the default, is as before, and all for a new
            database.
        exclude: Names of tables whose messages are skipped. None, the default, is as before, and
            no table for a new database.
        table_prefix: Beginning of the names of the folders of tables. None, the default, is as
            before, and nothing for a new database.
        decoder: As for :func:`~firetrail.pipeline.table`.
        decoder_options: As there.
        prefix: As there.
        message_columns: As there.
        upsert: The columns of the key of all tables, or ``"pk"`` for the primary key that the CDC
            events of each table name. None, the default, is as before, and no key for a new
            database.
        buckets: As there.
        keep_hours: As there.
        strict: As there.
        allow_gap: As there.
        split_bytes: As there.
        on_plan: As there, for each step of the run.

    Returns:
        The number of messages and rows of this run, by table, and the totals of the database.

    Raises:
        FiretrailError: As for :func:`~firetrail.pipeline.table`. Then no table is changed.
    """
    table = TableOptions(
        decoder=decoder,
        decoder_options=decoder_options,
        prefix=prefix,
        message_columns=message_columns,
        upsert=upsert,
        buckets=buckets,
        keep_hours=keep_hours,
        strict=strict,
        allow_gap=allow_gap,
        split_bytes=split_bytes,
        on_plan=on_plan,
    )
    options = DatabaseOptions(by, include, exclude, table_prefix, table)
    return DatabaseJob(spark, source_list(source), to, options).run(topic)


@dataclass(frozen=True)
class PreparedTable:
    """A table with its new rows, which is not published yet."""

    folder: str
    """Its folder in the database; empty for the database itself."""
    before: TableManifest
    pending: PendingCommit
    results: Sequence[TaskResult]
    change: Change
    messages: int

    def result(self, place: str) -> TableResult:
        """Return the result for the folder of the table."""
        done = result_of(place, self.before, self.pending.manifest, self.results, self.change)
        return done._replace(messages=self.messages) if self.folder else done


class DatabaseJob:
    """One run of a database.

    Args:
        spark: The session, or a function that returns one.
        sources: The sources.
        to: The folder of the database.
        options: The options.
    """

    def __init__(
        self,
        spark: SparkProvider,
        sources: Sequence[str | Path],
        to: str | Path,
        options: DatabaseOptions,
    ) -> None:
        self._spark = spark
        self._sources = [check_exists(str(source)) for source in sources]
        self._options = options
        self._job = TableJob(spark, [], to, options.table)
        self.home = self._job.publication
        self._runner = TaskRunner(spark, self.home.lake.place, options.table.on_plan)

    def run(self, topic: str) -> DatabaseResult:
        """Add what is new of a topic in all sources."""
        self.home.check_folder(database=True)
        with self.home.lake.locked(LOCK, self._job.token):
            manifest = self.first_manifest(settle_database(self.home), topic)
            total: DatabaseResult | None = None
            for sources in stages_of(named_sources(self._sources, list(manifest.brokers))):
                manifest, done = self._run_stage(manifest, sources)
                total = done if total is None else total.followed_by(done)
            assert total is not None
            return total

    def first_manifest(self, found: TableManifest | None, topic: str) -> TableManifest:
        """Return the manifest of the database, or a new one while it has had no messages.

        Raises LakeError if it is another topic's or that of a table, ConfigError if an option
        differs.
        """
        place = self.home.lake.place
        if found is not None and (found.database is None or "by" not in found.database):
            raise LakeError(f"{place}: is a table, not a database; choose another folder")
        if found is None or found.sequence == 0:
            return TableManifest.new(topic, self._options.fixed(None), EMPTY)
        if found.topic != topic:
            raise LakeError(
                f"{place}: is the database of the topic {found.topic}, not {topic}; choose "
                "another folder"
            )
        return replace(found, options=self._options.fixed(found.options))

    # -- reading ------------------------------------------------------------------------------

    def plans(self, manifest: TableManifest, sources: Iterable[TableSource]) -> list[SourcePlan]:
        """Return what is new in sources of different brokers."""
        return [
            plan_source(
                source,
                manifest.topic,
                manifest.progress(source.broker),
                split_bytes=self._options.table.split_bytes,
                allow_gap=self._options.table.allow_gap,
            )
            for source in sources
        ]

    def progress(
        self, manifest: TableManifest, plans: Sequence[SourcePlan], results: Sequence[RouteResult]
    ) -> dict[str, BrokerProgress]:
        """Return what the database then has of the brokers of some plans."""
        gap, topic = self._options.table.allow_gap, manifest.topic
        brokers = {
            name: progress_after(topic, manifest.progress(name), plan, results, allow_gap=gap)
            for plan in plans
            for name in [plan.source.broker]
        }
        check_different_logs(plans, topic, manifest.brokers, brokers)
        return brokers

    def route(
        self, manifest: TableManifest, parts: Sequence[SourcePart], inline: bool
    ) -> list[RouteResult]:
        """Sort the messages of parts of sources by table."""
        rules = routing_rules(manifest.options)
        tasks = [
            RouteTask(part, number, rules, self.home.lake, inline, self._job.token)
            for number, part in enumerate(parts)
        ]
        found: list[RouteResult] = self._runner.run(route_messages, tasks, inline)
        return found

    def stage(self, routed: Sequence[RouteResult]) -> RoutedStage:
        """Return what tasks have sorted."""
        return RoutedStage(routed, self.home.lake, self._options.table.split_bytes)

    # -- writing ------------------------------------------------------------------------------

    def _run_stage(
        self, manifest: TableManifest, sources: Iterable[TableSource]
    ) -> tuple[TableManifest, DatabaseResult]:
        """Add what is new in sources of different brokers."""
        plans = self.plans(manifest, sources)
        if manifest.sequence == 0:
            self.home.begin(manifest)
        inline = sum(plan.size for plan in plans) <= INLINE_BYTES
        parts = [part for plan in plans for part in plan.parts]
        routed = self.route(manifest, parts, inline)
        brokers = self.progress(manifest, plans, routed)
        if manifest.sequence and brokers == {name: manifest.progress(name) for name in brokers}:
            done = result_of(self.home.lake.place, manifest, manifest, (), Change())
            return manifest, self._result(manifest, done, [])
        new = replace(manifest, brokers={**manifest.brokers, **brokers})
        return self.publish(manifest, new, self.stage(routed))

    def publish(
        self, manifest: TableManifest, new: TableManifest, stage: RoutedStage, retried: bool = False
    ) -> tuple[TableManifest, DatabaseResult]:
        """Decode the messages of all tables, and publish them together.

        Args:
            manifest: The published manifest of the database.
            new: The next one, whose numbers and tables are set here.
            stage: The messages.
            retried: Whether these are all messages that belonged to no table. Default: False.
        """
        known = {member.name: member for member in manifest.tables}
        folders = TableFolders(manifest.tables, manifest.options[DATABASE]["table_prefix"])
        rules = routing_rules(manifest.options)
        prepared: list[PreparedTable] = []
        members = dict(known)
        left: list[RoutedMessages] = stage.parts(None)
        skipped = stage.skipped
        for name in stage.names:
            is_new, count = name not in known, stage.count(name)
            if is_new and takes_primary_keys(manifest.options) and not stage.key(name):
                if stage.are_statements(name):
                    skipped += count  # rows declare the columns again
                else:
                    left += stage.parts(name, reason=f"{name}: {NO_KEY_REASON}")
                continue
            folder = folders.folder(name, nested=rules.nested)
            try:
                table = self._prepared(manifest, name, folder, stage, is_new)
            except _NoTableError as error:
                left += stage.parts(name, reason=str(error))
                continue
            prepared.append(table)
            before = known.get(name, MemberTable(name, folder, 0))
            members[name] = before._replace(messages=before.messages + count)
        tables = [members[name] for name in sorted(members)]
        new = replace(new, tables=tables, skipped=manifest.skipped + skipped)
        home = self._prepared_home(manifest, new, left, retried)
        published = publish_all(
            self.home,
            DatabaseCommit({each.folder: each.pending for each in prepared}, home.pending),
        )
        remove_spool(self.home)
        for publication in (*published.values(), self.home):
            publication.clean()
            publication.maintain(self._options.table.keep_hours)
        results = [each.result(published[each.folder].lake.place) for each in prepared]
        after = self.home.manifest()
        assert after is not None
        return after, self._result(after, home.result(self.home.lake.place), results)

    def _prepared(
        self,
        home: TableManifest,
        name: TableName,
        folder: str,
        stage: RoutedStage,
        is_new: bool,
    ) -> PreparedTable:
        """Write the rows of a table, which are not published yet."""
        job = TableJob(self._spark, [], f"{self.home.lake.place}/{folder}", self._options.table)
        with job.publication.lake.locked(LOCK, job.token):
            before = settled_member(job.publication, is_new)
            pk = takes_primary_keys(home.options)
            key = stage.key(name) if pk else tuple(home.options[DATABASE]["upsert"])
            if before is None:
                before = TableManifest.new(
                    home.topic, member_options(home.options, folder, key), EMPTY
                )
            parts = stage.parts(name, key=tuple(before.key) if pk else ())
            schema = job.decoding.first_schema(before, parts)
            if is_new:
                try:
                    key_columns(before.key, schema)
                except ConfigError as error:
                    raise _NoTableError(f"{name}: no table can be made: {error}") from error
                job.publication.begin(before)
            inline = stage.size(name) <= INLINE_BYTES
            results, schema = job.decoding.decode(before, parts, schema, inline)
            job.check_arrived(results)
            new = replace(
                before,
                sequence=before.sequence + 1,
                schema=schema,
                brokers=_newest(before, results),
                source_table=job.source_table(before, results),
                skipped=before.skipped + sum(result.skipped for result in results),
                rejected=before.rejected + sum(result.rows(REJECTED) for result in results),
            )
            pending, change = job.pending_commit(before, new, results, inline)
        return PreparedTable(folder, before, pending, results, change, stage.count(name))

    def _prepared_home(
        self,
        manifest: TableManifest,
        new: TableManifest,
        left: Sequence[RoutedMessages],
        retried: bool,
    ) -> PreparedTable:
        """Write the messages that belong to no table."""
        inline = sum(part.size for part in left) <= INLINE_BYTES
        results, _ = self._job.decoding.decode(manifest, left, EMPTY, inline)
        self._job.check_arrived(results)
        rejected = sum(result.rows(REJECTED) for result in results)
        new = replace(
            new,
            sequence=manifest.sequence + 1,
            rejected=rejected + (0 if retried else manifest.rejected),
        )
        pending, change = self._job.pending_commit(manifest, new, results, True, retried)
        return PreparedTable("", manifest, pending, results, change, 0)

    def _result(
        self, manifest: TableManifest, home: TableResult, tables: list[TableResult]
    ) -> DatabaseResult:
        key = tuple(manifest.options[DATABASE]["upsert"])
        found = [read_member(self.home, member) for member in manifest.tables]
        rows = sum(each.rows for each in found)
        rejected = sum(each.rejected for each in found)
        return database_result(home, tables, key, (len(found), rows, rejected))


class _NoTableError(Exception):
    """The messages of a new table cannot become one."""


def settled_member(publication: Publication, is_new: bool) -> TableManifest | None:
    """Return the manifest of a table, without leftovers; None for a new one.

    Raises:
        LakeError: The folder of a new table has other files, or a table is missing or changed.
    """
    if is_new:
        found = publication.manifest()
        if found is None:
            publication.check_new()
        elif found.sequence or found.database is None:
            raise LakeError(
                f"{publication.lake.place}: has a table that is not in the manifest of its "
                "database; remove it, or begin a new database"
            )
        publication.remove_unfinished()
        return None
    manifest = publication.settle()
    if manifest is None:
        raise LakeError(
            f"{publication.lake.place}: the table is missing, but its database has it; restore "
            "it, or begin a new database"
        )
    return manifest


def read_member(home: Publication, member: MemberTable) -> TableManifest:
    """Return the manifest of a table of a database; raise LakeError if it is missing."""
    publication = member_publication(home, member.folder)
    manifest = publication.manifest()
    if manifest is None:
        raise LakeError(
            f"{publication.lake.place}: the table is missing, but its database has it; restore "
            "it, or begin a new database"
        )
    return manifest


def _newest(before: TableManifest, results: Sequence[TaskResult]) -> dict[str, BrokerProgress]:
    """Return the newest message of each broker in a table; the database has the offsets."""
    brokers = dict(before.brokers)
    for result in results:
        known = brokers.get(result.broker, BrokerProgress())
        brokers[result.broker] = known.extended((), 0, result.anchor)
    return brokers
