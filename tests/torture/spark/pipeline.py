"""Jobs of the pipeline on Spark, killed before the first, the second, … change of a file.

Then they are run again: source must equal sink by id, whichever process was killed, and wherever.
``python -m tests.torture.spark.pipeline JOB [WHO]`` kills one job on Spark at every place.
"""

import argparse
import atexit
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.crash.oracle import Violation
from tests.crash.world.simulation import scratch, scratch_parent
from tests.machine.jvm import QUICK_START
from tests.torture.faults import HOLD, Faults
from tests.torture.spark.forked_drivers import BOUNDARIES, Forge, environment
from tests.torture.spark.jobs import JOBS, ON_SPARK_ONLY
from tests.torture.spark.victim import ROOT

WHO = ("all", "one", "executor")
"""The driver with all that it has started; the process that asks; the executor it belongs to."""
MASTERS = {"all": "local[2]", "one": "local[2,3]", "executor": "local-cluster[2,1,1024]"}
PATIENCE_S = 300
STRIDE = 37
"""From one boundary to the next of a job: few seeds see all parts of it, many see all of them."""


class Warm(Forge):
    """A Spark that stays, on which drivers are forked; its workers can be killed as they can.

    What only a death of Spark itself can show needs a :class:`Victim`.
    """

    def __init__(self, below: Path) -> None:
        from firetrail.pipeline import session

        super().__init__(below)
        os.environ.update(environment(self.faults))
        options = {"spark.driver.extraJavaOptions": QUICK_START, "spark.driver.memory": "1g"}
        try:
            self.spark = session("local[2,3]", **options, **{"spark.sql.shuffle.partitions": "2"})
        finally:
            for name in self.faults.environment:
                del os.environ[name]  # they were meant for Spark

    def kill_once(self, job: str, number: int, who: str) -> str:
        """Kill a job before a boundary, and run it again; see :func:`kill_once`."""
        self.begin()
        self.faults.heal()
        self.faults.add(BOUNDARIES, HOLD, skip=number, times=1)
        driver = self.start(job)
        place = ""
        deadline = time.monotonic() + PATIENCE_S
        while _stat(driver)[3] not in "ZX" and not self.faults.held:
            assert time.monotonic() < deadline, f"{job} takes too long"
            time.sleep(0.002)
        if held := self.faults.held:
            place = self.faults.place
            if who == "all":
                self._kill_all(driver)
            else:
                kill_if_there(held)
        done = self.ended_well()
        self.faults.heal()
        if not place and not done:
            raise Violation(f"I5: {job} does not end: {self.failure}")
        try:
            if done:
                JOBS[job].check(self.folder)  # that is what it said
            JOBS[job].run(self.spark, self.folder)
            JOBS[job].check(self.folder)
        except (AssertionError, OSError) as error:
            error.add_note(f"{job}: {who} killed before boundary {number}: {place}")
            raise
        return place

    def _kill_all(self, driver: int) -> None:
        """Kill the driver and all workers; Spark must neither repeat nor continue their tasks."""
        context = self.spark.sparkContext
        executors = context._jsc.sc().statusTracker()
        kill_if_there(driver)
        context.cancelAllJobs()
        while True:
            busy = sum(one.numRunningTasks() for one in executors.getExecutorInfos())
            jobs = context.statusTracker().getActiveJobsIds()
            for process in _workers():
                kill_if_there(process)
            if not jobs and not busy:
                return
            time.sleep(0.005)


