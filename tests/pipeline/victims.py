"""Programs for tests of kills: ``python victims.py JOB ARGUMENTS…``. Each works slowly on
purpose, so that it can be killed in the middle."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.machine.jvm import QUICK_START

from firetrail.pipeline import session
from firetrail.pipeline.jobs.archive import archive_job
from firetrail.pipeline.jobs.archive.parquet_files import ArchivePart, WrittenPart, archive_part
from firetrail.pipeline.jobs.replay import replay_job
from firetrail.pipeline.jobs.replay.targets import StoreTarget
from firetrail.pipeline.lakes.lake import Lake

PAUSE_S = 0.15


def _session(master: str) -> SparkSession:
    if active := SparkSession.getActiveSession():
        return active
    return session(
        master,
        **{
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.executor.extraJavaOptions": QUICK_START,
        },
    )


def slow_part(part: ArchivePart) -> WrittenPart:
    """Like archive_part, but with a pause for each part."""
    time.sleep(PAUSE_S)
    return archive_part(part)


def dying_part(part: ArchivePart) -> WrittenPart:
    """Like archive_part; the first worker that archives the second part is killed at its end."""
    written = archive_part(part)
    mark = Path(part.store).with_name("died")
    if part.start > 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return written


def slowly(function: Any) -> Any:
    """Return the function with a pause before it."""

    def called(*args: Any, **more: Any) -> Any:
        time.sleep(PAUSE_S)
        return function(*args, **more)

    return called


def archive(store: str, lake: str) -> None:
    """Archive part by part; then publish slowly."""
    archive_job.archive_part = slow_part  # type: ignore[attr-defined]
    Lake.publish = slowly(Lake.publish)  # type: ignore[method-assign]
    archive_job.archive(_session("local[2]"), store, lake, split_bytes=4096)


def replay(store: str, target: str) -> None:
    StoreTarget.commit_messages = 5
    replay_job.replay(_session("local[2]"), store, target, where="topic = 'orders'")


def stream(source: str, store: str, checkpoint: str) -> None:
    """Write files of JSON to a store, one file per batch."""
    frames = _session("local[2]").readStream.schema("topic string, body string")
    query = (
        frames.option("maxFilesPerTrigger", 1)
        .json(source)
        .writeStream.format("rocketmq")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(store)
    )
    query.awaitTermination()


def cluster(store: str, lake: str, back: str) -> None:
    """Run the main jobs on executors in separate processes, one of which is killed."""
    from firetrail.pipeline.jobs.restore import restore

    spark = _session("local-cluster[2,1,1024]")
    archive_job.archive_part = dying_part  # type: ignore[attr-defined]
    done = archive_job.archive(spark, store, lake, split_bytes=4096)
    restore(spark, lake, back)
    frame = spark.range(0, 100, 1, 4).selectExpr("'sunk' as topic", "cast(id as string) as body")
    frame.write.format("rocketmq").mode("append").save(back)
    print(done.messages)
    spark.stop()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
