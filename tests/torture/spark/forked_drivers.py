"""Drivers of jobs that are forked and killed: without Spark, a life costs milliseconds."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash.oracle import Violation
from tests.crash.world.simulation import scratch
from tests.torture.faults import CHANGES, EVER, KILL, Faults, Operation
from tests.torture.spark.jobs import JOBS, WITHOUT_SPARK
from tests.torture.spark.victim import ROOT

BOUNDARIES = Operation.SYNC | Operation.CREATE | Operation.NAME | Operation.REMOVE
"""Where a commit can come apart; CHANGES are these and each write and allocation."""


def environment(faults: Faults) -> dict[str, str]:
    """That of a process whose operations count."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | faults.environment | {"PYTHONPATH": path}


class Forge:
    """A process that forks the drivers of jobs (``victim.py``), on a Spark or without one."""

    spark: Any = None

    def __init__(self, below: Path) -> None:
        self.folder = below / "run"
        self.faults = Faults(below / "faults", self.folder)
        self._prepared = below / "prepared"
        self._failed = below / "failed"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.spark.victim"],
            cwd=ROOT,
            env=environment(self.faults),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def prepare(self, job: str) -> None:
        shutil.rmtree(self._prepared, ignore_errors=True)
        self._prepared.mkdir()
        JOBS[job].prepare(self._prepared)

    def begin(self) -> None:
        """Restore the folder to its state before the job."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._prepared, self.folder)

    def start(self, job: str) -> int:
        """Start a new driver and return its process id."""
        assert self._process.stdin is not None
        found = getattr(getattr(self.spark, "_sc", None), "_gateway", None)
        gateway = (
            ("", "")
            if found is None
            else (found.gateway_parameters.port, found.gateway_parameters.auth_token)
        )
        print(job, self.folder, *gateway, sep="\t", file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def ended_well(self) -> bool:
        """Wait for the end of the driver; whether it says that the job is done."""
        self.code = self._answer()
        return self.code == 0

    @property
    def failure(self) -> str:
        """The error of the last failed job."""
        return self._failed.read_text() if self._failed.exists() else "the reason is unknown"

    def run(self, job: str, number: int = EVER, operations: Operation = CHANGES) -> str:
        """Run a job that is killed after ``number`` operations.

        Return the path of the operation that it was killed before, or "" if the job has ended.
        """
        self.faults.heal()
        self.faults.add(operations, KILL, skip=number, times=1)
        self.start(job)
        if self.ended_well():
            return ""
        if self.code != -signal.SIGKILL:
            raise Violation(f"I5: {job} cannot be run: {self.failure}")
        return self.faults.place

    def close(self) -> None:
        self._process.communicate()
        self.faults.close()


@contextmanager
def forge() -> Iterator[Forge]:
    """Yield a forge that works in memory, without Spark."""
    with scratch() as below:
        made = Forge(below)
        try:
            yield made
        finally:
            made.close()


def walk_alone(
    victim: Forge,
    job: str,
    source: random.Random,
    operations: Operation = CHANGES,
    numbers: Iterable[int] | None = None,
) -> Counter[str]:
    """Kill a job before each operation on a file, or before some; run it again each time.

    Every fourth is killed once more while it is run again.
    """
    kills = Counter[str]()
    victim.prepare(job)
    for number in itertools.count() if numbers is None else numbers:
        victim.begin()
        place = victim.run(job, number, operations)
        try:
            if place and number % 4 == 0 and victim.run(job, source.randrange(2 + number)):
                kills[f"{job}, run again"] += 1
            if place:
                victim.run(job)
            JOBS[job].check(victim.folder)
        except (AssertionError, OSError) as error:
            error.add_note(f"{job}: killed before operation {number}: {place}")
            raise
        if not place:
            break
        kills[job] += 1
    return kills


def walk_a_job(seed: int) -> Counter[str]:
    """Kill one job at all places, without Spark; the next seed takes the next job."""
    jobs = list(WITHOUT_SPARK)
    with forge() as victim:
        return walk_alone(victim, jobs[seed % len(jobs)], random.Random(seed))
