"""The two sources of messages, the files of a store and running brokers, behind one interface.

The modules of a source are imported when they are needed: every Spark worker process loads this
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from firetrail.pipeline.source.source_options import ReadOptions, View

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader

    from firetrail.pipeline.source.plan.ranges import Bounds
    from firetrail.pipeline.source.plan.store_splits import RowSelection, StoreSplit
    from firetrail.pipeline.wire.broker_splits import Split, WireSplit


class Backend(Protocol):
    """A source of messages. It has no state, because Spark pickles it with the readers."""

    def plan(
        self,
        options: ReadOptions,
        bounds: Bounds,
        wanted: RowSelection,
        columns: Sequence[str] | None,
    ) -> tuple[Sequence[Split], list[str]]:
        """Return the splits of a batch read, and notes that explain them."""

    def read(self, split: Any, columns: Sequence[str], **how: bool) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one of these splits."""

    def stream_reader(self, options: ReadOptions, columns: Sequence[str]) -> DataSourceStreamReader:
        """Return a reader of micro-batches."""


class StoreBackend:
    """The files of a store."""

    def plan(
        self,
        options: ReadOptions,
        bounds: Bounds,
        wanted: RowSelection,
        columns: Sequence[str] | None,
    ) -> tuple[Sequence[StoreSplit], list[str]]:
        """Return the splits of a batch read, and notes that explain them."""
        from firetrail.pipeline.source.plan.store_plan import plan_store

        return plan_store(options, bounds, wanted, columns)

    def read(
        self, split: StoreSplit, columns: Sequence[str], **how: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a split."""
        from firetrail.pipeline.source.split_reader import read_split

        return read_split(split, columns, **how)

    def stream_reader(self, options: ReadOptions, columns: Sequence[str]) -> DataSourceStreamReader:
        """Return a reader that follows the log or the queues."""
        from firetrail.pipeline.source.store_stream import LogStreamReader, QueueStreamReader

        kind = LogStreamReader if options.view is View.LOG else QueueStreamReader
        return kind(options, columns)


class BrokerBackend:
    """The queues of running brokers."""

    def plan(
        self,
        options: ReadOptions,
        bounds: Bounds,
        wanted: RowSelection,
        columns: Sequence[str] | None,
    ) -> tuple[Sequence[WireSplit], list[str]]:
        """Return the splits of a batch read, and notes that explain them."""
        from firetrail.pipeline.wire.broker_plan import plan_wire

        return plan_wire(options, bounds, wanted)

    def read(
        self, split: WireSplit, columns: Sequence[str], **how: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a split."""
        from firetrail.pipeline.wire.broker_reader import read_wire

        return read_wire(split, columns, **how)

    def stream_reader(self, options: ReadOptions, columns: Sequence[str]) -> DataSourceStreamReader:
        """Return a reader that follows the queues."""
        from firetrail.pipeline.wire.broker_stream import WireStreamReader

        return WireStreamReader(options, columns)


def backend_of(options: ReadOptions) -> Backend:
    """Return the backend for the source that the options name."""
    return BrokerBackend() if options.namesrv else StoreBackend()
