"""Archive a store: every record of its log into a lake, once.

Each run goes on where the last one ended. Tasks write data files, the driver verifies that their
parts follow each other without a gap and publishes them all with one new manifest; then it notes in
the store how far the lake has come (:mod:`firetrail.store.lifecycle.archive_marks`).

Only what cannot vanish any more is archived: of a store that is in use, or was not closed, what its
watermark says is on disk. (RocketMQ's stores have no watermark: all that is whole counts. If its
machine loses power after that, the next run finds that the log goes on differently, and says so.)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from firetrail.errors import ConfigError, LakeError
from firetrail.format.columns import Check, Stop
from firetrail.format.hosts import format_host
from firetrail.format.record import decode_message
from firetrail.pipeline.jobs.archive.compaction import compact
from firetrail.pipeline.jobs.archive.files import ArchivePart, WrittenPart, anchor_at, archive_part
from firetrail.pipeline.jobs.archive.lake import Lake
from firetrail.pipeline.jobs.archive.manifest import (
    MANIFEST,
    Anchor,
    DataFile,
    LakeLayout,
    Manifest,
    Range,
    StoreFacts,
)
from firetrail.pipeline.jobs.archive.tables import LakeTable, table_of
from firetrail.pipeline.source.log_splits import plan_log
from firetrail.pipeline.tasks import run_tasks
from firetrail.store.index.tag_entries import has_tag_entries
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.lifecycle.archive_marks import ArchiveMark, read_mark, write_mark

RETIRED_KEPT_MS = 7 * 86_400_000
"""How long files that compaction has replaced stay for readers of a table's older states."""
OnPlan = Callable[[int], Callable[[int], None] | None]
"""Told the number of tasks; gives what is to hear how many are done."""


class Archived(NamedTuple):
    """What a run has done, and what the lake holds now."""

    lake: str
    messages: int
    start: int
    end: int
    files: int
    removed: int  # files of killed jobs
    compacted: int  # small files that became part of others
    total_messages: int
    total_files: int
    marked: bool  # whether the store knows, so that retention can wait for it


def archive(
    spark: SparkSession,
    store: str | Path,
    lake: str | Path,
    *,
    format: str = "parquet",
    layout: str | None = None,
    split_bytes: int | None = None,
    allow_gap: bool = False,
    compaction: bool = True,
    on_plan: OnPlan = lambda tasks: None,
) -> Archived:
    """Bring the lake up to the store's log.

    ``format`` is "parquet", "delta" or "iceberg". ``layout`` of a new lake is "day", with files
    that small topics share, or "topic", with a folder for each; None is "day", or what the lake
    has. Raises LakeError if the folder holds other files
    or another store's archive, or if the log has lost records that were not archived yet and
    ``allow_gap`` is not set; StoreDamagedError at a record that is not good.
    """
    folder = Lake(str(lake))
    if not folder.is_empty() and folder.manifest() is None:
        raise LakeError(
            f"{lake}: not empty and no archive (no {MANIFEST}); choose a new or empty folder"
        )
    token = uuid.uuid4().hex[:12]
    with folder.locked(token):
        with StoreView.open(Path(store).absolute()) as view:
            kind = table_of(format, folder)
            chosen = _layout(layout)
            run = _ArchiveRun(spark, view, folder, kind, token, chosen, split_bytes, on_plan)
            done = run.archive(allow_gap)
        return run.compact(done) if compaction else done


def follow(
    spark: SparkSession,
    store: str | Path,
    lake: str | Path,
    *,
    every_s: float = 60.0,
    rounds: int | None = None,
    on_round: Callable[[Archived], None] = lambda done: None,
    **options: Any,
) -> None:
    """Archive what is new every ``every_s`` seconds, until stopped or for some ``rounds``.

    ``options`` are those of :func:`archive`.
    """
    number = 0
    while rounds is None or number < rounds:
        begun = time.monotonic()
        on_round(archive(spark, store, lake, **options))
        number += 1
        if number != rounds:
            time.sleep(max(begun + every_s - time.monotonic(), 0))


