"""Python functions as Spark tasks: one for each item, wherever Spark has a slot free."""

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
from firetrail.pipeline.session import prepare

Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL_S = 0.2


def run_tasks(
    spark: SparkSession,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    name: str,
    progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """``function`` of each task, in the order of the tasks; ``progress`` hears how many are done.

    Function, tasks and results travel pickled, and all results are in memory here at the end:
    tasks that make much leave it in files and return where. The first ``FiretrailError`` or
    ``OSError`` of a task stops the others and is raised here as it was raised there; on a cluster
    Spark first repeats the task as often as ``spark.task.maxFailures`` says.
    """
    if not tasks:
        return []
    prepare(spark)
    context = spark.sparkContext
    work: RDD[Result] = context.parallelize(tasks, len(tasks)).map(_Carrier(function))
    with (
        original_errors(),
        _job_group(context, name) as group,
        _watched(context, group, progress),
    ):
        results = work.collect()
    if progress is not None:
        progress(len(tasks))
    return results


class _Carrier(Generic[Task, Result]):
    """The function, with the errors that callers may catch packed for the way back."""

    def __init__(self, function: Callable[[Task], Result]) -> None:
        self._function = function

    def __call__(self, task: Task) -> Result:
        try:
            return self._function(task)
        except (FiretrailError, OSError) as error:
            raise carrier_of(error) from error


@contextmanager
def _job_group(context: SparkContext, name: str) -> Iterator[str]:
    """What this thread starts belongs to a group of its own, and is called ``name``."""
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
    """Tell ``progress`` now and then how many tasks of the group are done."""
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
