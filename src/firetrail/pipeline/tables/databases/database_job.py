"""The job of a database: it adds the new messages of a topic to the table of each, exactly once.

A run reads the topic once and sorts its messages by table (``route_task``). Each table decodes its
messages as a table alone does, and all of them are published together (``database_commit``).
Messages that belong to no table are rejected messages of the database itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.decoding.schema.table_schema import EMPTY, TableSchema
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.tables.databases.database_commit import (
    DatabaseCommit,
    member_publication,
    publish_all,
    remove_spool,
    settle_database,
)
from firetrail.pipeline.tables.databases.database_members import (
    NoTableError,
    PreparedTable,
    newest_messages,
    read_member,
    settled_member,
)
from firetrail.pipeline.tables.databases.database_options import (
    DatabaseOptions,
    has_primary_key,
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
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.table_manifest import (
    DATABASE,
    LOCK,
    MEMBER,
    REJECTED,
    MemberTable,
    TableManifest,
)
from firetrail.pipeline.tables.keyed.bucket_change import Change
from firetrail.pipeline.tables.keyed.keys import key_columns
from firetrail.pipeline.tables.messages.table_sources import (
    SourcePart,
    TableSource,
    source_list,
)
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.table_job import INLINE_BYTES, TableJob
from firetrail.pipeline.tables.runs.table_result import TableResult, result_of
from firetrail.pipeline.tables.runs.task_runner import SparkProvider, TaskRunner
from firetrail.pipeline.tables.table_options import TableOptions

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
    **options: Any,
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
        **options: The other arguments of :func:`~firetrail.pipeline.table`, which hold for all
            tables, without ``schema``. ``upsert`` may be ``"pk"``: the key of each table is the
            primary key that its CDC events name.

    Returns:
        The number of messages and rows of this run, by table, and the totals of the database.

    Raises:
        FiretrailError: As for :func:`~firetrail.pipeline.table`. Then no table is changed.
    """
    given = DatabaseOptions(by, include, exclude, table_prefix, TableOptions(**options))
    return DatabaseJob(spark, source_list(source), to, given).run(topic)


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
        self._options = options
        self.own = TableJob(spark, sources, to, options.table)
        """The job of the database itself, which plans what is read."""
        self.home = self.own.publication
        self._runner = TaskRunner(spark, self.home.lake.place, options.table.on_plan)

    def run(self, topic: str) -> DatabaseResult:
        """Add what is new of a topic in all sources."""
        self.home.check_folder(self._options.table, database=True)
        with self.locked(), self.own.sources:
            manifest = self.first_manifest(settle_database(self.home), topic)
            total: DatabaseResult | None = None
            for sources in self.own.stages(manifest):
                manifest, done = self._run_stage(manifest, sources)
                total = done if total is None else total.followed_by(done)
            assert total is not None
            return total

    def locked(self) -> AbstractContextManager[None]:
        """Return a context that keeps other jobs out of the database."""
        return self.home.lake.locked(LOCK, self.own.token)

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

    def is_nested(self, manifest: TableManifest) -> bool:
        """Whether the tables of a database are within folders of databases."""
        return routing_rules(manifest.options).nested

    def member(self, folder: str) -> Publication:
        """Return the publication of a table by its folder."""
        return member_publication(self.home, folder)

    # -- reading ------------------------------------------------------------------------------

    def route(
        self,
        manifest: TableManifest,
        parts: Sequence[SourcePart],
        inline: bool,
        work: LakeFolder | None = None,
    ) -> list[RouteResult]:
        """Sort the messages of parts of sources by table.

        Args:
            manifest: The manifest of the database.
            parts: The parts.
            inline: Whether the driver does the work, in memory.
            work: The folder for files of a dry run. Default: None, that of the database.
        """
        rules = routing_rules(manifest.options)
        tasks = [
            RouteTask(
                part=part,
                number=number,
                rules=rules,
                lake=work or self.home.lake,
                in_memory=inline,
                token=self.own.token,
                dry=work is not None,
            )
            for number, part in enumerate(parts)
        ]
        found: list[RouteResult] = self._runner.run(route_messages, tasks, inline)
        return found

    def stage(self, routed: Sequence[RouteResult], work: LakeFolder | None = None) -> RoutedStage:
        """Return what tasks have sorted, with the same folder as :meth:`route`."""
        return RoutedStage(routed, work or self.home.lake, self._options.table.split_bytes)

    # -- writing ------------------------------------------------------------------------------

    def _run_stage(
        self, manifest: TableManifest, sources: Iterable[TableSource]
    ) -> tuple[TableManifest, DatabaseResult]:
        """Add what is new in sources of different brokers."""
        plans = self.own.plans(manifest, sources)
        if manifest.sequence == 0:
            self.home.begin(manifest)
        inline = sum(plan.size for plan in plans) <= INLINE_BYTES
        parts = [part for plan in plans for part in plan.parts]
        routed = self.route(manifest, parts, inline)
        brokers = self.own.progress(manifest, plans, routed)
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
        prepared: list[PreparedTable] = []
        members = dict(known)
        left: list[RoutedMessages] = stage.parts(None)
        skipped = stage.skipped
        for name in stage.names:
            is_new, count = name not in known, stage.count(name)
            try:
                key = self.key_of(manifest, name, stage, is_new)
                folder = folders.folder(name, nested=self.is_nested(manifest))
                table = self._prepared(self.new_member(manifest, folder, key), name, stage, is_new)
            except NoTableError as error:
                if error.is_skipped:
                    skipped += count
                else:
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

    def key_of(
        self, home: TableManifest, name: TableName, stage: RoutedStage, is_new: bool
    ) -> tuple[str, ...]:
        """Return the key of a new table; raise NoTableError if it is not known."""
        if not takes_primary_keys(home.options):
            return tuple(home.options[DATABASE]["upsert"])
        key = stage.key(name)
        if is_new and not key:
            # Statements are not needed: rows declare the columns again.
            raise NoTableError(f"{name}: {NO_KEY_REASON}", is_skipped=stage.are_statements(name))
        return key

    def new_member(self, home: TableManifest, folder: str, key: tuple[str, ...]) -> TableManifest:
        """Return the manifest of a new table."""
        return TableManifest.new(home.topic, member_options(home.options, folder, key), EMPTY)

    def parts_of(
        self, table: TableManifest, name: TableName, stage: RoutedStage
    ) -> list[RoutedMessages]:
        """Return the messages of a table, whose events must name its key if they name one."""
        return stage.parts(name, key=tuple(table.key) if has_primary_key(table.options) else ())

    def first_schema(
        self,
        job: TableJob,
        name: TableName,
        table: TableManifest,
        parts: Sequence[RoutedMessages],
        is_new: bool,
    ) -> TableSchema:
        """Return the columns with which decoding begins; raise NoTableError without a key."""
        schema = job.decoding.first_schema(table, parts)
        if is_new:
            try:
                key_columns(table.key, schema)
            except ConfigError as error:
                raise NoTableError(f"{name}: no table can be made: {error}") from error
        return schema

    def _prepared(
        self, new_table: TableManifest, name: TableName, stage: RoutedStage, is_new: bool
    ) -> PreparedTable:
        """Write the rows of a table, which are not published yet.

        Args:
            new_table: The manifest of the table if it is new; otherwise only its folder counts.
            name: The table.
            stage: The messages.
            is_new: Whether it is new.
        """
        database = new_table.database
        assert database is not None
        folder = str(database[MEMBER])
        job = TableJob(self._spark, [], f"{self.home.lake.place}/{folder}", self._options.of_tables)
        with job.publication.lake.locked(LOCK, job.token):
            before = settled_member(job.publication, is_new) or new_table
            parts = self.parts_of(before, name, stage)
            schema = self.first_schema(job, name, before, parts, is_new)
            if is_new:
                job.publication.begin(before)
            inline = stage.size(name) <= INLINE_BYTES
            results, schema = job.decoding.decode(before, parts, schema, inline)
            job.check_arrived(results)
            new = replace(
                before,
                sequence=before.sequence + 1,
                schema=schema,
                brokers=newest_messages(before, results),
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
        results, _ = self.own.decoding.decode(manifest, left, EMPTY, inline)
        self.own.check_arrived(results)
        rejected = sum(result.rows(REJECTED) for result in results)
        new = replace(
            new,
            sequence=manifest.sequence + 1,
            rejected=rejected + (0 if retried else manifest.rejected),
        )
        pending, change = self.own.pending_commit(manifest, new, results, True, retried)
        return PreparedTable("", manifest, pending, results, change, 0)

    def _result(
        self, manifest: TableManifest, home: TableResult, tables: list[TableResult]
    ) -> DatabaseResult:
        key = tuple(manifest.options[DATABASE]["upsert"])
        found = [read_member(self.home, member) for member in manifest.tables]
        rows = sum(each.rows for each in found)
        rejected = sum(each.rejected for each in found)
        return database_result(home, tables, key, (len(found), rows, rejected))
