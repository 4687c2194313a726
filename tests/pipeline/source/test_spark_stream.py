"""Streams as Spark runs them: micro-batches, restarts from a checkpoint, a killed driver."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.helpers import eventually
from tests.pipeline.source.shelf import consumed, fill, some_messages
from tests.pipeline.streams import finish

from firetrail import Message

ROOT = Path(__file__).parents[3]


def follow(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    given = {"startingOffsets": "earliest"} | options
    return spark.readStream.format("rocketmq").options(**given).load(str(path))


def run(frame: DataFrame, place: Path) -> StreamingQuery:
    """Copy everything available to files; ``place`` also has the checkpoint."""
    writer = frame.writeStream.option("checkpointLocation", str(place / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    return finish(lambda: writer.start(str(place / "rows"), format="parquet"))


def numbers(spark: SparkSession, place: Path) -> list[int]:
    frame = spark.read.parquet(str(place / "rows"))
    return sorted(int(row[0]) for row in frame.selectExpr("properties['n']").collect())


def numbers_of(path: Path) -> list[int]:
    return sorted(int(row["properties"]["n"]) for row in consumed(path))


def progress_of(query: StreamingQuery) -> list[dict[str, Any]]:
    return [json.loads(progress.json) for progress in query.recentProgress]


def test_a_restart_continues_from_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Each run reads the new messages in batches of the allowed size, and reports the lag."""
    store, place = tmp_path / "store", tmp_path / "out"
    machine = fill(store, some_messages(60))
    query = run(follow(spark, store, maxOffsetsPerTrigger="25"), place)
    batches = [one for one in progress_of(query) if one["numInputRows"]]
    assert [one["numInputRows"] <= 25 for one in batches] == [True] * 3
    (source,) = batches[0]["sources"]
    assert source["latestOffset"] == batches[-1]["sources"][0]["endOffset"]
    assert numbers(spark, place) == numbers_of(store)
    fill(store, [*some_messages(20, 60), Message("new", b"", properties={"n": "80"})], machine)
    run(follow(spark, store), place)
    assert numbers(spark, place) == numbers_of(store)
    assert 80 in numbers_of(store)


def test_deleted_messages_fail_a_stream_unless_allowed(spark: SparkSession, tmp_path: Path) -> None:
    store, place = tmp_path / "store", tmp_path / "out"
    machine = fill(store, some_messages(30))
    run(follow(spark, store), place)
    before = numbers(spark, place)
    fill(store, some_messages(150, 30), machine)
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    with pytest.raises(StreamingQueryException, match=r"now begins at \d+"):
        run(follow(spark, store), place)
    run(follow(spark, store, failOnDataLoss="false"), place)
    assert numbers(spark, place) == [*before, *numbers_of(store)]
    assert before[-1] + 1 < numbers_of(store)[0], "some were lost"


DRIVER = """
import sys
from tests.pipeline.streams import finish
from firetrail.pipeline import session
store, place = sys.argv[1:]
spark = session("local[1]", **{"spark.driver.memory": "1g"})
options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
frame = spark.readStream.format("rocketmq").options(**options).load(store)
writer = frame.writeStream.option("checkpointLocation", place + "/checkpoint")
writer = writer.trigger(processingTime="0 seconds")
finish(lambda: writer.start(place + "/rows", format="parquet"))
"""


@pytest.mark.slow
def test_a_driver_that_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    store, place = tmp_path / "store", tmp_path / "out"
    fill(store, some_messages(300))
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(store), str(place)],
        cwd=ROOT,
        env=os.environ,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    commits = place / "checkpoint" / "commits"
    try:
        for _ in range(5):
            try:
                eventually(lambda: commits.exists() and len(list(commits.glob("[0-9]*"))) >= 3)
                break
            except AssertionError:
                assert driver.poll() is None, "the driver has ended by itself"
    finally:
        os.killpg(driver.pid, 9)
        driver.wait()
    done = len(list(commits.glob("[0-9]*")))
    assert 3 <= done < 27, "it was killed in the middle"
    run(follow(spark, store), place)
    assert numbers(spark, place) == numbers_of(store)
