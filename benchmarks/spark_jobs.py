"""Firetrail's Spark pipeline: scans, archive, rebuild and key lookup, each with its yardstick.

Each function runs in a process of its own, with one session on all cores that is warm before the
clock runs. Figures are seconds unless they say otherwise.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.load import TOPIC
from benchmarks.puts import Figures
from firetrail import StoreView
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.jobs.rebuild.rebuild_job import rebuild
from firetrail.pipeline.jobs.sql import sql
from firetrail.pipeline.source.schema import METADATA, NAMES, ddl
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.source.split_reader import read_split
from firetrail.pipeline.spark_session import active_session, session
from firetrail.pipeline.wire.broker_splits import Split, WireSplit

RARE = "rare"
_SUM = "sum(size)"
MEMORY = {"spark.driver.memory": "4g"}


class Prebuilt(DataSource):
    """The upper limit of Spark's Python sources: it returns the same prepared batches again and
    again, with as many rows in as many partitions as the store has."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "prebuilt"

    def schema(self) -> str:
        """That of the real source."""
        return ddl(NAMES)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of this source."""
        return PrebuiltReader(self.options["path"], int(self.options["rows"]))


class PrebuiltReader(DataSourceReader):
    """Hands over the first batch of each split until its share of the rows is reached."""

    def __init__(self, path: str, rows: int) -> None:
        self._path = path
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        """Return as many partitions as the real source has."""
        return [InputPartition(split) for split in splits_of(self._path)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the same batch repeatedly."""
        (batch,) = islice(read_split(partition.value, NAMES), 1)
        left = self._rows // len(splits_of(self._path))
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


def splits_of(path: str) -> list[Split]:
    """Return the splits of a read of the whole log."""
    return plan_batch(parse_options({"path": path, "view": "log"})).splits


def spark_scans(folder: str, rounds: int) -> Figures:
    """Measure reads in bytes of log per second: all columns, all but the body, and the limit."""
    spark = active_session() or session(**MEMORY)
    spark.dataSource.register(Prebuilt)
    log = spark.read.format("rocketmq").option("view", "log")
    rows = log.option("columns", "size").load(folder).count()
    limit = spark.read.format("prebuilt").option("rows", str(rows))
    frames: dict[str, Callable[[], DataFrame]] = {
        "full": lambda: spark.read.format("rocketmq").option("view", "log").load(folder),
        "metadata": lambda: log.option("columns", ",".join(METADATA)).load(folder),
        "limit": lambda: limit.load(folder),
    }
    size = log_bytes(folder)
    best = {
        name: size / min(timed(_into_nowhere, make()) for _ in range(rounds + 1))
        for name, make in frames.items()
    }
    return best | {"rows": rows, "bytes": size}


def spark_archive(folder: str, rounds: int) -> Figures:
    """Seconds to archive a store, and for Spark's own writer to make Parquet of the same rows."""
    spark = active_session() or session(**MEMORY)
    lake = Path(f"{folder}.lake")
    frame = spark.read.format("rocketmq").option("view", "log").load(folder)
    writer = frame.write.mode("overwrite").option("compression", "zstd")
    seconds: dict[str, list[float]] = {"archive": [], "spark": []}
    try:
        for _ in range(rounds + 1):
            shutil.rmtree(lake, ignore_errors=True)
            seconds["archive"].append(timed(archive, spark, folder, lake))
            shutil.rmtree(lake, ignore_errors=True)
            seconds["spark"].append(timed(writer.parquet, str(lake)))
    finally:
        shutil.rmtree(lake, ignore_errors=True)
    return {name: min(times) for name, times in seconds.items()} | {"bytes": log_bytes(folder)}


def spark_rebuild(folder: str, rounds: int) -> Figures:
    """Seconds to make queues and index from the log, into a folder of their own."""
    spark = active_session() or session(**MEMORY)
    target = Path(f"{folder}.rebuilt")
    times = []
    for _ in range(rounds + 1):
        shutil.rmtree(target, ignore_errors=True)
        times.append(timed(rebuild, spark, folder, target))
    shutil.rmtree(target)
    return {"seconds": min(times), "bytes": log_bytes(folder)}


