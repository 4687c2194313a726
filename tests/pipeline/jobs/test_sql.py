"""SQL over a store: the tables, the columns that are read, and the output formats."""

import base64
import csv
import io
import json
import sys
import threading
from collections import Counter
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.pipeline.shops import MESSAGES, make_shop
from tests.stores import field_position, flip, log_file, records

from firetrail import Message, Store
from firetrail.cli import main as cli
from firetrail.cli.subcommand import ExitCode
from firetrail.errors import PipelineError, StoreDamagedError
from firetrail.pipeline import java
from firetrail.pipeline.jobs.query_plan import RequiredColumns, needs
from firetrail.pipeline.jobs.sql import SqlResult, sql

PER_TOPIC = (
    "select topic, count(*) as n, sum(size) as bytes from messages group by topic order by topic"
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shop(tmp_path_factory.mktemp("shop") / "data")


def per_topic(shop: Path) -> list[tuple[str, int, int]]:
    count, size = Counter[str](), Counter[str]()
    for record in records(shop):
        count[record.topic] += 1
        size[record.topic] += record.size
    return [(topic, count[topic], size[topic]) for topic in sorted(count)]


@pytest.mark.parametrize("table", ["messages", "log"])
def test_both_tables_have_all_rows(spark: SparkSession, shop: Path, table: str) -> None:
    rows = sql(spark, shop, PER_TOPIC.replace("messages", table)).collect()
    assert [tuple(row) for row in rows] == per_topic(shop)


def test_queries_may_use_tables_of_the_session(spark: SparkSession, shop: Path) -> None:
    spark.sql("select 'orders' as name, 7 as rank").createOrReplaceTempView("ranks")
    before = spark.sql("show tables").collect()
    query = "select rank, count(*) from messages m join ranks on topic = name group by rank"
    assert sql(spark, shop, query).collect()[0][0] == 7
    assert spark.sql("show tables").collect() == before
    spark.catalog.dropTempView("ranks")


@pytest.mark.parametrize("name", ["messages", "LOG"])
def test_views_of_the_session_are_as_before(spark: SparkSession, shop: Path, name: str) -> None:
    spark.range(3).createOrReplaceTempView(name)
    spark.catalog.cacheTable(name)
    try:
        rows = sql(spark, shop, PER_TOPIC.replace("messages", name)).collect()
        assert [tuple(row) for row in rows] == per_topic(shop)
        with pytest.raises(PipelineError, match="id"):
            sql(spark, shop, f"select id from {name}")
        assert [row.id for row in spark.table(name).orderBy("id").collect()] == [0, 1, 2]
        assert spark.catalog.isCached(name)
    finally:
        spark.catalog.dropTempView(name)
    assert not spark.catalog.tableExists(name)


def test_threads_may_query_different_stores(
    spark: SparkSession, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session has only one view per name, so threads must not replace each other's."""
    other = tmp_path / "other"
    with Store.open(other, small_config()) as store:
        store.put(Message("T", b"one"))
    query = "select count(*) from messages"
    entered = threading.Event()
    counts: list[int] = []

    def count_other() -> None:
        counts.append(sql(spark, other, query).collect()[0][0])

    def needs_of_both(*arguments: Any) -> dict[str, RequiredColumns]:
        if threading.current_thread() is thread:
            entered.set()
            return needs(*arguments)
        found = needs(*arguments)
        thread.start()
        assert not entered.wait(0.5)
        return found

    thread = threading.Thread(target=count_other)
    monkeypatch.setattr("firetrail.pipeline.jobs.sql.needs", needs_of_both)
    mine = sql(spark, shop, query).first()
    thread.join(60)
    assert mine is not None and mine[0] > 1
    assert counts == [1]


def test_a_query_needs_no_table(spark: SparkSession, shop: Path) -> None:
    assert sql(spark, shop, "select 1 + 1").collect()[0][0] == 2


def test_star_selects_all_columns(spark: SparkSession, shop: Path) -> None:
    row = sql(spark, shop, "select * from log order by physical_offset limit 1").collect()[0]
    assert len(row) == 18
    assert bytes(row.body) == bytes(records(shop)[0].body)


def run(*arguments: str) -> int:
    return cli.main(["pipeline", "sql", *arguments])


def test_the_command_prints_a_table(
    spark: SparkSession, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(shop), PER_TOPIC) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["topic", "n", "bytes"]
    assert [tuple(line.split()) for line in lines[1:]] == [
        (topic, str(count), str(size)) for topic, count, size in per_topic(shop)
    ]
    assert len({line.rindex(" ") < line.rindex(line.split()[-1]) for line in lines}) == 1


def test_every_type_is_shown_in_cells(
    spark: SparkSession, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = (
        "select cast('text' as binary) a, X'00ff' b, array('x', 'y') c, map('k', 1) d, null e, "
        "true f, 'a\nb' g, repeat('long', 30) h, timestamp'2026-11-15 12:00:00.5' i, 1 as a"
    )
    assert run(str(shop), query) == ExitCode.OK
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == [*"abcdefghi", "a"]
    for cell in ("text  00ff", '["x", "y"]', '{"k": 1}', " - ", "true", '"a\\nb"', "longlo", "…"):
        assert cell in row
    assert "2026-11-15T12:00:00.500Z" in row


def test_a_long_table_is_cut(
    spark: SparkSession, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(shop), "select queue_id from log", "--max", "5") == ExitCode.OK
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 6
    assert "only the first 5 rows" in shown.err


def test_the_command_prints_json(
    spark: SparkSession, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select topic, keys, body, store_time, tags from log order by physical_offset"
    assert run(str(shop), query, "--json") == ExitCode.OK
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = records(shop)
    assert len(rows) == MESSAGES
    for row, record in zip(rows, found, strict=True):
        assert base64.b64decode(row["body"]) == bytes(record.body)
        assert row["keys"] == record.properties["KEYS"].split()
        assert row["tags"] == record.properties.get("TAGS")
        assert row["store_time"].endswith("Z")


def test_the_command_prints_csv(
    spark: SparkSession, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(shop), PER_TOPIC, "--csv") == ExitCode.OK
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head == ["topic", "n", "bytes"]
    assert [(topic, int(n), int(size)) for topic, n, size in rows] == per_topic(shop)


def test_the_command_writes_parquet(
    spark: SparkSession, shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    assert run(str(shop), PER_TOPIC, "--parquet", str(target)) == ExitCode.OK
    table = pq.read_table(target)
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == per_topic(shop)
    assert run(str(shop), PER_TOPIC, "--parquet", str(target)) == ExitCode.USAGE
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("selec 1", "PARSE_SYNTAX_ERROR"),
        ("select topi from messages", "`topi`.*Did you mean.*topic"),
        ("select 1 from mesages", "TABLE_OR_VIEW_NOT_FOUND.*mesages"),
        ("", "PARSE"),
    ],
)
def test_bad_sql_is_one_line(
    spark: SparkSession, shop: Path, query: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PipelineError, match=error):
        sql(spark, shop, query)
    assert run(str(shop), query) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert shown.startswith("firetrail: error: ")
    assert len(shown.splitlines()) == 1


def test_names_of_columns_and_tables_may_have_any_case(spark: SparkSession, shop: Path) -> None:
    query = "select max(Body), count(*) from MESSAGES where `TOPIC` = 'orders'"
    (most, count) = sql(spark, shop, query).collect()[0]
    orders = [record.body for record in records(shop) if record.topic == "orders"]
    assert (most, count) == (max(orders), len(orders))


def test_a_count_notices_damage(
    spark: SparkSession, shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim, store = records(shop)[300], copytree(shop, tmp_path / "copy")
    path, at = log_file(store, victim.physical_offset)
    flip(path, field_position(path.read_bytes(), victim.physical_offset - at, at, "body"))
    for query in ("select count(*) from messages", "select count(*) from log where size > 0"):
        with pytest.raises(StoreDamagedError, match=f"{path.name} at offset {at} .*body CRC"):
            list(SqlResult(sql(spark, store, query)).rows())
        assert [*SqlResult(sql(spark, store, query, mode="permissive")).rows()] == [[MESSAGES - 1]]
    count = "select count(*) as n from log"
    assert run(str(store), count) == ExitCode.PROBLEMS
    assert "mode=permissive" in capsys.readouterr().err
    assert run(str(store), count, "--mode", "permissive", "--csv") == ExitCode.OK
    assert capsys.readouterr().out == f"n\n{MESSAGES - 1}\n"


def test_an_error_at_run_time_is_spark_s(spark: SparkSession, shop: Path) -> None:
    result = SqlResult(sql(spark, shop, "select raise_error('halt') from log"))
    with pytest.raises(Exception, match="halt"):
        list(result.lines())


def test_a_missing_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / "nowhere"), "select 1") == ExitCode.USAGE
    assert "nowhere: no such folder" in capsys.readouterr().err
    assert run(str(tmp_path), "select 1") == ExitCode.USAGE
    assert "not a message store" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["spark.x", "driver.memory=1g"])
def test_an_invalid_setting_is_one_line(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        run("data", "select 1", "--conf", setting)
    assert exit.value.code == ExitCode.USAGE
    assert "is not a Spark setting such as spark.driver.memory=4g" in capsys.readouterr().err


def test_missing_java_is_one_line(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Not by its dotted name: the package has a function of the module's name.
    module = sys.modules["firetrail.pipeline.spark_session"]
    monkeypatch.setattr(module, "active_session", lambda: None)
    monkeypatch.setattr(java, "_candidates", lambda environment: [])
    assert run(str(shop), "select 1") == ExitCode.USAGE
    assert "Spark needs Java, and none is in JAVA_HOME or on PATH" in capsys.readouterr().err
