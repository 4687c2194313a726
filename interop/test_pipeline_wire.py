"""Spark's source and sink, SQL and replay with the Java broker at the Java name server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.servers import Servers
from interop.stock import registered
from pyspark.sql import SparkSession

from firetrail import Store
from firetrail.client import Admin, Message, Producer
from firetrail.pipeline import replay, session, sql

COUNT = 3000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    started = session("local[2]")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    java = Servers("v5", tmp_path_factory.mktemp("wire"))
    with java.name_server() as address, java.broker(address, "java-a"):
        asyncio.run(prepared(address))
        yield address


async def prepared(namesrv: str) -> None:
    """Topics on the broker, which registers some seconds after its start; and a few messages."""
    await registered(namesrv)
    async with Admin(namesrv) as admin:
        for topic in ("rows", "copies", "again"):
            await admin.create_topic(topic, 4)
    async with Producer(namesrv) as producer:
        await producer.send(Message("rows", b"x" * 20_000, tags="large", keys=["k"]))


def read(spark: SparkSession, namesrv: str, topic: str, **options: str) -> list[str]:
    given = {"namesrv": namesrv, "subscribe": topic} | options
    frame = spark.read.format("rocketmq").options(**given).load()
    return sorted(row[0] for row in frame.selectExpr("string(body)").collect())


def test_rows_to_java_and_back(spark: SparkSession, namesrv: str, tmp_path: Path) -> None:
    """Every row arrives, as itself; a stream reads them by the way of its checkpoint."""
    rows = spark.range(0, COUNT, 1, 2).selectExpr(
        "'rows' as topic",
        "concat('row ', id) as body",
        "if(id % 3 = 0, 'third', 'other') as tags",
        "array(string(id)) as keys",
        "map('n', string(id)) as properties",
    )
    rows.write.format("rocketmq").option("namesrv", namesrv).mode("append").save()
    expected = sorted(f"row {n}" for n in range(COUNT))
    assert read(spark, namesrv, "rows", tags="third || other") == expected
    assert read(spark, namesrv, "rows", tags="third") == sorted(expected_thirds())
    large = read(spark, namesrv, "rows", tags="large", decompress="true")
    assert large == ["x" * 20_000], "what the client compressed"
    found = sql(
        spark,
        f"namesrv={namesrv}",
        "select count(*), count(distinct queue_id), count(distinct keys[0]), "
        "count(distinct properties['n']), count(distinct msg_id) from messages "
        "where topic = 'rows' and tags <> 'large'",
    )
    assert tuple(found.collect()[0]) == (COUNT, 4, COUNT, COUNT, COUNT)
    times = [row.store_time for row in sql(spark, f"namesrv={namesrv}", BY_TIME).collect()]
    middle = int(times[COUNT // 2].timestamp() * 1000)
    later = read(spark, namesrv, "rows", startingTimestamp=str(middle), tags="third || other")
    assert len(later) == sum(int(time.timestamp() * 1000) >= middle for time in times)

    stream = spark.readStream.format("rocketmq").option("namesrv", namesrv)
    stream = stream.option("subscribe", "rows").option("startingOffsets", "earliest")
    copies = stream.option("maxOffsetsPerTrigger", COUNT // 2).load()
    query = (
        copies.selectExpr("'copies' as topic", "body", "queue_id", "tags")
        .writeStream.format("rocketmq")
        .option("namesrv", namesrv)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert len([p for p in query.recentProgress if p.numInputRows]) >= 2
    assert read(spark, namesrv, "copies", tags="third || other") == expected


BY_TIME = "select store_time from messages where topic = 'rows' and tags <> 'large' order by 1"


def expected_thirds() -> list[str]:
    return [f"row {n}" for n in range(0, COUNT, 3)]


def test_replay(spark: SparkSession, namesrv: str, tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for number in range(500):
            store.put(Message("old", b"%d" % number, tags="t", queue_id=number % 6))
    goal = f"namesrv={namesrv}"
    assert replay(spark, tmp_path, goal, where="true", topic="again").messages == 500
    assert replay(spark, tmp_path, goal, where="true", topic="again").messages == 0
    assert read(spark, namesrv, "again") == sorted(map(str, range(500)))
