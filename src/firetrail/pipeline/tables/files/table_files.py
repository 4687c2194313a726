"""The Parquet files that a task writes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from firetrail.pipeline.lakes.hashed_file import HashedFile
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.local_folder import UNFINISHED
from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.tables.files.file_statistics import file_statistics
from firetrail.pipeline.tables.files.stored_file import TableFile

DATA, SUFFIX = "data", ".parquet"
"""The folder of data files in a table, and the end of their names."""
ROW_GROUP_BYTES = 16 << 20
"""Bytes of rows in memory per row group, and so about the memory that a task needs for rows."""


class TableWriter:
    """Writes rows to one file of a lake, which exists once there are rows.

    Args:
        lake: The folder of the table.
        stem: The name that distinguishes the file from others of the job.
        token: The token of the job.
        schema: The columns.
    """

    def __init__(self, lake: LakeFolder, stem: str, token: str, schema: pa.Schema) -> None:
        self._lake = lake
        self._name = lake.new_name(DATA, stem, token, SUFFIX)
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._file: HashedFile | None = None
        self._writer: Any = None
        self._written: list[Any] = []
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        """Add rows, which are written in groups."""
        if rows.num_rows == 0:
            return
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._writer is None:
            self._file = self._lake.create(self._name)
            self._writer = pq.ParquetWriter(
                self._file,
                self._schema,
                compression="zstd",
                compression_level=1,
                metadata_collector=self._written,
            )
        group = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._writer.write_table(group, row_group_size=group.num_rows)

    def close(self) -> list[TableFile]:
        """Complete and sync the file; return it, or nothing if there are no rows."""
        if self._waiting:
            self._write_group()
        if self._file is None:
            return []
        self._writer.close()
        self._file.close()
        stats = file_statistics(self._written[0], self._schema)
        return [TableFile(self._name, self._file.size, self.rows, stats)]

    def abandon(self) -> None:
        """Remove the file of a task that failed."""
        if self._file is not None:
            self._file.abandon()
            if self._writer is not None:
                with suppress(pa.ArrowException, OSError, RuntimeError):  # its last write failed
                    self._writer.close()
            self._file.close()


def remove_unfinished(lake: LakeFolder) -> None:
    """Remove the hidden files of killed runs."""
    for name in open_folder(lake.show(DATA)).names():
        if name.startswith("_") and name.endswith(UNFINISHED):
            lake.remove(f"{DATA}/{name}")
