"""Python functions as Spark tasks: one task per item, run wherever Spark has a free slot."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

from firetrail.errors import FiretrailError
from firetrail.pipeline.failures import carrier_of, original_errors

Task = TypeVar("Task")
R = TypeVar("R")

OnPlan = Callable[[int], Callable[[int], None] | None]
"""Called with the number of tasks; returns a callback for the number of completed ones, or None."""

_POLL_S = 0.2


def run_tasks(
    spark: SparkSession,
    function: Callable[[Task], R],
    tasks: Sequence[Task],
    *,
    name: str,
    progress: Callable[[int], None] | None = None,
) -> list[R]:
    """Apply ``function`` to each task on Spark's workers and return the results in task order.

    Function, tasks and results are pickled, and the driver holds all results in memory. A task with
    a large result should write it to a file and return the path. The first ``FiretrailError`` or
    ``OSError`` of a task stops the others and is raised here unchanged. On a cluster Spark first
    retries the task, up to ``spark.task.maxFailures`` times.

    Args:
        spark: The session to run on.
        function: Picklable function of one task.
        tasks: Its arguments, one per Spark task.
        name: Description of the job in Spark's UI and logs.
        progress: Called now and then with the number of completed tasks.
    """
    if not tasks:
        return []
    from firetrail.pipeline.datasource import prepare  # workers import this module, but not that

    prepare(spark)
    context = spark.sparkContext
    work: RDD[R] = context.parallelize(tasks, len(tasks)).map(_Carrier(function))
    with original_errors(), _job_group(context, name) as group, _watched(context, group, progress):
        results = work.collect()
    if progress is not None:
        progress(len(tasks))
    return results


class _Carrier(Generic[Task, R]):
    """Wraps the function so that errors which callers may catch survive the way to the driver."""

    def __init__(self, function: Callable[[Task], R]) -> None:
        self._function = function

    def __call__(self, task: Task) -> R:
        try:
            return self._function(task)
        except (FiretrailError, OSError) as error:
            raise carrier_of(error) from error


@contextmanager
def _job_group(context: SparkContext, name: str) -> Iterator[str]:
    """Run the jobs that this thread starts in a group of their own, described as ``name``."""
    group = f"firetrail-{uuid.uuid4().hex}"
    keys = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {key: context.getLocalProperty(key) for key in keys}
    context.setJobGroup(group, name, interruptOnCancel=True)
    try:
        yield group
    finally:
        for key, value in before.items():
            context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None removes it


@contextmanager
def _watched(
    context: SparkContext, group: str, progress: Callable[[int], None] | None
) -> Iterator[None]:
    """Report the number of completed tasks of the group to ``progress`` every ``_POLL_S``."""
    if progress is None:
        yield
        return
    ended = threading.Event()
    tracker = context.statusTracker()

    def done() -> int:
        jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
        stages = filter(
            None, (tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds)
        )
        return sum(stage.numCompletedTasks for stage in stages)

    def watch() -> None:
        while not ended.wait(_POLL_S):
            progress(done())

    watcher = threading.Thread(target=watch, name="firetrail-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
