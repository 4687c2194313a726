"""The aggregation of a report's figures with Spark.

Each query reads only the columns that it needs. The size of the results is limited by the number of
queues, the classes of the plots, and the number of tags and keys shown.
"""

from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from firetrail.format.layout import TRANSACTION_MASK, TRANSACTION_NONE
from firetrail.format.properties import DELAY, REAL_TOPIC, TIMER_OUT_MS, TIMER_TIMES, TRAN_MSG
from firetrail.pipeline.datasource import prepare
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.jobs.report.figures import (
    TOPICS_SHOWN,
    Figures,
    FrequentValue,
    MapAxis,
    QueueFigures,
    ReportedDamage,
    TimeAxis,
    by_topic,
)
from firetrail.store.inspect.view import StoreView

HOT_MAX = 12
"""Number of tags shown, and of keys."""
FLAWS_MAX = 200
"""Number of damaged positions kept."""
_ATTEMPTS_MAX = 16
"""RocketMQ stops redelivering after 16 attempts; messages with more are counted together."""
_LATER = (DELAY, *TIMER_TIMES, TIMER_OUT_MS, REAL_TOPIC, TRAN_MSG)
"""Properties of messages that are delayed or of a transaction, and of the copies that brokers store
when their time has come."""


def gather_figures(spark: SparkSession, store: Path) -> Figures:
    """Compute the figures of a store's report."""
    prepare(spark)
    with StoreView.open(store) as view:
        log_start, log_end = view.log.min_offset, view.end
        segment_size = view.log.segment_size
        state, segments = view.state.value, len(view.log.segments)
    with original_errors():
        log = _Log(spark, store, log_end)
        topics = by_topic(_queues(log))
        first = min((topic.first for topic in topics), default=0)
        last = max((topic.last for topic in topics), default=0)
        figures = Figures(
            store=str(store),
            state=state,
            log_start=log_start,
            log_end=log_end,
            segments=segments,
            topics=topics,
            times=TimeAxis.over(first, last),
            map=MapAxis.over(log_start, log_end, segment_size),
        )
        _add_classes(figures, log)
        figures.tags = _hot(log.read("topic", "tags"), F.col("tags"))
        figures.keys = _hot(log.read("topic", "keys"), F.explode("keys"))
        _add_flaws(figures, spark, store)
    return figures


class _Log(NamedTuple):
    """A log up to a fixed end, so that all figures are about the same records."""

    spark: SparkSession
    store: Path
    end: int

    def read(self, *columns: str) -> DataFrame:
        """Read some columns of every undamaged record."""
        options = {
            "view": "log",
            "mode": "permissive",
            "columns": ",".join(columns),
            "endingPhysicalOffset": str(self.end),
        }
        return self.spark.read.format("rocketmq").options(**options).load(str(self.store))


def _queues(log: _Log) -> list[QueueFigures]:
    records = log.read("topic", "queue_id", "store_time", "size")
    time = F.unix_millis("store_time")
    rows = records.groupBy("topic", "queue_id").agg(
        F.count("*"), F.sum("size"), F.min(time), F.max(time)
    )
    return [QueueFigures(*row) for row in rows.collect()]


def _add_classes(figures: Figures, log: _Log) -> None:
    """Add all counts by class, in one pass over the log."""
    names = ("topic", "physical_offset", "born_time", "store_time", "reconsume_times", "size")
    classes = log.read(*names, "sys_flag", "properties").select(
        _topic_class(figures).alias("topic_class"),
        _time_step(figures.times).alias("step"),
        F.floor(F.log2("size") * 2).cast("int").alias("size_class"),
        _latency_class().alias("latency_class"),
        F.least("reconsume_times", F.lit(_ATTEMPTS_MAX)).alias("attempts"),
        _map_cell(figures.map).alias("cell"),
        "size",
    )
    by = {
        "time": ["topic_class", "step"],
        "size": ["topic_class", "size_class"],
        "latency": ["step", "latency_class"],
        "attempts": ["attempts"],
        "map": ["topic_class", "cell"],
    }
    columns = list(dict.fromkeys(chain(*by.values())))
    rows = classes.groupingSets(list(by.values()), *columns).agg(
        F.grouping_id().alias("grouping"),
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
    )
    # A grouping id has one bit per column, the first column highest: 1 if it is not in the set.
    kinds = {
        int("".join("0" if column in names else "1" for column in columns), 2): kind
        for kind, names in by.items()
    }
    heaviest: dict[int, int] = {}
    for row in rows.collect():
        _add_row(figures, kinds[row.grouping], row, heaviest)