def spark_pruning(folder: str, rounds: int) -> Figures:
    """Seconds to sum up what is a small part of a store, by a topic and by time.

    With an option; by ``sql``, which finds the same out from the query (not by time: the store was
    written within minutes, and ``sql`` allows for a clock that was set back by as much); and by a
    filter on a frame, of which Spark tells the source nothing.
    """
    spark = active_session() or session(**MEMORY)
    rows = spark.sql(f"select '{RARE}' as topic, 'x' as body from range(1000)")
    rows.write.format("rocketmq").mode("append").save(folder)
    begin, end = sql(
        spark, folder, "select unix_millis(min(store_time)), unix_millis(max(store_time)) from log"
    ).collect()[0]
    since = begin + (end - begin) // 2
    until = since + max((end - begin) // 100, 1)
    frame = spark.read.format("rocketmq").load(folder)
    times = {"startingTimestamp": str(since), "endingTimestamp": str(until)}

    def read(**options: str) -> DataFrame:
        return spark.read.format("rocketmq").options(**options).load(folder).selectExpr(_SUM)

    in_time = f"store_time >= timestamp_millis({since}) and store_time < timestamp_millis({until})"
    of_topic = f"topic = '{RARE}'"
    runs: dict[str, Callable[[], DataFrame]] = {
        "topic_option": lambda: read(subscribe=RARE),
        "topic_sql": lambda: sql(spark, folder, f"select {_SUM} from messages where {of_topic}"),
        "topic_frame": lambda: frame.where(of_topic).selectExpr(_SUM),
        "time_option": lambda: read(**times),
        "time_frame": lambda: frame.where(in_time).selectExpr(_SUM),
    }
    return {
        name: min(timed(_collected, make) for _ in range(rounds + 1)) for name, make in runs.items()
    }


def spark_key(folder: str, keys_file: str, rounds: int) -> Figures:
    """Seconds to find the message with a key through the index, and by looking at all of them.

    As a query, most of which is what Spark takes for any query, and what the source does for it
    (``source_…``): planning and reading.
    """
    spark = active_session() or session(**MEMORY)
    messages = spark.read.format("rocketmq").option("subscribe", TOPIC)
    keys = Path(keys_file).read_text(encoding="utf-8").split()[: rounds + 1]
    times = {
        "index": [timed(_require_one, messages.option("key", key).load(folder)) for key in keys],
        "source_index": [timed(_read_key, folder, key) for key in keys],
    }
    everything = spark.read.format("rocketmq").option("subscribe", TOPIC).load(folder)
    times["scan"] = [
        timed(_require_one, everything.where(f"array_contains(keys, '{key}')")) for key in keys
    ]
    times["source_scan"] = [timed(_search_key, folder, key) for key in keys]
    return {name: min(found) for name, found in times.items()} | {"bytes": log_bytes(folder)}


def _read_key(folder: str, key: str) -> None:
    options = {"path": folder, "subscribe": TOPIC, "key": key}
    found = sum(batch.num_rows for batch in _batches(options, NAMES))
    if found != 1:
        raise RuntimeError(f"a key of one message has found {found}")


def _search_key(folder: str, key: str) -> None:
    """On one core, as little as a search needs: the column that is compared."""
    batches = _batches({"path": folder, "subscribe": TOPIC}, ("keys",))
    matches = (pc.sum(pc.equal(pc.list_flatten(batch["keys"]), key)) for batch in batches)
    found = sum(int(count.as_py() or 0) for count in matches)
    if found != 1:
        raise RuntimeError(f"a key of one message was found {found} times")


def _batches(options: dict[str, str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the messages of a store without Spark."""
    for split in plan_batch(parse_options(options)).splits:
        assert not isinstance(split, WireSplit)  # the options name a folder
        yield from read_split(split, columns)


def _require_one(frame: DataFrame) -> None:
    found = frame.collect()
    if len(found) != 1:
        raise RuntimeError(f"a key of one message has found {len(found)}")


def _collected(make: Callable[[], DataFrame]) -> None:
    make().collect()


def _into_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def timed(run: Callable[..., object], *arguments: object) -> float:
    """Seconds that a call takes."""
    started = perf_counter()
    run(*arguments)
    return perf_counter() - started


def log_bytes(folder: str) -> int:
    """Return the length of the log in bytes."""
    with StoreView.open(folder) as view:
        return view.end - view.log.min_offset
