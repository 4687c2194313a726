"""The merge of small files of a table, which changes no row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from firetrail.pipeline.lakes.lake_folder import LakeFolder, attempt_name
from firetrail.pipeline.tables.files.rewrite_task import RewriteTask, write_again
from firetrail.pipeline.tables.files.stored_file import StoredFile, TableFile

SMALL_BYTES = 32 << 20
"""Files below this size are merged."""
MERGED_BYTES = 128 << 20
"""The size of the files that a merge makes, about."""


def small_files(files: Sequence[StoredFile]) -> list[list[StoredFile]]:
    """Return the groups of files that are to be merged, each of one bucket."""
    groups: list[list[StoredFile]] = []
    buckets: dict[int, list[StoredFile]] = {}
    for file in files:
        if file.size < SMALL_BYTES:
            buckets.setdefault(file.bucket, []).append(file)
    for some in buckets.values():
        group: list[StoredFile] = []
        for file in some:
            if group and sum(each.size for each in group) + file.size > MERGED_BYTES:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def merge_files(
    lake: LakeFolder, files: Sequence[StoredFile], schema: pa.Schema, sequence: int
) -> list[TableFile]:
    """Write the rows of several files of a bucket to one, which has no name yet.

    Args:
        lake: The folder of the table.
        files: The files.
        schema: The columns of files.
        sequence: The sequence of the published manifest.
    """
    paths = [file.path for file in files]
    task = RewriteTask(lake, paths, 0, schema, sequence, attempt_name())
    return [file._replace(bucket=files[0].bucket) for file in write_again(task)]
