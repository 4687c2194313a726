"""Compaction of a lake: merges small files of the same topic and day, and small shared files.

Files of one topic keep the order of the log. In files that several topics share, the rows of a row
group are sorted by topic, as in the files that are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from firetrail.pipeline.jobs.archive.parquet_files import OWN_BYTES, SHARED, PartitionFile
from firetrail.pipeline.jobs.archive.table_formats import LakeTable
from firetrail.pipeline.lakes.lake import Lake, partition
from firetrail.pipeline.lakes.lake_manifest import DataFile, LakeLayout, Manifest, RetiredFile
from firetrail.pipeline.lakes.lake_schema import schema_of
from firetrail.pipeline.tasks import run_tasks
from firetrail.pipeline.workers import worker_name
from firetrail.system import SYSTEM

SMALL_BYTES = 32 << 20
"""Files with fewer bytes are merged with their neighbours."""
FEW = 4
"""Up to this many small files are left alone: merging two per run would rewrite data too often."""
ROW_GROUP_ROWS = 128 << 10


class Merge(NamedTuple):
    """Files to be merged into one."""

    lake: Lake
    files: tuple[DataFile, ...]
    token: str
    topic: str  # SHARED for several
    layout: LakeLayout
    topic_column: bool


def compact(
    spark: SparkSession, lake: Lake, table: LakeTable, manifest: Manifest, token: str
) -> tuple[int, Manifest]:
    """Merge small files; return the number of files replaced and the new manifest."""
    merges = [
        Merge(lake, files, token, topic, manifest.layout, table.topic_column)
        for topic, files in _mergeable(manifest)
    ]
    if not merges:
        return 0, manifest
    merged = []
    for file, worker in run_tasks(spark, merge_files, merges, name=f"compact {lake.place}"):
        lake.check_arrived([file], worker)
        merged.append(file)
    old = [file for merge in merges for file in merge.files]
    lake.folder.sync_folders([file.path for file in merged])
    now_ms = SYSTEM.clock.now_ms()
    retired = tuple(RetiredFile(file.path, now_ms) for file in old) if table.has_history else ()
    manifest = manifest.exchanged({file.path for file in old}, merged, retired)
    table.publish(manifest, merged, old)
    return len(old), manifest


def _mergeable(manifest: Manifest) -> Iterator[tuple[str, tuple[DataFile, ...]]]:
    """Yield runs of small files with their topic, cut so that no merged file becomes large."""

    def group(file: DataFile) -> tuple[str, str]:
        few = file.topic != file.last_topic or file.size < OWN_BYTES
        return SHARED if few and manifest.layout is LakeLayout.DAY else file.topic, file.day

    by_group = sorted(manifest.files, key=lambda file: (group(file), file.start))
    for (topic, _), files in groupby(by_group, key=group):
        run: list[DataFile] = []
        size = 0
        for file in [*files, None]:
            if file is None or file.size >= SMALL_BYTES or size + file.size > 4 * SMALL_BYTES:
                if len(run) > FEW:
                    yield topic, tuple(run)
                run, size = [], 0
            if file is not None and file.size < SMALL_BYTES:
                run.append(file)
                size += file.size


def merge_files(merge: Merge) -> tuple[DataFile, str]:
    """Write the rows of several files to one, a few row groups at a time.

    Return the file and the name of the worker.
    """
    merge.lake.check_shared(merge.token)
    first = merge.files[0]
    folder = partition(merge.layout, merge.topic, first.day)
    name = merge.lake.new_name(folder, f"{first.start:020d}-merged", merge.token)
    schema = schema_of(merge.layout, topic_column=merge.topic_column)
    out = PartitionFile(merge.lake, name, merge.topic, first.day, schema)
    waiting: list[pa.Table] = []
    rows = 0
    stored = merge.lake.folder
    for file in merge.files:
        with (
            stored.reading(file.path),
            pq.ParquetFile(stored.path(file.path), filesystem=stored.filesystem) as source,
        ):
            for group in range(source.num_row_groups):
                waiting.append(source.read_row_group(group).cast(schema))
                rows += waiting[-1].num_rows
                if rows >= ROW_GROUP_ROWS:
                    out.write(pa.concat_tables(waiting))
                    waiting, rows = [], 0
    if waiting:
        out.write(pa.concat_tables(waiting))
    return out.close(), worker_name()
