"""The sink as Spark sees it.

Tasks stage files; one process, for Spark's driver, appends them to the store in one commit
(:mod:`firetrail.store.bulk`): a batch is visible completely or not at all. A stream's batches have
numbers, and a number that was committed is not written again.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from firetrail.errors import ConfigError, StoreLockedError
from firetrail.pipeline.sink.columns import (
    SinkOptions,
    check_columns,
    is_wire,
    parse_options,
    parse_wire_options,
)
from firetrail.pipeline.sink.staging import Stager, append_staged
from firetrail.pipeline.workers import check_arrived, worker_name
from firetrail.store.bulk import BulkAppend, Ticket

if TYPE_CHECKING:
    import pyarrow as pa


ABANDONED_S = 7 * 86_400
"""Staged files of that age belong to nobody any more."""
LOCK_WAIT_S = 10
"""How long a commit waits for a store that another process has open."""
LOCK_POLL_S = 0.1


@dataclass
class StagedRows(WriterCommitMessage):
    """What a task has made: a file, None if it had no rows."""

    path: str | None
    messages: int
    size: int
    worker: str


def batch_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of ``df.write``."""
    if is_wire(options):
        from firetrail.pipeline.wire.writers import WireBatchWriter

        check_appended(schema, overwrite)
        return WireBatchWriter(parse_wire_options(options, stream=False))
    return BatchWriter(*_checked(schema, options, overwrite, stream=False))


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of ``df.writeStream``."""
    if is_wire(options):
        from firetrail.pipeline.wire.writers import WireStreamWriter

        check_appended(schema, overwrite)
        return WireStreamWriter(parse_wire_options(options, stream=True))
    return StreamWriter(*_checked(schema, options, overwrite, stream=True))


def _checked(
    schema: StructType, options: Mapping[str, str], overwrite: bool, *, stream: bool
) -> tuple[SinkOptions, Path]:
    check_appended(schema, overwrite)
    parsed = parse_options(options, stream=stream)
    return parsed, parsed.staging / uuid.uuid4().hex


def check_appended(schema: StructType, overwrite: bool) -> None:
    """Raise ConfigError unless rows of the sink's columns are to be appended."""
    if overwrite:
        raise ConfigError("mode", "overwrite", "a log can only be appended to: mode('append')")
    check_columns(schema)


class _StoreSinkWriter:
    """What both writers do."""

    def __init__(self, options: SinkOptions, folder: Path) -> None:
        self._options = options
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        stager = Stager(self._options, self._folder)
        path = stager.stage(iterator)
        size = 0 if path is None else Path(path).stat().st_size
        return StagedRows(path, stager.messages, size, worker_name())

    def _append(
        self, messages: Sequence[WriterCommitMessage | None], ticket: Ticket | None
    ) -> None:
        paths = []
        for message in messages:
            if isinstance(message, StagedRows) and message.path is not None:
                check_arrived(message.path, message.size, message.worker)
                paths.append(message.path)
        with self._open(ticket) as bulk:
            if not bulk.done:
                append_staged(bulk, paths)
                bulk.commit()

    def _open(self, ticket: Ticket | None) -> BulkAppend:
        """Begin a commit; another write that commits to the store just now is waited for."""
        give_up = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                return BulkAppend(self._options.store, self._options.config, ticket)
            except StoreLockedError as error:
                if time.monotonic() >= give_up:
                    raise StoreLockedError(
                        f"{error}. The sink waited {LOCK_WAIT_S} s. If it is a broker, write "
                        "to the broker: .option('namesrv', 'HOST:PORT')"
                    ) from error
            time.sleep(LOCK_POLL_S)

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged, also by those who were killed long ago."""
        for message in messages:
            if isinstance(message, StagedRows) and message.path is not None:
                path = Path(message.path)  # Spark may have made another writer for the tasks
                path.unlink(missing_ok=True)
                with suppress(OSError):  # other files are still there
                    path.parent.rmdir()
        if self._options.staging.exists():
            for folder in self._options.staging.iterdir():
                if folder.stat().st_mtime < time.time() - ABANDONED_S:
                    shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            self._options.staging.rmdir()


class BatchWriter(_StoreSinkWriter, DataSourceArrowWriter):
    """One write: all of its rows, or none."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what all tasks have staged."""
        writer_id = self._options.writer_id
        self._append(messages, Ticket(writer_id, 0) if writer_id is not None else None)
        self._discard(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._discard(messages)


class StreamWriter(_StoreSinkWriter, DataSourceStreamArrowWriter):
    """The micro-batches of a query: each completely or not at all, and none twice."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append a micro-batch, unless it was before the query was restarted."""
        assert self._options.writer_id is not None
        self._append(messages, Ticket(self._options.writer_id, batchId))
        self._discard(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Forget a micro-batch."""
        self._discard(messages)
