"""Jobs that are killed at every step of a commit and run again: source equals sink by id.

Here their drivers are forked processes without Spark, in which tasks run one after the other: each
place costs a fraction of a second. ``make torture PART=pipeline`` kills them on Spark.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.torture.faults import compiler
from tests.torture.spark.forked_drivers import BOUNDARIES, Forge, forge, walk_alone
from tests.torture.spark.pipeline import kill_once

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="faults.c needs a C compiler"),
]
STEPS = {
    "sink": 4,
    "archive parquet": 2,
    "archive delta": 3,
    "archive iceberg": 6,
    "replay": 7,
    "restore": 4,
    "rebuild": 7,
    "rebuild in place": 9,
    "stream": 10,
}
"""Only every n-th step is tried here; ``PART='pipeline without Spark'`` tries all of them."""


@pytest.fixture(scope="module")
def victim() -> Iterator[Forge]:
    with forge() as made:
        yield made


@pytest.mark.parametrize("job", STEPS)
def test_killed_at_a_commit(victim: Forge, job: str) -> None:
    step = STEPS[job]
    numbers = range(random.Random(job).randrange(step), 10_000, step)
    kills = walk_alone(victim, job, random.Random(1), BOUNDARIES, numbers)
    print(f"{kills[job]} kills")
    assert kills[job] > 15


def test_a_task_that_is_killed_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """:mod:`tests.pipeline.test_kills` kills drivers."""
    assert kill_once("sink", tmp_path / "kill", 20, "one", spark)
