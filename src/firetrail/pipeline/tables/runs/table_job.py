"""The table job: it adds the new messages of a topic to a table, each exactly once.

A run plans what is new in the sources, lets tasks decode it and write files, and publishes them
(``publication``). Little work is done in the driver, without Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import LakeError, PipelineError
from firetrail.pipeline.decoding.schema.table_schema import EMPTY, TableSchema
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.rewrite_task import (
    RewriteResult,
    RewriteTask,
    rewrite_file,
)
from firetrail.pipeline.tables.files.stored_file import StoredFile, TableFile
from firetrail.pipeline.tables.files.table_manifest import (
    LOCK,
    MAIN,
    REJECTED,
    PendingCommit,
    TableManifest,
)
from firetrail.pipeline.tables.keyed.bucket_change import (
    BucketMerges,
    Change,
    rewrites_files,
)
from firetrail.pipeline.tables.keyed.bucket_content import MergeResult
from firetrail.pipeline.tables.messages.broker_names import check_different_logs, stages_of
from firetrail.pipeline.tables.messages.broker_progress import BrokerProgress
from firetrail.pipeline.tables.messages.open_sources import OpenSources
from firetrail.pipeline.tables.messages.table_sources import (
    SourcePlan,
    TableSource,
    source_list,
)
from firetrail.pipeline.tables.row_task import TaskResult
from firetrail.pipeline.tables.runs.decoding_rounds import DecodingRounds
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.source_progress import ReadResult, progress_after
from firetrail.pipeline.tables.runs.table_result import TableResult, result_of
from firetrail.pipeline.tables.runs.task_runner import SparkProvider, TaskRunner
from firetrail.pipeline.tables.table_options import TableOptions, decoder_spec
from firetrail.pipeline.tasks import OnPlan

INLINE_MERGE_BYTES = 64 << 20
"""With at most this much to write again, the driver does that, too."""
INLINE_BYTES = 8 << 20
"""A round with at most this much to read is done in the driver: Spark would take longer."""


@names_table
def table(
    spark: SparkProvider,
    source: str | Path | Sequence[str | Path],
    topic: str,
    to: str | Path,
    *,
    format: str | None = None,
    catalog: str | None = None,
    decoder: str | None = None,
    decoder_options: Mapping[str, str] | None = None,
    schema: str | None = None,
    prefix: str | None = None,
    message_columns: bool | None = None,
    upsert: str | Sequence[str] | None = None,
    history: bool | None = None,
    buckets: int | None = None,
    keep_hours: int | None = None,
    strict: bool = False,
    allow_gap: bool = False,
    split_bytes: int | None = None,
    source_options: Mapping[str, str] | None = None,
    on_plan: OnPlan = lambda tasks: None,
) -> TableResult:
    """Add the messages of a topic that a table does not have yet.

    The sources are only read and may be in use. If the run fails or is killed, run it again: every
    message is in the table once. The messages that do not fit are in a second table, whose name
    ends in ``__rejected``.

    Args:
        spark: The session to run on, or a function that returns one. A run with little to do does
            not use it.
        source: Folder of a store or of a replica, folder or URL of an archive, a pattern of such
            folders, ``"namesrv=HOST:PORT"`` for all running brokers of a name server, or several
            of these. ``"BROKER=PLACE"`` names the broker; by default that is the name of the
            folder, and the one at the name server.
        topic: The topic.
        to: Folder of the table.
        format: ``"delta"``, ``"iceberg"`` or ``"parquet"``, which only gains rows. None, the
            default, is that of the table, and ``"delta"`` for a new one.
        catalog: Name of an Iceberg table, such as ``"glue.shop.orders"``: the catalog as PyIceberg
            is configured for it, the namespace, and the table. None, the default, is as before,
            and no catalog for a new table, which then is found by its folder.
        decoder: Format of the bodies. None, the default, is that of the table, and ``"json"`` for
            a new one.
        decoder_options: Options of the decoder by name, which are kept with the table. Default:
            none.
        schema: The columns of the bodies as DDL, such as ``"id bigint, price decimal(10,2)"``.
            None, the default, takes those of the table, and for a new one those that the first
            messages show.
        prefix: Prefix of the message columns. None, the default, is that of the table, and ``"_"``
            for a new one.
        message_columns: Whether the table has message columns. None, the default, is as before,
            and True for a new table.
        upsert: Columns of the bodies that are the key of a row, such as ``"id"`` or
            ``"shop,order"``: the table keeps the newest version of each key. None, the default, is
            as before, and no key for a new table.
        history: Whether a table with a key keeps all versions of each key, with their validity.
            None, the default, is as before, and False for a new table.
        buckets: Number of buckets of a new table with a key. None, the default, is 16.
        keep_hours: Hours for which replaced files are kept for readers of older versions. None,
            the default, is 168, and 1 for a table with a key.
        strict: Raise an error, and add nothing, if a message does not fit. Default: False.
        allow_gap: Continue although messages were deleted before they were read. Default: False.
        split_bytes: Bytes of log per task; by default a size that keeps all processors busy.
        source_options: Options of the Spark source for name servers: ``credentialsFile``,
            ``group`` and ``retryTimeoutMs``. Default: none.
        on_plan: Called with the number of tasks; may return a function, which is then called with
            the number of completed tasks.

    Returns:
        The number of messages and rows of this run, and the totals of the table.

    Raises:
        LakeError: The folder has other files or another topic's table, somebody else changed it,
            another job is writing it, or a source is not the one that it was made from.
        DataLostError: Messages were deleted before they were read, and ``allow_gap`` is not set.
        PipelineError: A message does not fit, and ``strict`` is set.
        StoreDamagedError: A source has a damaged message.
        NotAStoreError: A source is neither a store nor an archive, or a pattern matches none.
        OutageError: A name server or broker does not become available.
        ConfigError: An option or the folder is wrong, or the option is not that of the table.
        MissingExtraError: The extra ``delta`` or ``iceberg`` is not installed.
    """
    options = TableOptions(
        format=format,
        catalog=catalog,
        decoder=decoder,
        decoder_options=decoder_options,
        schema=schema,
        prefix=prefix,
        message_columns=message_columns,
        upsert=upsert,
        history=history,
        buckets=buckets,
        keep_hours=keep_hours,
        strict=strict,
        allow_gap=allow_gap,
        split_bytes=split_bytes,
        source_options=source_options,
        on_plan=on_plan,
    )
    return TableJob(spark, source_list(source), to, options).run(topic)


class DecodedStage(NamedTuple):
    """The messages of sources of different brokers, decoded."""

    plans: Sequence[SourcePlan]
    results: Sequence[TaskResult]
    schema: TableSchema
    brokers: Mapping[str, BrokerProgress]
    """What the table then has of these brokers."""
    source_table: str
    inline: bool
    """Whether the driver itself did the work."""
    base: TableSchema | None
    """In a dry run, the schema relative to which versions were counted."""


class TableJob:
    """One run, or one that only counts: then ``dry`` is set, and nothing is written."""

    def __init__(
        self,
        spark: SparkProvider,
        sources: Sequence[str | Path],
        to: str | Path,
        options: TableOptions,
        *,
        dry: bool = False,
    ) -> None:
        self._dry = dry
        self._new_options = False
        self.sources = OpenSources(sources, options.source_options)
        self._options = options
        self.publication = Publication(str(to))
        self.token = uuid.uuid4().hex[:12]
        self._runner = TaskRunner(spark, self.publication.lake.place, options.on_plan)
        self.decoding = DecodingRounds(
            self._runner,
            self.publication.lakes,
            self.publication.file_schemas,
            self.token,
            given=options.schema,
            strict=options.strict and not dry,
        )

    def run(self, topic: str) -> TableResult:
        """Append what is new of a topic in all sources."""
        self.publication.check_folder(self._options)
        with self.publication.lake.locked(LOCK, self.token), self.sources:
            manifest = self.first_manifest(self.publication.settle(), topic)
            total: TableResult | None = None
            for stage in self.stages(manifest):
                manifest, done = self._run_stage(manifest, stage)
                total = done if total is None else total.followed_by(done)
            assert total is not None
            return total

    def stages(self, manifest: TableManifest) -> Iterator[list[TableSource]]:
        """Return the sources, in groups that are read one after another."""
        return stages_of(self.sources.found(manifest.topic, manifest.brokers))

    def first_manifest(self, found: TableManifest | None, topic: str) -> TableManifest:
        """Return the manifest of the table, or a new one while the table has had no messages.

        Raises LakeError if it is the table of another topic, ConfigError if an option differs.
        """
        if found is None or found.sequence == 0:
            options = self._options.fixed(None)
            decoder_spec(options)
            return TableManifest.new(topic, options, EMPTY)
        if found.topic != topic:
            raise LakeError(
                f"{self.publication.lake.place}: is the table of the topic {found.topic}, not "
                f"{topic}; choose another folder"
            )
        options = self._options.fixed(found.options, found.source_table)
        self._new_options = options != found.options
        return replace(found, options=options)

    # -- one stage ----------------------------------------------------------------------------

    def decode(
        self,
        manifest: TableManifest,
        sources: Iterable[TableSource],
        base: TableSchema | None = None,
    ) -> DecodedStage:
        """Decode what is new in sources of different brokers.

        Args:
            manifest: What the table has.
            sources: The sources.
            base: For a dry run, the schema relative to which versions are counted; None for that
                with which decoding begins.
        """
        plans = self.plans(manifest, sources)
        parts = [part for plan in plans for part in plan.parts]
        schema = self.decoding.first_schema(manifest, parts)
        if self._dry:
            base = schema if base is None else base
        elif manifest.sequence == 0:
            self.publication.begin(manifest)
        inline = sum(plan.size for plan in plans) <= INLINE_BYTES
        results, schema = self.decoding.decode(manifest, parts, schema, inline, base)
        brokers = self.progress(manifest, plans, results)
        table = self.source_table(manifest, results)
        return DecodedStage(plans, results, schema, brokers, table, inline, base)

    def plans(self, manifest: TableManifest, sources: Iterable[TableSource]) -> list[SourcePlan]:
        """Return what is new in sources of different brokers."""
        return [
            self.sources.plan(
                source,
                manifest.topic,
                manifest.progress(source.broker),
                split_bytes=self._options.split_bytes,
                allow_gap=self._options.allow_gap,
            )
            for source in sources
        ]

    def progress(
        self, manifest: TableManifest, plans: Sequence[SourcePlan], results: Sequence[ReadResult]
    ) -> dict[str, BrokerProgress]:
        """Return what the table has of the brokers of some plans, after tasks have read them."""
        gap, topic = self._options.allow_gap, manifest.topic
        brokers = {
            name: progress_after(topic, manifest.progress(name), plan, results, allow_gap=gap)
            for plan in plans
            for name in [plan.source.broker]
        }
        check_different_logs(plans, topic, manifest.brokers, brokers, self.sources.has_message)
        return brokers

    def _run_stage(
        self, manifest: TableManifest, sources: Iterable[TableSource]
    ) -> tuple[TableManifest, TableResult]:
        """Append what is new in sources of different brokers."""
        place = self.publication.lake.place
        _, results, schema, brokers, source_table, inline, _ = self.decode(manifest, sources)
        self.check_arrived(results)
        known = {name: manifest.progress(name) for name in brokers}
        if schema == manifest.schema and brokers == known and not self._new_options:
            return manifest, result_of(place, manifest, manifest, results, Change())
        new = replace(
            manifest,
            sequence=manifest.sequence + 1,
            schema=schema,
            brokers={**manifest.brokers, **brokers},
            source_table=source_table,
            skipped=manifest.skipped + sum(result.skipped for result in results),
            rejected=manifest.rejected + sum(result.rows(REJECTED) for result in results),
        )
        published, change = self.commit(manifest, new, results, inline)
        self._new_options = False
        return published, result_of(place, manifest, published, results, change)

    def commit(
        self,
        manifest: TableManifest,
        new: TableManifest,
        results: Sequence[TaskResult],
        inline: bool,
        retried: bool = False,
    ) -> tuple[TableManifest, Change]:
        """Publish the rows of tasks and a manifest, whose numbers of rows are set here.

        Args:
            manifest: The published manifest.
            new: The next one.
            results: The results of the tasks.
            inline: Whether the driver itself does the work.
            retried: Whether the tasks have read all rejected messages. Default: False.
        """
        pending, change = self.pending_commit(manifest, new, results, inline, retried)
        published = self.publication.publish(pending)
        self.publication.clean()
        self.publication.maintain(self._options.keep_hours)
        return published, change

    def pending_commit(
        self,
        manifest: TableManifest,
        new: TableManifest,
        results: Sequence[TaskResult],
        inline: bool,
        retried: bool = False,
    ) -> tuple[PendingCommit, Change]:
        """Return what :meth:`commit` publishes, with the same arguments."""
        change = self._change(manifest, new, results, inline)
        new = replace(new, rows=manifest.rows + change.inserted - change.deleted)
        new = replace(new, deletes=change.deletes if new.key else {})
        pending = PendingCommit(
            new,
            {MAIN: change.files, REJECTED: [f for each in results for f in each.files[REJECTED]]},
            change.buckets,
            rewrites_files(manifest.schema, new.schema, new.format),
            retried,
        )
        return pending, change

    def source_table(self, manifest: TableManifest, results: Sequence[TaskResult]) -> str:
        """Return the table whose CDC events the topic has; raise PipelineError for several."""
        found = {manifest.source_table, *(name for each in results for name in each.tables)} - {""}
        if len(found) > 1:
            names = sorted(found)
            chosen = manifest.source_table or names[0]
            raise PipelineError(
                f"{manifest.topic}: has events of several tables ({', '.join(names)}), so nothing "
                f"was added; choose one with the decoder's option tables={chosen}, and make a "
                "table for each"
            )
        return min(found, default="")

    def _change(
        self,
        manifest: TableManifest,
        new: TableManifest,
        results: Sequence[TaskResult],
        inline: bool,
    ) -> Change:
        """Return the files of the main table that are new, or that others replace."""
        always = rewrites_files(manifest.schema, new.schema, new.format)
        old = self.publication.files(manifest) if always or new.key else []
        if new.key:
            written = self.publication.file_schemas(new)[MAIN]
            merges = BucketMerges(self.publication.lake, manifest, new, written, self.token)
            tasks = merges.tasks([result.staged for result in results], old, always=always)
            inline = inline and merges.size <= INLINE_MERGE_BYTES
            merged: list[MergeResult] = self._runner.run(merges.merge, tasks, inline)
            for result in merged:
                self._check_files(MAIN, result.files, result.worker)
                if result.deletes_size:
                    lake = self.publication.lake
                    lake.check_arrived(result.deletes, result.deletes_size, result.worker)
            return merges.change(merged)
        files = [file for result in results for file in result.files[MAIN]]
        rows = sum(file.rows for file in files)
        if always:
            inline = inline and sum(file.size for file in old) <= INLINE_MERGE_BYTES
            files += self._rewrite(new, old, inline or len(old) < 2)
        return Change(files, inserted=rows)

    def check_arrived(self, results: Sequence[TaskResult]) -> None:
        """Raise NotSharedError unless the driver sees the files of all tasks."""
        for result in results:
            for name, files in result.files.items():
                self._check_files(name, files, result.worker)

    def _check_files(self, table: str, files: Iterable[TableFile], worker: str) -> None:
        for file in files:
            self.publication.lakes[table].check_arrived(file.path, file.size, worker)

    def _rewrite(
        self, new: TableManifest, old: Sequence[StoredFile], inline: bool
    ) -> list[TableFile]:
        """Write the files of the table again, with the new types of its columns."""
        lake, schema = self.publication.lake, self.publication.file_schemas(new)[MAIN]
        tasks = [
            RewriteTask(lake, [file.path], number, schema, new.sequence, self.token)
            for number, file in enumerate(old)
        ]
        results: list[RewriteResult] = self._runner.run(rewrite_file, tasks, inline)
        for result in results:
            self._check_files(MAIN, result.files, result.worker)
        return [file for result in results for file in result.files]
