"""The sink for stores as Spark sees it.

Tasks stage files. One process on the driver appends them to the store in one atomic commit
(:mod:`firetrail.store.bulk`). The batches of a stream are numbered, and a number that is committed
is not written again (:mod:`firetrail.pipeline.sink.repeats`). They are numbered per query, by the
id that Spark keeps in the checkpoint: a query that starts over with a new checkpoint has a new id,
even at the same location.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from firetrail.errors import StoreLockedError
from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.sink.repeats import RepeatedWrite
from firetrail.pipeline.sink.sink_columns import (
    SinkOptions,
    check_appended,
    parse_options,
    with_own_names,
)
from firetrail.pipeline.sink.staged_rows import RowStager, append_staged
from firetrail.pipeline.workers import check_arrived, worker_name
from firetrail.store.bulk import BulkAppend
from firetrail.store.bulk_journal import Ticket
from firetrail.system import SYSTEM

if TYPE_CHECKING:
    import pyarrow as pa


ABANDONED_S = 7 * 86_400
"""Staged files of this age are leftovers of killed jobs."""
LOCK_WAIT_S = 10
"""The time that a commit waits for a store that another process has open."""
LOCK_POLL_S = 0.1
_QUERY = "sql.streaming.queryId"
"""Spark's job property with the id of a streaming query."""


@dataclass
class StagedRows(WriterCommitMessage):
    """The file that a task has written; the path is None if it had no rows."""

    path: str | None
    messages: int
    size: int
    worker: str
    query: str | None
    """The id of the streaming query."""


def current_query() -> str | None:
    """Return the id of the streaming query whose task this is; None in other tasks."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(_QUERY)


def batch_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer for ``df.write``."""
    return BatchWriter(*_checked(schema, options, overwrite, stream=False))


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer for ``df.writeStream``."""
    return StreamWriter(*_checked(schema, options, overwrite, stream=True))


def _checked(
    schema: StructType, options: Mapping[str, str], overwrite: bool, *, stream: bool
) -> tuple[SinkOptions, Path]:
    check_appended(schema, overwrite)
    parsed = parse_options(options, stream=stream)
    return parsed, parsed.staging / uuid.uuid4().hex


class _StoreSinkWriter:
    """The common part of both writers."""

    _stream: bool

    def __init__(self, options: SinkOptions, folder: Path) -> None:
        self._options = options
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        stager = RowStager(self._options, self._folder)
        path = stager.stage(map(with_own_names, iterator))
        size = 0 if path is None else SYSTEM.files.size(Path(path))
        return StagedRows(path, stager.messages, size, worker_name(), current_query())

    def _append(
        self, messages: Sequence[WriterCommitMessage | None], ticket: Ticket | None
    ) -> None:
        paths, rows = [], 0
        for message in messages:
            if isinstance(message, StagedRows) and message.path is not None:
                check_arrived(message.path, message.size, message.worker)
                paths.append(message.path)
                rows += message.messages
        with self._open(ticket) as bulk:
            if ticket is not None and bulk.done:
                repeated = RepeatedWrite(bulk, ticket, self._options, stream=self._stream)
                repeated.check(paths, rows)
                return
            append_staged(bulk, paths)
            bulk.commit()

    def _open(self, ticket: Ticket | None) -> BulkAppend:
        """Begin a commit; wait if another write is committing to the store."""
        give_up = SYSTEM.clock.monotonic() + LOCK_WAIT_S
        while True:
            try:
                return BulkAppend(self._options.store, self._options.config, ticket)
            except StoreLockedError as error:
                if SYSTEM.clock.monotonic() >= give_up:
                    raise StoreLockedError(
                        f"{error}. The sink waited {LOCK_WAIT_S} s. If that process is a broker, "
                        "write to the broker: .option('namesrv', 'HOST:PORT')"
                    ) from error
            SYSTEM.clock.sleep_ms(round(1000 * LOCK_POLL_S))

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files, and leftovers of jobs that were killed long ago.

        It raises nothing, because a commit that has happened must not be reported as failed. What
        cannot be removed now is a leftover for a later write.
        """
        for message in messages:
            if isinstance(message, StagedRows) and message.path is not None:
                path = Path(message.path)  # the tasks may have used another writer and folder
                try:
                    SYSTEM.files.discard(path)
                except OSError as error:
                    LOGGER.warning("%s: the staged file is left over: %s", path, error)
                _remove_empty(path.parent)
        _remove_abandoned(self._options.staging)
        _remove_empty(self._options.staging)


def _remove_abandoned(staging: Path) -> None:
    """Remove the folders of jobs that were killed long ago; other writers may do so as well."""
    abandoned_ms = SYSTEM.clock.now_ms() - 1000 * ABANDONED_S
    folders: list[str] = []
    with suppress(OSError):
        folders = SYSTEM.files.folders(staging)
    for name in folders:
        with suppress(OSError):  # its own writer, or another one, is removing it
            if SYSTEM.files.modified_ms(staging / name) < abandoned_ms:
                SYSTEM.files.remove_tree(staging / name, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    """Remove a folder unless another write uses it: it then has files, or is created again."""
    with suppress(OSError):
        folder.rmdir()


class BatchWriter(_StoreSinkWriter, DataSourceArrowWriter):
    """One write, of which all rows become visible or none."""

    _stream = False

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the staged rows of all tasks."""
        writer_id = self._options.writer_id
        self._append(messages, Ticket(writer_id, 0) if writer_id is not None else None)
        self._discard(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the staged rows."""
        SYSTEM.files.remove_tree(self._folder, ignore_errors=True)
        self._discard(messages)


class StreamWriter(_StoreSinkWriter, DataSourceStreamArrowWriter):
    """The micro-batches of a query: each is written atomically, and none is written twice."""

    _stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append a micro-batch, unless it was committed before the query was restarted."""
        staged = [message for message in messages if isinstance(message, StagedRows)]
        if staged:
            query = staged[0].query
            writer_id = self._options.writer_id or query
            assert writer_id is not None
            self._append(messages, Ticket(writer_id, batchId, query))
        self._discard(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Discard the staged rows of a micro-batch."""
        self._discard(messages)
