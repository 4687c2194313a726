"""The needs of queries, and equal results over tables with only the needed rows and columns."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.pipeline.shops import make_shop

from firetrail.errors import PipelineError
from firetrail.pipeline.jobs.query_plan import RequiredColumns, needs
from firetrail.pipeline.jobs.sql import VIEWS, sql
from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS, Bounds
from firetrail.pipeline.source.schema import NAMES, ddl

DAY = 86_400_000
NOVEMBER = 20_758 * DAY  # 2026-11-01


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shop(tmp_path_factory.mktemp("shop") / "data")


def found(spark: SparkSession, query: str) -> dict[str, RequiredColumns]:
    schema = StructType.fromDDL(ddl(NAMES))
    assert isinstance(schema, StructType)
    try:
        return needs(spark, query, dict.fromkeys(VIEWS, schema))
    finally:
        for name in VIEWS:
            spark.catalog.dropTempView(name)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("select count(*) from messages", {"messages": ""}),
        ("select topic from messages where false", {"messages": " ".join(NAMES)}),
        (
            "select TOPIC, `Body` from MESSAGES where Queue_Id = 1",
            {"messages": "topic queue_id body"},
        ),
        (
            "select M.Keys[0] from Messages m, LOG where m.SIZE = log.Flag",
            {"messages": "keys size", "log": "flag"},
        ),
        ("select Topic from (select TAGS as topic from log)", {"log": "tags"}),
        ("select log(2), 'messages'", {}),
        (
            "select queue_offset from messages where topic = 'orders'",
            {"messages": "topic queue_offset"},
        ),
        (
            "select q from (select *, queue_id as q, flag from log) where size > 5",
            {"log": "queue_id size"},
        ),
        (
            "select topic from log where size > (select avg(flag) from log)",
            {"log": "topic flag size"},
        ),
        (
            "with a as (select * from log where flag = 0) "
            "select a.queue_id from a join a b on a.physical_offset = b.physical_offset",
            {"log": "queue_id physical_offset flag"},
        ),
        (
            "select tags from messages union all select topic from log",
            {"messages": "tags", "log": "topic"},
        ),
        (
            "select topic, row_number() over (partition by tags order by store_time) from log",
            {"log": "topic tags store_time"},
        ),
        (
            "select k from messages lateral view explode(keys) as k where queue_id = 1",
            {"messages": "queue_id keys"},
        ),
        (
            "select topic from messages m where exists "
            "(select flag from log l where l.physical_offset = m.physical_offset and l.size > 9)",
            {"messages": "topic physical_offset", "log": "physical_offset size"},
        ),
        (
            "select topic, (select max(size) from log where log.topic = messages.topic) "
            "from messages",
            {"messages": "topic", "log": "topic size"},
        ),
        ("select count(*) from (select distinct topic, tags from log)", {"log": "topic tags"}),
        ("select to_json(struct(m.*)) from messages m", {"messages": " ".join(NAMES)}),
        (
            "select paid from (select topic, tags, size from messages) "
            "pivot (sum(size) for tags in ('paid' as paid))",
            {"messages": "topic tags size"},
        ),
    ],
)
def test_only_columns_that_a_query_needs_are_read(
    spark: SparkSession, shop: Path, query: str, columns: dict[str, str]
) -> None:
    need = found(spark, query)
    assert {name: " ".join(each.columns) for name, each in need.items()} == columns


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        ("topic = 'a' and queue_id = 3L", Bounds(frozenset({"a"}), frozenset({3}))),
        ("'a' <=> topic", Bounds(frozenset({"a"}))),
        ("TOPIC = 'A' and `Queue_Id` in (3)", Bounds(frozenset({"A"}), frozenset({3}))),
        ("topic in ('a', null) or topic = 'b'", Bounds(frozenset({"a", "b"}))),
        (f"queue_id in ({', '.join(map(str, range(20)))})", Bounds(queue_ids=frozenset(range(20)))),
        (
            f"queue_id in ({', '.join(map(str, range(1, 20)))}, null)",
            Bounds(queue_ids=frozenset(range(1, 20))),
        ),
        (
            f"queue_offset in ({', '.join(map(str, range(1, 20)))}, null)",
            Bounds(queue_offsets=(1, 20)),
        ),
        ("topic = 'a' and body = X'00'", Bounds(frozenset({"a"}))),
        ("topic = 'a' and body in (X'00', X'01')", Bounds(frozenset({"a"}))),
        ("topic in ('a', 'b') and topic <> 'b'", Bounds(frozenset({"a", "b"}))),
        ("queue_offset between 3 and 7", Bounds(queue_offsets=(3, 8))),
        ("not (queue_offset < 3 or 7 < queue_offset)", Bounds(queue_offsets=(3, 8))),
        ("physical_offset < 100 and size < 5", Bounds(physical_offsets=(0, 100))),
        ("msg_id = 'x' and msg_id = topic", Bounds(frozenset({"x"}))),
        ("store_time >= '2026-11-01'", Bounds(times=(NOVEMBER, TIME_MAX))),
        ("cast(store_time as date) = date'2026-11-01'", Bounds(times=(NOVEMBER, NOVEMBER + DAY))),
        (
            "store_time < timestamp'2026-11-01 01:00:00 Europe/Paris'",
            Bounds(times=(TIME_MIN, NOVEMBER)),
        ),
        ("topic = 'a' or size = 5", NO_BOUNDS),
        ("topic = 'A' collate utf8_lcase", NO_BOUNDS),
        ("upper(topic) = 'A'", NO_BOUNDS),
        ("topic like 'a%'", NO_BOUNDS),
        ("queue_id + 1 = 2 and rand() < 2", NO_BOUNDS),
        ("topic = (select max(topic) from messages)", NO_BOUNDS),
    ],
)
def test_conditions_become_bounds(spark: SparkSession, condition: str, bounds: Bounds) -> None:
    need = found(spark, f"select size from messages where {condition}")["messages"]
    assert need.bounds == bounds


def test_a_column_with_the_name_of_another_has_no_bounds_of_that_one(spark: SparkSession) -> None:
    query = "select 1 from (select tags as Topic, topic as tags, size as queue_id from messages)"
    need = found(spark, f"{query} where TOPIC = 'a' and Tags = 'b' and queue_id = 3")
    assert need["messages"] == RequiredColumns(("topic", "tags", "size"), Bounds(frozenset({"b"})))


def test_spark_decides_whether_case_counts(spark: SparkSession, shop: Path) -> None:
    query = "select count(*) from messages where TOPIC = 'orders'"
    assert sql(spark, shop, query).first() == sql(spark, shop, query.lower()).first()
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(PipelineError, match="UNRESOLVED_COLUMN"):
            sql(spark, shop, query)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_several_uses_need_what_any_of_them_needs(spark: SparkSession) -> None:
    query = (
        "select size from messages where topic = 'a' and queue_offset < 5 union all "
        "select flag from messages where topic = 'b' and queue_offset between 3 and 7"
    )
    assert found(spark, query)["messages"] == RequiredColumns(
        ("topic", "queue_offset", "flag", "size"),
        Bounds(topics=frozenset({"a", "b"}), queue_offsets=(0, 8)),
    )
    query = query.replace("and queue_offset < 5", "") + " union all select 1 from messages"
    assert found(spark, query)["messages"].bounds == NO_BOUNDS


@pytest.mark.parametrize(
    ("condition", "has_begin"),
    [
        ("store_time > now() - interval 1 hour", True),
        ("store_time between current_timestamp() - interval 2 days and now()", True),
        ("store_time >= date_sub(current_date(), 3) and topic = 'a'", True),
        ("store_time = now()", True),
        ("now() - store_time < interval 1 hour", False),
        ("if(now() < '2030-01-01', store_time > '2026-11-01', store_time > '2026-12-01')", False),
        ("store_time > timestamp'yesterday'", False),
        ("store_time > cast('today' as timestamp) and store_time < now()", False),
        ("topic = string(current_date())", False),
    ],
)
def test_conditions_on_the_current_time_keep_only_lower_bounds(
    spark: SparkSession, condition: str, has_begin: bool
) -> None:
    """A frame is planned again whenever it is used, and ``now()`` has changed then."""
    bounds = found(spark, f"select size from messages where {condition}")["messages"].bounds
    assert (bounds.times[0] > NOVEMBER) == has_begin
    assert bounds.times[1] == TIME_MAX
    assert has_begin or bounds == NO_BOUNDS
    assert bounds.topics == (frozenset({"a"}) if "topic = 'a'" in condition else None)


@pytest.mark.parametrize(
    "query",
    [
        "select size from messages where {later} or topic = 'b'",
        "select size from messages where {later} union all "
        "select flag from messages where topic = 'b'",
    ],
)
def test_what_is_empty_now_may_not_be_empty_later(spark: SparkSession, query: str) -> None:
    later = "(topic = 'a' and store_time >= '2100-01-01' and store_time < now())"
    bounds = found(spark, query.format(later=later))["messages"].bounds
    assert bounds.topics == frozenset({"a", "b"})


def test_a_computed_time_may_fall_back_while_the_clock_advances(spark: SparkSession) -> None:
    """A month before March 30, 23:00 is later than a month before March 31, 0:00."""
    query = "select size from messages where store_time > {}"
    bounds = found(spark, query.format("now() - interval 1 month"))["messages"].bounds
    month = spark.sql("select unix_millis(now() - interval 1 month)").collect()[0][0]
    assert month - 3 * DAY < bounds.times[0] < month - DAY
    twice = query.format("now() - interval 1 month - interval 1 month")
    assert found(spark, twice)["messages"].bounds == NO_BOUNDS


def test_a_time_that_is_selected_prunes_nothing(spark: SparkSession) -> None:
    query = "select * from (select *, now() as n from messages) where store_time < n"
    assert found(spark, query)["messages"].bounds == NO_BOUNDS


@pytest.mark.parametrize(
    ("query", "same"),
    [
        ("select q from (select topic, queue_id as q from log)", "select queue_id from log"),
        (
            "select b from (select *, 1 as a, physical_offset as b from log"
            " union all select *, queue_offset, size from log)",
            "select explode(array(physical_offset, size)) from log",
        ),
        (
            "select topic from (select * from log except all select * from log where false)",
            "select topic from log",
        ),
        ("select size from (select size, flag from log intersect select size, 0 from messages)",
         "select distinct size from log where flag = 0"),
    ],
)  # fmt: skip
def test_columns_that_are_not_needed_keep_their_place(
    spark: SparkSession, shop: Path, query: str, same: str
) -> None:
    """A query may use them by position, and set operations count them."""
    query = query.replace("*", "* except (properties)") if "except all" in query else query
    (one,) = sql(spark, shop, f"select count(*), sum(hash(*)) from ({query})").collect()
    assert one == sql(spark, shop, f"select count(*), sum(hash(*)) from ({same})").first()


def test_columns_that_were_not_read_cannot_be_reached(spark: SparkSession, shop: Path) -> None:
    """Without an alias, Spark resolves a filter of the result with columns that were not read."""
    frame = sql(spark, shop, "select topic from log")
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        frame.where("size > 5").count()
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        frame.orderBy("size").collect()
    assert frame.where("topic = 'orders'").count() > 0


def test_commands_run_once_over_everything(spark: SparkSession, shop: Path, tmp_path: Path) -> None:
    count = sql(spark, shop, "select count(*) from log").first()
    sql(
        spark,
        shop,
        f"create table shop_copy using parquet location '{tmp_path}/copy' as "
        "select topic, size from log",
    )
    try:
        assert spark.sql("select count(*) from shop_copy").first() == count
        sql(spark, shop, "insert into shop_copy select topic, size from messages where size > 0")
        assert spark.sql("select count(*) / 2 from shop_copy").first() == count
        sql(spark, shop, "create temp view all_orders as select * from log where topic = 'orders'")
        orders = sql(spark, shop, "select count(*) from all_orders").first()
        assert orders == sql(spark, shop, "select count_if(topic = 'orders') from log").first()
    finally:
        spark.sql("drop table shop_copy")
        spark.catalog.dropTempView("all_orders")


def test_a_null_in_a_long_list_of_values(spark: SparkSession, shop: Path) -> None:
    """Spark converts a list of more than ten values, including null, to a set."""
    values = ", ".join(map(str, range(1, 13)))
    query = "select count(*) from messages where queue_id in ({})"
    without = sql(spark, shop, query.format(values)).first()
    assert sql(spark, shop, query.format(f"{values}, null")).first() == without
    assert without is not None and without[0] > 0


@pytest.mark.parametrize(
    "script",
    [
        "begin declare n bigint; set n = (select count(*) from log); select n; end",
        "begin declare n string default 'LO'; select count(*) from identifier(n || 'g'); end",
    ],
)
def test_a_script_reads_its_tables(spark: SparkSession, shop: Path, script: str) -> None:
    assert sql(spark, shop, script).first() == sql(spark, shop, "select count(*) from log").first()
