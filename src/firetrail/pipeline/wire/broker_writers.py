"""The sink for brokers as Spark sees it: tasks send their rows themselves.

A row is visible as soon as it is sent, and stays even if the job fails: delivery is at least once.
If a task or a micro-batch is repeated, a row that is sent again has the same id
(:mod:`firetrail.pipeline.wire.sender`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from firetrail.pipeline.sink.sink_columns import (
    WireSinkOptions,
    check_appended,
    parse_wire_options,
    with_own_names,
)
from firetrail.pipeline.sink.store_writers import current_query
from firetrail.pipeline.wire.sender import RowIds, Sender

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = "streaming.sql.batchId"
"""Spark's job property with the number of a micro-batch."""


def batch_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer for ``df.write``."""
    check_appended(schema, overwrite)
    return WireBatchWriter(parse_wire_options(options))


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer for ``df.writeStream``."""
    check_appended(schema, overwrite)
    return WireStreamWriter(parse_wire_options(options))


@dataclass
class SentCount(WriterCommitMessage):
    """The number of messages that a task has sent."""

    messages: int


class _BrokerSinkWriter:
    """The common part of both writers."""

    def __init__(self, options: WireSinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        task = TaskContext.get()
        assert task is not None
        ids = None
        writer_id = self._options.writer_id or self._query()
        if writer_id is not None:
            epoch = task.getLocalProperty(_EPOCH) or "0"
            ids = RowIds(writer_id, int(epoch), task.partitionId())
        sender = Sender(self._options, ids, task.partitionId())
        sender.send(map(with_own_names, iterator))
        return SentCount(sender.messages)

    def _query(self) -> str | None:
        """Return the id from which row ids are derived if there is no ``writeId``."""
        return None


class WireBatchWriter(_BrokerSinkWriter, DataSourceArrowWriter):
    """One write."""


class WireStreamWriter(_BrokerSinkWriter, DataSourceStreamArrowWriter):
    """The micro-batches of a query."""

    def _query(self) -> str | None:
        return current_query()