def _add_row(figures: Figures, kind: str, row: Row, heaviest: dict[int, int]) -> None:
    if kind == "time":
        figures.messages[row.topic_class, row.step] = row.messages
        figures.bytes[row.topic_class, row.step] = row.bytes
    elif kind == "size":
        figures.sizes[row.topic_class, row.size_class] = row.messages
    elif kind == "latency" and row.latency_class is None:
        figures.stored_later += row.messages
    elif kind == "latency":
        figures.latency[row.step, row.latency_class] = row.messages
    elif kind == "attempts":
        figures.attempts[row.attempts] = row.messages
    elif row.bytes > heaviest.get(row.cell, 0):
        heaviest[row.cell] = row.bytes
        figures.cells[row.cell] = row.topic_class


def _topic_class(figures: Figures) -> Column:
    shown = F.create_map(
        *(F.lit(x) for n, topic in enumerate(figures.shown) for x in (topic.name, n))
    )
    if not figures.shown:
        return F.lit(TOPICS_SHOWN)
    return F.coalesce(shown[F.col("topic")], F.lit(TOPICS_SHOWN))


def _time_step(axis: TimeAxis) -> Column:
    return F.floor((F.unix_millis("store_time") - axis.start) / axis.width).cast("int")


def _latency_class() -> Column:
    """Return -1 if stored before it was born, 0 below 1 ms, and n from 2 ** (n - 1) ms on.

    It is null if the producer did not send the record to be stored at once under its topic.
    """
    ms = F.unix_millis("store_time") - F.unix_millis("born_time")
    power = F.floor(F.log2(ms)) + 1
    timed = F.when(ms < 0, -1).when(ms == 0, 0).otherwise(power).cast("int")
    return F.when(~_is_stored_later(), timed)


def _is_stored_later() -> Column:
    """Whether a broker keeps a record for later, or has stored it again: age is not latency."""
    names = F.array(*map(F.lit, _LATER))
    return (
        F.coalesce(F.arrays_overlap(F.map_keys("properties"), names), F.lit(False))
        | (F.col("sys_flag").bitwiseAND(TRANSACTION_MASK) != TRANSACTION_NONE)
        | (F.col("reconsume_times") > 0)
    )


def _map_cell(axis: MapAxis) -> Column:
    """Return the SQL form of :meth:`MapAxis.cell_of`."""
    offset = F.col("physical_offset") - axis.start
    row, inside = F.floor(offset / axis.row), offset % axis.row
    return (row * axis.cells + F.floor(inside * axis.cells / axis.row)).cast("int")


def _hot(records: DataFrame, text: Column) -> list[FrequentValue]:
    """Return the most frequent texts of a column by topic, in a deterministic order."""
    counted = records.select("topic", text.alias("text")).where("text != ''")
    rows = counted.groupBy("topic", "text").agg(F.count("*").alias("messages"))
    return [
        FrequentValue(*row)
        for row in rows.orderBy(F.desc("messages"), "topic", "text").head(HOT_MAX)
    ]


def _add_flaws(figures: Figures, spark: SparkSession, store: Path) -> None:
    """Verify all records and add the damage; the other figures do not need body checksums."""
    damage = spark.read.format("rocketmq").option("view", "damage").load(str(store))
    order = F.asc_nulls_first("physical_offset"), "file", "offset"
    rows = damage.orderBy(*order).head(FLAWS_MAX + 1)
    figures.flaws = [
        ReportedDamage(row.file, row.offset, row.physical_offset, row.kind, row.detail)
        for row in rows[:FLAWS_MAX]
    ]
    figures.flaws_total = len(rows) if len(rows) <= FLAWS_MAX else damage.count()
