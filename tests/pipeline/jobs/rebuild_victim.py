"""Jobs in a separate process, on a cluster of two executors, parts of which are killed.

``flags`` is a folder for files with which the processes signal each other.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE_S
from tests.machine.jvm import QUICK_START

from firetrail.pipeline import session
from firetrail.pipeline.jobs.audit import audit_job as audit
from firetrail.pipeline.jobs.audit.audit_tasks import check_log, compare
from firetrail.pipeline.jobs.rebuild import rebuild_job as rebuild
from firetrail.pipeline.jobs.rebuild.assembly import AssembledFiles, Assembly, assemble
from firetrail.pipeline.jobs.rebuild.derivation_task import derive

FLAGS = Path(os.environ.get("FIRETRAIL_TEST_FLAGS", "."))
ROOT = Path(__file__).parents[3]


class KilledOnce:
    """A task function; the first worker that completes a task is killed before it reports it."""

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        self._function = function
        self._flag = FLAGS / name

    def __call__(self, task: Any) -> Any:
        result = self._function(task)
        try:
            self._flag.touch(exist_ok=False)
        except FileExistsError:
            return result
        os.kill(os.getpid(), signal.SIGKILL)


class Stopped:
    """A task function that does its work and then never returns."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def __call__(self, task: Assembly) -> AssembledFiles:
        made = assemble(task)
        self._flag.touch()
        time.sleep(PATIENCE_S)
        return made


def main(job: str, store: str, target: str) -> None:
    """Run a job whose ``workers`` die, or which waits in its second half to be killed."""
    spark = session(
        "local-cluster[2,1,1024]" if job == "workers" else "local[2]",
        **{
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.executor.extraJavaOptions": QUICK_START,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
        },
    )
    patch = pytest.MonkeyPatch()
    if job == "driver":
        patch.setattr(rebuild, "assemble", Stopped(FLAGS / "reached"))
        rebuild.rebuild(spark, store, target)
        raise AssertionError("the driver was not killed")
    patch.setattr(rebuild, "derive", KilledOnce(derive, "derive"))
    patch.setattr(rebuild, "assemble", KilledOnce(assemble, "assemble"))
    print(rebuild.rebuild(spark, store, target))
    patch.setattr(audit, "check_log", KilledOnce(check_log, "check_log"))
    patch.setattr(audit, "compare", KilledOnce(compare, "compare"))
    report = audit.audit(spark, store, work=Path(target).parent).report
    print(report.ok, report.messages, report.units, report.index_entries)
    spark.stop()


if __name__ == "__main__":
    from tests.pipeline.jobs import rebuild_victim  # by its name, under which tasks find it, too

    rebuild_victim.main(*sys.argv[1:])
