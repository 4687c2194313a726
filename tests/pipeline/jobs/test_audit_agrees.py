"""An audit finds what ``fsck`` finds: runs the tests of ``fsck`` with both.

The tasks run in this process, one after the other, which is much quicker and shows the same;
``test_audit`` runs them with Spark.
"""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.store.checks import DELAYS, checked
from tests.store.conftest import ours, v4  # noqa: F401 (fixtures of the tests below)
from tests.store.inspect.fsck import test_check, test_check_derived, test_check_repeats
from tests.store.inspect.fsck.test_check import *  # noqa: F403
from tests.store.inspect.fsck.test_check_derived import *  # noqa: F403
from tests.store.inspect.fsck.test_check_repeats import *  # noqa: F403

from firetrail.format.values.delay import DelayLevels
from firetrail.pipeline.jobs.audit import audit_job
from firetrail.pipeline.jobs.audit.audit_job import audit
from firetrail.store.inspect.fsck.report import CheckReport
from firetrail.system import System


class Here:
    """The part of a Spark session that an audit uses."""

    defaultParallelism = 2

    @property
    def sparkContext(self) -> "Here":
        return self


def run_here(
    spark: Any,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    *,
    name: str,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Any]:
    """Run each task here, with the task and its result pickled as for a worker."""
    results = []
    for task in tasks:
        results.append(pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(task))))))
        progress(len(results))
    return results


def by_both(
    root: Path, *, system: System | None = None, delays: DelayLevels = DELAYS
) -> CheckReport:
    report = checked(root, system=system, delays=delays)
    if system is None:  # other systems simulate faults in their own process only
        audited = audit(Here(), root, delays=delays, work=root.parent).report  # type: ignore[arg-type]
        assert sorted_report(audited) == sorted_report(report)
    return report


def sorted_report(report: CheckReport) -> dict[str, Any]:
    as_json = report.as_json()
    for name in ("problems", "warnings"):
        as_json[name] = sorted(as_json[name], key=str)
    return as_json


@pytest.fixture(autouse=True)
def both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_job, "run_tasks", run_here)
    for module in (test_check, test_check_derived):
        monkeypatch.setattr(module, "checked", by_both)
    monkeypatch.setattr(
        test_check_repeats, "check_store", lambda view, delays: by_both(view.root, delays=delays)
    )
