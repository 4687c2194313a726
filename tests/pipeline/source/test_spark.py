"""The data source as Spark uses it: batches, SQL, predicates, errors."""

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from tests.pipeline.source.shelf import by_place, consumed, fill, row_of, some_messages
from tests.stores import GOLDEN, flip, log_file, records

from firetrail.pipeline import sql
from firetrail.pipeline.datasource import register
from firetrail.pipeline.source.schema import FIELDS, NAMES, arrow_schema


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spark") / "store"
    fill(path, some_messages(150))
    return path


def load(spark: SparkSession, path: Path | str, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**options).load(str(path))


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return by_place(table.to_pylist(maps_as_pydicts="strict") if (table := frame.toArrow()) else [])


def error_of(frame: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        frame().collect()
    return str(caught.value)


def test_schema_has_all_columns_and_types(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store)
    assert tuple(frame.schema.fieldNames()) == NAMES
    assert to_arrow_schema(frame.schema, timezone="UTC") == arrow_schema()
    assert frame.dtypes == [(field.name, field.sql) for field in FIELDS]


@pytest.mark.parametrize("partitions", ["1", "4"])
def test_rows_equal_the_messages_in_the_store(
    spark: SparkSession, store: Path, partitions: str
) -> None:
    frame = load(spark, store, minPartitions=partitions)
    assert rows(frame) == consumed(store)
    log = load(spark, store, view="log", minPartitions=partitions)
    assert rows(log) == [row_of(record) for record in records(store)]
    assert log.rdd.getNumPartitions() == int(partitions)


@pytest.mark.parametrize("name", ["v4-crashed", "v5-clean"])
def test_rows_of_java_stores_equal_their_messages(spark: SparkSession, name: str) -> None:
    assert rows(load(spark, GOLDEN / name)) == consumed(GOLDEN / name)


def test_a_temporary_view_can_be_queried(spark: SparkSession, store: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW shelf USING rocketmq OPTIONS (path '{store}', view 'log')"
    )
    counted = spark.sql("SELECT topic, count(*) AS n FROM shelf GROUP BY topic ORDER BY topic")
    assert [tuple(row) for row in counted.collect()] == [("rare", 6), ("usual", 144)]
    spark.catalog.dropTempView("shelf")


class TestColumns:
    def test_columns_are_selected_by_an_option(self, spark: SparkSession, store: Path) -> None:
        frame = load(spark, store, columns="size, topic")
        assert frame.dtypes == [("size", "int"), ("topic", "string")]
        assert frame.count() == len(consumed(store))

    def test_columns_are_selected_by_the_schema(self, spark: SparkSession, store: Path) -> None:
        reader = spark.read.format("rocketmq").schema("queue_offset bigint, keys array<string>")
        assert reader.load(str(store)).first() == (0, ["k0", "all"])

    def test_a_schema_that_forbids_nulls_is_refused(self, spark: SparkSession, store: Path) -> None:
        reader = spark.read.format("rocketmq").schema("topic string not null, size int")
        assert "column topic = 'not null'" in error_of(lambda: reader.load(str(store)))

    def test_a_column_of_another_type_is_refused(self, spark: SparkSession, store: Path) -> None:
        reader = spark.read.format("rocketmq").schema("topic string, size bigint")
        text = error_of(lambda: reader.load(str(store)))
        assert "column size = 'bigint': its type in the source is int" in text

    def test_an_unknown_column_is_refused(self, spark: SparkSession, store: Path) -> None:
        reader = spark.read.format("rocketmq").schema("topic string, message string")
        assert "no such column; the columns are topic, queue_id" in error_of(
            lambda: reader.load(str(store))
        )

    def test_times_have_a_zone_whatever_spark_means_by_timestamp(
        self, spark: SparkSession, store: Path
    ) -> None:
        spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
        try:
            frame = load(spark, store, columns="store_time")
            assert frame.dtypes == [("store_time", "timestamp")]
            late = sql(spark, store, "select 1 from log where STORE_TIME > timestamp'2001-01-01'")
            assert late.count() == len(records(store))
        finally:
            spark.conf.unset("spark.sql.timestampType")

    def test_names_in_an_option_may_have_any_case(self, spark: SparkSession, store: Path) -> None:
        frame = load(spark, store, columns="SIZE, Topic")
        assert frame.columns == ["size", "topic"]
        assert frame.where("TOPIC = 'rare'").select("Size").count() > 0

    def test_names_in_a_schema_may_have_any_case_and_order(
        self, spark: SparkSession, store: Path
    ) -> None:
        reader = spark.read.format("rocketmq").schema("SIZE int, Topic string")
        frame = reader.load(str(store))
        assert frame.columns == ["SIZE", "Topic"]
        own = load(spark, store, columns="size,topic")
        assert sorted(frame.collect()) == sorted(own.collect())
        damage = spark.read.format("rocketmq").option("view", "damage").schema("KIND string")
        assert damage.load(str(store)).collect() == []

    def test_a_column_that_is_named_twice_is_refused(
        self, spark: SparkSession, store: Path
    ) -> None:
        spark.conf.set("spark.sql.caseSensitive", "true")
        try:
            reader = spark.read.format("rocketmq").schema("size int, SIZE int")
            assert "'size': is named twice" in error_of(lambda: reader.load(str(store)))
        finally:
            spark.conf.unset("spark.sql.caseSensitive")

    @pytest.mark.parametrize("view", ["queue", "damage"])
    def test_a_wrong_type_is_refused_in_one_line(
        self, spark: SparkSession, store: Path, view: str
    ) -> None:
        """Without the traceback of Spark's planner."""
        column, right = ("Size", "int") if view == "queue" else ("Kind", "string")
        reader = spark.read.format("rocketmq").option("view", view).schema(f"{column} date")
        text = error_of(lambda: reader.load(str(store)))
        assert f"ConfigError: column {column} = 'date': its type in the source is {right}" in text
        assert "Traceback" not in text

    def test_the_schema_of_a_stream(self, spark: SparkSession, store: Path, tmp_path: Path) -> None:
        def read(schema: str) -> None:
            source = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
            writer = source.schema(schema).load(str(store)).writeStream.format("parquet")
            writer = writer.option("checkpointLocation", str(tmp_path / schema))
            query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
            query.awaitTermination()

        read("SIZE int")
        assert spark.read.parquet(str(tmp_path / "out")).count() == len(consumed(store))
        text = error_of(lambda: read("size bigint"))
        assert "ConfigError: column size = 'bigint': its type in the source is int" in text
        assert "Traceback" not in text


class TestPruning:
    def test_damage_in_what_is_pruned_is_not_met(self, spark: SparkSession, store: Path) -> None:
        everything = consumed(store)
        victim, other = everything[5], everything[100]
        path, at = log_file(store, victim["physical_offset"])
        flip(path, at + 5)
        try:
            start = str(other["physical_offset"])
            assert rows(load(spark, store, startingPhysicalOffset=start)) == everything[100:]
            query = f"select * from messages where physical_offset >= {start}"
            assert rows(sql(spark, store, query)) == everything[100:]
        finally:
            flip(path, at + 5)

    def test_the_workers_log_shows_what_is_read(self, spark: SparkSession, store: Path) -> None:
        spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
        try:
            assert load(spark, store, subscribe="rare", queueIds="1").count() == 1
            logged = spark.tvf.python_worker_logs().where("logger = 'firetrail.pipeline'")
            (line,) = logged.select("msg").collect()
        finally:
            spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "false")
        assert "1 message of 1 queue," in line.msg