class _ArchiveRun:
    """One run over a store and a lake that is ours alone."""

    def __init__(
        self,
        spark: SparkSession,
        view: StoreView,
        lake: Lake,
        table: LakeTable,
        token: str,
        layout: LakeLayout | None,
        split_bytes: int | None,
        on_plan: OnPlan,
    ) -> None:
        self._spark = spark
        self._view = view
        self._lake = lake
        self._table = table
        self._layout = layout
        self._split_bytes = split_bytes
        self._on_plan = on_plan
        self._token = token

    def archive(self, allow_gap: bool) -> Archived:
        """Export what is new."""
        manifest = self._manifest()
        manifest, removed = self._remove_strays(manifest)
        start, end = self._new_part(manifest, allow_gap)
        written = self._write(start, end, manifest.layout) if start < end else []
        files = [file for part in written for file in part.files]
        messages = sum(part.messages for part in written)
        if written:
            self._lake.sync_folders([file.path for file in files])
            part = Range(start, end, messages)
            manifest = manifest.extended(
                part, files, self._anchors(manifest, start, written[-1].last)
            )
            self._table.publish(manifest, files, [])
        return Archived(
            self._lake.place,
            messages,
            start,
            end,
            len(files),
            removed,
            0,
            manifest.messages,
            len(manifest.files),
            self._mark(manifest),
        )

    def compact(self, done: Archived) -> Archived:
        """Merge small files."""
        manifest = self._lake.require_manifest()
        merged, manifest = compact(self._spark, self._lake, self._table, manifest, self._token)
        return done._replace(compacted=merged, total_files=len(manifest.files))

    # -- which store, which lake --------------------------------------------------------------

    def _manifest(self) -> Manifest:
        """The lake's manifest, its first one if it is new; LakeError if it is not this store's."""
        self._table.settle()
        found = self._lake.manifest()
        if found is None:
            layout = self._layout or LakeLayout.DAY
            manifest = Manifest.new(self._table.kind, _facts(self._view), layout)
            self._lake.publish(manifest)
            return manifest
        if found.table != self._table.kind:
            raise LakeError(
                f"{self._lake.place}: an archive of kind {found.table}, not {self._table.kind}"
            )
        if self._layout not in (None, found.layout):
            raise LakeError(
                f"{self._lake.place}: an archive with the layout {found.layout}, not "
                f"{self._layout}; go on without --layout, or use another folder"
            )
        self._check_identity(found)
        return found

    def _check_identity(self, manifest: Manifest) -> None:
        """Raise unless the records that the lake knows this store by are in it, if still there."""
        view, seen = self._view, False
        for anchor in manifest.anchors:
            if anchor.offset < view.log.min_offset:
                continue
            seen = True
            if anchor_of(view, anchor.offset) != anchor:
                raise LakeError(
                    f"{self._lake.place}: written from another store, or {view.root} was cut and "
                    f"goes on differently: the record at {anchor.offset} is not the one that was "
                    "archived; use another folder"
                )
        known = read_mark(view.system, view.root, manifest.lake_id) is not None
        if manifest.anchors and not seen and not known:
            raise LakeError(
                f"{self._lake.place}: cannot tell whether it was written from {view.root}: all "
                "records that it knows were deleted there; use another folder"
            )

    # -- what is new --------------------------------------------------------------------------

    def _new_part(self, manifest: Manifest, allow_gap: bool) -> tuple[int, int]:
        view = self._view
        end = safe_end(view)
        start = manifest.end
        if start is None:
            return view.log.min_offset, max(end, view.log.min_offset)
        if start >= view.log.min_offset:
            return start, max(start, end)
        if not allow_gap:
            raise LakeError(
                f"{view.root}: the log begins at {view.log.min_offset}, but {self._lake.place} "
                f"ends at {start}: what was between them was deleted before it was archived; go "
                "on with --allow-gap"
            )
        return view.log.min_offset, max(end, view.log.min_offset)

    def _write(self, start: int, end: int, layout: LakeLayout) -> list[WrittenPart]:
        splits = plan_log(self._view, start, end, split_bytes=self._split_bytes)
        parts = [
            ArchivePart(
                split.store,
                split.sight,
                split.start,
                split.end,
                self._lake,
                self._token,
                layout,
                self._table.topic_column,
            )
            for split in splits
        ]
        progress = self._on_plan(len(parts))
        written = run_tasks(
            self._spark, archive_part, parts, name=f"archive {self._view.root}", progress=progress
        )
        position = start
        for part in written:
            if part.start != position:
                raise LakeError(f"{self._view.root}: the records at {position} were not read")
            position = part.end
            self._lake.check_arrived(part.files, part.worker)
        if position != end:
            raise LakeError(f"{self._view.root}: the log could be read up to {position} only")
        return written

    def _anchors(self, manifest: Manifest, start: int, last: Anchor | None) -> tuple[Anchor, ...]:
        """The first record that was ever archived, and the last one."""
        first = manifest.anchors[0] if manifest.anchors else anchor_of(self._view, start)
        return tuple(dict.fromkeys(anchor for anchor in (first, last) if anchor is not None))

    # -- around it ----------------------------------------------------------------------------

    def _remove_strays(self, manifest: Manifest) -> tuple[Manifest, int]:
        """Remove the files that killed jobs have left, and those replaced long ago.

        Returns the manifest without the latter, and the number of the former.
        """
        kept_since_ms = time.time_ns() // 1_000_000 - RETIRED_KEPT_MS
        pruned = manifest.without_retired_before(kept_since_ms)
        known = {file.path for file in pruned.files} | {old.path for old in pruned.retired}
        unknown = {name for name in self._lake.data_files() if name not in known}
        for name in unknown:
            self._lake.remove(name)
        return pruned, len(unknown - {old.path for old in manifest.retired})

    def _mark(self, manifest: Manifest) -> bool:
        """Let the store know; False if it cannot be written."""
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
        raise ConfigError("layout", name, f"there is {', '.join(LakeLayout)}")
    return LakeLayout(name)


def safe_end(view: StoreView) -> int:
    """Up to where the log will not change any more."""
    if view.state is StoreState.CLOSED or view.watermark is None:
        return view.end
    return min(view.watermark.durable_offset, view.end)


def anchor_of(view: StoreView, offset: int) -> Anchor | None:
    """The record at ``offset`` by its bytes; None if there is none."""
    stop, columns = view.log.scan_one(offset, Check.RECORD)
    segment = view.log.find(offset)
    if stop is not Stop.LIMIT or segment is None:
        return None
    return anchor_at(segment, offset, columns.row(0)["size"])


def _facts(view: StoreView) -> StoreFacts:
    """What the store is like; its host is that of its oldest record."""
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


def archived_files(lake: str | Path) -> list[DataFile]:
    """The data files that count: what a reader of plain Parquet should read, and nothing else."""
    return list(Lake(str(lake)).require_manifest().files)
