"""Functions as Spark tasks: order, original errors, progress."""

import os
import time
from operator import truediv
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.helpers import PATIENCE_S

from firetrail.errors import StoreDamagedError
from firetrail.pipeline.tasks import run_tasks


def triple(task: int) -> tuple[int, int]:
    return 3 * task, os.getpid()


def damaged(task: int) -> int:
    if task == 3:
        raise StoreDamagedError("commitlog/0", 332, 332, f"task {task}", "run firetrail fsck")
    return task


def missing(task: str) -> int:
    return os.stat(task).st_size


def half(task: int) -> float:
    quotient: float = truediv(1, task)
    return quotient


def test_results_are_in_the_order_of_the_tasks(spark: SparkSession) -> None:
    results = run_tasks(spark, triple, range(7), name="triple")
    assert [result for result, _ in results] == [0, 3, 6, 9, 12, 15, 18]
    assert os.getpid() not in {process for _, process in results}


def test_no_tasks_have_no_results(spark: SparkSession) -> None:
    assert run_tasks(spark, triple, [], name="nothing") == []


def test_errors_come_back_as_they_were_raised(spark: SparkSession) -> None:
    with pytest.raises(StoreDamagedError) as caught:
        run_tasks(spark, damaged, range(5), name="damaged")
    assert caught.value.physical_offset == 332
    assert str(caught.value).startswith("commitlog/0 at offset 332 (record 332): task 3; run")
    with pytest.raises(FileNotFoundError, match="no-such-file"):
        run_tasks(spark, missing, ["no-such-file"], name="missing")


def test_a_bug_keeps_its_traceback(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="in half"):
        run_tasks(spark, half, [1, 0], name="half")


def waiting(task: Path | None) -> None:
    """Wait for a file, which the test creates."""
    deadline = time.monotonic() + PATIENCE_S
    while task and not task.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_progress_while_tasks_run_and_at_the_end(spark: SparkSession, tmp_path: Path) -> None:
    heard: list[int] = []
    finish = tmp_path / "finish"

    def progress(done: int) -> None:
        heard.append(done)
        if done == 3:
            finish.touch()

    run_tasks(spark, waiting, [None, None, finish, None], name="waiting", progress=progress)
    assert heard == sorted(heard)
    assert 3 in heard
    assert heard[-1] == 4


def test_the_callers_job_description_stays(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setJobDescription("mine")
    run_tasks(spark, triple, [1], name="triple")
    assert context.getLocalProperty("spark.job.description") == "mine"
    assert context.getLocalProperty("spark.jobGroup.id") is None
    context.setJobDescription(None)  # type: ignore[arg-type]  # None resets it