class TestErrors:
    def test_a_folder_without_a_store_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        assert "nowhere: no such folder" in error_of(lambda: load(spark, tmp_path / "nowhere"))
        assert "not a message store" in error_of(lambda: load(spark, tmp_path))

    def test_an_empty_store_has_no_rows(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "commitlog").mkdir()
        assert load(spark, tmp_path).count() == 0
        assert load(spark, tmp_path, view="log").count() == 0
        assert load(spark, tmp_path, view="damage").count() == 0

    def test_wrong_options_say_what_is_allowed(self, spark: SparkSession, store: Path) -> None:
        text = error_of(lambda: load(spark, store, topics="usual"))
        assert "no such option; the options are path, namesrv, credentialsFile," in text
        text = error_of(lambda: load(spark, store, view="topics"))
        assert "view = 'topics': must be queue, log or damage" in text
        text = error_of(lambda: load(spark, store, subscribe="usal"))
        assert "has no such topic; its topics are rare, usual" in text

    def test_a_range_that_no_longer_exists(self, spark: SparkSession, tmp_path: Path) -> None:
        fill(tmp_path, some_messages(150))
        sorted((tmp_path / "commitlog").iterdir())[0].unlink()
        start = '{"usual": {"0": 0}}'
        text = error_of(lambda: load(spark, tmp_path, startingOffsets=start))
        assert "DataLostError" in text
        assert "retention deleted the offsets" in text
        frame = load(spark, tmp_path, startingOffsets=start, failOnDataLoss="false")
        assert rows(frame) == consumed(tmp_path)


def test_damage_fails_a_read_unless_permissive(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, some_messages(150))
    before = consumed(tmp_path)
    victim = records(tmp_path)[70]
    path, at = log_file(tmp_path, victim.physical_offset)
    flip(path, at + 5)
    text = error_of(lambda: load(spark, tmp_path))
    assert f"commitlog/{path.name} at offset {at} (record {victim.physical_offset})" in text
    assert rows(load(spark, tmp_path, mode="permissive")) == [
        row for row in before if row["physical_offset"] != victim.physical_offset
    ]
    (found,) = load(spark, tmp_path, view="damage").collect()
    assert (found.file, found.offset, found.kind) == (f"commitlog/{path.name}", at, "record-magic")
    assert (found.physical_offset, found.skipped) == (victim.physical_offset, victim.size)


def test_a_store_in_a_zip_file_is_read(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """A zip file is a remote file system that every worker reaches."""
    with ZipFile(tmp_path / "store.zip", "w") as archive:
        for path in (store / "commitlog").iterdir():
            archive.write(path, f"archive/commitlog/{path.name}")
    url = f"zip://archive::{tmp_path}/store.zip"
    assert rows(load(spark, url, minPartitions="4")) == consumed(store)


def test_the_source_can_be_registered_by_hand(spark: SparkSession, store: Path) -> None:
    register(spark)
    assert load(spark, store, key="k3", subscribe="usual").count() == 1
