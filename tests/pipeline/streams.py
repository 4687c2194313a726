"""Streaming queries that also run on a busy machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

STARTS = 10
TOO_LATE = "Python worker failed to connect back"
"""Spark gives the worker of a stream's source 10 s to connect, and has no setting for it."""

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


@contextmanager
def checkpoints_in(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Give queries without a checkpoint of their own one in the folder, under their name."""
    spark.conf.set(CHECKPOINTS, str(folder))
    try:
        yield
    finally:
        spark.conf.unset(CHECKPOINTS)


def finish(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and wait for its end.

    If the machine is so busy that the worker of the source starts too late, start the query again,
    as a user would: it continues from its checkpoint.
    """
    for left in reversed(range(STARTS)):
        query = start()
        try:
            query.awaitTermination()
            break
        except StreamingQueryException as error:
            if TOO_LATE not in str(error) or not left:
                raise
    return query
