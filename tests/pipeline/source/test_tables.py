"""Tables of Spark's catalog, and several stores as one table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.pipeline.source.shelf import consumed, fill, some_messages

from firetrail.errors import ConfigError
from firetrail.pipeline import sql
from firetrail.pipeline.batch_plan import explain
from firetrail.pipeline.source.schema import NAMES
from firetrail.pipeline.source.source_options import parse_options, table_options


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found = [tmp_path_factory.mktemp("tables") / name for name in ("one", "a 100% other")]
    for number, path in enumerate(found):
        fill(path, some_messages(60 + 40 * number))
    return found


@pytest.fixture
def spark_tables(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    for name in ("t", "u"):
        spark.sql(f"drop table if exists {name}")


def error_of(run: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        run()
    return str(caught.value)


class TestCatalog:
    def test_a_table_of_the_catalog_can_be_queried(
        self, spark_tables: SparkSession, stores: list[Path]
    ) -> None:
        spark, store = spark_tables, stores[1]
        spark.sql(
            f"create table t using rocketmq options (path '{store}', columns 'topic,size', "
            "subscribe 'usual') comment 'the usual' tblproperties ('team' = 'data')"
        )
        usual = [row["size"] for row in consumed(store) if row["topic"] == "usual"]
        assert spark.table("t").columns == ["topic", "size"]
        counts = "select count(*), sum(size), (select count(*) from t where size < 0) from t"
        assert tuple(spark.sql(counts).first() or ()) == (len(usual), sum(usual), 0)

        spark.sql(f"create table u using rocketmq location '{store}'")
        assert spark.table("u").count() == len(consumed(store))
        spark.sql("drop table u")
        assert len(consumed(store)) > len(usual)

    def test_writing_is_refused(self, spark_tables: SparkSession, stores: list[Path]) -> None:
        spark = spark_tables
        create = f"create table t using rocketmq options (path '{stores[0]}', columns 'topic,body')"
        spark.sql(create)
        text = error_of(lambda: spark.sql("insert into t values ('usual', X'00')"))
        assert "a table of the catalog is read-only" in text
        assert "df.write.format('rocketmq').mode('append').save(PATH)" in text
        text = error_of(lambda: spark.sql(f"{create.replace('table t', 'table u')} as select 1 a"))
        assert "a table of the catalog is read-only" in text
        assert not spark.catalog.tableExists("u")

    def test_altered_columns_are_refused(
        self, spark_tables: SparkSession, stores: list[Path]
    ) -> None:
        """Spark allows any ALTER TABLE, so the error of a read says how to undo it."""
        spark = spark_tables
        spark.sql(f"create table t using rocketmq options (path '{stores[0]}')")
        whole = spark.table("t").count()
        spark.sql("alter table t add columns (extra string)")
        text = error_of(spark.table("t").count)
        assert "column = 'extra': the source has no such column" in text
        assert "undo the ALTER TABLE (DROP COLUMN extra, or" in text
        spark.sql("alter table t drop column extra")
        assert spark.table("t").count() == whole
        spark.sql("alter table t drop column topic")
        assert spark.table("t").count() == whole
        spark.sql("alter table t rename column size to bytes")
        assert "RENAME COLUMN bytes TO its old name" in error_of(spark.table("t").count)

    def test_unknown_options_of_a_table_are_refused(
        self, spark_tables: SparkSession, stores: list[Path]
    ) -> None:
        spark = spark_tables
        create = "create table t {} using rocketmq options (path '{}' {})"
        text = error_of(lambda: spark.sql(create.format("", stores[0], ", topics 'usual'")))
        assert "topics = 'usual': no such option" in text
        spark.sql(create.format("(topic string)", stores[0], ""))
        assert "leave out the list of columns" in error_of(spark.table("t").count)

    def test_spark_s_own_options(self) -> None:
        given = {
            "owner": "me",
            "provider": "rocketmq",
            "location": "file:/a b",
            "path": "file:/a b",
            "comment": "c",
            "team": "data",
            "option.key": "k",
            "key": "k",
        }
        assert table_options(given) == {"key": "k", "path": "/a b"}
        assert table_options({"path": "s3://a/b", "owner": "me", "provider": "rocketmq"}) == {
            "path": "s3://a/b"
        }
        assert table_options({"path": "a", "owner": "me"}) is None
        with pytest.raises(ConfigError, match="owner = 'me': no such option"):
            parse_options({"path": "a", "owner": "me"})


class TestSeveralStores:
    def test_rows_of_several_stores_name_their_store(
        self, spark: SparkSession, stores: list[Path]
    ) -> None:
        frame = spark.read.format("rocketmq").load([str(store) for store in stores])
        assert frame.columns == [*NAMES, "store"]
        counts = {row["store"]: row["count"] for row in frame.groupBy("store").count().collect()}
        assert counts == {str(store): len(consumed(store)) for store in stores}
        some = spark.read.format("rocketmq").option("columns", "store").load(str(stores[0]))
        assert {row.store for row in some.collect()} == {str(stores[0])}

    def test_sql_reads_several_stores(self, spark: SparkSession, stores: list[Path]) -> None:
        query = "select store, count(*) from log where topic = 'rare' group by store order by 2"
        rows = sql(spark, stores, query).collect()
        assert [tuple(row) for row in rows] == [(str(stores[0]), 3), (str(stores[1]), 4)]

    def test_each_store_has_its_own_plan(self, stores: list[Path]) -> None:
        paths = f'["{stores[0]}", "{stores[1]}"]'
        text = explain(paths=paths, minPartitions="4")
        assert text.count("rocketmq ") == 2
        assert text.endswith("4 partitions")

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"paths": "a"}, r"paths = 'a': must be the JSON list that load\(\[…\]\) makes"),
            ({"paths": "[]"}, "paths = '\\[\\]': must be"),
            ({"paths": '["a"]', "path": "a"}, "path = 'a': cannot be used together with paths"),
            (
                {"paths": '["a"]', "namesrv": "h:1"},
                r"""paths = '\["a"\]': cannot be used together with namesrv""",
            ),
            (
                {"paths": '["a"]', "startingOffsets": '{"T": {"0": 1}}'},
                r"""startingOffsets = '{"T": {"0": 1}}': cannot be used with several paths""",
            ),
            ({"paths": '["a"]', "startingPhysicalOffset": "7"}, "give only one of the two"),
            ({"paths": '["a"]', "view": "damage"}, "paths.* does not apply to view=damage"),
        ],
    )
    def test_options_that_belong_to_one_store_are_refused(
        self, options: dict[str, str], error: str
    ) -> None:
        with pytest.raises(ConfigError, match=error):
            parse_options(options)

    def test_a_stream_reads_one_store(self) -> None:
        with pytest.raises(ConfigError, match=r"paths.* does not apply to a stream"):
            parse_options({"paths": '["a"]'}, stream=True)


def test_the_plan_says_what_columns_would_save(stores: list[Path]) -> None:
    path = str(stores[0])
    note = "% of it, are read: the option columns can leave them out"
    assert note in explain(path=path)
    assert note not in explain(path=path, columns="topic,size")
    assert note not in explain(path=path, subscribe="usual", key="k3")
