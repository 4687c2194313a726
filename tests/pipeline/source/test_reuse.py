"""Frames and views that are used several times return the right rows for each use.

Spark applies filters pushed into a Python source to later scans of the same frame, too
(docs/design/spark-filter-pushdown.md), so the source must never take any.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader
from tests.pipeline.source.shelf import consumed, fill, some_messages

from firetrail.pipeline import sql
from firetrail.pipeline.spark_readers import BatchReader, DamageReader

FLAG = "spark.sql.python.filterPushdown.enabled"
TWICE = "select (select count(*) from {0} where topic = 'rare') a, (select count(*) from {0}) b"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reuse") / "store"
    fill(path, some_messages(150))
    return path


@pytest.fixture(scope="module")
def counts(store: Path) -> tuple[int, int, int]:
    """Count all rows, those of the rare topic, and those with offsets from 50 on."""
    rows = consumed(store)
    rare = sum(row["topic"] == "rare" for row in rows)
    return len(rows), rare, sum(row["queue_offset"] >= 50 for row in rows)


@pytest.fixture(params=["true", "false"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    spark.conf.set(FLAG, request.param)
    yield request.param
    spark.conf.unset(FLAG)


def load(spark: SparkSession, store: Path) -> DataFrame:
    return spark.read.format("rocketmq").load(str(store))


@pytest.mark.parametrize("reader", [BatchReader, DamageReader])
def test_no_reader_takes_filters(reader: type[DataSourceReader]) -> None:
    assert reader.pushFilters is DataSourceReader.pushFilters


def test_session_leaves_the_flag_alone(spark: SparkSession) -> None:
    assert spark.conf.get(FLAG) == "false"


@pytest.mark.usefixtures("pushdown")
class TestFrames:
    def test_a_filter_does_not_stay(
        self, spark: SparkSession, store: Path, counts: tuple[int, int, int]
    ) -> None:
        frame = load(spark, store)
        everything, rare, late = counts
        assert frame.count() == everything
        assert frame.where("queue_offset >= 50").count() == late
        assert frame.count() == everything
        assert frame.where("topic = 'rare'").count() == rare

    def test_a_frame_is_read_several_times_in_one_statement(
        self, spark: SparkSession, store: Path, counts: tuple[int, int, int]
    ) -> None:
        everything, rare, late = counts
        frame = load(spark, store)
        some = frame.where("topic = 'rare'")
        others = frame.join(some, "physical_offset", "left_anti")
        assert others.count() == everything - rare
        assert some.unionAll(frame).count() == rare + everything
        both = frame.where("queue_offset >= 50").alias("l").join(frame.alias("r"), "msg_id")
        assert both.count() == late
        spark.sql(
            f"create or replace temp view shelf using rocketmq options (path '{store}')"
        ).collect()
        assert tuple(spark.sql(TWICE.format("shelf")).first() or ()) == (rare, everything)
        spark.catalog.dropTempView("shelf")

    def test_cache_and_write_after_a_filter(
        self, spark: SparkSession, store: Path, tmp_path: Path, counts: tuple[int, int, int]
    ) -> None:
        everything, rare, _ = counts
        frame = load(spark, store).drop("properties")
        assert frame.where("topic = 'rare'").count() == rare
        frame.write.parquet(str(tmp_path / "all"))
        assert spark.read.parquet(str(tmp_path / "all")).count() == everything
        cached = frame.cache()
        assert (cached.count(), frame.where("topic = 'rare'").count()) == (everything, rare)
        cached.unpersist()


@pytest.mark.usefixtures("pushdown")
class TestSql:
    def test_two_uses(self, spark: SparkSession, store: Path, counts: tuple[int, int, int]) -> None:
        everything, rare, late = counts
        assert tuple(sql(spark, store, TWICE.format("messages")).first() or ()) == (
            rare,
            everything,
        )
        query = (
            "select count(*) from messages m left anti join messages n "
            "on m.physical_offset = n.physical_offset and n.queue_offset >= 50"
        )
        assert tuple(sql(spark, store, query).first() or ()) == (everything - late,)

    def test_the_result_is_used_again(
        self, spark: SparkSession, store: Path, counts: tuple[int, int, int]
    ) -> None:
        everything, rare, late = counts
        some = sql(spark, store, "select topic, queue_offset from messages where topic = 'rare'")
        all_of_them = sql(spark, store, "select topic, queue_offset from messages").cache()
        assert some.where("queue_offset < 0").count() == 0
        assert (some.count(), all_of_them.count()) == (rare, everything)
        assert all_of_them.where("queue_offset >= 50").count() == late
        assert sql(spark, store, "select * from messages").count() == everything
        all_of_them.unpersist()


def test_times_before_the_first_year_are_compared(spark: SparkSession, store: Path) -> None:
    """Python does not support such times, so no time of a predicate is converted to one."""
    frame, early = load(spark, store), "timestamp'-0044-03-15 12:00:00'"
    everything = len(consumed(store))
    assert frame.where(f"store_time < {early}").count() == 0
    assert frame.where(f"store_time >= {early}").count() == everything
    counts = ", ".join(
        f"(select count(*) from messages where store_time {operator} {early})"
        for operator in (">", "<=", "=")
    )
    assert tuple(sql(spark, store, f"select {counts}").first() or ()) == (everything, 0, 0)
