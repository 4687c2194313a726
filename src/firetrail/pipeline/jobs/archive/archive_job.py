"""The archive job: copies every record of a store's log to a lake, once.

Each run continues where the last one ended. Tasks write data files. The driver verifies that their
parts follow each other without a gap, publishes them all with one new manifest, and then records in
the store how far the lake has come (:mod:`firetrail.store.retention.archive_marks`).

Only records that can no longer be lost are archived. If the store is in use or was not closed,
these are the records before its watermark. RocketMQ's stores have no watermark, so all complete
records are archived; if that machine then loses power, the next run detects that the log continues
differently and reports it.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from firetrail.errors import ConfigError, LakeError
from firetrail.format.columns import Check, Stop
from firetrail.format.record import decode_message
from firetrail.format.values.hosts import format_host
from firetrail.pipeline.jobs.archive.compaction import compact
from firetrail.pipeline.jobs.archive.parquet_files import (
    ArchivePart,
    WrittenPart,
    anchor_at,
    archive_part,
)
from firetrail.pipeline.jobs.archive.table_formats import LakeTable, table_of
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_manifest import (
    MANIFEST,
    Anchor,
    LakeLayout,
    Manifest,
    Range,
    StoreFacts,
)
from firetrail.pipeline.source.plan.log_splits import plan_log, safe_end
from firetrail.pipeline.tasks import OnPlan, run_tasks
from firetrail.store.index.tag_entries import has_tag_entries
from firetrail.store.inspect.view import StoreView
from firetrail.store.retention.archive_marks import ArchiveMark, read_mark, write_mark
from firetrail.system import SYSTEM

RETIRED_KEPT_MS = 7 * 86_400_000
"""The time for which files that compaction replaced are kept for readers of older versions of a
table."""


class ArchiveResult(NamedTuple):
    """The result of a run, and what the lake holds afterwards."""

    lake: str
    messages: int  # archived by this run
    start: int  # physical offsets of the archived part of the log
    end: int
    files: int  # data files written
    removed: int  # leftover files of killed jobs
    compacted: int  # small files that were merged into larger ones
    total_messages: int  # in the lake
    total_files: int
    marked: bool  # whether the store could record it, so that retention can wait for the archive


def archive(
    spark: SparkSession,
    store: str | Path,
    lake: str | Path,
    *,
    format: str = "parquet",
    layout: str | None = None,
    split_bytes: int | None = None,
    allow_gap: bool = False,
    compaction: bool | None = None,
    on_plan: OnPlan = lambda tasks: None,
) -> ArchiveResult:
    """Copy the records that a lake does not have yet from the log of a store.

    The store is only read and may be in use. If the run fails or is killed, the lake keeps its
    previous content, and the next run continues from there.

    Args:
        spark: The session to run on.
        store: Folder of the store. Every worker must reach it under the same path.
        lake: Folder of the archive, or ``s3://BUCKET/PATH`` in an object store, for which each
            process finds credentials in its environment. It must be new, empty, or an archive of
            the same store. A folder must be the same one on every worker.
        format: ``"parquet"`` (the default), ``"delta"`` or ``"iceberg"``. Delta and Iceberg need
            the extra of the same name.
        layout: Folders of a new lake: ``"day"``, where small topics share files, or ``"topic"``,
            with a folder per topic and day. None, the default, is the layout of an existing lake
            and ``"day"`` for a new one.
        split_bytes: Bytes of log per task; by default a size that keeps all processors busy.
        allow_gap: Continue although retention deleted records that were not archived. By default
            that is an error.
        compaction: Whether to merge small data files of a topic and day. None, the default, does
            so for Delta and Iceberg. The merged files of plain Parquet replace the small ones one
            by one: Let no program read the lake meanwhile.
        on_plan: Called with the number of tasks; may return a function, which is then called with
            the number of completed tasks.

    Returns:
        The number of messages, files and bytes of log of this run, and the totals of the lake.

    Raises:
        LakeError: The folder holds other files or another store's archive, another job is writing
            it, or records are missing and ``allow_gap`` is not set.
        LakeConflictError: Another job has changed a lake in an object store meanwhile.
        StoreDamagedError: The log has a damaged record. Nothing was archived.
        NotSharedError: A worker does not see the same store or lake as the driver.
        MissingExtraError: The library for ``format`` is not installed.
        ConfigError: ``format`` or ``layout`` has an unknown value.
    """
    folder = Lake(str(lake))
    if not folder.is_empty() and folder.manifest() is None:
        raise LakeError(
            f"{lake}: is neither empty nor an archive (it has no {MANIFEST}); choose a new or "
            "empty folder"
        )
    token = uuid.uuid4().hex[:12]
    with folder.locked(token):
        with StoreView.open(Path(store).absolute()) as view:
            kind = table_of(format, folder)
            options = _ArchiveOptions(_layout(layout), split_bytes, allow_gap, on_plan)
            run = _ArchiveRun(spark, view, folder, kind, token, options)
            done = run.archive()
        wanted = kind.has_history if compaction is None else compaction
        return run.compact(done) if wanted else done


def follow(
    spark: SparkSession,
    store: str | Path,
    lake: str | Path,
    *,
    every_s: float = 60.0,
    rounds: int | None = None,
    on_round: Callable[[ArchiveResult], None] = lambda done: None,
    **options: Any,
) -> None:
    """Archive new records repeatedly.

    Args:
        spark: The session to run on.
        store: Folder of the store.
        lake: Folder or URL of the archive.
        every_s: Seconds from the start of one round to the start of the next; 60 by default.
        rounds: Stop after this many rounds; None, the default, continues until interrupted.
        on_round: Called with the result of each round.
        **options: Arguments of :func:`archive`.
    """
    number = 0
    while rounds is None or number < rounds:
        begun = SYSTEM.clock.monotonic()
        on_round(archive(spark, store, lake, **options))
        number += 1
        if number != rounds:
            SYSTEM.clock.sleep_ms(round(1000 * max(begun + every_s - SYSTEM.clock.monotonic(), 0)))


class _ArchiveOptions(NamedTuple):
    """The arguments of :func:`archive` that change what a run does."""

    layout: LakeLayout | None
    split_bytes: int | None
    allow_gap: bool
    on_plan: OnPlan


class _ArchiveRun:
    """One run over a store and a lake that this job has locked."""

    def __init__(
        self,
        spark: SparkSession,
        view: StoreView,
        lake: Lake,
        table: LakeTable,
        token: str,
        options: _ArchiveOptions,
    ) -> None:
        self._spark = spark
        self._view = view
        self._lake = lake
        self._table = table
        self._token = token
        self._options = options

    def archive(self) -> ArchiveResult:
        """Copy the new records and publish them."""
        manifest = self._manifest()
        manifest, removed = self._remove_strays(manifest)
        start, end = self._new_part(manifest)
        written = self._write(start, end, manifest.layout) if start < end else []
        files = [file for part in written for file in part.files]
        messages = sum(part.messages for part in written)
        if written:
            self._lake.folder.sync_folders([file.path for file in files])
            part = Range(start, end, messages)
            manifest = manifest.extended(
                part, files, self._anchors(manifest, start, written[-1].last)
            )
            self._table.publish(manifest, files, [])
        return ArchiveResult(
            lake=self._lake.place,
            messages=messages,
            start=start,
            end=end,
            files=len(files),
            removed=removed,
            compacted=0,
            total_messages=manifest.messages,
            total_files=len(manifest.files),
            marked=self._mark(manifest),
        )

    def compact(self, done: ArchiveResult) -> ArchiveResult:
        """Merge small files."""
        manifest = self._lake.require_manifest()
        merged, manifest = compact(self._spark, self._lake, self._table, manifest, self._token)
        return done._replace(compacted=merged, total_files=len(manifest.files))

    # -- which store, which lake --------------------------------------------------------------

    def _manifest(self) -> Manifest:
        """Return the lake's manifest, and create it for a new lake.

        Raises LakeError if the lake is an archive of another store, table format or layout.
        """
        self._table.settle()
        found = self._lake.manifest()
        if found is None:
            layout = self._options.layout or LakeLayout.DAY
            manifest = Manifest.new(self._table.kind, _facts(self._view), layout)
            self._lake.publish(manifest)
            return manifest
        if found.table != self._table.kind:
            raise LakeError(
                f"{self._lake.place}: is an archive with the format {found.table}, not "
                f"{self._table.kind}; use --format {found.table}, or another folder"
            )
        if self._options.layout not in (None, found.layout):
            raise LakeError(
                f"{self._lake.place}: is an archive with the layout {found.layout}, not "
                f"{self._options.layout}; continue without --layout, or use another folder"
            )
        self._check_identity(found)
        return found

    def _check_identity(self, manifest: Manifest) -> None:
        """Raise LakeError if a record that identifies the store differs from the archived one.

        Records that retention has deleted are not compared.
        """
        view, seen = self._view, False
        for anchor in manifest.anchors:
            if anchor.offset < view.log.min_offset:
                continue
            seen = True
            if anchor_of(view, anchor.offset) != anchor:
                raise LakeError(
                    f"{self._lake.place}: is the archive of another store, or {view.root} was "
                    "truncated and has other records since: the record at "
                    f"{anchor.offset} is not the one that was archived; use another folder"
                )
        known = read_mark(view.system, view.root, manifest.lake_id) is not None
        if manifest.anchors and not seen and not known:
            raise LakeError(
                f"{self._lake.place}: cannot verify that this is the archive of {view.root}: all "
                "records that could prove it have been deleted there; use another folder"
            )

    # -- what is new --------------------------------------------------------------------------

    def _new_part(self, manifest: Manifest) -> tuple[int, int]:
        view = self._view
        end = safe_end(view)
        start = manifest.end
        if start is None:
            return view.log.min_offset, max(end, view.log.min_offset)
        if start >= view.log.min_offset:
            return start, max(start, end)
        if not self._options.allow_gap:
            raise LakeError(
                f"{view.root}: the log begins at {view.log.min_offset}, but {self._lake.place} "
                f"ends at {start}: the records in between were deleted before they were archived; "
                "continue with --allow-gap"
            )
        return view.log.min_offset, max(end, view.log.min_offset)

    def _write(self, start: int, end: int, layout: LakeLayout) -> list[WrittenPart]:
        splits = plan_log(self._view, start, end, split_bytes=self._options.split_bytes)
        parts = [
            ArchivePart(
                store=split.store,
                fingerprint=split.fingerprint,
                start=split.start,
                end=split.end,
                lake=self._lake,
                token=self._token,
                layout=layout,
                topic_column=self._table.topic_column,
            )
            for split in splits
        ]
        progress = self._options.on_plan(len(parts))
        written = run_tasks(
            self._spark, archive_part, parts, name=f"archive {self._view.root}", progress=progress
        )
        position = start
        for part in written:
            if part.start != position:
                raise LakeError(
                    f"{self._view.root}: the records at {position} were not read, so nothing was "
                    "archived; run the job again"
                )
            position = part.end
            self._lake.check_arrived(part.files, part.worker)
        if position != end:
            raise LakeError(
                f"{self._view.root}: the log could only be read up to {position}, so nothing was "
                "archived; run the job again"
            )
        return written

    def _anchors(self, manifest: Manifest, start: int, last: Anchor | None) -> tuple[Anchor, ...]:
        """Return the first record that was ever archived and the last one."""
        first = manifest.anchors[0] if manifest.anchors else anchor_of(self._view, start)
        return tuple(dict.fromkeys(anchor for anchor in (first, last) if anchor is not None))

    # -- around it ----------------------------------------------------------------------------

    def _remove_strays(self, manifest: Manifest) -> tuple[Manifest, int]:
        """Remove leftover files of killed jobs, and files that were replaced long ago.

        Return the manifest without the replaced files, and the number of leftover ones.
        """
        kept_since_ms = SYSTEM.clock.now_ms() - RETIRED_KEPT_MS
        pruned = manifest.without_retired_before(kept_since_ms)
        known = {file.path for file in pruned.files} | {old.path for old in pruned.retired}
        unknown = self._lake.strays(known)
        if unknown and self._lake.folder.has_conditional_writes:
            pruned = pruned.followed()  # so that a slow job cannot publish what is removed here
            self._lake.publish(pruned)
        for name in unknown:
            self._lake.folder.remove(name)
        return pruned, len(unknown - {old.path for old in manifest.retired})

    def _mark(self, manifest: Manifest) -> bool:
        """Record in the store how far it is archived; return False if it is not writable."""
        if manifest.end is None:
            return False
        mark = ArchiveMark(self._lake.place, manifest.end)
        try:
            if read_mark(self._view.system, self._view.root, manifest.lake_id) != mark:
                write_mark(self._view.system, self._view.root, manifest.lake_id, mark)
        except OSError:
            return False
        return True


def _layout(name: str | None) -> LakeLayout | None:
    if name is None:
        return None
    if name not in list(LakeLayout):
        raise ConfigError("layout", name, f"must be one of {', '.join(LakeLayout)}")
    return LakeLayout(name)


def anchor_of(view: StoreView, offset: int) -> Anchor | None:
    """Return the size and hash of the record at ``offset``; None if no record begins there."""
    stop, columns = view.log.scan_one(offset, Check.RECORD)
    segment = view.log.find(offset)
    if stop is not Stop.LIMIT or segment is None:
        return None
    return anchor_at(segment, offset, columns.row(0)["size"])


def _facts(view: StoreView) -> StoreFacts:
    """Return the settings of the store; its host is that of its oldest record."""
    stop, columns = view.log.scan_one(view.log.min_offset, Check.RECORD)
    segment = view.log.find(view.log.min_offset)
    host = format_host(view.config.store_host)
    if stop is Stop.LIMIT and segment is not None:
        host = format_host(decode_message(segment.view[: columns.row(0)["size"]]).store_host)
    return StoreFacts(
        host,
        view.log.segment_size,
        view.queue_file_size,
        view.config.index_slots,
        view.config.index_entries,
        bool(has_tag_entries(view.index, view.log)),
    )