def kill_if_there(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _workers() -> list[int]:
    """Return the workers of this process's Spark, which its Python daemon has forked."""
    parents = {int(path.name): _stat(int(path.name))[1] for path in Path("/proc").glob("[0-9]*")}
    found = []
    for process, parent in parents.items():
        above = [parent]
        while above[-1] in parents and len(above) < 5:
            above.append(parents[above[-1]])
        if [_stat(one)[0] for one in above[:2]][1:] == ["java"] and os.getpid() in above:
            found.append(process)
    return found


@functools.cache
def warm() -> Warm:
    """Return the Spark session of this process; it ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="firetrail-kills-", dir=scratch_parent()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Warm(folder)
    atexit.register(made.close)
    return made


class Victim:
    """A job on a Spark of its own, in a session of its own with all that it starts."""

    def __init__(self, job: str, folder: Path, faults: Faults, master: str) -> None:
        self._faults = faults
        self._job = job
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.spark.victim", job, str(folder), master],
            cwd=ROOT,
            env=environment(faults),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until_held(self) -> bool:
        """Wait until one of its processes is stopped, or the job is over."""
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and not self._faults.held:
            assert time.monotonic() < deadline, f"{self._job} takes too long"
            time.sleep(0.002)
        return bool(self._faults.held)

    def kill(self, who: str) -> None:
        """Kill the stopped process, its executor, or all processes."""
        held = self._faults.held
        if who == "executor":
            executor = self._executor_of(held)
            if executor is not None:
                kill_if_there(executor)
            else:
                who = "all"
        if who == "all":
            self.end()
        else:
            kill_if_there(held)

    def _executor_of(self, process: int) -> int | None:
        """Return the ancestor that is a Java process and was started by another Java process."""
        chain = [process]
        while chain[-1] != self._process.pid and (above := _stat(chain[-1])[1]) > 1:
            chain.append(above)
        java = [one for one in chain if _stat(one)[0] == "java"]
        return java[0] if len(java) > 1 else None

    def ended_well(self) -> bool:
        """Wait for the end of the job; return whether it succeeded."""
        _, self.errors = self._process.communicate(timeout=PATIENCE_S)
        self.end()
        return self._process.returncode == 0

    def end(self) -> None:
        while alive := list(_in_session(self._process.pid)):
            for process in alive:
                kill_if_there(process)
            self._process.poll()
            time.sleep(0.005)


def _stat(process: int) -> tuple[str, int, int, str]:
    """Name, parent, session and state of a process."""
    try:
        name, _, rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return "", 0, 0, "X"
    fields = rest.split()
    return name.partition("(")[2], int(fields[1]), int(fields[3]), fields[0]


def _in_session(session: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        _, _, found, state = _stat(int(path.name))
        if found == session and state not in "ZX":
            yield int(path.name)


def kill_once(job: str, below: Path, number: int, who: str, spark: Any) -> str:
    """Kill a job on a Spark of its own before a boundary, and run it again on another.

    The place, empty if it ended before.
    """
    folder = below / "run"
    folder.mkdir(parents=True)
    JOBS[job].prepare(folder)
    faults = Faults(below / "faults", folder)
    faults.add(BOUNDARIES, HOLD, skip=number, times=1)
    victim = Victim(job, folder, faults, MASTERS[who])
    place = ""
    try:
        if victim.until_held():
            place = faults.place
            victim.kill(who)
        done = victim.ended_well()
        if not place and not done:
            raise Violation(f"I5: {job} does not end: {victim.errors[-2000:]}")
        if done:
            JOBS[job].check(folder)  # that is what it said
        JOBS[job].run(spark, folder)
        JOBS[job].check(folder)
    except (AssertionError, OSError) as error:
        error.add_note(f"{job}: {who} killed before boundary {number}: {place}")
        raise
    finally:
        victim.end()
        faults.close()
        shutil.rmtree(below)
    return place


@functools.cache
def boundaries(job: str) -> int:
    """Count the boundaries of a job that runs undisturbed."""
    spark = warm()
    spark.prepare(job)
    spark.begin()
    spark.faults.heal()
    count = spark.faults.add(BOUNDARIES)
    spark.start(job)
    if not spark.ended_well():
        raise Violation(f"{job} does not end: {spark.failure}")
    JOBS[job].check(spark.folder)
    return count()


def is_cold(job: str, who: str) -> bool:
    """Return whether Spark itself must be killed: if it writes files or is several processes."""
    return who == "executor" or job in ON_SPARK_ONLY


def kill_a_job(seed: int) -> Counter[str]:
    """Kill a job once. Consecutive seeds try all jobs, all processes to kill, and all places."""
    rest, job = divmod(seed, len(JOBS))
    name = list(JOBS)[job]
    turn, kind = divmod(rest, len(WHO))
    who = WHO[kind]
    total = boundaries(name)
    number = (turn * STRIDE + turn // total) % total
    with scratch() as below:
        if is_cold(name, who):
            kill_once(name, below / "one", number, who, warm().spark)
        else:
            warm().prepare(name)
            warm().kill_once(name, number, who)
    return Counter({f"{name}: {who} killed": 1})


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture.spark.pipeline", description=__doc__
    )
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("who", choices=WHO, nargs="?", default="all", help="is killed")
    parser.add_argument("--first", type=int, default=0, help="boundary to begin with")
    parser.add_argument("--step", type=int, default=1, help="2 for every other boundary")
    args = parser.parse_args()
    walk(args.job, args.who, args.first, args.step)


def walk(job: str, who: str, first: int, step: int) -> None:
    """Kill a job before each of its boundaries on Spark, and say which they are."""
    kills = 0
    with scratch() as below:
        warm().prepare(job)
        for number in itertools.count(first, step):
            begun = time.monotonic()
            if is_cold(job, who):
                place = kill_once(job, below / str(number), number, who, warm().spark)
            else:
                place = warm().kill_once(job, number, who)
            if not place:
                break
            kills += 1
            print(f"{job} {who} {number}: {place} {time.monotonic() - begun:.1f} s", flush=True)
    print(f"{job}: {who} killed {kills} times, lost 0, twice 0", flush=True)


if __name__ == "__main__":
    from tests.torture.spark import pipeline

    pipeline.main()
