"""The driver of the tests' cluster: calls functions by name, one JSON request per line.

The functions are what a user would write. The answer is the class and the message of an error, or
None and the result. The session is a user's own: Firetrail's is only asked for in the jobs.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.helpers import PATIENCE_S
from tests.machine.jvm import QUICK_START
from tests.pipeline.streams import finish

from firetrail import pipeline
from firetrail.pipeline.failures import original_errors

FUNCTIONS: dict[str, Callable[..., Any]] = {}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_START,
    # Tasks wait for both executors. Without cores.max, the number of cores to wait for is 0.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.task.maxFailures": "1",  # else a task could fail on one worker and succeed on the other
    "spark.sql.shuffle.partitions": "2",
}


def offered(function: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[function.__name__] = function
    return function


@offered
def chdir(spark: SparkSession, folder: str) -> None:
    """Change the working directory, long after Spark was started."""
    os.chdir(folder)


@offered
def read(spark: SparkSession, path: str, **options: str) -> int:
    return _load(spark, path, options).count()


@offered
def places(spark: SparkSession, path: str, **options: str) -> list[int]:
    rows = _load(spark, path, options).select("physical_offset").collect()
    return sorted(row[0] for row in rows)


def _load(spark: SparkSession, path: str, options: dict[str, str]) -> DataFrame:
    reader = spark.read.format("rocketmq").options(**{"minPartitions": "6"} | options)
    return reader.load(path)


@offered
def executors(spark: SparkSession) -> int:
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return len(infos) - 1  # one is the driver


@offered
def write(spark: SparkSession, path: str, rows: int) -> None:
    """Append rows with the sink, from several tasks."""
    frame = spark.range(0, rows, 1, 4).selectExpr("'T' as topic", "cast(id as string) as body")
    frame.write.format("rocketmq").mode("append").save(path)


@offered
def stream(spark: SparkSession, path: str, place: str) -> None:
    """Copy new messages to Parquet files, and end."""
    reader = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
    reader = reader.options(minPartitions="6", maxOffsetsPerTrigger="100")
    writer = reader.load(path).select("physical_offset").writeStream
    writer = writer.option("checkpointLocation", f"{place}/checkpoint")
    writer = writer.trigger(availableNow=True)
    finish(lambda: writer.start(f"{place}/rows", format="parquet"))


@offered
def parquet(spark: SparkSession, path: str) -> list[int]:
    """Return the physical offsets that a stream has copied."""
    return sorted(row[0] for row in spark.read.parquet(path).collect())


@offered
def archive(spark: SparkSession, store: str, lake: str) -> int:
    return pipeline.archive(spark, store, lake, split_bytes=8192).messages


@offered
def restore(spark: SparkSession, lake: str, into: str) -> int:
    return pipeline.restore(spark, lake, into).messages


@offered
def audit(spark: SparkSession, store: str, work: str) -> bool:
    return pipeline.audit(spark, store, work=work).ok


@offered
def rebuild(spark: SparkSession, store: str, into: str) -> int:
    return pipeline.rebuild(spark, store, into).messages


@offered
def report(spark: SparkSession, store: str, out: str) -> int:
    return sum(topic.messages for topic in pipeline.report(spark, store, out).topics)


@offered
def replay(spark: SparkSession, store: str, target: str) -> int:
    return pipeline.replay(spark, store, target, where="topic = 'usual'").messages


def wait_until_idle(spark: SparkSession) -> None:
    """Wait for tasks that a failed job has left, so that the next job gets every executor."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + PATIENCE_S
    while any(info.numRunningTasks() for info in tracker.getExecutorInfos()):
        if time.monotonic() > deadline:
            raise TimeoutError("tasks of an earlier job are still running")
        time.sleep(0.02)


def main() -> None:
    """Serve until the end of the input."""
    builder = SparkSession.builder.master(sys.argv[1])
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        name, arguments, options = json.loads(line)
        try:
            wait_until_idle(spark)
            with original_errors():
                answer: tuple[str | None, Any] = (
                    None,
                    FUNCTIONS[name](spark, *arguments, **options),
                )
        except Exception as error:
            answer = type(error).__name__, str(error)
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
